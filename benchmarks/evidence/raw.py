"""Raw tables and texts: whether the default helps people who bring columns of all kinds, or sentences.

``python -m benchmarks.evidence.raw run`` makes the runs that are missing, and ``report`` prints the tables of the page
``docs/evidence/raw.md``. The data are ``tables/NAME.csv.gz``, whose last column is the class, and the texts of
``banking77.npz``, in ``$SKAL_DATA_HOME``.

The first two rules were chosen on vehicle, dna and satellite with the seeds 100 and above, in trials whose code is not
kept, and judged with the seeds 0 to 9 of all six tables, and the texts.

Written down before the third rule was judged: for up to 10 labels its start is coverage by distance, as chosen on
twelve other tables (:mod:`benchmarks.evidence.raw_rule`). It is judged once, with 20 seeds of few labels: worse than
Random in none after correction, better in 8 of 12 settings with few labels, behind Margin by more than a point in none;
on the texts three points over a random start and Margin. With many labels, and on the texts, the rule is the second,
whose runs stay.

Found after that: a pool was 1,000 rows or all there are, which on vehicle are 564. So all its seeds had one pool, and a
start without chance made one run of them, counted 20 times. Written down before it was run anew: pools have at most
70 % of the rows to draw from, as in the choice of the rule, which changes vehicle alone. Whatever comes out replaces
what was there, and the page says both.

Written down before they were run: boosted trees on the six tables with many labels, ten seeds. Nothing is chosen on
them. scikit-learn's do not divide fewer than forty samples, so with few labels there is no model.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from tqdm import tqdm

from benchmarks._measure import markdown
from benchmarks.evidence.runs import RESULTS, append, as_result, fingerprint, forget, read
from benchmarks.evidence.settings import Arm, Setting
from skal import ActiveLearningClassifier
from skal.bench import BenchmarkSuite, Protocol
from skal.bench._statistics import ALPHA
from skal.bench._verdict import points
from skal.exceptions import InvalidParameterError
from skal.strategies._names import make_strategy

TABLES = ("adult", "satellite", "spambase", "dna", "vehicle", "segment")
ARMS = MappingProxyType(
    {
        "random": Arm("random"),
        "margin": Arm("margin"),
        "margin, coverage start": Arm("margin", "auto"),
        "auto, own start": Arm("auto", "auto"),
    }
)
FEW, MANY, TEXTS = (10, 10, 6), (100, 50, 4), (77, 77, 4)
_MOST_TESTED = 2000


def _setting(data: str, net: str, budget: str, labels: tuple[int, int, int], n_pool: int) -> Setting:
    n_initial, query_size, n_rounds = labels
    name = f"raw_{data}_{net}_{budget}"
    sizes: dict[str, Any] = {"n_initial": n_initial, "query_size": query_size, "n_rounds": n_rounds, "n_pool": n_pool}
    seeds = 20 if labels == FEW else 10
    return Setting(Protocol(name=name, data=data, net=net, strategies=tuple(ARMS), **sizes), seeds=seeds, held_out=True)


# at most 70 % of the rows, so that the pools of two seeds differ
_POOLS = MappingProxyType({table: 394 if table == "vehicle" else 1000 for table in TABLES})
_ALL = [
    _setting(table, net, budget, labels, _POOLS[table])
    for budget, labels in (("few", FEW), ("many", MANY))
    for table in TABLES
    for net in ("logistic", "forest", "boosting")
    if (net, budget) != ("boosting", "few")
] + [_setting("banking77", "tfidf", "few", TEXTS, 4000)]
SETTINGS = MappingProxyType({setting.name: setting for setting in _ALL})


Table = tuple[Any, np.ndarray, Any, np.ndarray]


@lru_cache(maxsize=1)
def _read(data: str) -> Table:
    """Samples and labels to draw pools from, and to test on."""
    home = Path(os.environ["SKAL_DATA_HOME"])
    if data == "banking77":
        with np.load(home / "banking77.npz") as file:
            texts = [np.array(file[name], dtype=object) for name in ("texts_train", "texts_test")]
            return texts[0], file["y_train"], texts[1], file["y_test"]
    table = pd.read_csv(home / "tables" / f"{data}.csv.gz")
    return divide(table.iloc[:, :-1], table.iloc[:, -1].to_numpy(dtype=str))


def divide(X: pd.DataFrame, y: np.ndarray) -> Table:
    """Two thirds of a table for pools, and at most 2,000 of the other rows for testing: the same for all seeds."""
    order = np.random.default_rng(0).permutation(len(X))
    train, test = np.split(order, [2 * len(X) // 3])
    test = test[:_MOST_TESTED]
    return X.iloc[train], y[train], X.iloc[test], y[test]


def make_estimator(net: str) -> Any:
    """What people write: the usual preparation of columns, or of texts, before the usual classifier."""
    if net == "tfidf":
        return make_pipeline(TfidfVectorizer(sublinear_tf=True), LogisticRegression(C=10, max_iter=1000))
    numbers = make_column_selector(dtype_include="number")
    strings = make_column_selector(dtype_exclude="number")
    one_hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    if net == "logistic":
        columns = make_column_transformer((StandardScaler(), numbers), (one_hot, strings))
        return make_pipeline(columns, LogisticRegression(max_iter=1000))
    columns = make_column_transformer(("passthrough", numbers), (one_hot, strings))
    trees = {"forest": RandomForestClassifier, "boosting": HistGradientBoostingClassifier}[net]
    return make_pipeline(columns, trees(random_state=0))


def make_run(name: str, arm: str, seed: int) -> dict[str, Any]:
    """One run as a line."""
    setting = SETTINGS[name]
    X, y, X_test, y_test = _read(setting.protocol.data)
    n_pool = min(len(X), setting.protocol.n_pool or len(X))
    rows = np.random.default_rng([seed, 0]).choice(len(X), size=n_pool, replace=False)
    pool = X.iloc[rows] if isinstance(X, pd.DataFrame) else X[rows]
    return make_line(setting, arm, seed, make_estimator(setting.protocol.net), pool, y[rows], (X_test, y_test))[0]


def make_line(
    setting: Setting,
    arm: str,
    seed: int,
    estimator: Any,
    pool: Any,
    y: np.ndarray,
    test: tuple[Any, np.ndarray],
    **own: Any,
) -> tuple[dict[str, Any], np.ndarray]:
    """The line of a run, and the positions in the pool in the order in which they were labelled.

    ``own`` are parameters of the loop that are not the usual ones.
    """
    protocol = setting.protocol
    began = time.process_time()
    usual: dict[str, Any] = {"initial": ARMS[arm].initial or "random"}
    loop = ActiveLearningClassifier(
        estimator,
        make_strategy(ARMS[arm].strategy),
        **{**usual, **own},
        n_initial=protocol.n_initial,
        query_size=protocol.query_size,
        n_rounds=protocol.n_rounds,
        classes=np.union1d(y, test[1]),
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            loop.fit(pool, y, eval_set=test)
        except InvalidParameterError:
            if len(np.unique(y[getattr(loop, "queried_", [])])) != 1:
                raise  # not because all labels of the run are of one class
    history, known = loop.history_, y[loop.queried_]
    line = {
        "arm": arm,
        "seed": seed,
        "settings": fingerprint(setting),
        "n_labels": [int(entry["n_labelled"]) for entry in history],
        "scores": [round(_score(entry, known, test[1]), 6) for entry in history],
        "seconds": round(time.process_time() - began, 2),
        "seconds_query": round(float(np.mean([entry["seconds_query"] for entry in history[1:]])), 4),
        "warnings": [],
        "record": {},
    }
    return line, loop.queried_


def _score(entry: dict[str, Any], known: np.ndarray, y_test: np.ndarray) -> float:
    """A round's accuracy; labels of one class train no model, and whoever has them can say nothing but that class."""
    if entry["eval_score"] is not None:
        return float(entry["eval_score"])
    (only,) = np.unique(known[: entry["n_labelled"]])
    return float(np.mean(y_test == only))


