"""Figures of a benchmark's result: each draws on the axes it is given, and returns them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

if TYPE_CHECKING:
    from skal.bench._result import BenchmarkResult

__all__ = ["KINDS", "new_axes"]

_MARKERS = "osD^vP*X<>phd"


def new_axes() -> Any:
    """Axes of a figure of their own: no display is needed and no global state is touched."""
    return Figure(figsize=(6, 4.6), layout="constrained").subplots()


def _style(result: BenchmarkResult, name: str) -> dict[str, Any]:
    """Black and dashed for the reference; colour and marker both tell the others apart, in print too."""
    if name == result.reference:
        return {"color": "black", "linestyle": "--", "marker": "o", "markersize": 4, "label": name}
    position = [other for other in result.strategies if other != result.reference].index(name)
    colours = mpl.colormaps["tab20"](np.arange(20))
    marker = _MARKERS[(position + 1) % len(_MARKERS)]
    colour = colours[(2 * position + position // 10) % 20]
    return {"color": colour, "marker": marker, "markersize": 4, "label": name}


def curves(result: BenchmarkResult, ax: Any) -> Any:
    """Mean score by labels; bands of one standard deviation where there are few strategies."""
    mean, std = result.means(), result.stds()
    for name in result.strategies:
        style = _style(result, name)
        ax.plot(mean.columns, mean.loc[name], **style)
        if len(result.strategies) <= 5 and len(result.seeds) > 1:
            low, high = mean.loc[name] - std.loc[name], mean.loc[name] + std.loc[name]
            ax.fill_between(mean.columns, low, high, color=style["color"], alpha=0.12, linewidth=0)
    ax.set(xlabel="labels", ylabel="test accuracy", title=_title(result, "mean score"))
    return _finish(ax, len(result.strategies))


def areas(result: BenchmarkResult, ax: Any) -> Any:
    """What the verdicts are about: the area's difference from the reference, best on top.

    Filled where the test after Holm's correction finds a difference, hollow where it does not.
    """
    found = sorted(result.comparisons(), key=lambda comparison: comparison.difference)
    for k, comparison in enumerate(found):
        style = _style(result, comparison.strategy) | {"linestyle": "none", "markersize": 6, "label": None}
        if comparison.outcome not in ("better", "worse"):
            style["markerfacecolor"] = "white"
        middle, low, high = (100 * value for value in (comparison.difference, comparison.low, comparison.high))
        ax.errorbar(middle, k, xerr=None if np.isnan(low) else [[middle - low], [high - middle]], capsize=3, **style)
    ax.axvline(0, color="black", linestyle="--", linewidth=1)
    ax.set_yticks(range(len(found)), [comparison.strategy for comparison in found])
    interval = ", with 95 % intervals" if len(result.seeds) > 1 else ""
    ax.set(xlabel=f"points{interval}", title=f"Area under the curve, difference from {result.reference}")
    ax.grid(alpha=0.3)
    return ax


def difference(result: BenchmarkResult, ax: Any) -> Any:
    """Mean paired difference from the reference, in points, with 95 % t-intervals."""
    scores = result.scores
    reference = scores[result.strategies.index(result.reference)]
    others = [name for name in result.strategies if name != result.reference]
    n_seeds, step = len(result.seeds), float(np.diff(result.n_labels).min()) if len(result.n_labels) > 1 else 1.0
    for k, name in enumerate(others):
        gaps = 100 * (scores[result.strategies.index(name)] - reference)  # (seed, budget)
        # side by side, so that intervals can be told apart
        x = result.n_labels + (k - (len(others) - 1) / 2) * 0.6 * step / max(1, len(others))
        style = _style(result, name)
        if n_seeds > 1:
            half = stats.t.ppf(0.975, n_seeds - 1) * gaps.std(axis=0, ddof=1) / np.sqrt(n_seeds)
            ax.errorbar(x, gaps.mean(axis=0), yerr=half, linewidth=1, elinewidth=0.8, capsize=2, **style)
        else:
            ax.plot(x, gaps.mean(axis=0), linewidth=1, **style)
    ax.axhline(0, color="black", linestyle="--", linewidth=1)
    interval = ", 95 % intervals, each budget for itself" if n_seeds > 1 else ""
    ax.set(xlabel="labels", ylabel="points", title=f"Difference from {result.reference}{interval}")
    return _finish(ax, len(others))


def time(result: BenchmarkResult, ax: Any) -> Any:
    """Mean seconds of a query against the mean score at the end of the budget."""
    seconds, final = result.times()["query"], result.means().iloc[:, -1]
    for name in result.strategies:
        style = _style(result, name) | {"linestyle": "none", "markersize": 8}
        ax.plot(np.maximum(seconds[name], 1e-4), final[name], **style)
    ax.set_xscale("log")
    ax.set(xlabel="seconds per query", ylabel=f"test accuracy at {result.n_labels[-1]} labels")
    ax.set_title("Time against accuracy")
    return _finish(ax, len(result.strategies))


def overlap(result: BenchmarkResult, ax: Any) -> Any:
    """Heat map of the intersection over union."""
    values = result.overlap()
    n = len(values)
    ax.imshow(values.to_numpy(), cmap="Blues", vmin=0, vmax=1)
    ax.set_xticks(range(n), values.columns, rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(n), values.index)
    for i in range(n):
        for j in range(n):
            value = values.iloc[i, j]
            colour = "white" if value > 0.6 else "black"
            ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8 if n < 9 else 6)
    ax.set_title("Queried in common: intersection over union")
    return ax


def _title(result: BenchmarkResult, what: str) -> str:
    seeds = len(result.seeds)
    return f"{result.protocol.data}, {result.protocol.net}: {what} over {seeds} {'seed' if seeds == 1 else 'seeds'}"


def _finish(ax: Any, n_lines: int) -> Any:
    ax.grid(alpha=0.3)
    if n_lines == 0:
        return ax
    if n_lines > 5:  # below the axes: inside it would cover the curves, beside it would squeeze them on a phone
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False, fontsize=8)
    else:
        ax.legend(frameon=False, fontsize=8)
    return ax


KINDS: dict[str, Callable[[BenchmarkResult, Any], Any]] = {
    "curves": curves,
    "areas": areas,
    "difference": difference,
    "time": time,
    "overlap": overlap,
}
