# SPDX-License-Identifier: BSD-3-Clause
"""A result's tables as text cells, for the terminal, Markdown and HTML alike."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, NamedTuple

import pandas as pd

from skal.bench._result import BenchmarkResult, as_text
from skal.bench._verdict import p_phrase, p_text, points, wilcoxon_note


class Section(NamedTuple):
    """A heading, a table of texts without an index, and a note on how to read it."""

    title: str
    table: pd.DataFrame
    note: str = ""


def headline(result: BenchmarkResult) -> list[str]:
    """The verdicts in words, one line per strategy, and their limits."""
    lines = [f"{comparison.strategy}: {comparison.verdict}." for comparison in result.comparisons()]
    if result.n_missing:
        total = len(result.protocol.strategies) * result.protocol.seeds
        lines.append(f"Unfinished: {result.n_missing} of {total} runs are missing; only complete seeds are compared.")
    if warned := sorted({run.strategy for run in result.runs if run.warnings}):
        lines.append(f"There were warnings in runs of {', '.join(warned)}: the report lists them.")
    return lines


def sections(result: BenchmarkResult) -> list[Section]:
    """All tables of the report."""
    found = [_scores(result), _against_reference(result)]
    if len(result.strategies) > 2:
        found += [_pairwise(result), _penalties(result)]
    found += [_times(result), _overlap(result)]
    if any(run.warnings for run in result.runs):
        found.append(_warnings(result))
    return [*found, _settings(result)]


def _scores(result: BenchmarkResult) -> Section:
    table = result.table().rename(columns=lambda n: f"{n} labels").reset_index()
    seeds = len(result.seeds)
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return Section("Scores", table, f"Test {result.score_name} in percent, {spread}.{_other_networks(result)}")


def _other_networks(result: BenchmarkResult) -> str:
    """A note on strategies that add something to the network."""
    additions = {run.strategy: run.record.get("network", "").partition(" with ")[2] for run in result.runs}
    notes = [f"{name} trains the same network with {addition}" for name, addition in additions.items() if addition]
    return f" {'; '.join(notes)}: compare the first column to see what that alone changes." if notes else ""


def _against_reference(result: BenchmarkResult) -> Section:
    reference, tests = result.reference, result.tests()
    columns = {
        "strategy": tests.index,
        "verdict": [comparison.outcome for comparison in result.comparisons()],
        "area": tests["area"].map(lambda area: f"{100 * area:.2f}"),
        f"difference from {reference}": tests["difference"].map(points),
        **_interval_and_p(tests, ["p", "p_holm", "p_wilcoxon", "p_wilcoxon_holm"]),
        "labels saved": tests["saved_labels"].map(lambda n: "not reached" if math.isnan(n) else f"{n:.0f}"),
    }
    statistic, p = result.friedman()
    note = (
        f"Area under the budget curve as a mean {result.score_name} in percent; "
        f"{reference} has {100 * result.areas().loc[reference].mean():.2f}. "
        "The verdict is the paired t-test on the area, after Holm's correction over the strategies; the interval is "
        "that of the corrected test. Labels saved: how many labels before the end the mean curve reaches "
        f"{reference}'s final mean score and stays there."
    )
    if not math.isnan(p):
        note += f" Friedman's test over all strategies: χ² = {statistic:.2f}, {p_phrase(p)}."
    note += f" {wilcoxon_note(len(result.seeds), len(tests))}"
    return Section(f"Against {reference}", pd.DataFrame(columns), note.strip())


def _pairwise(result: BenchmarkResult) -> Section:
    tests = result.pairwise().sort_values("p_holm", kind="stable")
    columns = {
        "pair": tests["a"] + " − " + tests["b"],
        "difference": tests["mean"].map(points),
        **_interval_and_p(tests, ["p_holm", "p_wilcoxon_holm"]),
    }
    note = "Paired t-tests and Wilcoxon's tests on the areas of all pairs, Holm's correction over the pairs; the "
    note += "intervals are those of the corrected t-tests."
    note += f" {wilcoxon_note(len(result.seeds), len(tests))}"
    return Section("All pairs", pd.DataFrame(columns), note.strip())


def _penalties(result: BenchmarkResult) -> Section:
    table = result.penalties()
    table.loc["mean"] = table.mean(axis=0)
    note = (
        "Share of budgets at which the row's strategy beats the column's, by a t-test at each budget; lower in the "
        "last row is better. Many tests without a correction: a summary, not a verdict."
    )
    return Section("Pairwise penalties", _matrix(table), note)


def _overlap(result: BenchmarkResult) -> Section:
    note = "Intersection over union of what was queried, each strategy's set the union over its seeds."
    return Section("Overlap", _matrix(result.overlap()), note)


def _times(result: BenchmarkResult) -> Section:
    table = result.times().rename(columns={"fit": "training"})
    table = table.apply(lambda column: column.map(lambda s: f"{s:.3f}" if s < 1 else f"{s:.1f}"))
    return Section("Time", table.reset_index(), "Mean seconds per round, as measured while the benchmark ran.")


def _warnings(result: BenchmarkResult) -> Section:
    counts = Counter((run.strategy, text) for run in result.runs for text in run.warnings)
    rows = [(strategy, str(count), text) for (strategy, text), count in counts.items()]
    table = pd.DataFrame(rows, columns=["strategy", "runs", "warning"])
    return Section("Warnings", table, "Warnings given while the runs were made.")


def _settings(result: BenchmarkResult) -> Section:
    settings = result.protocol.as_dict() | result.details
    rows = [(name, _plain(value)) for name, value in settings.items() if value not in ("", {}, None)]
    versions = {tuple(sorted(run.record.get("versions", {}).items())) for run in result.runs}
    for number, entry in enumerate(sorted(versions), start=1):
        rows.append((f"versions ({number})" if len(versions) > 1 else "versions", _plain(dict(entry))))
    note = "Runs were made with different versions of the software." if len(versions) > 1 else ""
    return Section("Settings", pd.DataFrame(rows, columns=["setting", "value"]), note)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(entry)}" for name, entry in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _matrix(table: pd.DataFrame) -> pd.DataFrame:
    """BenchmarkResult with two decimals, and the index as a first column without a name."""
    return as_text(table, "{:.2f}").rename_axis("").reset_index()


def _interval_and_p(tests: pd.DataFrame, names: list[str]) -> dict[str, Any]:
    bounds = zip(tests["low"], tests["high"], strict=True)
    interval = ["–" if math.isnan(low) else f"{points(low)} … {points(high)}" for low, high in bounds]
    headings = {"p": "p", "p_holm": "p (Holm)", "p_wilcoxon": "Wilcoxon p", "p_wilcoxon_holm": "Wilcoxon p (Holm)"}
    return {"interval": interval} | {headings[name]: tests[name].map(p_text) for name in names}
