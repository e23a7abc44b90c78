"""The coverage strategies against scikit-activeml: time and choice, side by side; the memory that a large pool takes;
and what a random evaluation set costs.

``python -m benchmarks.coverage speed|memory|evaluation [--quick]``; all without an argument. ``speed`` needs the extra
``bench``, ``memory`` Linux.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from benchmarks._measure import markdown
from skal import config_context
from skal.context import QueryContext
from skal.strategies import MaxHerding, ProbCover, TypiClust, UHerding
from skal.strategies._pool_features import PoolFeatures
from skal.strategies._typiclust import cluster_pool

WIDTH = 512
N_LABELLED = 100
SIZE, QUICK, LARGE = 10_000, 500, 1_000_000
TARGET = 20  # times quicker
BOUND = "2GB"


def _problem(n: int) -> tuple[SimpleNamespace, np.ndarray]:
    """Clustered non-negative features of length 1, as a pre-trained network gives them, and a few labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(10, size=n + N_LABELLED)
    X = rng.normal(size=(n + N_LABELLED, WIDTH)).astype(np.float32)
    X = np.maximum(X + rng.normal(size=(10, WIDTH)).astype(np.float32)[y], 0)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    learner = SimpleNamespace(estimator=LogisticRegression(), X_training=X[:N_LABELLED], y_training=y[:N_LABELLED])
    return learner, X[N_LABELLED:]


def _ours(name: str, learner: Any, X: np.ndarray, b: int) -> np.ndarray:
    strategy = MaxHerding() if name == "MaxHerding" else TypiClust(random_state=0)
    return strategy.select(learner, X, b)[0]


class _OurClusters:
    """K-means of skal in the place of scikit-learn's, for scikit-activeml's TypiClust."""

    def __init__(self, n_clusters: int, random_state: Any = None) -> None:
        self.n_clusters = n_clusters

    def fit_predict(self, X: np.ndarray) -> np.ndarray:
        """Clusters of the samples, of which the last ones are labelled."""
        learner = SimpleNamespace(estimator=LogisticRegression(), X_training=X[-N_LABELLED:], y_training=None)
        context = QueryContext(learner, X[:-N_LABELLED])
        read = PoolFeatures(context, "input")
        n, labelled = context.n_pool, read.of(context.labelled)
        clusters = cluster_pool(read, n, labelled, self.n_clusters, np.random.default_rng(0))
        return torch.cat(clusters).numpy()


def _theirs(name: str, learner: Any, X: np.ndarray, b: int, clusters: Any = None) -> np.ndarray:
    from skactiveml import pool

    samples = np.concatenate([X, learner.X_training])
    y = np.concatenate([np.full(len(X), np.nan), learner.y_training])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "MaxHerding":
            query = pool.MaxHerding(metric="rbf", metric_dict={"gamma": 1.0}, random_state=0).query
        else:
            settings = {} if clusters is None else {"cluster_algo": clusters}
            query = pool.TypiClust(k=20, random_state=0, **settings).query
        return np.array(query(samples, y, batch_size=b))


