"""Weights of samples are used or refused by name, wherever something is fitted."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from sklearn.utils.validation import has_fit_parameter
from skorch import NeuralNetClassifier
from torch import nn

from skal import ActiveLearner, ActiveLearningClassifier
from skal.exceptions import InvalidTypeError
from skal.loss_prediction import LossPredictionClassifier
from skal.nets import MLP
from skal.semi_supervised import FixMatchClassifier

WEIGHTS = np.linspace(0.1, 5, 60)


class Weighted(nn.Module):
    """Takes the weights in ``forward``, as skorch hands them on."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x, sample_weight=None):
        if sample_weight is not None:
            self.seen = sample_weight
        return self.fc(x)


def semi_supervised(module):
    return FixMatchClassifier(module, module__n_features=5, augment="tabular", max_epochs=1, verbose=0)


def loss_predicting(module):
    return LossPredictionClassifier(module(n_features=5, n_classes=3), max_epochs=1, verbose=0)


@pytest.mark.parametrize("make", [semi_supervised, loss_predicting])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_network_refuses_them_by_name(make, method, flat_data):
    with pytest.raises(InvalidTypeError, match=r"must not have sample_weight.*criterion__weight"):
        getattr(make(MLP), method)(*flat_data, sample_weight=WEIGHTS)


def test_a_learner_with_a_network_refuses_them_and_keeps_nothing(make_net, flat_data):
    X, y = flat_data
    learner = ActiveLearner(make_net(max_epochs=1))
    with pytest.raises(InvalidTypeError, match="sample_weight"):
        learner.teach(X, y, sample_weight=WEIGHTS)
    assert learner.X_training is None


def test_a_module_that_takes_them_gets_them(flat_data):
    X, y = flat_data
    settings = {"criterion": nn.CrossEntropyLoss, "train_split": None, "max_epochs": 1, "verbose": 0}
    learner = ActiveLearner(NeuralNetClassifier(Weighted, batch_size=60, **settings))
    learner.fit(X, y, sample_weight=torch.from_numpy(WEIGHTS))
    torch.testing.assert_close(learner.estimator.module_.seen, torch.from_numpy(WEIGHTS))


def test_a_learner_hands_them_to_a_classifier_that_knows_them(flat_data):
    X, y = flat_data
    weighted = ActiveLearner(LogisticRegression()).fit(X, y, sample_weight=WEIGHTS).estimator
    plain = LogisticRegression().fit(X, y, sample_weight=WEIGHTS)
    np.testing.assert_allclose(weighted.coef_, plain.coef_)


def test_a_bootstrap_draws_the_weights_with_the_samples(flat_data):
    seen = []

    class Recorder(LogisticRegression):
        def fit(self, X, y, sample_weight):
            seen.append((X, sample_weight))
            return self

    X, y = flat_data
    ActiveLearner(Recorder()).fit(X, y, bootstrap=True, sample_weight=X[:, 0])
    drawn, weights = seen[0]
    np.testing.assert_array_equal(drawn[:, 0], weights)
    assert not np.array_equal(weights, X[:, 0])


def test_a_classifier_that_does_not_know_them_says_so(flat_data):
    with pytest.raises(TypeError, match="sample_weight"):
        ActiveLearner(KNeighborsClassifier()).fit(*flat_data, sample_weight=WEIGHTS)


def test_the_loop_refuses_them_by_name_and_scikit_learn_does_not_offer_them(flat_data):
    loop = ActiveLearningClassifier(LogisticRegression(), n_rounds=1)
    assert not has_fit_parameter(loop, "sample_weight")
    with pytest.raises(InvalidTypeError, match=r"must not be given sample_weight.*class_weight"):
        loop.fit(*flat_data, sample_weight=WEIGHTS)
    with pytest.raises(TypeError, match="Got epochs too"):
        loop.fit(*flat_data, epochs=3)
    loop.fit(*flat_data, sample_weight=None)  # as scikit-learn's own callers pass it on
