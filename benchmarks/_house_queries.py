"""What queries pass in the skal that this process imports: the part of :mod:`benchmarks.house` that runs it.

A script that prints JSON, and imports nothing of the benchmarks, so that it can run with another checkout's skal:
``PYTHONPATH=CHECKOUT python benchmarks/_house_queries.py [NAME ...]``. With names only those queries are made.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from skorch import NeuralNetClassifier
from torch import nn

import skal
from skal import ActiveLearner, ActiveLearningClassifier
from skal.bench import run_benchmark
from skal.datasets import load
from skal.nets import CNN, MLP, SquaredLoss
from skal.strategies import BADGE, NPC, DynamicAL, Margin, NTKLookahead

N_LABELLED, N_POOL = 50, 200
NETS: dict[str, dict[str, Any]] = {
    "MLP": {"module": MLP, "module__n_features": 64},
    "CNN": {"module": CNN, "module__in_channels": 1, "module__image_size": 8},
}


class Walk:
    """Notes the functions of skal that are called, without comprehensions and bodies of modules."""

    def __init__(self) -> None:
        self.home = str(Path(skal.__file__).parent)
        self.functions: dict[tuple[str, int], str] = {}  # by file and line, in the order of their first calls
        self.last, self.switches = "", 0

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        counted = code.co_name[0] != "<" or code.co_name == "<lambda>"
        if event != "call" or not counted or not code.co_filename.startswith(self.home):
            return
        name = getattr(code, "co_qualname", code.co_name)  # Python 3.10 has the short name alone
        self.functions.setdefault((code.co_filename, code.co_firstlineno), name)
        self.switches += self.last not in ("", code.co_filename)
        self.last = code.co_filename


def walk(task: Callable[[int], object]) -> dict[str, Any]:
    """What a task passes the second time, on other samples: imports are over and no result is known yet."""
    task(0)
    profile, before = Walk(), sys.getprofile()
    sys.setprofile(profile)
    task(1)
    sys.setprofile(before)
    files = {file for file, _ in profile.functions}
    passed = [
        f"{Path(file).relative_to(profile.home)}:{line} {name}" for (file, line), name in profile.functions.items()
    ]
    return {"counts": [len(files), len(passed), profile.switches], "functions": passed}


def make_net(name: str, criterion: Any = nn.CrossEntropyLoss) -> NeuralNetClassifier:
    """An unfitted network for digits."""
    torch.manual_seed(0)
    return NeuralNetClassifier(
        **NETS[name], module__n_classes=10, criterion=criterion, max_epochs=5, lr=0.05, train_split=None, verbose=0
    )


def query(strategy: Any, model: Any, X: np.ndarray, y: np.ndarray) -> Callable[[int], object]:
    """A first query of ``ActiveLearner``; the number says which part of the samples is the pool."""
    learner = ActiveLearner(model, strategy, X_training=X[:N_LABELLED], y_training=y[:N_LABELLED])

    def ask(part: int) -> object:
        start = N_LABELLED + part * N_POOL
        return learner.query(X[start : start + N_POOL], n_instances=10)

    return ask


def calls() -> dict[str, Callable[[], Callable[[int], object]]]:
    """What makes each kind of call ready, by name."""
    data = load("digits")
    images, y = data.X_train, data.y_train
    rows = images.reshape(len(images), -1)
    labels = {"n_initial": 20, "query_size": 10}

    def fit(model: Any, **start: Any) -> Callable[[int], object]:
        def run(part: int) -> object:
            own = slice(part * N_POOL, (part + 1) * N_POOL)
            return ActiveLearningClassifier(model, Margin(), **labels, **start, n_rounds=1).fit(rows[own], y[own])

        return run

    def benchmark(part: int) -> object:
        training = {"net": "cnn", "max_epochs": 5, "n_pool": N_POOL + part}
        return run_benchmark(["random", "margin"], **labels, **training, n_rounds=2, seeds=1)

    linear = LogisticRegression(max_iter=1000)
    return {
        "Margin, LogisticRegression": lambda: query(Margin(), linear, rows, y),
        "Margin, MLP": lambda: query(Margin(), make_net("MLP"), rows, y),
        "BADGE": lambda: query(BADGE(random_state=0), make_net("MLP"), rows, y),
        "DynamicAL": lambda: query(DynamicAL(), make_net("MLP"), rows, y),
        "NPC": lambda: query(NPC(random_state=0), make_net("MLP"), rows, y),
        "NTKLookahead, CNN, squared loss": lambda: query(NTKLookahead(), make_net("CNN", SquaredLoss), images, y),
        "fit, one round, LogisticRegression": lambda: fit(linear),
        "fit, one round, LogisticRegression, random start": lambda: fit(linear, initial="random"),
        "fit, one round, MLP": lambda: fit(make_net("MLP")),
        "run_benchmark": lambda: benchmark,
    }


def report(names: Sequence[str]) -> dict[str, Any]:
    """What is printed: of the calls with these names, or of all.

    Counts of modules, functions and switches that a call passes, and the functions in their order.
    """
    known = calls()
    return {
        "home": str(Path(skal.__file__).parent),
        "names": list(known),
        "walks": {name: walk(make()) for name, make in known.items() if not names or name in names},
        "public": count_public(),
    }


def count_public() -> int:
    """Functions and classes that public modules export, each once."""
    names = ["skal", *(module.name for module in pkgutil.walk_packages(skal.__path__, "skal."))]
    modules = [importlib.import_module(name) for name in names if "._" not in name]
    exported = [getattr(module, name) for module in modules for name in getattr(module, "__all__", [])]
    return len({entry for entry in exported if callable(entry)})


if __name__ == "__main__":
    torch.set_num_threads(1)
    np.random.seed(0)
    warnings.simplefilter("ignore")
    print(json.dumps(report(sys.argv[1:])))
