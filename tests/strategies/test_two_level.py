"""Pools whose embeddings do not fit: a shortlist of every part, then a choice among those."""

import warnings

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skal.config import config_context
from skal.exceptions import InvalidParameterError, TwoLevelWarning
from skal.strategies import BADGE, CoreSet
from skal.strategies._badge import nearest_masses
from skal.strategies._two_level import select_in_levels

from ..support.learners import learner_of

MEMORY = 16_000  # room for a hundred samples of the clustered pool


def largest(values, seen=None):
    def choose(rows, n, masses):
        if seen is not None:
            seen.append(len(rows))
        part = values[np.asarray(rows)]
        best = np.argsort(-part, kind="stable")[:n]
        return best, part[best], None

    return choose


@pytest.mark.parametrize("room", [20, 25, 40, 99])
def test_levels_find_what_a_single_choice_finds_when_parts_are_independent(room):
    values = np.random.default_rng(0).normal(size=1000)
    seen = []
    with pytest.warns(TwoLevelWarning, match=f"holds only {room} of"):
        indices, metrics = select_in_levels(1000, 10, room, largest(values, seen), "Largest", "1KB")
    assert indices.tolist() == np.argsort(-values)[:10].tolist()
    assert np.array_equal(metrics, values[indices])
    assert max(seen) <= room


def test_all_at_once_while_there_is_room():
    values = np.random.default_rng(0).normal(size=100)
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for room in (None, 100):
            select_in_levels(100, 10, room, largest(values, seen), "Largest", None)
    assert seen == [100, 100]


def test_less_room_than_two_batches_is_refused():
    with pytest.raises(InvalidParameterError, match=r"max_memory.*Largest.*two batches.*room for 19"):
        select_in_levels(100, 10, 19, largest(np.zeros(100)), "Largest", "1KB")


def test_masses_are_handed_on_and_kept():
    given = []

    def choose(rows, n, masses):
        given.append(masses.sum())
        share = np.full(n, masses.sum() / n)
        return np.arange(n), np.zeros(n), share

    with pytest.warns(TwoLevelWarning):
        select_in_levels(1000, 5, 30, choose, "Any", "1KB")
    assert given[-1] == pytest.approx(1000)


def test_masses_count_the_nearest():
    rng = np.random.default_rng(0)
    q, phi = torch.as_tensor(rng.normal(size=(50, 3))), torch.as_tensor(rng.normal(size=(50, 4)))
    mass = torch.as_tensor(rng.uniform(1, 3, size=50))
    g = (q[:, :, None] * phi[:, None]).flatten(1)
    picked = np.array([4, 17, 30])
    nearest = torch.cdist(g, g[picked]).argmin(1).numpy()
    expected = [mass.numpy()[nearest == k].sum() for k in range(3)]
    np.testing.assert_allclose(nearest_masses(q, phi, picked, mass), expected)


@pytest.fixture(scope="module")
def clustered():
    """A linear network on 600 points in eight clusters."""
    rng = np.random.default_rng(0)
    X = (10 * rng.normal(size=(8, 6))[np.arange(600) % 8] + rng.normal(size=(600, 6))).astype(np.float32)
    torch.manual_seed(0)
    net = NeuralNetClassifier(nn.Linear(6, 3), criterion=nn.CrossEntropyLoss, verbose=0).initialize()
    return learner_of(net, X[:2], np.array([0, 1])), X


def test_coreset_covers_nearly_as_well(clustered):
    learner, X = clustered

    def radius(picked):
        centres = torch.as_tensor(np.concatenate([X[:2], X[picked]]))
        return float(torch.cdist(torch.as_tensor(X), centres).amin(1).max())

    once = CoreSet()(learner, X, 8)
    with pytest.warns(TwoLevelWarning), config_context(max_memory=MEMORY):
        twice = CoreSet()(learner, X, 8)
    assert len(set(twice.tolist())) == 8
    rng = np.random.default_rng(1)
    assert radius(twice) <= 1.25 * radius(once)
    assert radius(twice) < np.median([radius(rng.choice(600, 8, replace=False)) for _ in range(20)])


def test_badge_spreads_nearly_as_well_and_repeatably(clustered):
    learner, X = clustered
    weight = learner.estimator.module_.weight.detach().double()
    logits = torch.as_tensor(X).double() @ weight.T + learner.estimator.module_.bias.detach().double()
    q = torch.softmax(logits, 1) - nn.functional.one_hot(logits.argmax(1), 3)
    g = (q[:, :, None] * torch.as_tensor(X).double()[:, None]).flatten(1)

    def objective(picked):
        return float(torch.cdist(g, g[picked]).amin(1).square().sum())

    with pytest.warns(TwoLevelWarning), config_context(max_memory=MEMORY):
        twice = [BADGE(random_state=seed)(learner, X, 8) for seed in [*range(10), 3]]
    assert twice.pop().tolist() == twice[3].tolist()
    once = [BADGE(random_state=seed)(learner, X, 8) for seed in range(10)]
    rng = np.random.default_rng(1)
    random = [rng.choice(600, 8, replace=False) for _ in range(10)]
    assert np.mean([*map(objective, twice)]) <= 1.5 * np.mean([*map(objective, once)])
    assert np.mean([*map(objective, twice)]) < np.mean([*map(objective, random)])
