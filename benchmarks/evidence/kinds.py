"""What the default gives for each kind of data, with few labels and with many: the table that README has, too.

What it gives is taken apart. The strong simple recipe is a start that covers the data, and then Margin: what that gains
over Margin after random labels is the start's, and what the default gains over the recipe is the queries'.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks._measure import markdown
from benchmarks.evidence import raw
from benchmarks.evidence.runs import RESULTS, as_result
from benchmarks.evidence.settings import REFERENCE, SECOND, SETTINGS
from skal.bench import BenchmarkResult, BenchmarkSuite
from skal.bench._statistics import FEWEST_SEEDS
from skal.bench._verdict import points

OWN, RECIPE = "auto, own start", "margin, coverage start"
ARMS = [REFERENCE, SECOND, RECIPE, OWN]
FEATURES, ROWS, SCRATCH = (
    "features of a pre-trained network",
    "rows of numbers, a small network",
    "images, from scratch",
)
TABLES, TEXTS = "raw tables", "texts as words"
_SCRATCH = ("digits_cnn", "digits_mlp", "mnist_cnn", "cifar10_cnn")
_ROWS = ("letter_mlp", "digits_rows_mlp")
HEADER = [
    "your data",
    "labels",
    "settings",
    "better / worse than random",
    "points over random",
    "of these the start",
    "and the queries",
    "labels saved",
    "simple recipe as good in",
]


def kind_of(name: str) -> str:
    """Which kind of data a setting stands for.

    Examples
    --------
    >>> kind_of("banking77_mlp_few"), kind_of("raw_dna_forest_many")
    ('features of a pre-trained network', 'raw tables')
    """
    if name.startswith("raw_"):
        return TEXTS if "tfidf" in name else TABLES
    stem = name.rpartition("_")[0]
    return SCRATCH if stem in _SCRATCH else ROWS if stem in _ROWS else FEATURES


def load_kinds(folder: Path = RESULTS) -> dict[tuple[str, str], BenchmarkSuite]:
    """By kind and budget the settings in which all four arms have enough seeds."""
    declared = dict(SETTINGS) | dict(raw.SETTINGS)
    found: dict[tuple[str, str], dict[str, BenchmarkResult]] = {}
    for name, setting in declared.items():
        result = as_result(setting, ARMS, folder)
        if result is not None and set(ARMS) <= set(result.strategies) and len(result.seeds) >= FEWEST_SEEDS:
            found.setdefault((kind_of(name), name.rpartition("_")[2]), {})[name] = result
    order = [FEATURES, ROWS, SCRATCH, TEXTS, TABLES]
    return {key: BenchmarkSuite(found[key]) for key in sorted(found, key=lambda key: (order.index(key[0]), key[1]))}


def summarise(suite: BenchmarkSuite) -> dict[str, float]:
    """The numbers of one row: counts of settings, and medians over them.

    ``start`` is Margin after a coverage start over Margin after a random one; ``queries`` is the default over that
    recipe; ``total`` is the default over Random. Medians need not add up.
    """
    outcomes, against = suite.outcomes().loc[OWN], suite.outcomes(RECIPE).loc[OWN]
    saved = saved_shares(suite)
    return {
        "settings": len(suite.settings),
        "better": int((outcomes == "better").sum()),
        "worse": int((outcomes == "worse").sum()),
        "total": float(suite.differences().loc[OWN].median()),
        "start": float(suite.differences(SECOND).loc[RECIPE].median()),
        "queries": float(suite.differences(RECIPE).loc[OWN].median()),
        "as_good": int((against != "better").sum()),
        "saved": float(saved.median()),
        "saved_low": float(saved.min()),
        "saved_high": float(saved.max()),
    }


def saved_shares(suite: BenchmarkSuite) -> pd.Series:
    """Share of the labels bought after the start that the default saves, by setting; not reached counts as none."""
    shares = suite.saved_labels()["share"].xs(OWN, level="strategy")
    return shares.fillna(0.0)


def kinds_table(suites: dict[tuple[str, str], BenchmarkSuite]) -> str:
    """A row for each kind of data and budget."""
    rows: list[list[object]] = []
    for (kind, budget), suite in suites.items():
        found = summarise(suite)
        span = f" ({100 * found['saved_low']:.0f} … {100 * found['saved_high']:.0f})" if found["settings"] > 1 else ""
        rows.append(
            [
                kind,
                budget,
                found["settings"],
                f"{found['better']} / {found['worse']}",
                *(_points(found[name]) for name in ("total", "start", "queries")),
                f"{100 * found['saved']:.0f} %{span}",
                f"{found['as_good']} of {found['settings']}",
            ]
        )
    return markdown(HEADER, rows)


def short_table(suites: dict[tuple[str, str], BenchmarkSuite]) -> str:
    """A row for each kind of data, for README; "–" where a budget has no setting."""
    budgets = [budget for budget in ("few", "many") if any(budget == own for _, own in suites)]
    header, rows = ["your data"], []
    for budget in budgets:
        header += [f"{budget} labels: better in", "saves", "recipe as good in"]
    for kind in dict.fromkeys(kind for kind, _ in suites):
        cells: list[object] = [kind]
        for budget in budgets:
            found = summarise(suites[kind, budget]) if (kind, budget) in suites else None
            if found is None:
                cells += ["–"] * 3
                continue
            n = found["settings"]
            cells += [f"{found['better']} of {n}", f"{100 * found['saved']:.0f} %", f"{found['as_good']} of {n}"]
        rows.append(cells)
    return markdown(header, rows)


def _points(value: float) -> str:
    return points(value if abs(value) >= 5e-5 else 0.0)


def sentences(suites: dict[tuple[str, str], BenchmarkSuite]) -> list[str]:
    """What follows from the table, whatever it says."""
    lines = []
    for budget in ("few", "many"):
        some = {kind: summarise(suite) for (kind, own), suite in suites.items() if own == budget}
        if not some:
            continue
        better, worse, n, as_good = (
            sum(int(found[name]) for found in some.values()) for name in ("better", "worse", "settings", "as_good")
        )
        gains = [found["queries"] for found in some.values()]
        lines += [
            f"With {budget} labels the default is better than random labels in {better} of {n} settings and worse in "
            f"{worse}.",
            f"There its queries add {_points(min(gains))} to {_points(max(gains))} points (medians by kind) to the "
            f"simple recipe, a start that covers the data and then Margin, which is as good in {as_good} of {n}.",
        ]
    return lines


def intervals_table(suites: dict[tuple[str, str], BenchmarkSuite]) -> str:
    """Labels saved by the default in every setting, with the interval over its seeds."""
    rows: list[list[object]] = []
    for suite in suites.values():
        saved = suite.saved_labels().xs(OWN, level="strategy")
        for name, row in saved.iterrows():
            bought = suite.results[str(name)].n_labels
            cells = ["–" if np.isnan(row[key]) else f"{row[key]:.0f}" for key in ("value", "low", "high")]
            rows.append([name, int(row["seeds"]), int(bought[-1] - bought[0]), *cells])
    return markdown(["setting", "seeds", "labels bought", "saved", "from", "to"], rows)
