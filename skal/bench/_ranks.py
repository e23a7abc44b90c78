# SPDX-License-Identifier: BSD-3-Clause
"""Comparisons over several data sets as pure functions of arrays (Demšar 2006).

Shapes: ``scores`` is (strategy, setting), higher is better, without gaps.
"""

from __future__ import annotations

import math
from itertools import combinations
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from skal.bench._statistics import ALPHA, friedman, holm, wilcoxon


class FriedmanTest(NamedTuple):
    """Friedman's χ² with its p-value, and Iman and Davenport's F, which is less conservative, with its own."""

    statistic: float
    p: float
    f: float
    p_f: float


def rank(scores: np.ndarray) -> np.ndarray:
    """(strategy, setting) ranks within each setting: 1 is best, ties share the mean.

    Examples
    --------
    >>> rank(np.array([[0.9, 0.5], [0.8, 0.5], [0.7, 0.6]])).tolist()
    [[1.0, 2.5], [2.0, 2.5], [3.0, 1.0]]
    """
    ranks: np.ndarray = stats.rankdata(-np.round(scores, 12), axis=0)
    return ranks


def friedman_test(scores: np.ndarray) -> FriedmanTest:
    """Do the strategies differ at all? The settings are the blocks; NaN where there is too little to test."""
    k, n = scores.shape
    statistic, p = friedman(scores)
    room = n * (k - 1) - statistic
    if math.isnan(statistic) or room <= 1e-12:  # the same order everywhere: F is infinite
        return FriedmanTest(statistic, p, math.nan if math.isnan(statistic) else math.inf, p if p != p else 0.0)
    f = (n - 1) * statistic / room
    return FriedmanTest(statistic, p, f, float(stats.f.sf(f, k - 1, (k - 1) * (n - 1))))


def critical_difference(n_strategies: int, n_settings: int, alpha: float = ALPHA) -> float:
    """Nemenyi's critical difference of two mean ranks.

    Examples
    --------
    >>> round(critical_difference(4, 14), 2)  # Demšar's example
    1.25
    """
    q = float(stats.studentized_range.ppf(1 - alpha, n_strategies, np.inf)) / math.sqrt(2)
    return q * math.sqrt(n_strategies * (n_strategies + 1) / (6 * n_settings))


def pairwise_wilcoxon(scores: np.ndarray) -> pd.DataFrame:
    """Wilcoxon's signed-rank test of each pair of strategies over the settings, Holm's correction over the pairs.

    A pair's test looks at these two alone; with tests on mean ranks it would depend on the other strategies
    (Benavoli, Corani and Mangili 2016).

    Returns
    -------
    pandas.DataFrame
        ``i``, ``j`` (positions), ``difference`` (mean), ``p`` and ``p_holm``.
    """
    pairs = list(combinations(range(len(scores)), 2))
    rows = [(i, j, float((scores[i] - scores[j]).mean()), wilcoxon(scores[i], scores[j])) for i, j in pairs]
    tests = pd.DataFrame(rows, columns=["i", "j", "difference", "p"])
    return tests.assign(p_holm=holm(tests["p"].to_numpy()))


def groups(different: np.ndarray) -> list[tuple[int, int]]:
    """Longest runs of neighbours, in the order of mean ranks, of which no two are different: first and last place.

    Parameters
    ----------
    different : (strategy, strategy) bool array
        Sorted by mean rank.

    Examples
    --------
    >>> apart = np.zeros((4, 4), dtype=bool)
    >>> apart[0, 2:] = True
    >>> groups(apart | apart.T)
    [(0, 1), (1, 3)]
    """
    found: list[tuple[int, int]] = []
    for first in range(len(different)):
        last = first
        while last + 1 < len(different) and not different[first : last + 1, last + 1].any():
            last += 1
        if last > first and not (found and found[-1][1] >= last):
            found.append((first, last))
    return found
