"""How the default's rule for raw tables was chosen: starts and queries on tables that do not judge it.

``python -m benchmarks.evidence.raw_rule run`` makes the runs that are missing, ``report`` prints what they say. The
tables are scikit-learn's own, ``letter.npz``, ``banking77.npz``, ``regression/*.npz`` in classes of equal size, and
``multilabel/emotions.npz``, in ``$SKAL_DATA_HOME``; none of them is among the six of :mod:`benchmarks.evidence.raw`.

Written down before the runs were looked at. The queries stay as they are (leaves of a forest); the start is distance or
direction. With 10 labels it is the one whose whole loops have the larger mean accuracy over the 24 cases (tables times
classifiers). If that is distance, it is taken up to the largest of 10, 30 and 100 labels at which its first models are
ahead of those by direction in the mean over the cases. Then the six tables judge it once, few labels with 20 seeds.

Looked at afterwards, on the same tables: the samples nearest to the centres of k-means, as first labels. They would
have taken the place of distance, if ahead of it by more than two standard errors, and would then have been judged anew.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import CountVectorizer
from tqdm import tqdm

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from benchmarks.evidence.centres import KMeansStart
from benchmarks.evidence.raw import FEW, MANY, make_estimator
from benchmarks.evidence.runs import RESULTS
from skal import ActiveLearningClassifier
from skal.bench._verdict import points
from skal.strategies._names import make_strategy, named_strategy

FIRST_SEED, MOST_SEEDS = 100, 20
NETS = ("logistic", "forest")
SIZES = (FEW[0], 30, MANY[0])
STARTS = MappingProxyType(
    {
        "random": "random",
        "distance": "max_herding(features='prepared', normalize=False)",
        "direction": "max_herding(features='prepared')",
        "k-means": KMeansStart(),
    }
)
ONES = ("distance", "direction")  # that the rule may take
QUERIES = MappingProxyType({"none": "random", "leaves": "uherding(features='prepared', kernel='forest')"})
_MOST_TESTED = 2000

Table = tuple[pd.DataFrame, np.ndarray]


def _home() -> Path:
    return Path(os.environ["SKAL_DATA_HOME"])


def _from_sklearn(load: Callable[..., Any]) -> Table:
    bunch = load(as_frame=True)
    return bunch.data, bunch.target.to_numpy()


def _numbers(path: str) -> tuple[np.ndarray, np.ndarray]:
    with np.load(_home() / path) as file:
        return np.concatenate([file["X_train"], file["X_test"]]), np.concatenate([file["y_train"], file["y_test"]])


def _in_classes(name: str, n_classes: int, categories: tuple[int, ...] = ()) -> Table:
    """A table of numbers to predict, in classes of equal size; columns of categories are strings."""
    X, y = _numbers(f"regression/{name}.npz")
    bounds = np.quantile(y, np.arange(1, n_classes) / n_classes)
    table = pd.DataFrame(X.astype(np.float64)).add_prefix("x")
    for j in categories:
        table.isetitem(j, "c" + pd.Series(np.unique(X[:, j], return_inverse=True)[1]).astype(str))
    return table, np.searchsorted(bounds, y)


def _letter_of_strings() -> Table:
    """Six letters, by columns of six categories each."""
    X, y = _numbers("letter.npz")
    own = y < 6
    return pd.DataFrame(np.char.add("c", (X[own] // 3).astype(str)).astype(object)).add_prefix("x"), y[own]


def _words() -> Table:
    """Ten intents of banking77, by columns that say whether a text has a word."""
    with np.load(_home() / "banking77.npz") as file:
        texts, y = np.concatenate([file["texts_train"], file["texts_test"]]), np.append(file["y_train"], file["y_test"])
    own = y < 10
    words = CountVectorizer(binary=True, max_features=150).fit_transform(texts[own])
    return pd.DataFrame(words.toarray()).add_prefix("word"), y[own]


def _emotions() -> Table:
    X, Y = _numbers("multilabel/emotions.npz")
    return pd.DataFrame(X.astype(np.float64)).add_prefix("x"), Y[:, 2]


def _letter() -> Table:
    X, y = _numbers("letter.npz")
    return pd.DataFrame(X).add_prefix("x"), y


TABLES: MappingProxyType[str, Callable[[], Table]] = MappingProxyType(
    {
        "letter": _letter,
        "digits": lambda: _from_sklearn(load_digits),
        "breast cancer": lambda: _from_sklearn(load_breast_cancer),
        "wine": lambda: _from_sklearn(load_wine),
        "bike": lambda: _in_classes("bike", 3, (1, 3, 5, 8, 10)),
        "concrete": lambda: _in_classes("concrete", 3),
        "elevators": lambda: _in_classes("elevators", 2),
        "protein": lambda: _in_classes("protein", 3),
        "kin40k": lambda: _in_classes("kin40k", 2),
        "emotions": _emotions,
        "letter of strings": _letter_of_strings,
        "words": _words,
    }
)


@lru_cache(maxsize=1)
def _read(name: str) -> tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]:
    X, y = TABLES[name]()
    y = y.astype(str)
    train, test = np.split(np.random.default_rng(0).permutation(len(X)), [2 * len(X) // 3])
    test = test[:_MOST_TESTED]
    return X.iloc[train], y[train], X.iloc[test], y[test]


def make_run(table: str, net: str, start: str, query: str, n_initial: int, seed: int) -> list[float]:
    """Accuracies of one loop, or of the first model alone if ``query`` is ``none``.

    A pool has 70 % of a small table, so that those of two seeds differ.
    """
    X, y, X_test, y_test = _read(table)
    rows = np.random.default_rng([seed, 0]).choice(len(X), size=min(7 * len(X) // 10, 1000), replace=False)
    pool, labels = X.iloc[rows], y[rows]
    loop = ActiveLearningClassifier(
        make_estimator(net),
        make_strategy(QUERIES[query]),
        initial=named_strategy("raw_rule", "start", STARTS[start]) if start != "random" else start,
        n_initial=min(n_initial, len(rows) // 2),
        query_size=FEW[1],
        n_rounds=FEW[2] if len(rows) > 140 else 2,
        classes=np.unique(y),
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if query != "none":
            history = loop.fit(pool, labels, eval_set=(X_test, y_test)).history_
            return [round(float(entry["eval_score"]), 6) for entry in history]
        first = loop.start(pool).ask()
        one_class = len(np.unique(labels[first])) == 1
        model = DummyClassifier() if one_class else make_estimator(net)
        return [round(float(model.fit(pool.iloc[first], labels[first]).score(X_test, y_test)), 6)]


def _key(table: str, net: str, start: str, query: str, n_initial: int, seed: int) -> str:
    return f"{table}, {net}: {start}, {query}, {n_initial} labels, seed {seed}"


def run(kept: Kept, tables: list[str], n_loops: int, n_starts: int) -> None:
    """Make the runs that are missing; it may be stopped at any time."""
    cases = [(table, net) for table in tables for net in NETS]
    loops = [(*case, start, "leaves", FEW[0], seed) for seed in _seeds(n_loops) for case in cases for start in ONES]
    firsts = [
        (*case, start, "none", n, seed)
        for n in SIZES
        for seed in _seeds(n_starts)
        for case in cases
        for start in STARTS
    ]
    for task in tqdm(loops + firsts, file=sys.stderr, mininterval=30):
        kept(_key(*task), lambda task=task: make_run(*task))


def _seeds(n: int) -> range:
    return range(FIRST_SEED, FIRST_SEED + n)


def _gains(kept: Kept, case: tuple[str, str], start: str, base: str, query: str, n_initial: int) -> np.ndarray:
    """Mean accuracy after a start minus that after another, of every seed that has both."""
    both = [tuple(_key(*case, name, query, n_initial, seed) for name in (start, base)) for seed in _seeds(MOST_SEEDS)]
    return np.array([np.mean(kept[own]) - np.mean(kept[other]) for own, other in both if own in kept and other in kept])


def report(kept: Kept, tables: list[str]) -> str:
    """Whole loops by distance against those by direction, then first models of both against those of random labels."""
    cases = [(table, net) for table in tables for net in NETS]
    rows: list[list[object]] = []
    for table in tables:
        gains = [_gains(kept, (table, net), *ONES, "leaves", FEW[0]) for net in NETS]
        rows.append([table, min(map(len, gains)), *map(_with_error, gains)])
    means = [np.mean(_gains(kept, case, *ONES, "leaves", FEW[0])) for case in cases]
    rows.append(["mean of the cases", "", _with_error(np.array(means)), f"ahead in {np.sum(np.array(means) > 0)}"])
    starts = [start for start in STARTS if start != "random"]
    firsts: list[list[object]] = []
    for n in SIZES:
        gains = {start: [_gains(kept, case, start, "random", "none", n) for case in cases] for start in starts}
        means = {start: np.array([seeds.mean() for seeds in own]) for start, own in gains.items() if all(map(len, own))}
        over = [_with_error(means["distance"] - means[start]) if start in means else "–" for start in starts[1:]]
        cells = [points(means[start].mean()) if start in means else "–" for start in starts]
        firsts.append([n, min(map(len, gains["distance"])), *cells, *over])
    return "\n\n".join(
        [
            markdown(["table", "seeds", *NETS], rows),
            markdown(["labels", "seeds", *starts, *(f"distance over {start}" for start in starts[1:])], firsts),
        ]
    )


def _with_error(values: np.ndarray) -> str:
    return f"{points(values.mean())} ± {100 * np.std(values, ddof=1) / np.sqrt(len(values)):.1f}"


def main(argv: list[str] | None = None) -> int:
    """Run, or print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evidence.raw_rule", description=__doc__)
    parser.add_argument("command", choices=["run", "report"])
    parser.add_argument("--tables", type=lambda text: text.split(","), default=list(TABLES), metavar="A,B")
    parser.add_argument("--loops", type=int, default=10, metavar="N", help="seeds of whole loops")
    parser.add_argument("--starts", type=int, default=MOST_SEEDS, metavar="N", help="seeds of first models")
    parser.add_argument("--kept", type=Path, default=RESULTS / "rule" / "raw_rule.jsonl", metavar="FILE")
    args = parser.parse_args(argv)
    kept = Kept(args.kept)
    if args.command == "report":
        print(report(kept, args.tables))
    else:
        run(kept, args.tables, args.loops, args.starts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
