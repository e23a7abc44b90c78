# SPDX-License-Identifier: BSD-3-Clause
"""Figures of several benchmarks: each function draws on the axes that it is given.

``suite`` is a :class:`skal.bench.BenchmarkSuite`, whose module imports this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.patches import Rectangle

from skal.bench._ranks import groups
from skal.bench._statistics import ALPHA

# blue, white and orange can be told apart without red and green
COLOURS = {"better": "#2b6cb0", "not distinguishable": "#e8e8e8", "worse": "#d9822b", "not testable": "#bbbbbb"}


def ranks(suite: Any, ax: Any) -> None:
    """Critical-difference diagram: the best on the left, a bar over strategies that the tests do not tell apart.

    The bars come from the corrected Wilcoxon tests; the blue line is Nemenyi's critical difference, for comparison.
    """
    means = suite.mean_ranks()
    names, n = list(means.index), len(means)
    different = np.zeros((n, n), dtype=bool)
    for a, b, p in suite.pairwise()[["a", "b", "p_holm"]].itertuples(index=False):
        i, j = names.index(a), names.index(b)
        different[i, j] = different[j, i] = p <= ALPHA
    bars, half = groups(different), (n + 1) // 2
    low, high, room = 1.0, float(max(n, 2)), 0.04 * max(n - 1, 1)
    ax.set_xlim(low - 0.3 * (high - low), high + 0.3 * (high - low))
    ax.set_ylim(half + 1.2, -1.4 - 0.3 * len(bars))
    ax.set_axis_off()
    ax.plot([low, high], [0, 0], color="black", linewidth=1)
    for tick in np.unique(np.round(np.linspace(low, high, min(n, 10)))):
        ax.plot([tick, tick], [0, -0.12], color="black", linewidth=1)
        ax.text(tick, -0.2, f"{tick:.0f}", ha="center", va="bottom", fontsize=8)
    for place, (name, value) in enumerate(means.items()):
        left = place < half
        level = 1 + (place if left else n - 1 - place)
        edge = low - room if left else high + room
        ax.plot([value, value, edge], [0, level, level], color="black", linewidth=0.7)
        text = f"{name} {value:.1f}" if left else f"{value:.1f} {name}"
        ax.text(
            edge, level, f"{text} " if left else f" {text}", ha="right" if left else "left", va="center", fontsize=8
        )
    for k, (first, last) in enumerate(bars):
        height = -0.75 - 0.3 * k
        ax.plot(means.iloc[[first, last]] + np.array([-0.05, 0.05]), [height, height], color="black", linewidth=3)
    length, height = suite.critical_difference(), -0.75 - 0.3 * len(bars)
    ax.plot([low, low + length], [height, height], color="#2b6cb0", linewidth=1.5, marker="|")
    ax.text(low + length, height, f"  critical difference {length:.1f}", va="center", fontsize=7, color="#2b6cb0")
    title = f"Mean rank over {len(suite.settings)} settings, 1 is best; bars join what is not told apart"
    ax.set_title(title, fontsize=10)


def outcomes(suite: Any, ax: Any, reference: str | None = None) -> None:
    """The verdict of every strategy in every setting, with the difference in points."""
    reference = reference or suite.reference
    found, differences = suite.outcomes(reference), 100 * suite.differences(reference)
    order = [name for name in suite.summary().index if name in found.index]
    for i, name in enumerate(order):
        for j, setting in enumerate(found.columns):
            outcome, value = found.loc[name, setting], differences.loc[name, setting]
            if not isinstance(outcome, str):
                continue
            ax.add_patch(_box(j, i, COLOURS[outcome]))
            colour = "white" if outcome in ("better", "worse") else "black"
            ax.text(j, i, f"{value:+.1f}".replace("-", "−"), ha="center", va="center", fontsize=6, color=colour)
    ax.set_xlim(-0.5, len(found.columns) - 0.5)
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_xticks(range(len(found.columns)), found.columns, rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
    ax.set_yticks(range(len(order)), order, fontsize=7)
    ax.set_title(f"Points over {reference}\nblue: better, orange: worse, grey: not distinguishable", fontsize=10)


def _box(x: float, y: float, colour: str) -> Rectangle:
    return Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour)


def savings(suite: Any, ax: Any, reference: str | None = None) -> None:
    """Share of the labels saved at the reference's final score: a dot per setting, the median as a line."""
    table = suite.saved_labels(reference)
    order = [name for name in suite.summary().index if name in table.index.get_level_values("strategy")]
    for i, name in enumerate(order):
        shares = table.xs(name, level="strategy")["share"]
        reached, missed = 100 * shares.dropna(), int(shares.isna().sum())
        ax.plot(reached, np.full(len(reached), i), "o", color="#2b6cb0", alpha=0.5, markersize=4)
        ax.plot(100 * shares.fillna(0).median(), i, "|", color="black", markersize=12, markeredgewidth=2)
        ax.text(-2, i, str(missed) if missed else "", ha="right", va="center", fontsize=7, color="#d9822b")
    ax.set_yticks(range(len(order)), order, fontsize=7)
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.set_xlim(-8, 102)
    ax.grid(alpha=0.3)
    reference = reference or suite.reference
    ax.set(xlabel="labels saved, percent of those bought after the start")
    ax.set_title(
        f"Labels saved at {reference}'s final score: settings, their median,\nand in how many it is not reached",
        fontsize=10,
    )


# a function that draws a suite on axes, and the figure's size, given the numbers of strategies and settings
SUITE_FIGURES: dict[str, tuple[Callable[..., None], Callable[[int, int], tuple[float, float]]]] = {
    "ranks": (ranks, lambda n, m: (9, 1.8 + 0.13 * n)),
    "outcomes": (outcomes, lambda n, m: (3 + 0.42 * m, 2.2 + 0.21 * n)),
    "saved": (savings, lambda n, m: (7, 1.6 + 0.21 * n)),
}
