# SPDX-License-Identifier: BSD-3-Clause
"""The comparisons of the papers as pure functions of arrays.

Shapes: ``scores`` is (strategy, seed, budget), paired along the seeds; ``areas`` is (strategy, seed); ``n_labels`` is
(budget,), increasing. A strategy that has not run on a seed has NaN there, and is compared on the seeds that it has.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import integrate, special, stats

ALPHA = 0.05


class Difference(NamedTuple):
    """A mean of paired differences, its t-interval, and the p-value of the paired t-test."""

    mean: float
    low: float
    high: float
    p: float


def area(n_labels: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Area under the budget curve by the trapezoidal rule, divided by the range of the budget: a mean score.

    Parameters
    ----------
    n_labels : (budget,) array
    scores : (..., budget) array

    Returns
    -------
    (...) array

    Examples
    --------
    >>> round(float(area(np.array([10, 20, 40]), np.array([0.2, 0.4, 0.6]))), 6)
    0.433333
    """
    if len(n_labels) == 1:
        return scores[..., 0]
    areas: np.ndarray = integrate.trapezoid(scores, n_labels, axis=-1) / (n_labels[-1] - n_labels[0])
    return areas


def paired_difference(a: np.ndarray, b: np.ndarray, confidence: float = 1 - ALPHA) -> Difference:
    """Mean of ``a − b`` over seeds with its t-interval, and the two-sided p-value of the paired t-test.

    One seed has neither interval nor p-value: both are NaN. So is the p-value of differences that are all the same and
    not zero, which a t-test would call certain: accuracies are multiples of one over the size of the test set, and a
    few of them agree by chance. Differences that are all zero have p = 1.

    Examples
    --------
    >>> mean, low, high, p = paired_difference(np.array([1.0, 2.0, 3.0]), np.array([0.0, 0.0, 0.0]))
    >>> mean, round(low, 3), round(high, 3), round(p, 4)
    (2.0, -0.484, 4.484, 0.0742)
    """
    d = _pair(a, b)
    n = len(d)
    mean = float(d.mean()) if n else np.nan
    if n < 2:
        return Difference(mean, np.nan, np.nan, np.nan)
    error = float(d.std(ddof=1)) / math.sqrt(n)
    if error <= 1e-12 * max(1.0, abs(mean)):
        return Difference(mean, mean, mean, 1.0 if abs(mean) <= 1e-12 else np.nan)
    half = float(special.stdtrit(n - 1, 0.5 + confidence / 2)) * error
    p = 2 * float(special.stdtr(n - 1, -abs(mean) / error))
    return Difference(mean, mean - half, mean + half, p)


