"""MaxDet against the determinant of the kernel, computed anew for every candidate."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from skal.strategies import MaxDet

from ..support.learners import learner_of
from ..support.regressors import make_regression_learner, make_targets, tangent_rows


def slow_max_det(pool, labelled, n_instances, noise=1e-4):
    """The candidate with the largest variance, from a solve with everything labelled or chosen so far."""
    known, picked, metrics = list(labelled), [], []
    for _ in range(n_instances):
        L = np.array(known).reshape(len(known), pool.shape[1])
        A = L @ L.T + noise * np.eye(len(L))
        S = [x @ x - (L @ x) @ np.linalg.solve(A, L @ x) for x in pool]
        best = max((i for i in range(len(pool)) if i not in picked), key=lambda i: S[i])
        picked.append(best)
        metrics.append(S[best])
        known.append(pool[best])
    return picked, metrics


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("n_labelled", [1, 10])
def test_all_picks_of_a_batch_with_a_network(k, n_labelled):
    learner, X_pool = make_regression_learner(n_labelled, k=k)
    picked, metrics = slow_max_det(*tangent_rows(learner, X_pool), 12)
    indices, variances = MaxDet().select(learner, X_pool, 12)
    assert indices.tolist() == picked
    assert variances == pytest.approx(metrics, rel=1e-6, abs=1e-10)


def test_more_labels_than_features():
    X, y = make_targets(60)
    learner = learner_of(Ridge().fit(X[:20], y[:20]), X[:20], y[:20, 0])
    scale = np.sqrt(np.square(X[20:]).sum(axis=1).mean())
    picked, metrics = slow_max_det(X[20:] / scale, X[:20] / scale, 10, noise=0.1)
    indices, variances = MaxDet(features="input", noise=0.1).select(learner, X[20:], 10)
    assert indices.tolist() == picked
    assert variances == pytest.approx(metrics)


def test_the_batch_has_a_large_determinant():
    """Of all batches that begin with its first sample, none of two samples has a larger one."""
    learner, X_pool = make_regression_learner()
    pool, labelled = tangent_rows(learner, X_pool)
    indices, _ = MaxDet().select(learner, X_pool, 2)

    def determinant(batch):
        rows = np.concatenate([labelled, pool[batch]])
        return np.linalg.slogdet(rows @ rows.T + 1e-4 * np.eye(len(rows)))[1]

    others = [determinant([indices[0], j]) for j in range(len(pool)) if j != indices[0]]
    assert determinant(indices) == pytest.approx(max(others))


def test_copies_come_last():
    X, y = make_targets(30)
    learner = learner_of(Ridge().fit(X[:3], y[:3]), X[:3], y[:3, 0])
    X_pool = np.concatenate([X[:3], X[3:6], X[3:6]])
    indices, _ = MaxDet(features="input").select(learner, X_pool, 9)
    assert sorted(i - 3 * (i > 5) for i in indices[:3].tolist()) == [3, 4, 5]
    assert sorted(indices.tolist()) == list(range(9))
