"""The rule that the recommended strategy must pass, as a function of results.

Written down before the held-out settings are run. In the settings that it is judged on, the recommended strategy
must be

1. better than Random after correction in at least three quarters of them,
2. worse than Random after correction in none,
3. within one point of area under the curve of the best strategy in at least two thirds.

The best strategy is the one with the largest mean difference from Random among those that share the random start; ones
with a start of their own have had other labels. If the rule fails, what ``auto`` does is changed by what the
development settings show, and only those; the page then says so.
"""

from __future__ import annotations

from dataclasses import dataclass

from skal.bench import BenchmarkSuite

BETTER, WITHIN, POINT = 3 / 4, 2 / 3, 0.01


@dataclass(frozen=True)
class Judgement:
    """Which settings meet the criteria.

    Attributes
    ----------
    settings, better, worse, near : list of str
        All settings; those in which the strategy is better, worse, and within one point of the best.
    gaps : dict of str to float
        How far the best strategy of each setting is ahead, in units of the score.
    best : dict of str to str
        That strategy.
    """

    settings: list[str]
    better: list[str]
    worse: list[str]
    near: list[str]
    gaps: dict[str, float]
    best: dict[str, str]

    @property
    def criteria(self) -> dict[str, bool]:
        """Each criterion, and whether it is met."""
        n = len(self.settings)
        return {
            "better than Random in at least three quarters": len(self.better) >= BETTER * n,
            "worse than Random in none": not self.worse,
            "within one point of the best in at least two thirds": len(self.near) >= WITHIN * n,
        }

    @property
    def passed(self) -> bool:
        """Whether all three are met."""
        return bool(self.settings) and all(self.criteria.values())


def judge(suite: BenchmarkSuite, strategy: str, rivals: list[str]) -> Judgement:
    """Judge a strategy by the settings of a suite; the best is one of ``rivals``, itself included."""
    outcomes, differences = suite.outcomes(), suite.differences()
    found = Judgement(suite.settings, [], [], [], {}, {})
    for setting in suite.settings:
        outcome = outcomes.loc[strategy, setting]
        if outcome == "better":
            found.better.append(setting)
        if outcome == "worse":
            found.worse.append(setting)
        column = differences[setting].reindex(rivals).dropna()
        found.best[setting] = str(column.idxmax()) if column.max() > 0 else suite.reference
        found.gaps[setting] = float(max(column.max(), 0.0) - column[strategy])
        if found.gaps[setting] <= POINT + 1e-12:
            found.near.append(setting)
    return found
