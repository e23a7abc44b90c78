"""The forecast of a query: passes are counted, memory and time measured; no test looks at a clock."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from skal import config_context
from skal.base import Passes, QueryCost
from skal.features import Cache
from skal.strategies import (
    ALBL,
    BADGE,
    BALD,
    EGL,
    CoreSet,
    DynamicAL,
    Entropy,
    LeastConfidence,
    Margin,
    NTKLookahead,
    RandomSampling,
)

from .support.learners import learner_of, net_of
from .support.networks import count_hooks

N = 60  # of the small pool
CASES = [
    RandomSampling(random_state=0),
    LeastConfidence(),
    Entropy(subset=30, random_state=0),
    BALD(n_passes=3, random_state=0),
    CoreSet(),
    BADGE(random_state=0),
    EGL(layers="last"),
    DynamicAL(),
    NTKLookahead(reference="linearized", random_state=0),
    ALBL(random_state=0),
]


class Counting(nn.Module):
    """Knows how many samples went forward and backward."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Dropout(), nn.Linear(8, 3))
        self.count = [0, 0]

    def forward(self, x):
        self.count[0] += len(x)
        output = self.layers(x)
        if output.requires_grad:
            output.register_hook(lambda g: self.count.__setitem__(1, self.count[1] + len(g)))
        return output


@pytest.fixture(name="learner")
def counting_learner(flat_data):
    torch.manual_seed(0)
    return learner_of(net_of(Counting()), flat_data[0][:9], flat_data[1][:9])


def pool(n):
    return np.random.default_rng(1).normal(size=(n, 5)).astype(np.float32)


@pytest.mark.parametrize("strategy", CASES, ids=repr)
def test_passes_are_those_that_are_made(strategy, learner):
    X, module = pool(N), learner.estimator.module_
    copy.deepcopy(strategy).select(learner, X, 5)  # how a network is differentiated is found out once
    forecast = strategy.cost(learner, X, 5).passes
    module.count[:] = 0, 0
    copy.deepcopy(strategy).select(learner, X, 5)
    assert [forecast.forward, forecast.backward] == module.count


@pytest.mark.parametrize(("strategy", "passes"), [(Margin(), 1), (BALD(n_passes=2, random_state=0), 2)], ids=repr)
def test_passes_over_a_large_pool_are_extrapolated(strategy, passes, learner):
    module, n = learner.estimator.module_, 20_000
    cost = strategy.cost(learner, pool(n), 5)
    assert passes * n <= cost.passes.forward <= passes * n + 24
    assert module.count[0] < n  # nothing like the query itself was made


def test_memory_grows_with_the_pool_up_to_the_bound(learner):
    costs = [CoreSet().cost(learner, pool(n), 5).memory for n in (2_000, 200_000)]
    assert costs[1] > 10 * costs[0] > 0
    with config_context(max_memory=costs[1] // 4):
        assert CoreSet().cost(learner, pool(200_000), 5).memory <= costs[1] // 4


def test_a_forecast_changes_nothing_and_says_what_it_found(learner):
    strategy = ALBL(random_state=np.random.RandomState(0))
    state = strategy.random_state.get_state()[1].tolist()
    before = torch.get_rng_state()
    cost = strategy.cost(learner, pool(N), 5)
    assert isinstance(cost, QueryCost)
    assert cost.seconds > 0
    assert cost.memory > 0
    assert "samples forward" in str(cost)
    assert not hasattr(strategy, "weights_")
    assert strategy.random_state.get_state()[1].tolist() == state
    assert torch.equal(torch.get_rng_state(), before)
    assert count_hooks(learner.estimator.module_) == 0


def test_a_cache_is_not_counted_on_and_not_filled(learner):
    X, expected = pool(N), Margin().cost(learner, pool(N), 5).passes
    learner.cache = Cache()
    Margin().select(learner, X, 5)
    assert Margin().cost(learner, X, 5).passes == expected
    learner.estimator.module_.count[:] = 0, 0
    Margin().select(learner, X[::-1].copy(), 5)
    assert (
        learner.estimator.module_.count[0] == N + 4
    )  # which are passed again, to see whether their outputs stay the same


def test_a_classifier_without_a_network_has_no_passes(flat_data):
    X, y = flat_data
    learner = SimpleNamespace(estimator=LogisticRegression().fit(X, y), X_training=X, y_training=y)
    cost = Margin().cost(learner, X, 3)
    assert cost.passes == Passes(0, 0)
    assert cost.seconds > 0


def test_bad_arguments_are_refused_before_anything_is_measured(learner):
    with pytest.raises(ValueError, match="n_instances"):
        Entropy().cost(learner, pool(N), 0)
    with pytest.raises(ValueError, match="subset"):
        Entropy(subset=0).cost(learner, pool(N), 1)
    assert learner.estimator.module_.count == [0, 0]
