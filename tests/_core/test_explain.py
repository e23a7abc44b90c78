"""Tests of skal._core.mistakes: what users usually did wrong, in words that help."""

import numpy as np
import pandas as pd
import pytest
import torch
from skorch import NeuralNetClassifier, NeuralNetRegressor
from skorch.callbacks import Callback
from skorch.dataset import ValidSplit
from torch import nn

from skal import ActiveLearner, ActiveLearningClassifier
from skal.checks import make_learner
from skal.exceptions import InvalidTypeError, NetworkError, OutputError
from skal.nets import MLP
from skal.strategies import Margin

X, y = np.random.default_rng(0).normal(size=(24, 4)).astype(np.float32), np.arange(24) % 3


def net(module=None, cls=NeuralNetClassifier, **params):
    settings = {"criterion": nn.CrossEntropyLoss, "train_split": None, "verbose": 0, "max_epochs": 1}
    return cls(module or MLP(4, 3), **(settings | params))


POOLS = {
    "integers": ((X > 0).astype(np.int64), r"dtype int64.*weights are float32.*X\.astype\('float32'\)"),
    "bytes": ((X > 0).astype(np.uint8), r"dtype uint8.*X\.astype\('float32'\)"),
    "columns": (X[:, :3], r"shape \(24, 3\).*shape that the network was trained on"),
    "frame": (pd.DataFrame(X, columns=list("abcd")), r"names: rename them, or pass an array.*to_numpy"),
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # pandas' columns are not
@pytest.mark.parametrize(("pool", "words"), POOLS.values(), ids=POOLS)
def test_a_pool_that_the_network_cannot_take(pool, words):
    learner = ActiveLearner(net(), "margin", X_training=X, y_training=y)
    with pytest.raises(NetworkError, match=words) as caught:
        learner.query(pool, 2)
    assert isinstance(caught.value.__cause__, (RuntimeError, TypeError))


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.longdouble])
def test_floating_point_pools_are_cast(dtype):
    learner = ActiveLearner(net(), "margin", X_training=X, y_training=y)
    rounded = X.astype(np.float16)
    expected, _ = learner.query(rounded.astype(np.float32), 5)
    assert np.array_equal(learner.query(rounded.astype(dtype), 5)[0], expected)


LABELS = {
    "1 to C": (net(), X, y + 1, r"labels run from 1 to 3, and must be 0 … 2.*LabelEncoder"),
    "float64": (net(), X.astype(np.float64), y, r"weights are float32.*X\.astype\('float32'\)"),
    "words": (net(), X, np.array(["a", "b", "c"])[y], "LabelEncoder"),
    "several": (
        net(),
        X,
        np.eye(3, dtype=np.int64)[y][:, :2],
        "for several labels at once use criterion=torch.nn.BCEWithLogitsLoss",
    ),
    "several, as numbers": (
        net(),
        X,
        np.float32([[0, 1, 1]] * 24),
        "for several labels at once use criterion=torch.nn.BCEWithLogitsLoss",
    ),
    "several, stratified": (
        net(criterion=nn.BCEWithLogitsLoss, train_split=ValidSplit(5, stratified=True)),
        X,
        np.float32(np.eye(3)[y]),
        "pass train_split=None",
    ),
    "regression": (net(cls=NeuralNetRegressor, criterion=nn.NLLLoss), X, np.float32(y), "skorch compares outputs"),
    "binary loss": (net(criterion=nn.BCEWithLogitsLoss), X, y, "skorch.NeuralNetBinaryClassifier"),
    "columns": (net(), X[:, :3], y, r"shape \(24, 3\)"),
}


@pytest.mark.parametrize(("estimator", "samples", "labels", "words"), LABELS.values(), ids=LABELS)
def test_a_training_that_cannot_work(estimator, samples, labels, words):
    with pytest.raises(NetworkError, match=words):
        ActiveLearner(estimator, "margin", X_training=samples, y_training=labels)


def test_a_training_of_a_loop_that_cannot_work():
    loop = ActiveLearningClassifier(net(), "margin", n_initial=6, n_rounds=1, initial="random")
    with pytest.raises(NetworkError, match="float32"):
        loop.fit(X.astype(np.float64), y)


def test_errors_of_callbacks_are_their_own():
    class Failing(Callback):
        def on_epoch_end(self, net, **kwargs):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ActiveLearner(net(callbacks=[Failing()]), "margin", X_training=X, y_training=y)


@pytest.mark.parametrize("estimator", [None, NeuralNetClassifier, MLP(4, 3)], ids=["None", "class", "module"])
def test_what_is_no_classifier(estimator):
    with pytest.raises(InvalidTypeError, match="must be a classifier with fit"):
        ActiveLearner(estimator, "margin", X_training=X, y_training=y)


def test_a_margin_of_numbers_is_refused():
    learner = ActiveLearner(net(MLP(4, 2), NeuralNetRegressor, criterion=nn.MSELoss).initialize(), "margin")
    with pytest.raises(InvalidTypeError, match=r"task of Margin must be classification.*Got regression"):
        learner.query(X)


@pytest.mark.parametrize("change", [lambda z: z[1:], lambda z: torch.cat([z, z]), lambda z: z.sum()])
def test_one_row_of_outputs_for_each_sample(change):
    learner, X_pool = make_learner()
    forward = learner.estimator.module_.forward
    learner.estimator.module_.forward = lambda x: change(forward(x))
    with pytest.raises(OutputError, match=r"must return one row .* for each of the 40 samples"):
        Margin().scores(learner, X_pool)


def test_ragged_lists():
    learner = ActiveLearner(net(), "margin", X_training=X, y_training=y)
    with pytest.raises(InvalidTypeError, match="must all have the same shape"):
        learner.query([[1.0, 2.0], [1.0]])


def test_paths():
    learner = ActiveLearner(net(), "margin", X_training=X, y_training=y)
    with pytest.raises(InvalidTypeError, match=r"list of str.*torch Dataset"):
        learner.query(["a.png", "b.png"])
