# SPDX-License-Identifier: BSD-3-Clause
"""Class probabilities: how uncertain they are, and the temperature at which a classifier is as sure as it is right."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from scipy.special import entr
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from skal.context import QueryContext

_MIN_PER_CLASS = 5  # labels of each class below which no temperature is fitted
_GRID = np.geomspace(0.1, 10, 41)


def _mean_over_labels(scores: Callable[[np.ndarray], np.ndarray], proba: np.ndarray) -> np.ndarray:
    """The mean over several labels, each a question of yes or no: (N, L, 2) -> (N,)."""
    mean: np.ndarray = scores(proba.reshape(-1, 2)).reshape(proba.shape[:2]).mean(axis=1)
    return mean


def least_confidence_scores(proba: np.ndarray) -> np.ndarray:
    """One minus the largest probability: (N, C) -> (N,)."""
    if proba.ndim == 3:
        return _mean_over_labels(least_confidence_scores, proba)
    doubt: np.ndarray = 1 - proba.max(axis=1)
    return doubt


def margin_scores(proba: np.ndarray) -> np.ndarray:
    """Minus the gap between the two largest probabilities: (N, C) -> (N,)."""
    if proba.ndim == 3:
        return _mean_over_labels(margin_scores, proba)
    if proba.shape[1] == 1:  # one class alone
        return -proba[:, 0]
    parted = np.partition(proba, -2, axis=1)
    closeness: np.ndarray = parted[:, -2] - parted[:, -1]
    return closeness


def entropy_scores(proba: np.ndarray) -> np.ndarray:
    """Entropy in nats, ``0 log 0 = 0``: (N, C) -> (N,)."""
    if proba.ndim == 3:
        return _mean_over_labels(entropy_scores, proba)
    entropies: np.ndarray = entr(np.clip(proba, 0, None)).sum(axis=1)
    return entropies


# by name, none of them negative
UNCERTAINTIES = {
    "margin": lambda proba: 1 + margin_scores(proba),
    "entropy": entropy_scores,
    "least_confidence": least_confidence_scores,
}


def temper(proba: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities of the logits divided by the temperature: (n, C) -> (n, C).

    Examples
    --------
    >>> temper(np.array([[0.2, 0.8]]), 0.5).round(3)
    array([[0.059, 0.941]])
    """
    logits = _logs(proba) / temperature
    logits -= logits.max(axis=-1, keepdims=True)
    powers = np.exp(logits)
    probabilities: np.ndarray = powers / powers.sum(axis=-1, keepdims=True)
    return probabilities


def calibration_error(proba: np.ndarray, right: np.ndarray, n_bins: int = 15) -> float:
    """Expected calibration error: mean gap between confidence and accuracy over bins of confidence.

    Parameters
    ----------
    proba : (n, C) array
    right : (n,) bool array
        Whether the most likely class is the true one.
    n_bins : int

    Examples
    --------
    >>> float(calibration_error(np.array([[0.1, 0.9], [0.1, 0.9]]), np.array([True, False])))
    0.4
    """
    confidence = proba.max(axis=1)
    bins = np.minimum((confidence * n_bins).astype(int), n_bins - 1)
    gaps = np.bincount(bins, weights=confidence - right, minlength=n_bins)
    return float(np.abs(gaps).sum() / len(right))


def best_temperature(proba: np.ndarray, right: np.ndarray) -> float:
    """The temperature between 0.1 and 10 with the smallest calibration error.

    Examples
    --------
    >>> sure = np.tile([0.99, 0.01], (10, 1))
    >>> bool(best_temperature(sure, np.arange(10) < 7) > 3)  # right in seven of ten cases
    True
    """
    errors = [calibration_error(temper(proba, temperature), right) for temperature in _GRID]
    return float(_GRID[int(np.argmin(errors))])


def can_fit(context: QueryContext) -> bool:
    """True if there are at least two classes with five labels each, and predictions that have not seen them can be had.

    Those of a network whose layers below the last are trained cannot: they have seen all labels.
    """
    if (
        not context.meaning.is_exclusive
        or context.n_labelled == 0
        or (context.has_network and not context.only_head_is_trained)
    ):
        return False
    if not context.has_network and not hasattr(context.estimator, "predict_proba"):
        return False
    counts = np.unique(context.labels, return_counts=True)[1]
    return len(counts) > 1 and bool(counts.min() >= _MIN_PER_CLASS)


def fit_temperature(context: QueryContext, n_splits: int = 3) -> float:
    """The temperature with the smallest calibration error on held-out labels; 1 where it cannot be fitted.

    For a network that is frozen up to its last layer, a logistic regression on that layer's inputs is held against the
    labels, and the temperature is corrected by how much more or less sure of the labelled samples the network is.
    """
    if not can_fit(context):
        return 1.0
    y = context.labels
    if context.has_network:
        X = context.embeddings(context.labelled)[0].double().cpu().numpy()
        X = X / max(float(np.linalg.norm(X, axis=1).mean()), np.finfo(float).tiny)
        model = LogisticRegression(max_iter=1000)
    else:
        X, model = context.labelled.read(0, context.n_labelled), clone(context.estimator)
    splits = StratifiedKFold(n_splits, shuffle=True, random_state=0)
    classes = np.unique(y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the user's fit will give them
        proba = cross_val_predict(model, X, y, cv=splits, method="predict_proba")
        temperature = best_temperature(proba, classes[proba.argmax(axis=1)] == y)
        if context.has_network:
            own = context.predict_proba(context.labelled)[:, classes.astype(np.int64)]
            temperature *= _spread(own) / _spread(model.fit(X, y).predict_proba(X))
    return temperature


def _spread(proba: np.ndarray) -> float:
    """The distances between the logits."""
    logits = _logs(proba)
    return float(np.std(logits - logits.mean(axis=1, keepdims=True)))


def _logs(proba: np.ndarray) -> np.ndarray:
    logs: np.ndarray = np.log(np.clip(proba, np.finfo(float).tiny, None))
    return logs
