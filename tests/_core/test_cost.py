"""The forecast of a query: passes exactly, by counting; no test looks at a clock."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from skal.reuse import feature_reuse

from skal._core.cost import forecast_seconds
from skal.base import Passes, QueryCost
from skal.strategies import (
    ALBL,
    BADGE,
    BALD,
    EGL,
    NPC,
    CoreSet,
    DynamicAL,
    Entropy,
    LearningLoss,
    LeastConfidence,
    Margin,
    NTKLookahead,
    RandomSampling,
)

CASES = [
    RandomSampling(random_state=0),
    LeastConfidence(),
    Margin(),
    Entropy(subset=30, random_state=0),
    LearningLoss(),
    BALD(n_passes=3, random_state=0),
    BALD(n_passes=3, batch="joint", random_state=0),
    BALD(n_passes=3, batch="joint", max_memory=8 * 3 * 3 * 40, random_state=0),
    CoreSet(),
    BADGE(random_state=0),
    EGL(),
    EGL(layers="last"),
    DynamicAL(),
    DynamicAL(gamma=0),
    DynamicAL(batch="greedy", random_state=0),
    NTKLookahead(random_state=0),
    NTKLookahead(evaluation=20, random_state=0),
    ALBL(random_state=0),
]


def passes_through(learner, strategy, X, n_instances):
    """Samples forward and backward through the module in one query."""
    module, count = learner.estimator.module_, [0, 0]

    def forward(_, args, output):
        count[0] += len(args[0])
        if output.requires_grad:
            output.register_hook(lambda g: count.__setitem__(1, count[1] + len(g)))

    # the inner network: a module that predicts its own loss calls it
    inner = next(m for m in module.modules() if type(m).__name__ == "CNN")
    handle = inner.register_forward_hook(forward)
    try:
        with feature_reuse(None):
            copy.deepcopy(strategy).select(learner, X, n_instances)
    finally:
        handle.remove()
    return np.array(count)


@pytest.mark.parametrize("strategy", CASES, ids=repr)
def test_passes_are_those_that_are_made(strategy, image_learner, squared_learner, images, monkeypatch):
    """The difference between two pools: looking at the network takes a few samples besides, the same for both."""
    monkeypatch.setattr("skal.base.forecast_seconds", lambda *args, **kwargs: 1.0)
    learner = squared_learner if isinstance(strategy, NTKLookahead) else image_learner
    copy.deepcopy(strategy).select(learner, images[0][20:], 5)  # how a network is differentiated is found out once
    made, forecast = [], []
    for n in (60, 100):
        X = images[0][20 : 20 + n]
        made.append(passes_through(learner, strategy, X, 5))
        passes = strategy.cost(learner, X, 5).passes
        forecast.append(np.array([passes.forward, passes.backward]))
    assert (made[1] - made[0]).tolist() == (forecast[1] - forecast[0]).tolist()
    labelled = [passes.labelled_forward, passes.labelled_backward]
    rest = made[0] - forecast[0] - labelled
    assert (rest >= 0).all()
    assert (rest <= 80).all()


def test_npc_forecasts_the_points_that_its_batches_hold(image_learner, images, monkeypatch):
    monkeypatch.setattr("skal.base.forecast_seconds", lambda *args, **kwargs: 1.0)
    X = images[0][20:]
    strategy = NPC(n_candidates=10, random_state=0)
    made = passes_through(image_learner, strategy, X, 5)[0]
    passes = strategy.cost(image_learner, X, 5).passes
    forecast = passes.forward + passes.labelled_forward
    assert 0.9 * forecast <= made <= 1.1 * forecast + 40  # some look at the network first, eight at a time


def test_a_forecast_changes_nothing_and_says_what_it_found(image_learner, images):
    strategy = ALBL(random_state=np.random.RandomState(0))
    state = strategy.random_state.get_state()[1].tolist()
    before = torch.get_rng_state()
    cost = strategy.cost(image_learner, images[0][20:], 5)
    assert isinstance(cost, QueryCost)
    assert cost.seconds > 0
    assert cost.memory > 0
    assert "samples forward" in str(cost)
    assert not hasattr(strategy, "weights_")
    assert strategy.random_state.get_state()[1].tolist() == state
    assert torch.equal(torch.get_rng_state(), before)


def test_bad_arguments_are_refused_before_anything_is_timed(image_learner, images):
    with pytest.raises(ValueError, match="n_instances"):
        Entropy().cost(image_learner, images[0], 0)
    with pytest.raises(ValueError, match="n_jobs"):
        Entropy(n_jobs=0).cost(image_learner, images[0], 1)


def test_seconds_follow_the_work(monkeypatch):
    """A query that takes 1 s and 0.01 s for each unit of work, by a clock of its own."""
    monkeypatch.setattr("skal._core.cost.timed", lambda strategy, learner, X, b, size: 1 + 0.01 * size**2)
    strategy = SimpleNamespace()
    seconds = forecast_seconds(strategy, None, np.zeros((1000, 1)), 1, (10, 20), lambda n: float(n) ** 2)
    assert seconds == pytest.approx(1 + 0.01 * 1000**2)
    assert forecast_seconds(strategy, None, np.zeros((15, 1)), 1, (10, 20), float) == pytest.approx(1 + 0.01 * 15**2)


def test_passes_add_up():
    assert Passes(1, 2, 3, 4) + Passes(10, 20) == Passes(11, 22, 3, 4)
