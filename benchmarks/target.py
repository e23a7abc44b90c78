"""Labels for some classes among many: what a target is worth.

``python -m benchmarks.target run`` measures what has not been measured yet, ``table`` prints it. Ten of the 77 intents
of banking77 matter. The pool has 2,000 questions of all intents; 200 other questions of the ten, without labels, are
the target. With 60 labels a logistic regression on the embeddings is asked for the intent of another 200 questions of
the ten. It may answer any of the 77. VTL and ITL are those of the package activeft (``pip install activeft``; without
it their rows are left out): they choose all 60 at once, from embeddings alone.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from skal import ActiveLearningClassifier
from skal.datasets import load

KEPT = Path(__file__).with_name("target_kept.jsonl")
N_POOL, N_INTENTS, N_LABELS, N_FIRST, SEEDS = 2000, 10, 60, 20, range(10)
Choose = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]


def problem(seed: int) -> tuple[np.ndarray, ...]:
    """Pool and labels, target, and questions and labels of the test."""
    data = load("banking77")
    rng = np.random.default_rng(seed)
    intents = rng.choice(77, N_INTENTS, replace=False)
    rows = rng.choice(len(data.X_train), N_POOL, replace=False)
    of_intents = rng.permutation(np.flatnonzero(np.isin(data.y_test, intents)))
    target, test = np.array_split(of_intents, 2)
    parts = data.X_train[rows], data.X_test[target], data.X_test[test]
    X_pool, X_target, X_test = (np.asarray(X, dtype=np.float32) for X in parts)
    return X_pool, data.y_train[rows], X_target, X_test, data.y_test[test]


def model() -> LogisticRegression:
    return LogisticRegression(C=100.0, max_iter=2000)


def by_loop(
    strategy: str, initial: str, aimed: bool, X: np.ndarray, y: np.ndarray, T: np.ndarray, seed: int
) -> np.ndarray:
    """20 labels at first, then 20 after each of two trainings."""
    loop = ActiveLearningClassifier(
        model(), strategy, initial=initial, n_initial=N_FIRST, query_size=20, budget=N_LABELS, random_state=seed
    )
    return loop.fit(X, y, target=T if aimed else None).queried_


def by_activeft(name: str, X: np.ndarray, y: np.ndarray, T: np.ndarray, seed: int) -> np.ndarray:
    """All at once, with the noise that the package finds by itself."""
    from activeft.acquisition_functions.itl import ITL
    from activeft.acquisition_functions.vtl import VTL
    from activeft.active_data_loader import ActiveDataLoader

    rule = {"VTL": VTL, "ITL": ITL}[name](torch.as_tensor(T), mini_batch_size=len(X))
    chosen: np.ndarray = ActiveDataLoader(torch.as_tensor(X), N_LABELS, rule).next()[0].numpy()
    return chosen


METHODS: dict[str, Choose] = {
    "Random": partial(by_loop, "random", "random", False),
    "MaxHerding": partial(by_loop, "max_herding", "max_herding", False),
    "MaxHerding, target": partial(by_loop, "max_herding", "max_herding", True),
    "UHerding": partial(by_loop, "uherding", "max_herding", False),
    "UHerding, target": partial(by_loop, "uherding", "max_herding", True),
    "NTKLookahead": partial(by_loop, "ntk_lookahead", "max_herding", False),
    "NTKLookahead, target": partial(by_loop, "ntk_lookahead", "max_herding", True),
    "auto": partial(by_loop, "auto", "auto", False),
    "auto, target": partial(by_loop, "auto", "auto", True),
    "VTL (activeft)": partial(by_activeft, "VTL"),
    "ITL (activeft)": partial(by_activeft, "ITL"),
}


def measure(method: str, seed: int) -> list[float]:
    """Accuracy on the test, and the share of labels that are of the ten intents."""
    X, y, T, X_test, y_test = problem(seed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
        chosen = METHODS[method](X, y, T, seed)
        assert len(set(chosen.tolist())) == N_LABELS
        fitted = model().fit(X[chosen], y[chosen])
    return [float(fitted.score(X_test, y_test)), float(np.isin(y[chosen], np.unique(y_test)).mean())]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["run", "table"])
    command = parser.parse_args(arguments).command
    kept = Kept(KEPT)
    planned = [(seed, method) for seed in SEEDS for method in METHODS]
    if command == "run":
        for seed, method in planned:
            if "activeft" not in method or find_spec("activeft") is not None:
                print(
                    method,
                    seed,
                    kept(f"{method} / {seed}", partial(measure, method, seed)),
                    file=sys.stderr,
                    flush=True,
                )
    rows: list[list[object]] = []
    for method in METHODS:
        keys = [f"{method} / {seed}" for seed, planned_method in planned if planned_method == method]
        found = [kept(key, list) for key in keys if key in kept]
        if found:
            accuracy, relevant = 100 * np.array(found).T
            spread = f" ± {accuracy.std(ddof=1):.1f}" if len(found) > 1 else ""
            rows.append([method, f"{accuracy.mean():.1f}{spread}", f"{relevant.mean():.0f}", str(len(found))])
    print(markdown(["method", "accuracy on the ten intents, %", "labels of the ten, %", "seeds"], rows))


if __name__ == "__main__":
    main()
