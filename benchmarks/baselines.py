"""BADGE and CoreSet against scikit-activeml: time, objective and peak memory, side by side.

``python -m benchmarks.baselines speed|memory [--quick]``; both without an argument. Needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._measure import markdown, peak_memory, print_baseline, print_peak
from skal.strategies import BADGE, CoreSet

WIDTH = 512
N_LABELLED = 100
# pool, classes, and how many times quicker BADGE and CoreSet must be
SIZES = [(10_000, 10, 50, 5), (5_000, 100, 300, 5)]
QUICK = [(2_000, 10, 1, 1)]
LARGE = 200_000
LARGE_BYTES = 2e9


def _problem(n_pool: int, n_classes: int) -> tuple[SimpleNamespace, np.ndarray]:
    """A linear classifier, so that the samples are the last layer's inputs, and clustered non-negative samples."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(n_classes, WIDTH, generator=generator)
    labels = torch.randint(n_classes, (n_pool + N_LABELLED,), generator=generator)
    X = torch.randn(n_pool + N_LABELLED, WIDTH, generator=generator)
    for start in range(0, len(X), 4096):
        X[start : start + 4096].add_(centres[labels[start : start + 4096]]).relu_()
    torch.manual_seed(0)
    module = nn.Linear(WIDTH, n_classes)
    with torch.no_grad():
        module.weight.copy_(0.01 * centres)
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0).initialize()
    learner = SimpleNamespace(
        estimator=net, X_training=X[:N_LABELLED].numpy(), y_training=labels[:N_LABELLED].numpy().astype(np.int64)
    )
    return learner, X[N_LABELLED:].numpy()


def _ours(strategy: str, learner: Any, X: np.ndarray, b: int, seed: int = 0) -> np.ndarray:
    made = BADGE(random_state=seed) if strategy == "BADGE" else CoreSet()
    return made.select(learner, X, b)[0]


def _theirs(strategy: str, learner: Any, X: np.ndarray, b: int, seed: int = 0) -> np.ndarray:
    """scikit-activeml on the same samples; the probabilities are given to it, so that it runs no network."""
    from skactiveml.base import SkactivemlClassifier
    from skactiveml.pool import Badge
    from skactiveml.pool import CoreSet as TheirCoreSet

    class Given(SkactivemlClassifier):
        """A classifier that has been asked before."""

        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Given:
            return self

        def predict_proba(self, X: Any) -> np.ndarray:
            return proba

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if strategy == "BADGE":
            proba = _probabilities(learner, X)
            classifier = Given(classes=list(range(proba.shape[1])))
            query = Badge(random_state=seed).query
            return np.array(query(X, np.full(len(X), np.nan), classifier, fit_clf=False, batch_size=b))
        # the labelled samples come after the pool, so that indices mean the same
        samples = np.concatenate([X, learner.X_training])
        y = np.concatenate([np.full(len(X), np.nan), learner.y_training])
        return np.array(TheirCoreSet(random_state=seed).query(samples, y, batch_size=b))


