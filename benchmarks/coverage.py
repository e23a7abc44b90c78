"""MaxHerding and TypiClust against scikit-activeml: time and choice, side by side; and the memory of a large pool.

``python -m benchmarks.coverage speed|memory [--quick]``; both without an argument. Needs the extra ``bench``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
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

from benchmarks._measure import markdown, peak_memory, print_baseline, print_peak
from skal.strategies import MaxHerding, TypiClust

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


def _theirs(name: str, learner: Any, X: np.ndarray, b: int) -> np.ndarray:
    from skactiveml import pool

    samples = np.concatenate([X, learner.X_training])
    y = np.concatenate([np.full(len(X), np.nan), learner.y_training])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name == "MaxHerding":
            query = pool.MaxHerding(metric="rbf", metric_dict={"gamma": 1.0}, random_state=0).query
        else:
            query = pool.TypiClust(random_state=0).query
        return np.array(query(samples, y, batch_size=b))


def _timed(task: Callable[[], np.ndarray]) -> tuple[float, np.ndarray]:
    start = time.process_time()  # of this process alone: others may run beside it
    picked = task()
    return time.process_time() - start, picked


def speed_table(quick: bool = False) -> tuple[str, bool]:
    """Seconds of processor time for a batch, ours and theirs in one run on one thread, and how many picks agree."""
    torch.set_num_threads(1)
    n, b = (QUICK, 10) if quick else (SIZE, 100)
    learner, X = _problem(n)
    rows: list[list[object]] = []
    good = True
    for name in ("MaxHerding", "TypiClust"):
        _ours(name, learner, X[:200], 5)
        runs = [_timed(partial(_ours, name, learner, X, b)) for _ in range(2)]
        seconds, picked = min(runs, key=lambda run: run[0])
        other, theirs = _timed(partial(_theirs, name, learner, X, b))
        same = len(set(picked.tolist()) & set(theirs.tolist()))
        good &= (quick or other / seconds >= TARGET) and (name != "MaxHerding" or same == b)
        times = [seconds, other, f"{other / seconds:,.1f} ×", f"{TARGET} ×"]
        rows.append([name, f"{n:,}", b, *times, f"{same} of {b}"])
    header = ["strategy", "N", "b", "skal, s", "scikit-activeml, s", "quicker", "target", "same picks"]
    return markdown(header, rows), good


def memory_table(quick: bool = False) -> tuple[str, bool]:
    """Peak memory above the interpreter's for a memory map, in a process of its own."""
    n, b = (20_000, 10) if quick else (LARGE, 100)
    peak = peak_memory("benchmarks.coverage", "_task", str(n), str(b))
    rows: list[list[object]] = [["MaxHerding", f"{n:,}", b, BOUND, f"{peak / 1e6:,.0f} MB"]]
    return markdown(["strategy", "N", "b", "bound", "peak"], rows), peak <= 2e9


def _memory_task(n: int, b: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, WIDTH))
        rng = np.random.default_rng(0)
        centres = rng.normal(size=(100, WIDTH)).astype(np.float32)
        for start in range(0, n, 10_000):
            rows = rng.standard_normal(size=(min(10_000, n - start), WIDTH), dtype=np.float32)
            X[start : start + len(rows)] = rows + centres[rng.integers(100, size=len(rows))]
        X.flush()
        del X, rows
        X = np.load(path, mmap_mode="r")
        learner = SimpleNamespace(estimator=LogisticRegression(), X_training=None, y_training=None)
        MaxHerding().select(learner, X[:200], 2)
        print_baseline()
        MaxHerding(max_memory=BOUND, random_state=0).select(learner, X, b)
        print_peak()


TASKS = {"speed": speed_table, "memory": memory_table}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__)
    parser.add_argument("tasks", nargs="*", help="speed, memory")
    parser.add_argument("--quick", action="store_true", help="small sizes, no targets on time")
    args = parser.parse_args(argv)
    if args.tasks[:1] == ["_task"]:
        _memory_task(*map(int, args.tasks[1:]))
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
