"""skal beside scikit-activeml and modAL: what each has, points in the same loop, and time and memory of a query.

``python -m benchmarks.comparison features|loop|cost [--quick]``; all three without a name. Needs the extra ``bench``.
The loop is the same for all: digits, a logistic regression, ten labels at first (one of each class), ten more in every
round; only who chooses differs. Each library gets the fitted model, so that none trains one in a query.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import skal.strategies
from benchmarks._measure import interleaved, markdown, peak_memory, print_baseline, print_peak
from skal import ActiveLearner

N_CLASSES = 10
MODEL = LogisticRegression(max_iter=1000)


class State(NamedTuple):
    """What a query starts from: a model that was fitted to the labelled rows of X."""

    model: Any
    X: np.ndarray
    y: np.ndarray
    labelled: np.ndarray

    @property
    def rest(self) -> np.ndarray:
        """Rows without a label."""
        return np.setdiff1d(np.arange(len(self.X)), self.labelled)


def ask_skal(name: str, state: State, b: int, seed: int) -> np.ndarray:
    """Rows that a strategy of skal chooses."""
    strategy = clone(ActiveLearner(MODEL, name).query_strategy)
    if "random_state" in strategy.get_params():
        strategy.set_params(random_state=seed)
    learner = ActiveLearner(state.model, strategy)
    learner.X_training, learner.y_training = state.X[state.labelled], state.y[state.labelled]
    return state.rest[strategy.select(learner, state.X[state.rest], b)[0]]


def ask_skactiveml(name: str, state: State, b: int, seed: int) -> np.ndarray:
    """Rows that a strategy of scikit-activeml chooses."""
    from skactiveml import pool
    from skactiveml.classifier import SklearnClassifier

    class_name, _, method = name.partition(" ")
    cls = getattr(pool, class_name)
    strategy = cls(random_state=seed, **({"method": method} if method else {}))
    known = np.full(len(state.X), np.nan)
    known[state.labelled] = state.y[state.labelled]
    given: dict[str, Any] = {}
    if "clf" in inspect.signature(cls.query).parameters:
        classifier = SklearnClassifier(state.model, classes=list(range(N_CLASSES)))
        classifier.fit(state.X[state.labelled], state.y[state.labelled])
        given = {"clf": classifier, "fit_clf": False}
    return np.asarray(strategy.query(state.X, known, batch_size=b, **given))


def ask_modal(name: str, state: State, b: int, seed: int) -> np.ndarray:
    """Rows that a function of modAL chooses."""
    import modAL

    learner = modAL.ActiveLearner(state.model, query_strategy=_modal_strategies()[name])
    learner.X_training, learner.y_training = state.X[state.labelled], state.y[state.labelled]
    return state.rest[np.asarray(learner.query(state.X[state.rest], n_instances=b)[0])]


def _modal_strategies() -> dict[str, Callable[..., Any]]:
    from modAL import batch, density, disagreement, expected_error, multilabel, uncertainty

    modules = (batch, density, disagreement, expected_error, multilabel, uncertainty)
    found = {name: thing for module in modules for name, thing in vars(module).items() if inspect.isfunction(thing)}
    first = {"learner", "classifier", "committee", "regressor"}
    return {
        name: thing
        for name, thing in found.items()
        if not name.startswith("_")
        and first & set(inspect.signature(thing).parameters)
        and {"X", "X_pool", "unlabeled"} & set(inspect.signature(thing).parameters)
        and "n_instances" in inspect.signature(thing).parameters
    }


ASK = {"skal": ask_skal, "scikit-activeml": ask_skactiveml, "modAL": ask_modal}
# what does the same, by library; the last rows have no counterpart
STRATEGIES = {
    "random": {"skal": "random", "scikit-activeml": "RandomSampling"},
    "margin": {
        "skal": "margin",
        "scikit-activeml": "UncertaintySampling margin_sampling",
        "modAL": "margin_sampling",
    },
    "entropy": {
        "skal": "entropy",
        "scikit-activeml": "UncertaintySampling entropy",
        "modAL": "entropy_sampling",
    },
    "BADGE": {"skal": "badge", "scikit-activeml": "Badge"},
    "core-set": {"skal": "coreset", "scikit-activeml": "CoreSet"},
    "TypiClust": {"skal": "typiclust", "scikit-activeml": "TypiClust"},
    "MaxHerding": {"skal": "max_herding", "scikit-activeml": "MaxHerding"},
    "Falcun": {"skal": "falcun", "scikit-activeml": "Falcun"},
    "ranked batches": {"modAL": "uncertainty_batch_sampling"},
    "UHerding": {"skal": "uherding"},
    "look-ahead on features": {"skal": "ntk_lookahead"},
    "recommended": {"skal": "auto"},
}
ARMS = [(name, library) for name, libraries in STRATEGIES.items() for library in libraries]


def _choose(name: str, library: str, state: State, b: int, seed: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs and ours alike: what counts here are the picks
        return ASK[library](STRATEGIES[name][library], state, b, seed)


def features_table(quick: bool = False) -> str:
    """Versions, and how many strategies each library exports; base classes and wrappers are none."""
    from skactiveml import pool, stream
    from skactiveml.base import QueryStrategy

    def count(module: Any) -> int:
        exported = [getattr(module, name) for name in module.__all__]
        classes = [thing for thing in exported if inspect.isclass(thing) and issubclass(thing, QueryStrategy)]
        return sum("Wrapper" not in cls.__name__ for cls in classes)

    own = sum(inspect.isclass(getattr(skal.strategies, name)) for name in skal.strategies.__all__)
    theirs = f"{count(pool)} for pools, {count(stream)} for streams, {count(pool.multiannotator)} for annotators"
    rows: list[list[object]] = [
        ["skal", skal.__version__, own],
        ["scikit-activeml", version("scikit-activeml"), theirs],
        ["modAL", version("modAL-python"), len(_modal_strategies())],
    ]
    return markdown(["library", "version", "strategies"], rows)


def run_loop(name: str, library: str, seed: int, n_rounds: int, size: int) -> np.ndarray:
    """Accuracies of a run: after the first labels, and after each round."""
    X, y = load_digits(return_X_y=True)
    X = X / 16
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    pool, test = order[:1000], order[1000:]
    labelled = np.array([rng.choice(np.flatnonzero(y[pool] == label)) for label in range(N_CLASSES)])
    scores = []
    for number in range(n_rounds + 1):
        model = clone(MODEL).fit(X[pool][labelled], y[pool][labelled])
        scores.append(model.score(X[test], y[test]))
        if number < n_rounds:
            state = State(model, X[pool], y[pool], labelled)
            chosen = _choose(name, library, state, size, 1000 * seed + number)
            if len(set(chosen) - set(labelled)) != size:
                raise RuntimeError(f"{name} of {library} chose {chosen}.")
            labelled = np.concatenate([labelled, chosen])
    return np.array(scores)


def loop_table(quick: bool = False) -> str:
    """Mean accuracy over all rounds, in points; and the paired difference from skal's Random."""
    n_seeds, n_rounds = (2, 2) if quick else (10, 10)
    found = {arm: np.array([run_loop(*arm, seed, n_rounds, 10)[1:].mean() for seed in range(n_seeds)]) for arm in ARMS}
    rows: list[list[object]] = []
    for (name, library), means in found.items():
        gain = 100 * (means - found["random", "skal"])
        error = gain.std(ddof=1) / len(gain) ** 0.5
        rows.append([name, library, f"{100 * means.mean():.1f}", f"{gain.mean():+.1f} ± {error:.1f}"])
    return markdown(["strategy", "library", "mean accuracy, %", "more than random, points ± standard error"], rows)