def _timed(task: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    start = time.process_time()  # of this process alone: others may run beside it
    picked = task()
    return time.process_time() - start, picked


def speed_table(quick: bool = False) -> tuple[str, bool]:
    """Seconds of processor time for a batch, ours and theirs in one run on one thread, and how many picks agree.

    The clusters of TypiClust are random, so picks are compared for the same clusters. They may differ in clusters of up
    to five samples, which skal leaves for last.
    """
    torch.set_num_threads(1)
    n, b = (QUICK, 10) if quick else (SIZE, 100)
    learner, X = _problem(n)
    rows: list[list[object]] = []
    good = True
    for name in ("MaxHerding", "TypiClust"):
        _ours(name, learner, X[:200], 5)
        runs = [_timed(partial(_ours, name, learner, X, b)) for _ in range(5)]
        seconds, picked = min(runs, key=lambda run: run[0])
        others = [_timed(partial(_theirs, name, learner, X, b)) for _ in range(1 if name == "MaxHerding" else 3)]
        other, theirs = min(others, key=lambda run: run[0])
        if name == "TypiClust":
            theirs = _theirs(name, learner, X, b, _OurClusters)
        same = len(set(picked.tolist()) & set(theirs.tolist()))
        good &= (quick or other / seconds >= TARGET) and same >= (b if name == "MaxHerding" else 0.95 * b)
        times = [seconds, other, f"{other / seconds:,.1f} ×", f"{TARGET} ×"]
        rows.append([name, f"{n:,}", b, *times, f"{same} of {b}"])
    header = ["strategy", "N", "b", "skal, s", "scikit-activeml, s", "quicker", "target", "same picks"]
    return markdown(header, rows), good


STRATEGIES = {"MaxHerding": MaxHerding, "UHerding": UHerding, "TypiClust": TypiClust, "ProbCover": ProbCover}


def memory_table(quick: bool = False) -> tuple[str, bool]:
    """Peak of the memory that queries ask for on a memory map, each in a process of its own.

    The pages of the map itself are not counted: the system takes them back when it needs them.
    """
    n, b = (20_000, 10) if quick else (LARGE, 100)
    rows: list[list[object]] = []
    good = True
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        _write_features(path, n)
        for name in STRATEGIES:
            command = [sys.executable, "-m", "benchmarks.coverage", "_task", name, str(path), str(b)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            peak, seconds = map(float, done.stdout.split()[-2:])
            good &= peak <= 2e9
            rows.append([name, f"{n:,}", b, BOUND, f"{peak / 1e6:,.0f} MB", f"{seconds:,.0f}"])
            print(rows[-1], file=sys.stderr, flush=True)
    return markdown(["strategy", "N", "b", "bound", "peak", "processor time, s"], rows), good


def _write_features(path: Path, n: int) -> None:
    """Features around 100 centres, written in parts."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(100, WIDTH)).astype(np.float32)
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, WIDTH))
    for start in range(0, n, 10_000):
        rows = rng.standard_normal(size=(min(10_000, n - start), WIDTH), dtype=np.float32)
        X[start : start + len(rows)] = rows + centres[rng.integers(100, size=len(rows))]
    X.flush()


def _memory_task(name: str, path: str, b: int) -> None:
    """Print by how many bytes a query grew, and its seconds."""
    torch.set_num_threads(1)
    X = np.load(path, mmap_mode="r")
    learner = SimpleNamespace(
        estimator=LogisticRegression(), X_training=np.array(X[:20]), y_training=np.arange(20) % 10
    )
    learner.estimator.fit(learner.X_training, learner.y_training)
    STRATEGIES[name](random_state=0).select(learner, X[20:220], 2)
    before = peak = _own_memory()
    done = threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.01):
            peak = max(peak, _own_memory())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.process_time()
    with config_context(max_memory=BOUND):
        STRATEGIES[name](random_state=0).select(learner, X[20:], b)
    seconds = time.process_time() - start
    done.set()
    watcher.join()
    print(peak - before, seconds)


def _own_memory() -> int:
    """Resident bytes that are not pages of a file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def evaluation_table(quick: bool = False) -> tuple[str, bool]:
    """Coverage of the whole pool by batches that were chosen on a random part of it, as a share of the exact one's."""
    n, b, sizes = (2000, 10, [100, 500]) if quick else (SIZE * 2, 100, [500, 1000, 2000, 5000])
    learner, X = _problem(n)
    labelled = torch.from_numpy(learner.X_training)
    pool = torch.from_numpy(X)

    def coverage(picked: np.ndarray) -> float:
        centres = torch.cat([labelled, pool[picked]]).double()
        nearest = [torch.cdist(part.double(), centres).amin(1) for part in pool.split(4096)]
        return float(torch.exp(-torch.cat(nearest).square()).sum())

    nothing = coverage(np.arange(0))
    exact = coverage(MaxHerding(evaluation=None).select(learner, X, b)[0]) - nothing
    at_random = [coverage(np.random.default_rng(seed).choice(len(X), b, replace=False)) - nothing for seed in range(5)]
    rows: list[list[object]] = []
    for e in sizes:
        runs = [MaxHerding(evaluation=e, random_state=seed).select(learner, X, b)[0] for seed in range(5)]
        shares = np.array([(coverage(picked) - nothing) / exact for picked in runs])
        rows.append([f"{e:,}", f"{100 * shares.mean():.2f} %", f"{100 * shares.min():.2f} %"])
    rows.append(["all", "100 %", "100 %"])
    rows.append(["(random batch)", *[f"{100 * f(at_random) / exact:.2f} %" for f in (np.mean, np.min)]])
    return markdown(["evaluation samples", "gain in coverage, mean of 5 draws", "the lowest"], rows), True


TASKS = {"speed": speed_table, "memory": memory_table, "evaluation": evaluation_table}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("tasks", nargs="*", help="speed, memory, evaluation")
    parser.add_argument("--quick", action="store_true", help="small sizes, no targets on time")
    args = parser.parse_args(argv)
    if args.tasks[:1] == ["_task"]:
        name, path, b = args.tasks[1:]
        _memory_task(name, path, int(b))
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