def run(names: list[str], arms: list[str], seeds: list[int], folder: Path) -> None:
    """Make the runs that are missing, of a setting's first seeds; it may be stopped at any time."""
    for seed in seeds:
        for name in names:
            setting = SETTINGS[name]
            if seed >= setting.seeds:
                continue
            done = read(setting, folder)
            left = [arm for arm in arms if (arm, seed) not in done]
            for arm in tqdm(left, f"{name}, seed {seed}", file=sys.stderr, disable=not left):
                append(setting, make_run(name, arm, seed), folder)


def load_suite(folder: Path = RESULTS) -> BenchmarkSuite:
    """All settings that have runs."""
    found = {name: as_result(setting, list(ARMS), folder) for name, setting in SETTINGS.items()}
    ready = {name: result for name, result in found.items() if result and {"random", *result.strategies} > {"random"}}
    return BenchmarkSuite(ready)


def report(suite: BenchmarkSuite) -> str:
    """Points over Random with their verdicts, and over Margin."""
    rows: list[list[object]] = []
    for name in suite.settings:
        own = {c.strategy: c for c in suite.comparisons()[name]}
        margin = suite.subset([name]).differences("margin")[name] if "margin" in own else {}
        cells = [f"{points(own[arm].difference)} ({own[arm].outcome})" if arm in own else "–" for arm in list(ARMS)[1:]]
        behind = margin.get("auto, own start", np.nan)
        seeds = own["auto, own start"].n_seeds if "auto, own start" in own else 0
        area = 100 * float(
            np.mean([np.mean(run.scores) for run in suite.results[name].runs if run.strategy == "random"])
        )
        rows.append(
            [name.removeprefix("raw_"), seeds, f"{area:.1f}", *cells, "–" if behind != behind else points(behind)]
        )
    header = ["setting", "seeds", "Random's mean accuracy", *list(ARMS)[1:], "auto over margin"]
    return markdown(header, rows) + "\n\n" + "\n".join(verdicts(suite))


