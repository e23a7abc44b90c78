# SPDX-License-Identifier: BSD-3-Clause
"""Audits that go on: an interval that may be looked at after every label, as often as one likes.

Samples are drawn one after the other without replacement. What matters is the probability of each draw *given those
before*: with it, each label is a fair bet on the mean of what is left, so that a gambler who is right in the end
cannot have been rich at any time before (Ville's inequality; Waudby-Smith and Ramdas 2024, Shekhar et al. 2023).
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from skal.audit._arguments import check_confidence, read_labels, read_positions, read_proba, read_probabilities
from skal.audit._bounds import BETS
from skal.audit._checksum import add_checksum
from skal.audit._design import EVEN, draw_shares, guess_errors, read_pool
from skal.audit._drawn import check_origin
from skal.validation import Integer, make_generator

Floats = NDArray[np.float64]
Positions = NDArray[np.int64]

_BLOCK = 50  # draws that are looked at together
GRID = np.linspace(0, 1, 1001)  # limits are rounded outwards to a tenth of a percent


@dataclass(frozen=True)
class Sequence:
    """Estimates after each label of an audit that goes on; all intervals hold at once.

    Attributes
    ----------
    estimate : float64 array of shape (m,)
        The estimate after each label.
    low, high : float64 arrays of shape (m,)
        The intervals after each label; they never grow.
    confidence : float
        How sure it is that all intervals hold the true value.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit import Sequence
    >>> Sequence(np.array([0.9]), np.array([0.1]), np.array([1.0]), confidence=0.95).low
    array([0.1])
    """

    estimate: Floats
    low: Floats
    high: Floats
    confidence: float


def plan_sequence(
    proba: Any, n_labels: int, *, uniform: bool = False, drawn: Any = (), random_state: Any = None
) -> tuple[Positions, Floats]:
    """Draw samples one after the other, for an audit that goes on until somebody stops it.

    Label the samples in the order in which they are returned. To go on, draw more with the earlier ones as ``drawn``;
    the model may have changed in between.

    Parameters
    ----------
    proba : array-like of shape (N, C) or (N,), or int
        The model's probabilities, or confidences, as in :func:`plan`; a number of samples is enough for a uniform
        audit.
    n_labels : int
        How many samples to draw.
    uniform : bool, default=False
        Whether all samples that are left are equally probable at each draw. Otherwise they are drawn in proportion to
        0.2/N + 0.8 u/Σu, as in :func:`plan`.
    drawn : array-like of int, default=()
        Samples that were drawn before.
    random_state : None, int, Generator or RandomState, default=None
        Where the draws come from.

    Returns
    -------
    positions : int64 array of shape (n_labels,)
        Rows of ``proba``, in the order in which they were drawn.
    probabilities : float64 array of shape (n_labels,)
        The probability of each draw, given those before it: not an inclusion probability.

    Examples
    --------
    >>> from skal.audit import plan_sequence
    >>> positions, probabilities = plan_sequence(4, 4, uniform=True, random_state=0)
    >>> 1 / probabilities
    array([4., 3., 2., 1.])
    """
    confidences, n = read_pool("plan_sequence", proba, uniform)
    shares = np.full(n, 1 / n) if uniform or confidences is None else draw_shares(confidences)
    left = np.ones(n, dtype=bool)
    earlier = read_positions("plan_sequence", drawn, n) if np.size(drawn) else np.zeros(0, dtype=np.int64)
    left[earlier] = False
    most = int(left.sum())
    Integer(1, most, remedy=f"There are {most} samples left to draw.").check("plan_sequence", "n_labels", n_labels)
    # the first of exponential clocks with these rates rings in proportion to them, and so do those that follow
    rings = make_generator("plan_sequence", random_state).exponential(size=n) / shares
    rings[~left] = np.inf
    positions = np.argsort(rings)[:n_labels].astype(np.int64)
    before = np.concatenate([[0.0], np.cumsum(shares[positions])[:-1]])
    rest = shares[left].sum() - before
    chance = np.minimum(shares[positions] / np.maximum(rest, shares[positions]), 1.0)
    return positions, add_checksum(positions, chance, n, earlier)


def accuracy_sequence(
    proba: Any, positions: Any, labels: Any, probabilities: Any, confidence: float = 0.95
) -> Sequence:
    """Estimate the accuracy after every label, with intervals that hold all at once.

    Look after every label, and stop whenever you like, for any reason: the chance that any of the intervals misses the
    accuracy is at most 1 − confidence. For one look at the end :func:`accuracy` has narrower intervals.

    Parameters
    ----------
    proba : array-like of shape (N, C)
        The model's probabilities, for all samples.
    positions : array-like of shape (m,)
        The audited samples in the order of :func:`plan_sequence`.
    labels : array-like of shape (m,)
        Their labels by people, as columns of ``proba``.
    probabilities : array-like of shape (m,)
        The probabilities of the draws, from :func:`plan_sequence`.
    confidence : float, default=0.95
        How sure it should be that all intervals hold the accuracy.

    Returns
    -------
    Sequence
        Estimates and intervals, one after each label.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit import accuracy_sequence, plan_sequence
    >>> rng = np.random.default_rng(0)
    >>> proba = rng.dirichlet([0.1, 0.1, 0.1], size=5000)
    >>> y = (rng.random((5000, 1)) > proba.cumsum(1)).sum(1)  # unknown but for audited samples
    >>> positions, probabilities = plan_sequence(proba, 300, random_state=0)
    >>> found = accuracy_sequence(proba, positions, y[positions], probabilities)
    >>> true = (proba.argmax(1) == y).mean()
    >>> bool(np.all((found.low < true) & (true < found.high)))
    True
    """
    check_confidence("accuracy_sequence", confidence)
    p = read_proba("accuracy_sequence", proba)
    at = read_positions("accuracy_sequence", positions, len(p))
    chance = read_probabilities("accuracy_sequence", probabilities, len(at))
    answers = read_labels("accuracy_sequence", labels, len(at), p.shape[1])
    right = (p.argmax(1)[at] == answers).astype(np.float64)
    thought = 1 - guess_errors(p.max(1))
    check_origin("accuracy_sequence", p.max(1), len(p), at, chance, "plan_sequence")
    least = least_share(p.max(1), at, chance)
    alpha = (1 - confidence) / 2
    n, mean = len(p), float(thought.mean())
    low, middle = follow(right - thought[at], -thought, chance, least, GRID - mean, alpha)
    high, _ = follow(thought[at] - right, thought - 1, chance, least, GRID + mean - 1, alpha)
    seen = np.cumsum(right)
    low = np.maximum(mean + low, seen / n)
    high = np.minimum(mean - high, 1 - (np.arange(1, len(at) + 1) - seen) / n)
    return Sequence(np.clip(mean + middle, low, high), low, high, float(confidence))


def least_share(confidences: Floats, positions: Positions, chance: Floats) -> Floats:
    """Least probability that each of the N samples had at any draw at which it could be drawn, (N,)."""
    n = len(confidences)
    for shares in (np.full(n, 1 / n), draw_shares(confidences)):
        rest = 1 - np.concatenate([[0.0], np.cumsum(shares[positions])[:-1]])
        if np.allclose(shares[positions], chance * rest, rtol=1e-6):
            return shares
    return np.full(n, EVEN / n)  # by another model, or by several: no sample has less than the even part


def follow(
    off: Floats, least: Floats, chance: Floats, share: Floats, means: Floats, alpha: float
) -> tuple[Floats, Floats]:
    """Lower limit and estimate of the mean of a score after each draw.

    Parameters
    ----------
    off : array of shape (m,)
        The score of each sample drawn.
    least : array of shape (N,)
        The least score that each sample can have.
    chance : array of shape (m,)
        Probability of each draw, given those before.
    share : array of shape (N,)
        The least probability that each sample has at any draw.
    means : array of shape (g,)
        Means to be tried, in rising order: a limit is one of them.
    alpha : float
        The chance that any of the limits is wrong.

    Returns
    -------
    low, estimate : arrays of shape (m,)
        The largest mean that all draws so far rule out, and the mean of all draws' estimates.
    """
    n = len(least)
    before = np.concatenate([[0.0], np.cumsum(off)[:-1]]) / n  # what the samples drawn before contribute to the mean
    values = off / (n * chance)  # has the expectation mean − before
    end = min(float((least / (n * share)).min()), float(values.min()))

    def gain(chosen: Floats, rows: slice) -> Floats:
        """Logarithms of what each bet gains at some draws, if one of these means were true: (g, r) -> (B, g, r)."""
        fair = chosen[:, None] - before[rows] - end  # expectation of values − end ≥ 0
        ratio = (values[rows] - end) / np.where(fair > 0, fair, np.inf)
        gained = np.log1p(BETS[:, None, None] * (ratio - 1))
        gained[:, fair <= 0] = np.inf  # less than nothing would be left: impossible
        return gained.cumsum(-1)

    # wealth falls as the mean rises: a limit is the last of the means that are refuted, and these are not asked again
    bound, limit, start = np.log(len(BETS) / alpha), np.full(len(off), -np.inf), 0

    def is_refuted(number: int) -> bool:
        return bool((logsumexp(gain(means[number : number + 1], slice(None)), axis=0) >= bound).any())

    stop = bisect_left(range(len(means)), True, key=lambda number: not is_refuted(number))
    wealth = np.zeros((len(BETS), stop))
    for begin in range(0, len(off), _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        path = wealth[:, start:, None] + gain(means[start:stop], rows)
        count = start + np.logical_or.accumulate(logsumexp(path, axis=0) >= bound, axis=1).sum(0)
        limit[rows] = np.where(count > 0, means[np.maximum(count, 1) - 1], -np.inf)
        wealth[:, start:] = path[..., -1]
        start = int(count[-1])
    estimate = np.cumsum(before + values) / np.arange(1, len(values) + 1)
    return limit, estimate
