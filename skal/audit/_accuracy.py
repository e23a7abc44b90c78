# SPDX-License-Identifier: BSD-3-Clause
"""How good a model is, from an audit: over all samples, for each class, and as the mean over classes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skal.audit._arguments import check_confidence, read_labels, read_positions, read_proba, read_probabilities
from skal.audit._design import guess_errors
from skal.audit._drawn import check_draw
from skal.audit._estimate import Audit, Estimate, estimate_mean

Floats = NDArray[np.float64]
Positions = NDArray[np.int64]

_ENOUGH = 5  # audited labels of every class, for an interval that supposes large samples
_HALVINGS = 14  # of the unit interval: a class's accuracy is found within 0.01 points


def accuracy(proba: Any, positions: Any, labels: Any, probabilities: Any, confidence: float = 0.95) -> Estimate:
    """Estimate the accuracy of a model over all samples from audited ones.

    The model's own probabilities take part: where it is unsure, errors are expected, and only what differs from that
    counts (the difference estimator). A model whose probabilities are wrong makes the interval wide, not wrong.
    ``proba`` may be of another model than the one that the audit was planned with, as long as it was not trained on
    audited samples: the labels stay valid because the probabilities of the draw are known.

    Parameters
    ----------
    proba : array-like of shape (N, C)
        The model's probabilities, for all samples of the plan.
    positions : array-like of shape (m,)
        The audited samples, from :func:`plan`.
    labels : array-like of shape (m,)
        Their labels by people, as columns of ``proba``.
    probabilities : array-like of shape (m,)
        Their inclusion probabilities, from :func:`plan`.
    confidence : float, default=0.95
        How sure the interval should be.

    Returns
    -------
    Estimate
        The accuracy with its interval. From fewer than 50 labels it holds for any sample size: exact for uniform
        audits, by betting otherwise.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit import accuracy, plan
    >>> rng = np.random.default_rng(0)
    >>> proba = rng.dirichlet([0.1, 0.1, 0.1], size=5000)
    >>> y = (rng.random((5000, 1)) > proba.cumsum(1)).sum(1)  # unknown but for audited samples
    >>> positions, probabilities = plan(proba, 200, random_state=0)
    >>> found = accuracy(proba, positions, y[positions], probabilities)
    >>> bool(found.low < (proba.argmax(1) == y).mean() < found.high)
    True
    >>> print(found)
    85.9 to 93.0 %, 95 % sure, from 200 audited labels
    """
    p, audit, answers = read_audit("accuracy", proba, positions, labels, probabilities, confidence)
    right = (p.argmax(1)[audit.positions] == answers).astype(np.float64)
    return estimate_mean(audit, 1 - guess_errors(p.max(1)), right, 0.0, 1.0, confidence)


def accuracy_by_class(
    proba: Any, positions: Any, labels: Any, probabilities: Any, confidence: float = 0.95
) -> list[Estimate]:
    """Estimate for each class how many of its samples the model finds (the recall).

    Each interval is right with the given confidence; all of them together are less sure.

    Parameters
    ----------
    proba : array-like of shape (N, C)
        The model's probabilities, for all samples of the plan.
    positions : array-like of shape (m,)
        The audited samples, from :func:`plan`.
    labels : array-like of shape (m,)
        Their labels by people, as columns of ``proba``.
    probabilities : array-like of shape (m,)
        Their inclusion probabilities, from :func:`plan`.
    confidence : float, default=0.95
        How sure each interval should be.

    Returns
    -------
    list of Estimate
        One for each column of ``proba``; ``n_labels`` counts the audited samples of the class.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit import accuracy_by_class, plan
    >>> rng = np.random.default_rng(0)
    >>> proba = rng.dirichlet([0.1, 0.1, 0.1], size=5000)
    >>> y = (rng.random((5000, 1)) > proba.cumsum(1)).sum(1)
    >>> positions, probabilities = plan(proba, 200, random_state=0)
    >>> for found in accuracy_by_class(proba, positions, y[positions], probabilities):
    ...     print(f"{found.low:.2f} to {found.high:.2f}")
    0.83 to 0.95
    0.83 to 0.96
    0.80 to 0.94
    """
    p, audit, answers = read_audit("accuracy_by_class", proba, positions, labels, probabilities, confidence)
    return [estimate_recall(audit, p, answers, column, confidence) for column in range(p.shape[1])]


def balanced_accuracy(
    proba: Any, positions: Any, labels: Any, probabilities: Any, confidence: float = 0.95
) -> Estimate:
    """Estimate the balanced accuracy: the mean over classes of the share of samples that the model finds.

    Parameters
    ----------
    proba : array-like of shape (N, C)
        The model's probabilities, for all samples of the plan.
    positions : array-like of shape (m,)
        The audited samples, from :func:`plan`.
    labels : array-like of shape (m,)
        Their labels by people, as columns of ``proba``.
    probabilities : array-like of shape (m,)
        Their inclusion probabilities, from :func:`plan`.
    confidence : float, default=0.95
        How sure the interval should be.

    Returns
    -------
    Estimate
        The interval supposes at least five audited labels of every class. With fewer it is the mean of all classes'
        intervals, each as sure as it takes for all to be right at once: wide, but honest.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit import balanced_accuracy, plan
    >>> rng = np.random.default_rng(0)
    >>> proba = rng.dirichlet([0.1, 0.1, 0.1], size=5000)
    >>> y = (rng.random((5000, 1)) > proba.cumsum(1)).sum(1)
    >>> positions, probabilities = plan(proba, 200, random_state=0)
    >>> print(balanced_accuracy(proba, positions, y[positions], probabilities))
    85.8 to 92.9 %, 95 % sure, from 200 audited labels
    """
    p, audit, answers = read_audit("balanced_accuracy", proba, positions, labels, probabilities, confidence)
    n_classes = p.shape[1]
    each = 1 - (1 - confidence) / n_classes
    recalls, sizes = np.array([ratio_of(audit, p, answers, column) for column in range(n_classes)]).T
    middle = float(recalls.mean())
    if np.bincount(answers, minlength=n_classes).min() < _ENOUGH or audit.method == "betting":
        found = [estimate_recall(audit, p, answers, column, each) for column in range(n_classes)]
        low, high = (float(np.mean([getattr(one, end) for one in found])) for end in ("low", "high"))
        return Estimate(min(max(middle, low), high), low, high, confidence, len(answers), "union")
    # how far the balanced accuracy moves with one sample, to first order
    scale = 1 / (n_classes * sizes)
    found_in = np.eye(n_classes)[p.argmax(1)]
    moves = scale * (found_in - recalls)  # (N, C): if the sample were of this class
    expected = (p * moves).sum(1)
    values = moves[audit.positions, answers]
    low, high = audit.limits(expected, values, moves.min(1), moves.max(1), (1 - confidence) / 2)
    low, high = max(0.0, middle + min(low, 0.0)), min(1.0, middle + max(high, 0.0))
    return Estimate(middle, low, high, confidence, len(answers), audit.method)


def read_audit(
    owner: str, proba: Any, positions: Any, labels: Any, probabilities: Any, confidence: float
) -> tuple[Floats, Audit, Positions]:
    """Check everything, and return class probabilities, the audit, and the labels."""
    check_confidence(owner, confidence)
    p = read_proba(owner, proba)
    at = read_positions(owner, positions, len(p))
    chance = read_probabilities(owner, probabilities, len(at))
    answers = read_labels(owner, labels, len(at), p.shape[1])
    confidences = p.max(1)
    everyone = check_draw(owner, confidences, len(p), at, chance, stacklevel=5)
    return p, Audit(len(p), at, chance, everyone), answers


def ratio_of(audit: Audit, p: Floats, answers: Positions, column: int) -> tuple[float, float]:
    """Estimates of a class's recall and of its share of all samples."""
    predicted = (p.argmax(1) == column).astype(np.float64)
    belongs = (answers == column).astype(np.float64)
    share = max(audit.total(p[:, column], belongs), belongs.sum() / audit.n, 1 / audit.n)
    found = audit.total(p[:, column] * predicted, belongs * predicted[audit.positions])
    return float(np.clip(found / share, 0, 1)), float(share)


def estimate_recall(audit: Audit, p: Floats, answers: Positions, column: int, confidence: float) -> Estimate:
    """A class's recall r: the mean of "belongs to the class" × ("is found" − r) over all samples is 0 at the truth."""
    predicted = (p.argmax(1) == column).astype(np.float64)
    belongs = (answers == column).astype(np.float64)
    alpha = (1 - confidence) / 2

    def is_positive(moves: Floats) -> bool:
        """Whether the mean of "belongs to the class" × moves is surely above 0."""
        values = belongs * moves[audit.positions]
        return audit.is_above(0.0, p[:, column] * moves, values, np.minimum(moves, 0), alpha)

    low, high = 0.0, 1.0
    step = 0.5
    for _ in range(_HALVINGS):
        low += step * is_positive(predicted - (low + step))
        high -= step * is_positive((high - step) - predicted)
        step /= 2
    middle = min(max(ratio_of(audit, p, answers, column)[0], low), high)
    return Estimate(middle, low, high, confidence, int(belongs.sum()), audit.method)
