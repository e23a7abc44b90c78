"""Pools, networks and classifiers that hide their numbers, or hold them in a form that few libraries read."""

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import Subset, TensorDataset

from skal import ActiveLearner
from skal.exceptions import InvalidTypeError, NetworkError, OutputError, UnsupportedLayerError
from skal.strategies import EGL, CoreSet, DynamicAL, Margin, TypiClust

from ..support.learners import learner_of

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
y = np.arange(40) % 2


def make_net(module=None):
    torch.manual_seed(0)
    module = module or nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0).initialize()
    return learner_of(net, X[:10], y[:10])


def make_linear():
    return learner_of(LogisticRegression().fit(X, y), X[:10], y[:10])


HIDDEN = {
    "masked": (np.ma.masked_greater(X, 1), "masked entries.*filled"),
    "masked rows": (list(np.ma.masked_greater(X, 1)), "masked entries.*filled"),
    "meta": (torch.empty(X.shape, device="meta"), "meta device"),
    "sparse": (torch.as_tensor(X).to_sparse(), "to_dense"),
}


@pytest.mark.parametrize("make", [make_net, make_linear])
@pytest.mark.parametrize("kind", HIDDEN)
def test_entries_without_a_value_are_refused_by_name(kind, make):
    pool, message = HIDDEN[kind]
    with pytest.raises(InvalidTypeError, match=f"X_pool must have a value for every entry.*{message}"):
        Margin().scores(make(), pool)
    if not kind.startswith("masked"):
        dataset = TensorDataset(pool)
        with pytest.raises(InvalidTypeError, match=f"Row 0 of X_pool.*{message}"):
            Margin().scores(make(), dataset)


def test_masked_labels_are_none():
    """A learner must have a label for every sample; only a loop knows what is unknown."""
    some = np.ma.array(y[:10], mask=np.arange(10) < 3)
    with pytest.raises(InvalidTypeError, match=r"y_training must have a label for every sample.*3 masked"):
        DynamicAL().scores(learner_of(make_net().estimator, X[:10], some), X)
    with pytest.raises(InvalidTypeError, match=r"y of the labelled samples.*3 masked labels"):
        ActiveLearner(LogisticRegression(), "margin", X_training=X[:10], y_training=some)
    with pytest.raises(InvalidTypeError, match=r"y of the labelled samples.*3 masked labels"):
        ActiveLearner(make_net().estimator, "margin", X_training=X[:10], y_training=list(some))
    whole = np.ma.array(y[:10])
    learner = ActiveLearner(LogisticRegression(), "margin", X_training=X[:10], y_training=whole)
    with pytest.raises(InvalidTypeError, match="3 masked labels"):
        learner.teach(X[10:20], some)
    with pytest.raises(InvalidTypeError, match="masked entries"):
        learner.teach(list(np.ma.masked_greater(X, 1)), y)
    assert len(learner.y_training) == 10


@pytest.mark.parametrize("make", [make_net, make_linear])
@pytest.mark.parametrize(
    "pool",
    [
        np.ma.array(X),
        X.view(np.matrix),
        X.astype(">f4"),
        X.astype(">f8"),
        Subset(TensorDataset(torch.as_tensor(X)), range(40)),
    ],
    ids=["unmasked", "matrix", "big-endian", "big-endian double", "Subset"],
)
def test_other_forms_give_the_same_scores(pool, make):
    learner = make()
    np.testing.assert_allclose(Margin().scores(learner, pool), Margin().scores(learner, X), rtol=1e-5)


@pytest.mark.parametrize("strategy", [TypiClust(features="input", random_state=0), CoreSet(features="input")], ids=repr)
def test_pool_and_labelled_samples_of_two_precisions(strategy):
    learner = make_linear()
    expected = strategy.select(learner, X, 5)[0]
    assert strategy.select(learner, X.astype(np.float64), 5)[0].tolist() == expected.tolist()


class Silent(ClassifierMixin, BaseEstimator):
    """A classifier whose predict_proba gives something else."""

    def __init__(self, value=None):
        self.value, self.classes_ = value, np.arange(2)

    def fit(self, X, y):
        return self

    def predict_proba(self, X):
        return self.value


@pytest.mark.parametrize(
    "value", [None, 0.5, np.zeros(40), np.full((40, 2), "a")], ids=["None", "number", "row", "words"]
)
def test_what_is_no_distribution_is_refused(value):
    with pytest.raises(OutputError, match="predict_proba must give one distribution per row"):
        Margin().scores(learner_of(Silent(value), X[:10], y[:10]), X)


def test_weights_without_values_are_refused():
    learner = make_net()
    learner.estimator.module_.to("meta")
    with pytest.raises(NetworkError, match=r"weights must have values.*meta"):
        Margin().scores(learner, X)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_traced_module_has_outputs_but_no_layers_to_look_at():
    plain = make_net()
    traced = make_net(torch.jit.trace(plain.estimator.module_, torch.as_tensor(X[:2])))
    pool = np.tile(X, (3, 1))
    np.testing.assert_allclose(Margin().scores(traced, pool), Margin().scores(plain, pool), rtol=1e-5)
    with pytest.raises(UnsupportedLayerError, match=r"torch.jit.*margin"):
        CoreSet().select(traced, X, 3)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("strategy", [EGL(), DynamicAL()], ids=repr)
def test_outputs_without_gradients_are_refused(strategy, mode):
    class CutOff(nn.Linear):
        def forward(self, x):
            with mode():
                return super().forward(x)

    learner = make_net(CutOff(6, 2))
    with pytest.raises(NetworkError, match=r"must have gradients.*no_grad"):
        strategy.scores(learner, X)
    assert len(Margin().scores(learner, X)) == 40