def verdicts(suite: BenchmarkSuite) -> list[str]:
    """The aims in one sentence each, met or not."""
    tables = [name for name in suite.settings if not name.startswith("raw_banking77")]
    tables = [name for name in tables if "auto, own start" in suite.results[name].strategies]
    if not tables:
        return []
    part = suite.subset(tables)
    outcomes = part.outcomes().loc["auto, own start"]
    few = [name for name in tables if name.endswith("_few")]
    better = [name for name in few if outcomes[name] == "better"]
    own = {name: next(c for c in part.comparisons()[name] if c.strategy == "auto, own start") for name in few}
    alone = [name for name, c in own.items() if c.difference > 0 and c.p < ALPHA]
    worse = [name for name in tables if outcomes[name] == "worse"]
    gaps = part.differences("margin").loc["auto, own start"]
    behind = [f"{name.removeprefix('raw_')} ({points(gaps[name])})" for name in tables if gaps[name] < -0.01]
    texts = [
        name for name in suite.settings if name not in tables and "auto, own start" in suite.results[name].strategies
    ]
    ahead = suite.subset(texts).differences("margin").loc["auto, own start"] if texts else {}
    return [
        f"With its own start `auto` is better than Random in {len(better)} of {len(few)} settings with few labels.",
        f"Without the correction for the two other arms it would be {len(alone)}.",
        f"It is worse than Random in {len(worse)} of all {len(tables)}.",
        f"It is behind Margin by more than a point in {', '.join(behind) or 'none'}.",
        *(f"On the texts it is {points(ahead[name])} points from Margin after a random start." for name in texts),
    ]


def main(argv: list[str] | None = None) -> int:
    """Run, or print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.raw", description=__doc__)
    parser.add_argument("command", choices=["run", "report"])
    parser.add_argument("--settings", type=lambda text: text.split(","), default=list(SETTINGS), metavar="A,B")
    parser.add_argument("--arms", type=lambda text: text.split(";"), default=list(ARMS), metavar="A;B")
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="how many; of many labels 10 at most")
    parser.add_argument("--again", action="store_true", help="forget the runs of these arms first: they have changed")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER")
    args = parser.parse_args(argv)
    if args.command == "report":
        print(report(load_suite(args.results)))
        return 0
    for name in args.settings if args.again else ():
        forget(SETTINGS[name], args.arms, args.results)
    run(args.settings, args.arms, list(range(args.seeds)), args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
