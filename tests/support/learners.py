"""Learners that have only what a strategy asks for: an estimator, and the labelled samples."""

from types import SimpleNamespace

import numpy as np
from sklearn.linear_model import LogisticRegression
from skorch import NeuralNetClassifier
from torch import nn

from skal import ActiveLearner


class Told:
    """A classifier whose probabilities are given: those of the row that a sample names."""

    def __init__(self, proba):
        self.proba = np.asarray(proba)

    def predict_proba(self, X):
        return self.proba[np.asarray(X)[:, 0].astype(int)]


def numbered(n):
    """Samples for :class:`Told`."""
    return np.arange(float(n)).reshape(n, 1)


def strategy_named(spec):
    """The strategy that a text names, as a learner takes it."""
    return ActiveLearner(LogisticRegression(), spec).query_strategy


def learner_of(estimator, X=None, y=None):
    return SimpleNamespace(estimator=estimator, X_training=X, y_training=y)


def net_of(module, criterion=nn.CrossEntropyLoss, cls=NeuralNetClassifier, **params):
    """An initialised net that has not been trained."""
    return cls(module, criterion=criterion, train_split=None, verbose=0, **params).initialize()


def untrained(module, shape, n_labelled, n_pool, *, n_classes=3, dtype=np.float64, seed=0, **params):
    """A learner whose net has not been trained, on Gaussian samples of a shape with random labels; and its pool."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_labelled + n_pool, *shape)).astype(dtype)
    y = rng.integers(n_classes, size=n_labelled)
    return learner_of(net_of(module, **params), X[:n_labelled], y), X[n_labelled:]
