"""Forecasts of what a query takes, against what it really takes."""

import numpy as np
import pytest
import torch
from torch import nn

from skal.base import Passes, ScoreStrategy
from skal.config import config_context
from skal.strategies import (
    ALBL,
    BADGE,
    BAIT,
    BALD,
    EGL,
    CoreSet,
    DropQuery,
    DynamicAL,
    Entropy,
    Margin,
    MaxHerding,
    NTKLookahead,
    RandomSampling,
    UHerding,
)

from ..support.learners import learner_of, net_of

N = 1500  # more than the forecast looks at


@pytest.fixture(scope="module")
def problem():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    X = np.random.default_rng(0).normal(size=(N + 20, 6)).astype(np.float32)
    return learner_of(net_of(module), X[:20], np.arange(20) % 4), X[20:]


def count_forward(learner, task):
    """Samples that go through the module."""
    seen = []
    handle = learner.estimator.module_.register_forward_hook(lambda layer, args, output: seen.append(len(args[0])))
    task()
    handle.remove()
    return sum(seen)


@pytest.mark.parametrize(
    "strategy",
    [Margin(), BALD(n_passes=3, random_state=0), BADGE(random_state=0), CoreSet(), MaxHerding(), ALBL(random_state=0)],
    ids=str,
)
def test_forward_passes_are_those_of_the_query(strategy, problem):
    learner, X = problem
    cost = strategy.cost(learner, X, 5)
    assert cost.passes == Passes(count_forward(learner, lambda: strategy.select(learner, X, 5)), 0)
    assert cost.memory > 0
    assert cost.seconds > 0


@pytest.mark.parametrize("backend", ["structured", "func", "backpack"])
def test_backward_passes_over_pool_and_labelled_set(backend, problem):
    learner, X = problem
    few = 100  # samples on which a network is looked at
    dynamic = DynamicAL(backend=backend).cost(learner, X, 5).passes
    assert N + 20 <= dynamic.forward <= N + 20 + few
    assert N + 20 <= dynamic.backward <= N + 20 + few
    assert 4 * N <= EGL(backend=backend).cost(learner, X, 5).passes.backward <= 4 * N + few


@pytest.mark.parametrize(
    "strategy",
    [
        UHerding(random_state=0),
        UHerding(kernel="forest", random_state=0),
        BAIT(random_state=0),
        DropQuery(random_state=0),
        ALBL(random_state=0),
        NTKLookahead(kernel="rbf", random_state=0),
        NTKLookahead(random_state=0),
    ],
    ids=str,
)
def test_features_and_predictions_of_the_pool_take_one_pass(strategy, problem):
    learner, X = problem
    few = 150  # the labelled samples, and those on which the network is looked at
    assert N <= count_forward(learner, lambda: strategy.select(learner, X, 5)) <= N + few


def test_no_network_no_passes(problem):
    learner, X = problem
    assert RandomSampling().cost(learner, X, 5).passes == Passes(0, 0)


class Keeps(ScoreStrategy):
    """Keeps a known number of bytes for every sample."""

    needs_network = False

    def __init__(self, *, library="numpy", power=1, subset=None, random_state=None):
        self.library = library
        self.power = power
        self.subset = subset
        self.random_state = random_state

    def _score(self, context):
        shape = (context.n_pool, 10_000 if self.power == 1 else 10 * context.n_pool)
        kept = np.ones(shape) if self.library == "numpy" else torch.ones(shape, dtype=torch.float64)
        view = kept[:, 0]
        return np.asarray(view) + 0.0


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_memory_is_what_arrays_and_tensors_take(library, problem):
    learner, X = problem
    assert Keeps(library=library).cost(learner, X).memory == pytest.approx(80_000 * N, rel=0.1)
    assert Keeps(library=library, power=2).cost(learner, X).memory == pytest.approx(80 * N**2, rel=0.1)
    assert Keeps(library=library, subset=300).cost(learner, X).memory == pytest.approx(80_000 * 300, rel=0.1)


def test_a_bound_is_a_bound_of_the_forecast(problem):
    learner, X = problem
    assert MaxHerding().cost(learner, X, 5).memory > 5_000_000
    with config_context(max_memory="5MB"):
        assert MaxHerding(random_state=0).cost(learner, X, 5).memory <= 5_500_000


def test_nothing_is_changed_by_a_forecast(problem):
    learner, X = problem
    strategy = ALBL(random_state=np.random.default_rng(0))
    before = strategy.random_state.bit_generator.state, torch.get_rng_state(), np.random.get_state()[1].tolist()
    strategy.cost(learner, X, 5)
    after = strategy.random_state.bit_generator.state, torch.get_rng_state(), np.random.get_state()[1].tolist()
    assert before[0] == after[0]
    assert before[2] == after[2]
    assert torch.equal(before[1], after[1])
    assert strategy.get_state() == {}
    assert not hasattr(learner, "cache")


def test_a_forecast_in_words(problem):
    learner, X = problem
    text = str(Entropy().cost(learner, X, 5))
    assert f"{N:,}"[:2] in text
    assert "samples forward and 0 backward" in text
