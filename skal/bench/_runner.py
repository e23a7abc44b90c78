"""One run: one strategy, one seed, through the loop; and what all runs of a seed share."""

from __future__ import annotations

import platform
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from skal._core.network import preserved_rng
from skal._core.sharding import one_thread
from skal._version import __version__
from skal.base import QueryStrategy
from skal.bench._data import Data
from skal.bench._nets import added, make_net
from skal.bench._protocol import Protocol
from skal.bench._run import Run
from skal.bench._specs import describe, seeded
from skal.loop import ActiveLearningClassifier

__all__ = ["Task", "run_task", "versions"]


@dataclass(frozen=True)
class Task:
    """A run to be made. ``net`` is None for the protocol's own."""

    protocol: Protocol
    label: str
    seed: int
    strategy: QueryStrategy
    net: Any
    checkpoint: Path | None


def versions() -> dict[str, str]:
    """Of what a result depends on."""
    packages = ("numpy", "scipy", "scikit-learn", "torch", "skorch")
    return {"skal": __version__, "python": platform.python_version()} | {name: version(name) for name in packages}


def run_task(task: Task, data: Data) -> Run:
    """Make a run, or go on with one that was interrupted.

    Seed, and nothing else, determines the pool, the first labels and the initial weights; label and seed determine the
    strategy's random numbers. One torch thread, whatever runs beside it: sums then come out the same.
    """
    protocol = task.protocol
    defaults = {"horizon": protocol.batch * max(1, protocol.rounds)}
    strategy = seeded(task.strategy, task.label, task.seed, defaults)
    rows, initial = data.start(protocol, task.seed)
    X = data.X_train if len(rows) == len(data.X_train) else data.X_train[rows]
    y = data.y_train[rows]
    net = make_net(protocol, X.shape[1:], data.n_classes, strategy) if task.net is None else clone(task.net)
    # hundreds of queries would print the same warning: each is kept once, for the report
    with one_thread(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        # joblib hands large arrays to its workers as read-only memory maps; nobody writes to them
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        first_seconds = []
        if protocol.start == "zero_shot":
            start = perf_counter()
            initial = _zero_shot(net, strategy, X, protocol.n_initial, task.seed)
            first_seconds = [perf_counter() - start]
        loop = ActiveLearningClassifier(
            net,
            strategy,
            initial=initial,
            n_initial=len(initial),
            query_size=protocol.batch,
            n_rounds=protocol.rounds,
            classes=np.arange(data.n_classes),
            reinitialize=not protocol.warm_start,
            checkpoint=task.checkpoint,
            random_state=task.seed,
        )
        loop.fit(X, y, eval_set=(data.X_test, data.y_test))
    texts = sorted({f"{entry.category.__name__}: {entry.message}" for entry in caught})
    return _run_of(task, loop, rows, first_seconds, texts)


def _run_of(task: Task, loop: Any, rows: np.ndarray, first_seconds: list[float], texts: list[str]) -> Run:
    history = loop.history_
    batches = [rows[np.asarray(entry["indices"], dtype=np.int64)].tolist() for entry in history]
    record = {
        "strategy": describe(task.strategy),
        "network": "the user's" if task.net is not None else _network(task),
        "versions": versions(),
    }
    return Run(
        strategy=task.label,
        seed=task.seed,
        n_labels=[int(entry["n_labelled"]) for entry in history],
        scores=[float(entry["eval_score"]) for entry in history],
        train_scores=[float(entry["train_score"]) for entry in history],
        initial=batches[0],
        queried=batches[1:],
        seconds_fit=[float(entry["seconds_fit"]) for entry in history],
        seconds_query=first_seconds + [float(entry["seconds_query"]) for entry in history[1:]],
        warnings=texts,
        record=record,
    )


def _network(task: Task) -> str:
    return " with ".join(filter(None, [task.protocol.net, added(task.strategy)]))


def _zero_shot(net: Any, strategy: QueryStrategy, X: np.ndarray, size: int, seed: int) -> np.ndarray:
    """What a strategy asks for before there is any label, from a network with random weights."""
    with preserved_rng():
        torch.manual_seed(seed)
        untrained = clone(net).initialize()
    learner = SimpleNamespace(estimator=untrained, X_training=None, y_training=None)
    return clone(strategy).select(learner, X, size)[0]
