# SPDX-License-Identifier: BSD-3-Clause
"""How many samples people would have to label, and how that number falls with a larger audit."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skal.audit._accuracy import read_audit
from skal.audit._bounds import is_at_most
from skal.audit._certificate import list_thresholds
from skal.exceptions import InvalidParameterError
from skal.validation import Integer, Real

Floats = NDArray[np.float64]
Positions = NDArray[np.int64]


def labels_left(
    proba: Any,
    positions: Any,
    labels: Any,
    probabilities: Any,
    sizes: Any,
    max_error: float = 0.05,
    confidence: float = 0.95,
    n_labelled: int = 0,
) -> Positions:
    """Forecast how many samples :func:`certify` would leave for people, for audits of other sizes.

    A larger audit costs labels, and lets the model label more. ``sizes + labels_left(...)`` is what people would label
    in all: the best size is where it is least. The forecast supposes that another audit finds errors in the same
    proportion as this one, so it is no promise; :func:`certify` makes the promise from the labels of that audit.

    Parameters
    ----------
    proba : array-like of shape (N, C)
        The model's probabilities, for all samples of the plan.
    positions : array-like of shape (m,)
        The audited samples, from ``plan(..., uniform=True)``.
    labels : array-like of shape (m,)
        Their labels by people, as columns of ``proba``.
    probabilities : array-like of shape (m,)
        Their inclusion probabilities: all equal.
    sizes : array-like of int, of shape (s,)
        Numbers of labels of other audits.
    max_error : float, default=0.05
        The share of errors that is allowed in the whole data set.
    confidence : float, default=0.95
        How sure the promise should be.
    n_labelled : int, default=0
        Samples that people have labelled already and that are not among the N.

    Returns
    -------
    int64 array of shape (s,)
        Samples left for people beside the audit, one number for each size.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit import labels_left, plan
    >>> rng = np.random.default_rng(0)
    >>> proba = rng.dirichlet([0.1, 0.1, 0.1], size=5000)
    >>> y = (rng.random((5000, 1)) > proba.cumsum(1)).sum(1)  # unknown but for audited samples
    >>> positions, probabilities = plan(proba, 100, uniform=True, random_state=0)
    >>> labels_left(proba, positions, y[positions], probabilities, [50, 100, 200, 400])
    array([4331, 2009, 1200,  897])
    """
    p, audit, answers = read_audit("labels_left", proba, positions, labels, probabilities, confidence)
    Real(0, 1, remedy="Use 0.05 for at most 5 % errors.").check("labels_left", "max_error", max_error)
    Integer(0).check("labels_left", "n_labelled", n_labelled)
    wanted = np.asarray(sizes)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu" or not ((wanted >= 1) & (wanted <= len(p))).all():
        expected, remedy = f"numbers of labels from 1 to {len(p)}", "Pass a list such as [50, 100, 200]."
        raise InvalidParameterError.for_parameter("labels_left", "sizes", expected, sizes, remedy)
    confidences, wrong = p.max(1), p.argmax(1)[audit.positions] != answers
    shares, rates = error_rates(confidences, confidences[audit.positions], wrong)
    return forecast_left(shares, rates, len(p), wanted, max_error * (len(p) + n_labelled), 1 - confidence)


def error_rates(confidences: Floats, audited: Floats, wrong: NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """For each threshold, from the strictest to the loosest, the share of samples above it, and how many are wrong.

    Parameters
    ----------
    confidences : array of shape (n,)
        Of all samples, or of a random part of them.
    audited : array of shape (m,)
        Of audited samples.
    wrong : bool array of shape (m,)
        Whether the model is wrong on them.

    Returns
    -------
    shares, rates : arrays of shape (t,)
        Shares of all samples, and of errors among those above the threshold.
    """
    thresholds = list_thresholds(confidences)
    shares = 1 - np.searchsorted(np.sort(confidences), thresholds) / len(confidences)
    above = audited >= thresholds[:, None]
    rates = (above & wrong).sum(1) / np.maximum(above.sum(1), 1)
    return shares, rates


def forecast_left(shares: Floats, rates: Floats, n: int, sizes: Any, allowed: float, alpha: float) -> Positions:
    """Samples left for people for each size of an audit that finds errors at these rates, (s,).

    Parameters
    ----------
    shares, rates : arrays of shape (t,)
        Of :func:`error_rates`.
    n : int
        Samples that the audit is drawn from.
    sizes : array-like of int, of shape (s,)
        Labels of the audit.
    allowed : float
        Errors that are allowed.
    alpha : float
        The chance to be wrong.
    """
    size = np.asarray(sizes, dtype=np.int64)
    total = np.round(shares * n).astype(np.int64)
    drawn = np.minimum(np.round(size[:, None] * shares).astype(np.int64), total)
    seen = np.round(drawn * rates).astype(np.int64)
    passes = is_at_most(allowed, seen, drawn, total, alpha)
    count = np.argmin(np.column_stack([passes, np.zeros(len(size), dtype=bool)]), axis=1)  # before the first that fails
    rest = np.pad(total - drawn, ((0, 0), (1, 0)))  # none accepted where none passes
    left: Positions = n - size - rest[np.arange(len(size)), count]
    return np.maximum(left, 0)
