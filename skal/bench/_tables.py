"""A result's tables as text cells, for the terminal, Markdown and HTML alike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from skal.bench._nets import added
from skal.bench._specs import make_strategy
from skal.bench._verdict import p_phrase, p_text, wilcoxon_note
from skal.exceptions import SkalError

if TYPE_CHECKING:
    from skal.bench._result import BenchmarkResult

__all__ = ["Section", "headline", "sections"]


class Section(NamedTuple):
    """A heading, a table (header first), and what to know before reading it."""

    title: str
    rows: list[list[str]]
    note: str = ""


def headline(result: BenchmarkResult) -> list[str]:
    """The verdicts in words, one line per strategy, and what limits them."""
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
    if (warned := _warnings(result)).rows[1:]:
        found.append(warned)
    return [*found, _settings(result)]


def _scores(result: BenchmarkResult) -> Section:
    table = result.table()
    header = ["strategy", *(f"{n} labels" for n in table.columns)]
    rows = [[str(name), *cells] for name, cells in zip(table.index, table.to_numpy().tolist(), strict=True)]
    seeds = len(result.seeds)
    spread = f"mean ± standard deviation over {seeds} seeds" if seeds > 1 else "one seed"
    return Section("Scores", [header, *rows], f"Test accuracy in percent, {spread}.{_other_networks(result)}")


def _other_networks(result: BenchmarkResult) -> str:
    notes = []
    for name in result.strategies:
        try:
            addition = added(make_strategy(name))
        except SkalError:  # a strategy of the user's own
            continue
        if addition:
            notes.append(f"{name} trains the same network with {addition}")
    if not notes:
        return ""
    return f" {'; '.join(notes)}: compare the first column to see what that alone changes.".replace(" ;", ";")


def _against_reference(result: BenchmarkResult) -> Section:
    reference = result.reference
    header = ["strategy", "verdict", "area", f"difference from {reference}", "95 % interval", "p", "p (Holm)"]
    header += ["Wilcoxon p", "Wilcoxon p (Holm)", "labels saved"]
    rows = [
        [
            c.strategy,
            c.outcome,
            f"{100 * c.area:.2f}",
            _signed(100 * c.difference),
            "–" if math.isnan(c.low) else f"{_signed(100 * c.low)} … {_signed(100 * c.high)}",
            p_text(c.p),
            p_text(c.p_holm),
            p_text(c.p_wilcoxon),
            p_text(c.p_wilcoxon_holm),
            "not reached" if math.isnan(c.labels_saved) else f"{c.labels_saved:.0f}",
        ]
        for c in result.comparisons()
    ]
    areas = result.areas().loc[reference]
    statistic, p = result.friedman()
    note = (
        f"Area under the budget curve as a mean accuracy in percent; {reference} has {100 * areas.mean():.2f}. "
        "The verdict is the paired t-test on the area, after Holm's correction over the strategies. Labels saved: how "
        f"many labels before the end the mean curve has come up to {reference}'s final mean score for good."
    )
    if not math.isnan(p):
        note += f" Friedman's test over all strategies: χ² = {statistic:.2f}, {p_phrase(p)}."
    note += f" {wilcoxon_note(len(result.seeds), len(rows))}"
    return Section(f"Against {reference}", [header, *rows], note.strip())


def _pairwise(result: BenchmarkResult) -> Section:
    frame = result.pairwise()
    header = ["pair", "difference", "95 % interval", "p (Holm)", "Wilcoxon p (Holm)"]
    rows = [
        [
            f"{row.a} − {row.b}",
            _signed(100 * row.mean),
            "–" if math.isnan(row.low) else f"{_signed(100 * row.low)} … {_signed(100 * row.high)}",
            p_text(row.p_holm),
            p_text(row.p_wilcoxon_holm),
        ]
        for row in frame.sort_values("p_holm", kind="stable").itertuples()
    ]
    note = "Paired t-tests and Wilcoxon's tests on the areas of all pairs, Holm's correction over the pairs."
    return Section("All pairs", [header, *rows], f"{note} {wilcoxon_note(len(result.seeds), len(rows))}".strip())


def _penalties(result: BenchmarkResult) -> Section:
    table = result.penalties()
    rows = [[str(name), *(f"{value:.2f}" for value in table.loc[name])] for name in table.index]
    rows.append(["mean", *(f"{value:.2f}" for value in table.mean(axis=0))])
    note = (
        "Share of budgets at which the row's strategy beats the column's, by a t-test at each budget; lower in the "
        "last row is better. Many tests without a correction: a summary, not a verdict."
    )
    return Section("Pairwise penalties", [["", *map(str, table.columns)], *rows], note)


def _times(result: BenchmarkResult) -> Section:
    table = result.times()
    rows = [[str(name), _seconds(row["query"]), _seconds(row["fit"])] for name, row in table.iterrows()]
    note = "Mean seconds per round, as measured while the benchmark ran."
    return Section("Time", [["strategy", "query", "training"], *rows], note)


def _overlap(result: BenchmarkResult) -> Section:
    table = result.overlap()
    rows = [[str(name), *(f"{value:.2f}" for value in table.loc[name])] for name in table.index]
    note = "Intersection over union of what was queried, each strategy's set the union over its seeds."
    return Section("Overlap", [["", *map(str, table.columns)], *rows], note)


def _warnings(result: BenchmarkResult) -> Section:
    by_text: dict[tuple[str, str], int] = {}
    for run in result.runs:
        for text in run.warnings:
            by_text[run.strategy, text] = by_text.get((run.strategy, text), 0) + 1
    rows = [[strategy, str(count), text] for (strategy, text), count in by_text.items()]
    return Section(
        "Warnings", [["strategy", "runs", "warning"], *rows], "What was warned about while the runs were made."
    )


def _settings(result: BenchmarkResult) -> Section:
    settings: dict[str, Any] = result.protocol.as_dict() | result.details
    versions = {tuple(sorted(run.record.get("versions", {}).items())) for run in result.runs}
    rows = [[name, _plain(value)] for name, value in settings.items() if value not in ("", {}, None)]
    for number, entry in enumerate(sorted(versions)):
        rows.append([f"versions{f' ({number + 1})' if len(versions) > 1 else ''}", _plain(dict(entry))])
    note = "Runs were made with different versions of the software." if len(versions) > 1 else ""
    return Section("Settings", [["setting", "value"], *rows], note)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(entry)}" for name, entry in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 1 else f"{value:.1f}"
