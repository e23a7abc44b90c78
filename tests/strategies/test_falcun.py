"""Falcun against the paper's loop, written in plain numbers."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from skal.strategies import Falcun

from ..support.learners import Told, learner_of, numbered


def relevances_oracle(proba, picked):
    """(n, N) relevances of all samples before each of the picks."""
    n = len(proba)
    ordered = [sorted(row) for row in proba.tolist()]
    uncertainty = [1 - (row[-1] - row[-2]) for row in ordered]
    distance = list(uncertainty)
    found = []
    for pick in picked:
        found.append([uncertainty[i] + distance[i] for i in range(n)])
        for i in range(n):
            distance[i] = min(distance[i], sum(abs(a - b) for a, b in zip(proba[i], proba[pick], strict=True)))
        low, high = min(distance), max(distance)
        distance = [(value - low) / (high - low) if high > low else 0.0 for value in distance]
    return np.array(found)


def draw_relevant(proba, n_instances, gamma, random_state=0):
    """What Falcun chooses where a classifier predicts these probabilities."""
    strategy = Falcun(gamma=gamma, random_state=random_state)
    return strategy.select(learner_of(Told(proba)), numbered(len(proba)), n_instances)


def some_proba(n=40, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(4), size=n)


def test_metrics_are_the_relevances_of_the_formula():
    proba = some_proba()
    picked, relevance = draw_relevant(proba, 15, 10.0)
    assert len(set(picked.tolist())) == 15
    np.testing.assert_allclose(relevance, relevances_oracle(proba, picked)[range(15), picked])


@pytest.mark.parametrize("gamma", [0.0, 2.0, 10.0])
def test_draws_are_in_proportion_to_a_power_of_the_relevance(gamma):
    proba = some_proba(5)
    rng = np.random.default_rng(0)
    first = [draw_relevant(proba, 1, gamma, rng)[0][0] for _ in range(500)]
    weights = relevances_oracle(proba, [0])[0] ** gamma
    np.testing.assert_allclose(np.bincount(first, minlength=5) / 500, weights / weights.sum(), atol=0.06)


def test_a_large_power_takes_the_most_relevant():
    proba = some_proba()
    picked, relevance = draw_relevant(proba, 10, 1e6)
    free = relevances_oracle(proba, picked)
    for number in range(10):
        free[number, picked[:number]] = -1
    np.testing.assert_allclose(relevance, free.max(1))


def test_copies_come_last_and_certainty_is_no_obstacle():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3))
    model = LogisticRegression().fit(X, np.arange(30) % 3)
    picked = Falcun(random_state=0)(learner_of(model, X, np.arange(30) % 3), np.concatenate([X, X]), 40)
    assert sorted(picked[:30] % 30) == list(range(30))
    certain = np.eye(3)[np.arange(12) % 3]
    assert sorted(draw_relevant(certain, 12, 10.0)[0]) == list(range(12))