def _state(n: int) -> State:
    """A pool of n samples of 64 numbers in ten clusters, and a model of 100 labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(N_CLASSES, size=n + 100)
    X = rng.normal(size=(N_CLASSES, 64))[y] + 1.5 * rng.normal(size=(n + 100, 64))
    labelled = np.arange(n, n + 100)
    return State(clone(MODEL).fit(X[labelled], y[labelled]), X, y, labelled)


def cost_table(quick: bool = False) -> str:
    """Processor seconds of a query of 50 samples, and the peak of memory above data and model."""
    n, b = (300, 10) if quick else (2000, 50)
    state = _state(n)
    arms = ARMS[:3] if quick else ARMS
    seconds: dict[tuple[str, str], float] = {}
    for name, libraries in STRATEGIES.items():
        tasks = {library: partial(_choose, name, library, state, b, 0) for library in libraries}
        tasks = {library: task for library, task in tasks.items() if (name, library) in arms}
        seconds |= {(name, library): best for library, best in interleaved(tasks, 1, time.process_time).items()}
    rows: list[list[object]] = []
    for name, library in arms:
        peak = peak_memory("benchmarks.comparison", "_task", name, library, str(n), str(b))
        rows.append([name, library, seconds[name, library], f"{peak / 1e6:,.0f} MB"])
    return markdown(["strategy", "library", "processor seconds", "memory"], rows)


def _memory_task(name: str, library: str, n: int, b: int) -> None:
    state = _state(n)
    _choose(name, library, _state(200), 2, 0)
    print_baseline()
    _choose(name, library, state, b, 0)
    print_peak()


TABLES = {"features": features_table, "loop": loop_table, "cost": cost_table}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.comparison", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("tables", nargs="*", help=", ".join(TABLES))
    parser.add_argument("--quick", action="store_true", help="small sizes")
    args = parser.parse_args(argv)
    if args.tables[:1] == ["_task"]:
        name, library, n, b = args.tables[1:]
        _memory_task(name, library, int(n), int(b))
        return 0
    if unknown := set(args.tables) - set(TABLES):
        parser.error(f"unknown table {', '.join(sorted(unknown))}. Choose from: {', '.join(TABLES)}")
    for name in args.tables or TABLES:
        print(f"\n### {name}\n\n{TABLES[name](args.quick)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
