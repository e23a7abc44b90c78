# SPDX-License-Identifier: BSD-3-Clause
"""Is it better than the reference, or noise? One end point per strategy, one test, one sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from skal.bench._statistics import ALPHA, area, paired_tests, saved_labels, wilcoxon_floor


@dataclass(frozen=True)
class Comparison:
    """The verdict on one strategy against the reference; differences and areas in units of the score.

    The interval from ``low`` to ``high`` belongs to the corrected test: it leaves zero out if that finds a difference.
    """

    strategy: str
    area: float
    difference: float
    low: float
    high: float
    p: float
    p_holm: float
    p_wilcoxon: float
    p_wilcoxon_holm: float
    confidence: float
    saved_labels: float
    ahead: int  # budgets after the first query at which the mean is above the reference's
    behind: int
    n_budgets: int
    n_seeds: int
    reference: str

    @property
    def outcome(self) -> str:
        """``better``, ``worse``, ``not distinguishable`` or ``not testable``."""
        if np.isnan(self.p_holm):
            return "not testable"
        if self.p_holm > ALPHA:
            return "not distinguishable"
        return "better" if self.difference > 0 else "worse"

    @property
    def verdict(self) -> str:
        """The outcome in words."""
        name = "Random" if self.reference == "random" else self.reference
        if self.n_seeds < 2:
            return f"not enough seeds: one run cannot tell a difference from {name} from noise"
        if self.outcome == "not testable":
            return f"not testable: the difference from {name} is the same for every seed, so its noise is unknown"
        if self.outcome == "not distinguishable":
            few = f" with only {self.n_seeds} seeds" if self.n_seeds < 5 else ""
            possible = f"a difference of {points(self.low)} to {points(self.high)} points remains possible{few}"
            return f"not distinguishable from {name}, {p_phrase(self.p_holm)}: {possible}"
        count = self.ahead if self.outcome == "better" else self.behind
        where = "at every budget" if count == self.n_budgets else f"overall, at {count} of {self.n_budgets} budgets"
        interval = f"a difference of {points(self.low)} to {points(self.high)} points"
        return f"{self.outcome} than {name} {where}, {p_phrase(self.p_holm)} ({interval})"


def compare(names: list[str], n_labels: np.ndarray, scores: np.ndarray, reference: str) -> list[Comparison]:
    """Compare every strategy with the reference over paired seeds.

    The end point is the area under the budget curve, one number per run, so that looking at many budgets does not
    multiply the chances of a false alarm; the p-values of the strategies are corrected by Holm's method. The number of
    budgets at which the mean is ahead only describes a difference that this test has found.

    Parameters
    ----------
    names : list of str
        Of the strategies.
    n_labels : (budget,) array
    scores : (strategy, seed, budget) array
        NaN where a strategy has not run: each is compared on the seeds that it shares with the reference.
    reference : str
        One of the names.
    """
    position = names.index(reference)
    others = [i for i in range(len(names)) if i != position]
    areas = area(n_labels, scores)
    tests = paired_tests(areas, [(i, position) for i in others]).rename(columns={"mean": "difference"})
    results = []
    for i, test in zip(others, tests.to_dict("records"), strict=True):
        shared = ~np.isnan(areas[i] - areas[position])
        own, base = (
            scores[k][shared].mean(axis=0) if shared.any() else np.full(len(n_labels), np.nan) for k in (i, position)
        )
        # before the first query all are alike, unless the strategies chose that, too
        gaps = np.round((own - base)[-max(1, len(n_labels) - 1) :], 12)
        results.append(
            Comparison(
                strategy=names[i],
                area=float(area(n_labels, own)),
                **test,
                saved_labels=float(saved_labels(n_labels, own, base[-1])),
                ahead=int((gaps > 0).sum()),
                behind=int((gaps < 0).sum()),
                n_budgets=len(gaps),
                n_seeds=int(shared.sum()),
                reference=reference,
            )
        )
    return results


def wilcoxon_note(n_seeds: int, n_tests: int) -> str:
    """Say so if Wilcoxon's test cannot find anything with so few seeds, whatever the scores; else nothing."""
    if n_tests == 0 or wilcoxon_floor(n_seeds) * n_tests <= ALPHA:
        return ""
    enough = next(n for n in range(1, 64) if wilcoxon_floor(n) * n_tests <= ALPHA)
    return (
        f"Wilcoxon's test has not enough seeds: with {n_seeds} its smallest possible p-value is "
        f"{wilcoxon_floor(n_seeds):.3g} before Holm's correction for {n_tests} "
        f"{'test' if n_tests == 1 else 'tests'}; {enough} seeds would be needed."
    )


def p_text(p: float) -> str:
    """A p-value for reading."""
    return "–" if np.isnan(p) else "< 0.001" if p < 0.001 else f"{p:.2g}" if p < 0.1 else f"{p:.2f}"


def p_phrase(p: float) -> str:
    """The same, with the relation."""
    return f"p {p_text(p)}" if p < 0.001 else f"p = {p_text(p)}"


def points(value: float) -> str:
    """A difference of scores in percentage points, with its sign."""
    return f"{100 * value:+.2f}".replace("-", "−")
