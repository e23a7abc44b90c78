# SPDX-License-Identifier: BSD-3-Clause
"""Figures of a benchmark's result: each function draws on the axes that it is given.

``result`` is a :class:`skal.bench.BenchmarkResult`, whose module imports this one.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from skal.bench._statistics import paired_difference

_MARKERS = "osD^vP*X<>phd"


class ShownAxes(Axes):
    """Axes that a notebook shows as their figure, whatever backend it has."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=100)  # type: ignore[union-attr]
        return buffer.getvalue()


def new_axes(size: tuple[float, float] = (6, 4.6)) -> Any:
    """Axes of a figure of their own: no display is needed and no global state is touched."""
    return Figure(figsize=size, layout="constrained").subplots(subplot_kw={"axes_class": ShownAxes})


def _style(result: Any, name: str) -> dict[str, Any]:
    """Black and dashed for the reference; colour and marker both tell the others apart, in print too."""
    if name == result.reference:
        return {"color": "black", "linestyle": "--", "marker": "o", "markersize": 4, "label": name}
    position = [other for other in result.strategies if other != result.reference].index(name)
    marker = _MARKERS[(position + 1) % len(_MARKERS)]
    colour = mpl.colormaps["tab20"]((2 * position + position // 10) % 20)
    return {"color": colour, "marker": marker, "markersize": 4, "label": name}


def curves(result: Any, ax: Any) -> None:
    """Mean score by labels; bands of one standard deviation where there are few strategies."""
    mean, std = result.means(), result.stds()
    for name in result.strategies:
        style = _style(result, name)
        ax.plot(mean.columns, mean.loc[name], **style)
        if len(result.strategies) <= 5 and len(result.seeds) > 1:
            low, high = mean.loc[name] - std.loc[name], mean.loc[name] + std.loc[name]
            ax.fill_between(mean.columns, low, high, color=style["color"], alpha=0.12, linewidth=0)
    seeds = "1 seed" if len(result.seeds) == 1 else f"{len(result.seeds)} seeds"
    ax.set(xlabel="labels", ylabel=f"test {result.score_name}", title=f"{result.protocol.heading}: mean over {seeds}")
    _finish(ax, len(result.strategies))


def areas(result: Any, ax: Any) -> None:
    """Difference of the area under the curve from the reference, the best on top: the verdicts are about this.

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
    interval = ", with the intervals of the corrected tests" if len(result.seeds) > 1 else ""
    ax.set(xlabel=f"points{interval}", title=f"Area under the curve, difference from {result.reference}")
    ax.grid(alpha=0.3)


def difference(result: Any, ax: Any) -> None:
    """Mean paired difference from the reference, in points, with 95 % t-intervals."""
    scores = dict(zip(result.strategies, result.scores, strict=True))  # name: (seed, budget)
    reference = scores.pop(result.reference)
    paired, step = len(result.seeds) > 1, float(np.diff(result.n_labels).min(initial=result.n_labels[-1]))
    for k, (name, own) in enumerate(scores.items()):
        gaps = [paired_difference(100 * a, 100 * b) for a, b in zip(own.T, reference.T, strict=True)]
        # side by side, so that intervals can be told apart
        x = result.n_labels + (k - (len(scores) - 1) / 2) * 0.6 * step / len(scores)
        half = [gap.high - gap.mean for gap in gaps] if paired else None
        bars = {"linewidth": 1, "elinewidth": 0.8, "capsize": 2}
        ax.errorbar(x, [gap.mean for gap in gaps], yerr=half, **bars, **_style(result, name))
    ax.axhline(0, color="black", linestyle="--", linewidth=1)
    interval = ", 95 % intervals, each budget for itself" if paired else ""
    ax.set(xlabel="labels", ylabel="points", title=f"Difference from {result.reference}{interval}")
    _finish(ax, len(scores))


def time(result: Any, ax: Any) -> None:
    """Mean seconds of a query against the mean score at the end of the budget."""
    seconds, final = result.times()["query"], result.means().iloc[:, -1]
    for name in result.strategies:
        style = _style(result, name) | {"linestyle": "none", "markersize": 8}
        ax.plot(np.maximum(seconds[name], 1e-4), final[name], **style)
    labels = {"xlabel": "seconds per query", "ylabel": f"test {result.score_name} at {result.n_labels[-1]} labels"}
    ax.set(xscale="log", title="Time against accuracy", **labels)
    _finish(ax, len(result.strategies))


def overlap(result: Any, ax: Any) -> None:
    """Heat map of the intersection over union."""
    values = result.overlap()
    n = len(values)
    ax.imshow(values.to_numpy(), cmap="Blues", vmin=0, vmax=1)
    ax.set_xticks(range(n), values.columns, rotation=60, ha="right", rotation_mode="anchor")
    ax.set_yticks(range(n), values.index)
    for (i, j), value in np.ndenumerate(values.to_numpy()):
        colour = "white" if value > 0.6 else "black"
        ax.text(j, i, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=8 if n < 9 else 6)
    ax.set_title("Queried in common: intersection over union")


def _finish(ax: Any, n_lines: int) -> None:
    ax.grid(alpha=0.3)
    # many names stand below the axes: inside they would cover the curves, beside them squeeze the axes on a phone
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": 3}
    if n_lines:
        ax.legend(frameon=False, fontsize=8, **(below if n_lines > 5 else {}))


# a function that draws a result on axes, and the caption in the report
RESULT_FIGURES: dict[str, tuple[Callable[[Any, Any], None], str]] = {
    "curves": (curves, "Mean test score by labels"),
    "areas": (areas, "Difference of the area under the curve; filled where the verdict is better or worse"),
    "difference": (difference, "Difference from the reference at each budget"),
    "time": (time, "Query time against final score"),
    "overlap": (overlap, "Overlap of what was queried"),
}
