"""ClusterMargin against the definition, in loops."""

import numpy as np
import pytest
from sklearn.base import BaseEstimator, ClassifierMixin

from skal.exceptions import InvalidParameterError
from skal.strategies import ClusterMargin

from ..support.learners import learner_of


class Known(ClassifierMixin, BaseEstimator):
    """Says how sure it is in the last column of X."""

    def fit(self, X, y):
        self.classes_ = np.array([0, 1])
        return self

    def predict_proba(self, X):
        gap = X[:, -1]
        return np.column_stack([0.5 + gap / 2, 0.5 - gap / 2])


def blobs(n_blobs=6, n=20, seed=0):
    """Blobs far from one another on a circle, and gaps between the two classes."""
    rng = np.random.default_rng(seed)
    angles = np.repeat(np.arange(n_blobs) * 2 * np.pi / n_blobs, n) + 0.1 * rng.normal(size=n_blobs * n)
    gaps = rng.uniform(0, 0.4, size=len(angles))
    return np.column_stack([np.cos(angles), np.sin(angles), gaps])


def positions(X):
    return X[:, :2]


def learner_on(X):
    return learner_of(Known().fit(X, None), X[:4], np.array([0, 1, 0, 1]))


def test_one_of_each_cluster_nearest_to_the_weighed_mean():
    X = blobs()
    picked, metrics = ClusterMargin(features=positions, oversample=100, random_state=0).select(learner_on(X + 9), X, 6)
    assert sorted(np.asarray(picked) // 20) == list(range(6))
    for pick in picked:
        rows = range(pick // 20 * 20, pick // 20 * 20 + 20)
        weights = [1 - X[i, -1] for i in rows]
        centre = sum(w * X[i, :2] for w, i in zip(weights, rows, strict=True)) / sum(weights)
        distances = {i: float(((X[i, :2] - centre) ** 2).sum()) for i in rows}
        assert pick == min(distances, key=distances.get)
    np.testing.assert_allclose(metrics, 1 - X[picked, -1])
    assert (np.diff(metrics) <= 0).all()


def test_only_the_most_uncertain_take_part():
    X = blobs()
    order = np.argsort(X[:, -1])
    picked, _ = ClusterMargin(features=positions, oversample=3, random_state=0).select(learner_on(X + 9), X, 10)
    assert set(picked) <= set(order[:30])
    alone, _ = ClusterMargin(features=positions, oversample=1, random_state=0).select(learner_on(X + 9), X, 10)
    np.testing.assert_array_equal(alone, order[:10])  # which is margin sampling


def test_copies_of_one_another_and_of_labelled_samples_are_left_out():
    X = blobs(n=5)
    pool = np.concatenate([X, X])
    learner = learner_of(Known().fit(X, None), X[:4], np.array([0, 1, 0, 1]))
    picked, _ = ClusterMargin(features=positions, random_state=0).select(learner, pool, 20)
    rows = {tuple(row) for row in pool[picked]}
    assert len(rows) == 20
    assert not rows & {tuple(row) for row in X[:4]}


def test_a_batch_with_more_samples_than_different_ones_is_filled():
    pool = np.repeat(blobs(n_blobs=3, n=1), 4, axis=0)
    picked, _ = ClusterMargin(features=positions, random_state=0).select(learner_on(pool + 9), pool, 10)
    assert len(set(picked.tolist())) == 10
    assert len({tuple(row) for row in pool[picked[:3]]}) == 3


def test_samples_that_the_model_is_sure_of_can_be_clustered():
    X = blobs()
    X[:, -1] = 1.0
    assert len(set(ClusterMargin(features=positions, random_state=0)(learner_on(X + 9), X, 8))) == 8


def test_an_unknown_uncertainty_is_named():
    with pytest.raises(InvalidParameterError, match="uncertainty"):
        ClusterMargin(uncertainty="doubt")(learner_on(blobs()), blobs(), 2)
