"""Where gradients cancel or vanish, strategies use another kernel or say by name what is wrong."""

import warnings
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from skorch import NeuralNetClassifier
from torch import nn

from skal import LinearizedLearner
from skal.exceptions import InvalidParameterError, OutputError, RankDeficiencyWarning, VanishingKernelWarning
from skal.nets import MLP, SquaredLoss
from skal.strategies import NPC, MaxHerding, NTKLookahead

KERNELS = ["auto", "pntk", "logit", "trace", "entk", "last_layer"]


class Probabilities(MLP):
    """A softmax that is trained with squared loss."""

    def forward(self, x):
        return torch.softmax(super().forward(x), dim=-1)


class Centred(MLP):
    def forward(self, x):
        logits = super().forward(x)
        return logits - logits.mean(dim=1, keepdim=True)


class Constant(MLP):
    """All units are dead."""

    def forward(self, x):
        return torch.relu(super().forward(x) - 1000)


class OneOutput(MLP):
    def __init__(self, *args, **kwargs):
        super().__init__(5, 1, hidden=(16,))


def make_learner(kind, dtype=torch.float64):
    X = np.random.default_rng(0).normal(size=(40, 5))
    torch.manual_seed(0)
    criterion = nn.BCEWithLogitsLoss if kind is OneOutput else SquaredLoss
    net = NeuralNetClassifier(
        lambda: kind(5, 3, hidden=(16,)), criterion=criterion, train_split=None, verbose=0
    ).initialize()
    net.module_.to(dtype)
    y = (np.arange(10) % 2).astype(float) if kind is OneOutput else np.arange(10) % 3
    return SimpleNamespace(estimator=net, X_training=X[:10], y_training=y), X[10:]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", [Probabilities, Centred])
@pytest.mark.parametrize(
    "strategy",
    [
        NTKLookahead(),
        NTKLookahead(criterion="emoc", batch="greedy"),
        NTKLookahead(criterion="mlmoc", retraining="direct"),
        NPC(random_state=0),
        NPC(search="greedy"),
    ],
    ids=str,
)
def test_the_trace_stands_in_where_the_sum_of_outputs_is_constant(strategy, kind, dtype):
    learner, X_pool = make_learner(kind, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficiencyWarning)  # of short floats
        answer = strategy.select(learner, X_pool, 3)
        expected = strategy.__class__(**strategy.get_params() | {"kernel": "trace"}).select(learner, X_pool, 3)
    np.testing.assert_array_equal(answer[0], expected[0])
    np.testing.assert_array_equal(answer[1], expected[1])
    if dtype == torch.float64:
        assert (answer[1] != 0).all()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            short = strategy.select(make_learner(kind, torch.float32)[0], X_pool, 3)
        np.testing.assert_array_equal(short[0], answer[0])


def test_features_and_the_sequential_learner_use_it_too():
    learner, X_pool = make_learner(Centred)
    assert len(MaxHerding(features="tangent").select(learner, X_pool, 3)[0]) == 3
    sequential = LinearizedLearner(learner.estimator, NTKLookahead(), X_training=None)
    sequential.X_training, sequential.y_training = learner.X_training, learner.y_training
    _, _, metrics = sequential.query(X_pool, 2, return_metrics=True)
    assert (metrics > 0).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", [Probabilities, Centred])
@pytest.mark.parametrize("strategy", [NTKLookahead(kernel="pntk"), NPC(kernel="pntk", random_state=0)], ids=str)
def test_a_pseudo_ntk_that_was_asked_for_and_vanishes_is_named(strategy, kind, dtype):
    learner, X_pool = make_learner(kind, dtype)
    owner = type(strategy).__name__
    with warnings.catch_warnings(record=True) as caught, suppress(OutputError):  # or the linear algebra gives up
        warnings.simplefilter("always")
        strategy.select(learner, X_pool, 3)
    (text,) = [str(warning.message) for warning in caught if warning.category is VanishingKernelWarning]
    assert f"{owner} uses vanishes" in text
    assert "Use kernel='auto'" in text


@pytest.mark.filterwarnings("ignore::skal.exceptions.CrossEntropyWarning")
@pytest.mark.parametrize("kind", [MLP, OneOutput])
def test_other_networks_keep_the_pseudo_ntk(kind):
    learner, X_pool = make_learner(kind)
    for make in (NTKLookahead, NPC):
        answers = [make(kernel=kernel, random_state=0).select(learner, X_pool, 3) for kernel in ("auto", "pntk")]
        np.testing.assert_array_equal(*(answer[0] for answer in answers))
        np.testing.assert_array_equal(*(answer[1] for answer in answers))


@pytest.mark.filterwarnings("ignore::skal.exceptions.RankDeficiencyWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("options", [{}, {"search": "greedy"}, {"ridge": 0.0}, {"batch": "greedy"}], ids=str)
@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_of_zero_are_refused_by_name(kernel, options, dtype):
    makes = [make for make in (NTKLookahead, NPC) if set(options) <= set(make().get_params())]
    for make in makes:
        if (make, kernel) in [(NTKLookahead, "last_layer"), (NPC, "entk")]:
            continue
        learner, X_pool = make_learner(Constant, dtype)
        with pytest.raises(OutputError, match=r"gradients must not all be zero\. Got zeros.* Look for dead units"):
            make(kernel=kernel, **options).select(learner, X_pool, 3)


@pytest.mark.filterwarnings("ignore::skal.exceptions.CrossEntropyWarning")
@pytest.mark.parametrize("make", [NTKLookahead, NPC])
def test_the_constant_logit_of_one_output_is_refused_by_name(make):
    with pytest.raises(InvalidParameterError, match=r"'kernel' parameter of .* must be 'trace', 'pntk' or 'auto'"):
        make(kernel="logit").select(*make_learner(OneOutput), 3)


@pytest.mark.filterwarnings("ignore::skal.exceptions.SkalWarning")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", [Probabilities, Centred, OneOutput])
@pytest.mark.parametrize("ridge", [0.0, 1e-4])
@pytest.mark.parametrize("batch", ["top", "greedy"])
def test_matrix_kernels_that_are_singular_are_solved(kind, dtype, ridge, batch):
    strategy = NTKLookahead(kernel="entk", ridge=ridge, batch=batch)
    indices, metrics = strategy.select(*make_learner(kind, dtype), 5)
    assert len(set(indices.tolist())) == 5
    assert np.isfinite(metrics).all()