def _probabilities(learner: Any, X: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return torch.softmax(learner.estimator.module_(torch.from_numpy(X)).double(), dim=1).numpy()


def _objective(strategy: str, learner: Any, X: np.ndarray, picked: np.ndarray) -> float:
    """What is to be small: CoreSet's covering radius, or BADGE's sum of squared distances to the nearest chosen."""
    points = torch.from_numpy(X).double()
    if strategy == "CoreSet":
        centres = torch.cat([torch.from_numpy(learner.X_training).double(), points[picked]])
        return float(torch.cdist(points, centres).amin(dim=1).max())
    proba = torch.from_numpy(_probabilities(learner, X))
    q = proba - nn.functional.one_hot(proba.argmax(dim=1), proba.shape[1])
    norms = q.square().sum(dim=1) * points.square().sum(dim=1)
    products = (q @ q[picked].T) * (points @ points[picked].T)
    return float((norms[:, None] + norms[picked] - 2 * products).clamp_min(0).amin(dim=1).sum())


def _timed(task: Callable[[], np.ndarray], repeats: int = 1) -> tuple[float, np.ndarray]:
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        picked = task()
        best = min(best, time.perf_counter() - start)
    return best, picked


def speed_table(quick: bool = False) -> tuple[str, bool]:
    """Seconds for a batch, ours (network passes included) and theirs in one run on one thread, and the objectives."""
    torch.set_num_threads(1)
    rows: list[list[object]] = []
    good = True
    b = 10 if quick else 100
    for n_pool, n_classes, *targets in QUICK if quick else SIZES:
        learner, X = _problem(n_pool, n_classes)
        for strategy, target in zip(("BADGE", "CoreSet"), targets, strict=True):
            before, picked = _timed(partial(_ours, strategy, learner, X, b), 3)
            seconds, their_picks = _timed(partial(_theirs, strategy, learner, X, b))
            after, _ = _timed(partial(_ours, strategy, learner, X, b), 3)
            seeds = range(10) if strategy == "BADGE" else [0]
            values = [_objective(strategy, learner, X, _ours(strategy, learner, X, b, seed)) for seed in seeds]
            theirs = _objective(strategy, learner, X, their_picks)
            # a draw of k-means++ is a random number: theirs is one, ours the mean of ten
            slack = 3 * float(np.std(values)) + 1e-6 * theirs
            ratio = seconds / min(before, after)
            good &= ratio >= target and np.mean(values) <= theirs + slack and len(set(picked.tolist())) == b
            own = f"{np.mean(values):,.5g}" + (f" ± {np.std(values):,.2g}" if len(values) > 1 else "")
            times = [min(before, after), seconds, f"{ratio:,.1f} ×", f"{target} ×"]
            rows.append([strategy, f"{n_pool:,}", n_classes, b, *times, own, f"{theirs:,.5g}"])
    header = ["strategy", "N", "C", "b", "skal, s", "scikit-activeml, s", "quicker", "target"]
    return markdown([*header, "objective, skal", "objective, scikit-activeml"], rows), good


def memory_table(quick: bool = False) -> tuple[str, bool]:
    """Peak memory above data and network, each measured in a process of its own."""
    rows: list[list[object]] = []
    good = True
    b = 10 if quick else 100
    for n_pool, n_classes, *_ in QUICK if quick else SIZES:
        for strategy in ("BADGE", "CoreSet"):
            arguments = strategy, str(n_pool), str(n_classes), str(b)
            ours, theirs = (peak_memory("benchmarks.baselines", "_task", who, *arguments) for who in ("skal", "other"))
            rows.append([strategy, f"{n_pool:,}", n_classes, f"{ours / 1e6:,.0f} MB", f"{theirs / 1e6:,.0f} MB"])
    large = 20_000 if quick else LARGE
    for strategy in ("BADGE", "CoreSet"):
        peak = peak_memory("benchmarks.baselines", "_task", "skal", strategy, str(large), "10", str(b))
        rows.append([strategy, f"{large:,}", 10, f"{peak / 1e6:,.0f} MB", "not run"])
        good &= peak <= LARGE_BYTES
    return markdown(["strategy", "N", "C", "skal", "scikit-activeml"], rows), good


def _memory_task(who: str, strategy: str, n_pool: int, n_classes: int, b: int) -> None:
    run = _ours if who == "skal" else _theirs
    learner, X = _problem(n_pool, n_classes)
    run(strategy, learner, X[:200], 2)
    print_baseline()
    run(strategy, learner, X, b)
    print_peak()


TASKS = {"speed": speed_table, "memory": memory_table}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.baselines", description=__doc__)
    parser.add_argument("tasks", nargs="*", help="speed, memory")
    parser.add_argument("--quick", action="store_true", help="small sizes, no targets on time")
    args = parser.parse_args(argv)
    if args.tasks[:1] == ["_task"]:
        who, strategy, *numbers = args.tasks[1:]
        _memory_task(who, strategy, *map(int, numbers))
        return 0
    if unknown := set(args.tasks) - set(TASKS):
        parser.error(f"unknown table {', '.join(sorted(unknown))}. Choose from: {', '.join(TASKS)}")
    failed = False
    for name in args.tasks or TASKS:
        table, good = TASKS[name](args.quick)
        failed |= not good
        print(f"\n### {name}\n\n{table}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
