"""The figures of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from benchmarks.evidence.settings import ARMS
from skal.bench import BenchmarkSuite
from skal.bench._suite_plots import COLOURS

# in the figures of curves: all arms would hide one another
SHOWN = ("random", "margin", "badge", "uherding", "typiclust", "dynamic_al", "ntk_lookahead", "npc", "auto")
README = ("random", "margin", "badge", "auto")
_STYLES: dict[str, dict[str, Any]] = {"random": {"color": "black", "linestyle": "--"}, "auto": {"linewidth": 2.4}}
_PICKS = {
    "balance": "evenness of classes,\ndifference from Random",
    "distance": "distance to nearest label,\nratio to Random",
    "remoteness": "distance to nearest of the pool,\nratio to Random",
}


def draw_curves(suite: BenchmarkSuite, setting: str, ax: Any, arms: tuple[str, ...]) -> None:
    """Mean scores in percent by labels, over all seeds that an arm has."""
    names, scores = suite.scores(setting)
    n_labels = suite.results[setting].n_labels
    colours = {arm: f"C{k}" for k, arm in enumerate(SHOWN)}
    for arm in arms:
        if arm in names:
            mean = 100 * np.nanmean(scores[names.index(arm)], axis=0)
            ax.plot(
                n_labels,
                mean,
                **{"color": colours[arm], "marker": "o", "markersize": 3, "label": arm} | _STYLES.get(arm, {}),
            )
    ax.grid(alpha=0.3)


def all_curves(suite: BenchmarkSuite) -> Figure:
    """A panel for each setting."""
    n, columns = len(suite.settings), 4
    rows = -(-n // columns)
    figure = Figure(figsize=(13, 2.7 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, setting in zip(axes, suite.settings, strict=False):
        draw_curves(suite, setting, ax, SHOWN)
        ax.set_title(setting.replace("_", " "), fontsize=9)
        ax.tick_params(labelsize=7)
    for ax in axes[n:]:
        ax.set_axis_off()
    handles = {label: handle for ax in axes[:n] for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
    return figure


def readme_curves(suite: BenchmarkSuite, setting: str, title: str) -> Figure:
    """One setting and few arms."""
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    ax = figure.subplots()
    draw_curves(suite, setting, ax, README)
    result = suite.results[setting]
    score = result.protocol.scoring.replace("_", " ")
    seeds = suite.n_seeds().loc["random", setting]
    ax.set(xlabel="labels", ylabel=f"test {score}, percent")
    ax.set_title(f"{title}\n{setting}, mean over {seeds} seeds", fontsize=10)
    ax.legend(frameon=False)
    return figure


def picks_figure(suite: BenchmarkSuite, picks: pd.DataFrame) -> Figure:
    """What each arm picked, relative to Random in the same setting: a dot per setting, coloured by the verdict."""
    outcomes = suite.outcomes()
    arms = [arm for arm in suite.summary().index if arm in outcomes.index and arm in ARMS]
    means = picks.groupby(level=["setting", "arm"]).mean()
    figure = Figure(figsize=(12, 1.8 + 0.22 * len(arms)), layout="constrained")
    for ax, (name, title) in zip(figure.subplots(1, 3, sharey=True), _PICKS.items(), strict=True):
        for i, arm in enumerate(arms):
            for setting, outcome in outcomes.loc[arm].dropna().items():
                own, random = means.loc[(setting, arm), name], means.loc[(setting, suite.reference), name]
                value = own - random if name == "balance" else own / max(random, 1e-12)
                colour = COLOURS[outcome]
                ax.plot(
                    value,
                    i,
                    "o",
                    markersize=4.5,
                    markerfacecolor=colour,
                    markeredgecolor="#555555",
                    markeredgewidth=0.4,
                )
        ax.axvline(0 if name == "balance" else 1, color="black", linestyle="--", linewidth=1)
        ax.set_title(title, fontsize=9)
        ax.grid(alpha=0.3)
        ax.set_yticks(range(len(arms)), arms, fontsize=7)
        ax.set_ylim(len(arms) - 0.5, -0.5)
    return figure


def write_figures(suite: BenchmarkSuite, picks: pd.DataFrame, folder: Path, first: str, title: str) -> None:
    """Write ``evidence_*.png``; ``first`` is the setting of the README's picture, and ``title`` what it calls it."""
    folder.mkdir(parents=True, exist_ok=True)
    figures = {kind: suite.plot(kind).figure for kind in ("ranks", "outcomes", "saved")}
    figures |= {"curves": all_curves(suite), "picks": picks_figure(suite, picks)}
    figures["margin"] = suite.plot("outcomes", reference="margin").figure if "margin" in suite.ranked else None
    if first in suite.settings:
        figures["first"] = readme_curves(suite, first, title)
    for name, figure in figures.items():
        if figure is not None:
            figure.savefig(folder / f"evidence_{name}.png", dpi=110)
