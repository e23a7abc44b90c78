"""LCMD against its definition, one sample and one distance at a time."""

import numpy as np
import pytest
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge

from skal.strategies import LCMD

from ..support.learners import learner_of
from ..support.regressors import make_regression_learner, make_targets, tangent_rows


def slow_lcmd(pool, labelled, n_instances):
    """Every point belongs to its nearest centre; the largest sum of squared distances; its farthest point."""
    centres, picked, metrics = list(labelled), [], []
    for _ in range(n_instances):
        if not centres:
            best = max(range(len(pool)), key=lambda i: np.square(pool[i]).sum())
            metrics.append(np.square(pool[best]).sum())
        else:
            squares = np.array([[np.square(x - c).sum() for c in centres] for x in pool])
            nearest, distance = squares.argmin(axis=1), squares.min(axis=1)
            sums = [distance[nearest == k].sum() for k in range(len(centres))]
            inside = [i for i in range(len(pool)) if nearest[i] == np.argmax(sums)]
            best = max(inside, key=lambda i: distance[i])
            metrics.append(distance[best])
        picked.append(best)
        centres.append(pool[best])
    return picked, metrics


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("n_labelled", [1, 10])
def test_all_picks_of_a_batch_with_a_network(k, n_labelled):
    learner, X_pool = make_regression_learner(n_labelled, k=k)
    picked, metrics = slow_lcmd(*tangent_rows(learner, X_pool), 15)
    indices, squares = LCMD().select(learner, X_pool, 15)
    assert indices.tolist() == picked
    assert squares == pytest.approx(metrics)


def test_without_labels_the_longest_comes_first():
    learner, X_pool = make_regression_learner()
    pool, labelled = tangent_rows(learner, X_pool)
    alone = learner_of(learner.estimator)
    assert LCMD().select(alone, X_pool, 8)[0].tolist() == slow_lcmd(pool, labelled[:0], 8)[0]


def test_a_forest_is_seen_by_the_predictions_of_its_trees():
    X, y = make_targets(80)
    forest = RandomForestRegressor(15, random_state=0).fit(X[:20], y[:20, 0])
    trees = np.stack([tree.predict(X) for tree in forest.estimators_], axis=1)
    phi = trees - trees.mean(axis=1, keepdims=True)
    picked, _ = slow_lcmd(phi[20:], phi[:20], 10)
    assert LCMD().select(learner_of(forest, X[:20], y[:20, 0]), X[20:], 10)[0].tolist() == picked


def test_given_features_are_used_as_they_are():
    X, y = make_targets(60)
    learner = learner_of(Ridge().fit(X[:5], y[:5]), X[:5], y[:5, 0])
    picked, _ = slow_lcmd(X[5:], X[:5], 12)
    assert LCMD(features="input").select(learner, X[5:], 12)[0].tolist() == picked


def test_a_long_sketch_gives_nearly_the_exact_distances():
    learner, X_pool = make_regression_learner(width=64)
    exact = LCMD(n_features=None).select(learner, X_pool, 1)[1]
    sketched = LCMD(n_features=20_000).select(learner, X_pool, 1)[1]
    assert sketched == pytest.approx(exact, rel=0.05)


def test_copies_come_last():
    X, y = make_targets(30)
    learner = learner_of(Ridge().fit(X[:3], y[:3]), X[:3], y[:3, 0])
    X_pool = np.concatenate([X[:3], X[3:6], X[3:6]])  # copies of labelled samples, three samples twice
    indices, squares = LCMD(features="input").select(learner, X_pool, 9)
    assert sorted(indices[:3].tolist()) == [3, 4, 5]
    assert sorted(indices.tolist()) == list(range(9))
    assert (squares[3:] == 0).all()
