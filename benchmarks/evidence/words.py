"""Verdicts in words: sentences that follow from the numbers, whatever they are."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.evidence.rule import Judgement
from benchmarks.evidence.settings import ARMS, DEFAULT, SETTINGS
from skal.bench import BenchmarkSuite
from skal.bench._verdict import p_phrase, points

COMMON_START = [name for name, arm in ARMS.items() if arm.initial is None]
# those with a start of their own, and what they are compared with
STARTS = ["random", "margin", "uherding", "auto", *(name for name in ARMS if name not in COMMON_START)]


def listed(names: list[str], most: int = 6) -> str:
    """Names as a phrase; many of them are only counted.

    Examples
    --------
    >>> listed(["a", "b", "c"]), listed([])
    ('a, b and c', 'none')
    """
    if not names:
        return "none"
    shown = [*names[:most], *([f"{len(names) - most} more"] if len(names) > most else [])]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def against(suite: BenchmarkSuite, arm: str, reference: str, called: str) -> str:
    """In how many settings an arm is better or worse than another, and by how much."""
    if arm not in suite.strategies:
        return f"`{arm}` has not been run."
    row = suite.outcomes(reference).loc[arm].dropna()
    median = suite.differences(reference).loc[arm].dropna().median()
    won, lost, settings = (row == "better").sum(), (row == "worse").sum(), f"of {len(row)} settings"
    beats = f"beats {called} in {won} {settings}" if won else f"never beats {called}"
    loses = f"loses to it in {lost}" if lost else "never loses to it"
    loses += f" {settings}" if lost and not won else ""
    return f"`{arm}` {beats} and {loses}; the median difference is {points(median)} points."


def where(suite: BenchmarkSuite, arm: str, reference: str, called: str) -> list[str]:
    """The settings in which an arm is better and worse than another."""
    row = suite.outcomes(reference).loc[arm].dropna()
    found = {outcome: list(row.index[row == outcome]) for outcome in ("better", "worse")}
    return [f"{outcome.capitalize()} than {called}: {listed(names)}." for outcome, names in found.items() if names]


def headlines(suite: BenchmarkSuite) -> list[str]:
    """The main sentences, the most important first."""
    lines, ranks = recommended(suite), suite.mean_ranks()
    test = suite.friedman()
    leaders = listed([f"{name} ({rank:.1f})" for name, rank in ranks.head(5).items()])
    lines.append(f"Best mean ranks among {len(ranks)}: {leaders}.")
    if not np.isnan(test.p):
        differ = "differ" if test.p <= 0.05 else "cannot be told apart"
        lines.append(
            f"Over {len(suite.settings)} settings the arms {differ}: Friedman's χ² is {test.statistic:.0f}, "
            f"{p_phrase(test.p)} (Iman and Davenport's F {test.f:.1f}, {p_phrase(test.p_f)})."
        )
    shares = suite.shares()
    always = [n for n in shares.index if shares.loc[n, "better"] == shares.loc[n, "settings"]]
    lines.append(f"Better than Random in every setting they ran in: {listed(always, 10)}.")
    lost = shares[shares["worse"] > 0].sort_values("worse", ascending=False)
    worst = listed([f"{name} ({row['worse']} of {row['settings']})" for name, row in lost.iterrows()])
    lines.append(f"Worse than Random somewhere: {worst}.")
    for budget, part in by_budget(suite).items():
        saved = part.summary()["labels saved"].dropna().sort_values(ascending=False)
        best = listed([f"{name} {100 * value:.0f} %" for name, value in saved.head(5).items()])
        lines.append(f"Labels saved at Random's final score, median over the settings with {budget} labels: {best}.")
    return lines


def by_budget(suite: BenchmarkSuite) -> dict[str, BenchmarkSuite]:
    """The settings with few labels, and those with many: what is true of the ones is not of the others."""
    parts = {budget: [name for name in suite.settings if name.endswith(budget)] for budget in ("few", "many")}
    return {budget: suite.subset(names) for budget, names in parts.items() if names}


def recommended(suite: BenchmarkSuite) -> list[str]:
    """How the recommended default does against Random after the same start, with few labels and with many."""
    if DEFAULT not in suite.strategies:
        return []
    lines = []
    for budget, part in by_budget(suite).items():
        shares = part.shares().loc[DEFAULT]
        saved = part.saved_labels()["share"].xs(DEFAULT, level="strategy").fillna(0.0)
        lines.append(
            f"With {budget} labels `{DEFAULT}`, the recommended default, is better than Random in {shares['better']} "
            f"of {shares['settings']} settings and worse in {shares['worse']}; at Random's final score it saves "
            f"{100 * saved.median():.0f} % of the labels bought in the median, from {100 * saved.min():.0f} to "
            f"{100 * saved.max():.0f} %."
        )
    return lines


def judged(judgement: Judgement, strategy: str, which: str) -> list[str]:
    """What the rule says about the recommended strategy."""
    n = len(judgement.settings)
    verdict = "passes" if judgement.passed else "does not pass"
    far = [f"{name} ({judgement.best[name]} is {100 * gap:.1f} points ahead)" for name, gap in judgement.gaps.items()]
    far = [text for name, text in zip(judgement.gaps, far, strict=True) if name not in judgement.near]
    lines = [
        f"On the {n} {which} settings `{strategy}` {verdict} the rule: it is better than Random in "
        f"{len(judgement.better)}, worse in {len(judgement.worse)}, and within one point of the best strategy in "
        f"{len(judgement.near)}."
    ]
    if judgement.worse:
        lines.append(f"It is worse in {listed(judgement.worse, 20)}.")
    if far:
        lines.append(f"It is further behind in {listed(far, 20)}.")
    return lines


# what a low or high value of each statistic of picks.py means
_MEANING = {
    "balance": (-1, "from fewer classes"),
    "distance": (-1, "closer to one another"),
    "remoteness": (1, "more remote"),
}


def why(suite: BenchmarkSuite, picks: pd.DataFrame, arm: str) -> str:
    """How the picks of an arm differ from Random's where it loses.

    A difference counts where the mean over the seeds lies more than one standard deviation of Random's seeds away.
    """
    outcomes = suite.outcomes().loc[arm].dropna()
    lost = [setting for setting in outcomes.index[outcomes == "worse"] if setting in picks.index.unique(0)]
    if not lost:
        return ""
    found = []
    for name, (sign, meaning) in _MEANING.items():
        count = 0
        for setting in lost:
            own, random = picks.loc[(setting, arm), name], picks.loc[(setting, suite.reference), name]
            count += bool(sign * (own.mean() - random.mean()) > random.std())
        if count:
            found.append(f"{meaning} in {count}")
    how = (
        f"are {listed(found)} of these" if found else "do not differ clearly from Random's in class shares or distances"
    )
    return f"`{arm}` is worse than Random in {listed(lost, 3)}: its picks {how}."


def coverage_starts(suite: BenchmarkSuite) -> list[str]:
    """What a coverage start changes for the same strategy."""
    lines = []
    for name in ("random", "margin", "uherding", "auto"):
        arm = "auto, own start" if name == "auto" else f"{name}, coverage start"
        if arm in suite.strategies and name in suite.ranked:
            lines.append(against(suite, arm, name, f"`{name}` after a random start"))
    return lines


def unfinished(suite: BenchmarkSuite, n_missing: int) -> list[str]:
    """Which runs are still to be made."""
    lines = []
    if n_missing:
        lines.append(f"Unfinished: {n_missing} runs of these settings are missing.")
    if absent := [name for name in SETTINGS if name not in suite.settings]:
        lines.append(f"Not run yet: {listed(absent, 20)}.")
    return lines
