"""Networks whose outputs depend on the rest of a batch or on chance, in eval mode: a warning names it, once."""

import warnings
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn
from torch.nn import functional as F

from skal import config_context
from skal.exceptions import NetworkError, OutputError, UnsteadyOutputWarning, UnsupportedLayerError
from skal.loss_prediction import LossPredictionClassifier
from skal.strategies import BADGE, BALD, EGL, NPC, CoreSet, DynamicAL, LearningLoss, Margin, NTKLookahead, UHerding
from skal.tangent import tangent_kernel

STRATEGIES = [Margin(), CoreSet(), BADGE(random_state=0), EGL(), DynamicAL(), NPC(random_state=0), UHerding()]
STRATEGIES += [BALD(random_state=0), NTKLookahead(reference="linearized", random_state=0), LearningLoss()]
BY_BATCH = {
    "differences from the mean": lambda z: z - z.mean(0),
    "batch norm in training mode": lambda z: F.batch_norm(z, None, None, training=True),
    "softmax over the batch": lambda z: 10 * z.softmax(0),
    "each row with the one before": lambda z: z + torch.cat([torch.zeros_like(z[:1]), z[:-1]]),
}
BY_CHANCE = {"noise": lambda z: z + 0.01 * torch.randn_like(z), "dropout": lambda z: F.dropout(z, 0.5)}


class Changed(nn.Module):
    """A small network whose logits are changed at last."""

    def __init__(self, change=None):
        super().__init__()
        self.hidden, self.norm, self.dropout = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.head, self.change = nn.Linear(16, 4), change

    def forward(self, x):
        logits = self.head(self.dropout(torch.relu(self.norm(self.hidden(x)))))
        return logits if self.change is None else self.change(logits)


def make_learner(change=None, n=50, strategy=None):
    torch.manual_seed(0)
    X, y = np.random.default_rng(0).normal(size=(12 + n, 6)).astype(np.float32), np.arange(12) % 4
    settings = {"criterion": nn.CrossEntropyLoss, "train_split": None, "verbose": 0, "max_epochs": 1}
    if isinstance(strategy, LearningLoss):
        net = LossPredictionClassifier(Changed(change), **settings).fit(X[:12], y)
    else:
        net = NeuralNetClassifier(Changed(change), **settings).initialize()
    return SimpleNamespace(estimator=net, X_training=X[:12], y_training=y), X[12:]


def warnings_of(call):
    """What it warns of; some cannot go on afterwards, because the gradients of single samples are zero, for example."""
    with warnings.catch_warnings(record=True) as caught, suppress(NetworkError, OutputError, UnsupportedLayerError):
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught if each.category is UnsteadyOutputWarning]


@pytest.mark.parametrize("change", BY_BATCH)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
def test_outputs_that_depend_on_the_batch_are_named(strategy, change):
    learner, X = make_learner(BY_BATCH[change], strategy=strategy)
    (said,) = warnings_of(lambda: strategy.select(learner, X, 3))
    assert "depend on the other samples of its batch" in said


@pytest.mark.parametrize("change", BY_CHANCE)
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
def test_outputs_that_depend_on_chance_are_named(strategy, change):
    learner, X = make_learner(BY_CHANCE[change], strategy=strategy)
    (said,) = warnings_of(lambda: strategy.select(learner, X, 3))
    assert "change from pass to pass" in said


@pytest.mark.parametrize("n", [1, 2, 3, 50, 300])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: type(strategy).__name__)
def test_steady_networks_are_left_in_peace(strategy, n):
    """Batch norm with running statistics and dropout layers are as they should be in eval mode."""
    learner, X = make_learner(n=n, strategy=strategy)
    assert warnings_of(lambda: strategy.select(learner, X, 1)) == []


@pytest.mark.parametrize("n", [2, 3, 100])
def test_few_and_many_samples_show_it(n):
    learner, X = make_learner(BY_BATCH["differences from the mean"], n=n)
    assert len(warnings_of(lambda: Margin().select(learner, X, 1))) == 1


@pytest.mark.parametrize("strategy", [Margin(), BALD(random_state=0), LearningLoss()], ids=repr)
def test_it_is_noticed_in_this_process_if_passes_are_shared(strategy):
    learner, X = make_learner(BY_CHANCE["noise"], strategy=strategy)
    with config_context(progress=True):
        assert len(warnings_of(lambda: strategy.select(learner, X, 3))) == 1


def test_the_tangent_engine_notices():
    learner, X = make_learner(BY_BATCH["batch norm in training mode"])
    assert len(warnings_of(lambda: tangent_kernel(learner.estimator, X))) == 1


def test_a_module_may_write_into_its_input():
    class Overwrites(Changed):
        def forward(self, x):
            logits = super().forward(x)
            x.zero_()
            return logits

    learner, X = make_learner()
    learner.estimator.module_.__class__ = Overwrites
    assert warnings_of(lambda: Margin().select(learner, X, 3)) == []


def test_a_state_that_is_kept_counts_as_chance():
    class Counts(Changed):
        calls = 0

        def forward(self, x):
            Counts.calls += 1
            return super().forward(x) + Counts.calls * torch.arange(4.0)

    learner, X = make_learner()
    learner.estimator.module_.__class__ = Counts
    (said,) = warnings_of(lambda: Margin().select(learner, X, 3))
    assert "a state that it keeps" in said


def test_outputs_in_another_order_are_named():
    class StaysSorted(Changed):
        def forward(self, x):
            return super().forward(x[x[:, 0].argsort()])

    learner, X = make_learner()
    learner.estimator.module_.__class__ = StaysSorted
    for strategy in (Margin(), CoreSet(), EGL()):
        assert len(warnings_of(lambda s=strategy: s.select(learner, X, 3))) >= 1