def _pair(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Differences where both sides have a value."""
    d = a - b
    differences: np.ndarray = d[~np.isnan(d)]
    return differences


def wilcoxon(a: np.ndarray, b: np.ndarray) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test; 1 where there is no difference at all, NaN for one pair.

    Examples
    --------
    >>> wilcoxon(np.arange(1.0, 7.0), np.zeros(6))
    0.03125
    """
    # sums of floating-point scores: ties differ in the last digits
    d = np.round(_pair(a, b), 12)
    if len(d) < 2:
        return np.nan
    d = d[d != 0]  # Wilcoxon's own treatment of zeros, scipy's default
    if len(d) == 0:
        return 1.0
    # few seeds: exact with ties, too, where some releases of scipy take a normal approximation
    return _exact_signed_rank(d) if len(d) <= 12 else float(stats.wilcoxon(d).pvalue)


def _exact_signed_rank(d: np.ndarray) -> float:
    """All 2ⁿ signs of the (mid)ranks: the permutation distribution of the rank sum."""
    ranks = stats.rankdata(np.abs(d))
    sums = _signs(len(d)) @ ranks
    centre = ranks.sum() / 2
    observed = abs(ranks[d > 0].sum() - centre)
    return float((np.abs(sums - centre) >= observed - 1e-9).mean())


@cache
def _signs(n: int) -> np.ndarray:
    """(2ⁿ, n) array of the ranks that count, 1, or do not, 0."""
    return ((np.arange(2**n)[:, None] >> np.arange(n)) & 1).astype(float)


def wilcoxon_floor(n_seeds: int) -> float:
    """The smallest p-value that Wilcoxon's two-sided test can give for this many seeds: ``2^(1 − n)``.

    Examples
    --------
    >>> wilcoxon_floor(3), wilcoxon_floor(6)
    (0.25, 0.03125)
    """
    return 2.0 ** (1 - n_seeds)


def holm(p: np.ndarray) -> np.ndarray:
    """p-values adjusted by Holm's step-down method; NaN stays NaN and does not count as a test.

    Examples
    --------
    >>> holm(np.array([0.01, 0.04, 0.03])).round(2)
    array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p, dtype=float)
    adjusted = np.full(p.shape, np.nan)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    factors = len(order) - np.arange(len(order))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(factors * p[order]))
    return adjusted


def paired_tests(areas: np.ndarray, pairs: list[tuple[int, int]]) -> pd.DataFrame:
    """Paired t-tests and Wilcoxon's tests of pairs of strategies, with Holm's correction over the pairs.

    Parameters
    ----------
    areas : (strategy, seed) array
    pairs : list of tuples of positions

    Returns
    -------
    pandas.DataFrame
        One row per pair: the fields of :class:`Difference`, ``p_wilcoxon``, ``p_holm``, ``p_wilcoxon_holm`` and
        ``confidence``, the level of the interval: it leaves zero out exactly if ``p_holm`` is below 0.05.

    Examples
    --------
    >>> paired_tests(np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), [(0, 1)]).round(3).iloc[0].tolist()
    [2.0, -0.484, 4.484, 0.074, 0.25, 0.074, 0.25, 0.95]
    """
    tests = pd.DataFrame([paired_difference(areas[i], areas[j]) for i, j in pairs], columns=Difference._fields)
    tests["p_wilcoxon"] = np.array([wilcoxon(areas[i], areas[j]) for i, j in pairs], dtype=float)
    tests["p_holm"] = holm(tests["p"].to_numpy())
    tests["p_wilcoxon_holm"] = holm(tests["p_wilcoxon"].to_numpy())
    tests["confidence"] = matching_confidence(tests["p"].to_numpy(), tests["p_holm"].to_numpy())
    bounds = [
        paired_difference(areas[i], areas[j], level)[1:3]
        for (i, j), level in zip(pairs, tests["confidence"], strict=True)
    ]
    tests[["low", "high"]] = np.array(bounds, dtype=float).reshape(-1, 2)
    return tests


def matching_confidence(p: np.ndarray, adjusted: np.ndarray) -> np.ndarray:
    """Levels of intervals that leave zero out exactly where the adjusted p-value is at most 0.05.

    A correction that multiplies a p-value by a factor tests at 0.05 divided by that factor, and so does the interval.
    Each level is at least 95 %.

    Examples
    --------
    >>> matching_confidence(np.array([0.01, 0.04, 0.03]), np.array([0.03, 0.06, 0.06])).round(4)
    array([0.9833, 0.9667, 0.975 ])
    """
    p, adjusted = np.asarray(p, dtype=float), np.asarray(adjusted, dtype=float)
    n_tests = max(1, int((~np.isnan(p)).sum()))
    with np.errstate(invalid="ignore", divide="ignore"):
        factor = np.where(p == 0, n_tests, adjusted / p)  # a p-value that rounds to zero passed the strictest test
    return 1 - ALPHA / np.where(np.isnan(p), 1, factor)


def friedman(areas: np.ndarray) -> tuple[float, float]:
    """Friedman's test over strategies with seeds as blocks: statistic and p-value.

    NaN with fewer than three strategies or two seeds. Without any difference in ranks the statistic is 0.

    Parameters
    ----------
    areas : (strategy, seed) array
    """
    areas = np.round(areas, 12)
    if areas.shape[0] < 3 or areas.shape[1] < 2:
        return np.nan, np.nan
    if (areas == areas[:1]).all():
        return 0.0, 1.0
    result = stats.friedmanchisquare(*areas)
    return float(result.statistic), float(result.pvalue)


def penalty_matrix(scores: np.ndarray, significance: float = 0.05) -> np.ndarray:
    """Pairwise penalties of BADGE's authors: ``P[i, j]`` is the share of budgets at which strategy i beats j.

    At a budget, i beats j if the t-score ``√n μ/σ`` of the paired differences exceeds the two-sided quantile, 2.776 for
    the 5 seeds of their paper. The column's mean says how often a strategy is beaten: lower is better. Over several
    experiments matrices are added. Many t-tests without a correction: a summary, not a verdict.

    Parameters
    ----------
    scores : (strategy, seed, budget) array
        Higher is better. Leave the budget before the first query out.

    Returns
    -------
    (strategy, strategy) array
        NaN with fewer than two seeds.
    """
    n_strategies, n_seeds, _ = scores.shape
    if n_seeds < 2:
        return np.full((n_strategies, n_strategies), np.nan)
    threshold = special.stdtrit(n_seeds - 1, 1 - significance / 2)
    difference = scores[:, None] - scores[None]  # (i, j, seed, budget)
    mean, spread = difference.mean(axis=2), difference.std(axis=2, ddof=1)
    # without a spread there is no t-score: see paired_difference
    beats = (spread > 1e-12) & (np.sqrt(n_seeds) * mean > threshold * spread)
    shares: np.ndarray = beats.mean(axis=2)
    return shares


def saved_labels(n_labels: np.ndarray, curves: np.ndarray, targets: Any) -> np.ndarray:
    """Count the labels saved: those left in the budget when a curve reaches a target and stays there.

    Linear between budgets. The last crossing counts: the first crossing of a noisy curve comes early by luck, and
    Random would save labels against itself.

    Parameters
    ----------
    n_labels : (budget,) array
    curves : (..., budget) array
    targets : (...) array

    Returns
    -------
    (...) array
        NaN where a curve ends below its target.

    Examples
    --------
    >>> float(saved_labels(np.array([20, 40, 60]), np.array([0.5, 0.75, 1.0]), 0.875))
    10.0
    """
    curves, targets = np.asarray(curves, dtype=float), np.asarray(targets, dtype=float)
    below = curves < targets[..., None] - 1e-12
    last = below.shape[-1] - 1 - below[..., ::-1].argmax(axis=-1)  # the last budget below the target
    following = np.minimum(last + 1, below.shape[-1] - 1)
    low, high = (np.take_along_axis(curves, place[..., None], axis=-1)[..., 0] for place in (last, following))
    with np.errstate(invalid="ignore", divide="ignore"):
        crossing = n_labels[last] + (targets - low) / (high - low) * (n_labels[following] - n_labels[last])
    saved = np.where(below[..., -1], np.nan, n_labels[-1] - crossing)
    return np.where(below.any(axis=-1), saved, n_labels[-1] - n_labels[0])


class Interval(NamedTuple):
    """An estimate with its 95 % interval; NaN: never reached, or too few seeds for an interval."""

    value: float
    low: float
    high: float


FEWEST_SEEDS = 10  # for an interval of labels saved


def saved_labels_interval(n_labels: np.ndarray, scores: np.ndarray, reference: np.ndarray) -> Interval:
    """Labels saved at the reference's final mean score, with a 95 % interval over the seeds.

    A number of labels is in the interval where the paired t-test does not tell the score there from the reference's
    final one, so the bounds are where the bounds of the difference cross zero. Resampling seeds gives intervals that
    are too short: ``python -m benchmarks.evidence intervals`` counts how often each kind holds.

    Parameters
    ----------
    n_labels : (budget,) array
    scores, reference : (seed, budget) arrays
        Paired. Fewer than ten seeds have no interval.
    """
    n_seeds = len(scores)
    difference = scores - reference[:, -1:]
    mean = difference.mean(axis=0)
    value = float(saved_labels(n_labels, mean, 0.0))
    if n_seeds < FEWEST_SEEDS:
        return Interval(value, np.nan, np.nan)
    half = float(special.stdtrit(n_seeds - 1, 1 - ALPHA / 2)) * difference.std(axis=0, ddof=1) / math.sqrt(n_seeds)
    low, high = (float(saved_labels(n_labels, bound, 0.0)) for bound in (mean - half, mean + half))
    return Interval(value, low, high)
