"""What queries pass and cost in the skal that this process imports: the part of :mod:`benchmarks.house` that runs it.

A script that prints JSON, and imports nothing of the benchmarks, so that it can run with another checkout's skal:
``PYTHONPATH=CHECKOUT python benchmarks/_house_queries.py REPEATS``.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from statistics import median
from time import process_time
from types import FrameType
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import nn

import skal
from skal import ActiveLearner, ActiveLearningClassifier, reuse
from skal.bench import run_benchmark
from skal.datasets import load
from skal.nets import CNN, MLP, SquaredLoss
from skal.strategies import BADGE, NPC, DynamicAL, Margin, NTKLookahead

N_LABELLED, N_POOL, N_TIMED = 50, 200, 1000
NETS: dict[str, dict[str, Any]] = {
    "MLP": {"module": MLP, "module__n_features": 64},
    "CNN": {"module": CNN, "module__in_channels": 1, "module__image_size": 8},
}


class Walk:
    """Counts modules and functions of skal that are called, as a profile function of :func:`sys.setprofile`.

    Comprehensions and module bodies are no functions. A switch is a call in another module than the call before it.
    """

    def __init__(self) -> None:
        self.home = str(Path(skal.__file__).parent)
        self.functions: set[tuple[str, int]] = set()
        self.last, self.switches = "", 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(self.home):
            return
        if code.co_name.startswith("<") and code.co_name != "<lambda>":
            return
        self.functions.add((code.co_filename, code.co_firstlineno))
        self.switches += self.last not in ("", code.co_filename)
        self.last = code.co_filename

    def counts(self) -> list[int]:
        """Modules, functions, switches."""
        return [len({file for file, _ in self.functions}), len(self.functions), self.switches]


def walk(task: Callable[[int], object]) -> list[int]:
    """What a task passes the second time, on other samples: imports are over and no result is known yet."""
    task(0)
    profile, before = Walk(), sys.getprofile()
    sys.setprofile(profile)
    try:
        task(1)
    finally:
        sys.setprofile(before)
    return profile.counts()


def make_net(name: str, criterion: Any = nn.CrossEntropyLoss) -> NeuralNetClassifier:
    torch.manual_seed(0)
    return NeuralNetClassifier(
        **NETS[name], module__n_classes=10, criterion=criterion, max_epochs=5, lr=0.05, train_split=None, verbose=0
    )


def query(strategy: Any, net: NeuralNetClassifier, data: Any) -> Callable[[int], object]:
    """A first query of ``ActiveLearner``; the number says which part of the data is the pool."""
    X, y = data.X_train[:N_LABELLED], data.y_train[:N_LABELLED]
    learner = ActiveLearner(net, strategy, X_training=X, y_training=y)

    def ask(part: int) -> object:
        start = N_LABELLED + part * N_POOL
        return learner.query(data.X_train[start : start + N_POOL], n_instances=10)

    return ask


def walks(data: Any) -> dict[str, list[int]]:
    """Modules, functions and switches of each kind of query."""

    def fit(part: int) -> object:
        rows = slice(part * N_POOL, (part + 1) * N_POOL)
        loop = ActiveLearningClassifier(make_net("CNN"), Margin(), n_initial=20, query_size=10, n_rounds=2)
        return loop.fit(data.X_train[rows], data.y_train[rows])

    def benchmark(part: int) -> object:
        settings = {"net": "cnn", "n_initial": 20, "batch": 10, "rounds": 2, "max_epochs": 5, "n_pool": N_POOL + part}
        return run_benchmark(["random", "margin"], seeds=1, **settings)

    strategies = {"margin": Margin(), "BADGE": BADGE(), "dynamicAL": DynamicAL(), "NPC": NPC()}
    found = {name: walk(query(strategy, make_net("CNN"), data)) for name, strategy in strategies.items()}
    found["look-ahead"] = walk(query(NTKLookahead(), make_net("CNN", SquaredLoss), data))
    return found | {"ActiveLearningClassifier.fit": walk(fit), "run_benchmark": walk(benchmark)}


def times(name: str, data: Any, repeats: int) -> dict[str, float]:
    """CPU seconds of a first query with Margin, as ratios to one that keeps nothing: median over the repeats."""
    X, y = data.X_train[:N_LABELLED], data.y_train[:N_LABELLED]
    learner = ActiveLearner(make_net(name), Margin(), X_training=X, y_training=y)
    pool = data.X_train[N_LABELLED : N_LABELLED + N_TIMED]
    arms = {"without": partial(reuse.feature_reuse, None), "default": nullcontext, "reuse": reuse.feature_reuse}
    forget = getattr(reuse, "clear", lambda: None)
    ratios: dict[str, list[float]] = {arm: [] for arm in arms}
    for repeat in range(repeats + 1):
        seconds = {}
        for arm, context in arms.items():  # taking turns: a busy moment hits all of them alike
            forget()
            with context():
                start = process_time()
                learner.query(pool, n_instances=10)
                seconds[arm] = process_time() - start
        if repeat:  # the first one warms up
            for arm, value in seconds.items():
                ratios[arm].append(value / seconds["without"])
    return {arm: median(values) for arm, values in ratios.items()}


def main() -> None:
    """Print everything as JSON."""
    repeats = int(sys.argv[1])
    torch.set_num_threads(1)
    np.random.seed(0)
    warnings.simplefilter("ignore")
    data = load("digits")
    found = {"walks": walks(data), "times": {name: times(name, data, repeats) for name in NETS}}
    print(json.dumps({"home": str(Path(skal.__file__).parent)} | found))


if __name__ == "__main__":
    main()
