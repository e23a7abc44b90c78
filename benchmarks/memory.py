"""Peak memory of a query against its bound, and against what ``cost`` forecasts.

``python -m benchmarks.memory [--pool 20000] [--bounds 20MB 200MB] [--only TEXT]`` (Linux). Each query runs in a process
of its own, forked from one that has the learner and the pool in memory and has made a small query. Its peak is the
largest resident size during the query, less that before it. What a bound does not count is in the documentation: the
network's own pass over a batch, and a constant for the libraries' work space.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._measure import markdown, resident
from skal import config_context
from skal.exceptions import SkalError
from skal.strategies import (
    ALBL,
    BADGE,
    BAIT,
    BALD,
    EGL,
    NPC,
    CoreSet,
    DropQuery,
    DynamicAL,
    MaxHerding,
    NTKLookahead,
    ProbCover,
    TypiClust,
    UHerding,
)
from skal.validation import parse_memory

CASES: dict[str, Any] = {
    "BADGE": BADGE(random_state=0),
    "CoreSet": CoreSet(random_state=0),
    "BAIT": BAIT(random_state=0),
    "BALD joint": BALD(batch="joint", n_passes=10, n_samples=100, random_state=0),
    "DropQuery": DropQuery(random_state=0),
    "EGL": EGL(),
    "DynamicAL": DynamicAL(),
    "DynamicAL greedy": DynamicAL(batch="greedy"),
    "DynamicAL greedy, sketched": DynamicAL(batch="greedy", n_features=1024),
    "NPC greedy": NPC(search="greedy", n_candidates=2000, random_state=0),
    "NPC random": NPC(random_state=0),
    "NTKLookahead": NTKLookahead(random_state=0),
    "NTKLookahead top": NTKLookahead(batch="top", random_state=0),
    "NTKLookahead mlmoc": NTKLookahead(criterion="mlmoc", random_state=0),
    "NTKLookahead mlmoc greedy": NTKLookahead(criterion="mlmoc", batch="greedy", random_state=0),
    "MaxHerding": MaxHerding(random_state=0),
    "MaxHerding laplace": MaxHerding(kernel="laplace", random_state=0),
    "MaxHerding tangent": MaxHerding(kernel="tangent", random_state=0),
    "UHerding": UHerding(random_state=0),
    "TypiClust": TypiClust(random_state=0),
    "ProbCover": ProbCover(random_state=0),
    "ALBL": ALBL(arms=[CoreSet(), BADGE()], random_state=0),
}

WARM_UP = 300  # samples of the queries that come before
ALLOWED = 16_000_000  # bytes beyond 1.2 times the bound, and beyond 1.2 times the forecast, as the documentation says


def make_learner(n_pool: int, width: int = 256) -> tuple[Any, np.ndarray]:
    """A small network with wide last-layer inputs, 50 labels, and a pool."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_pool + 50, 32)).astype(np.float32)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, 10))
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0).initialize()
    return SimpleNamespace(estimator=net, X_training=X[:50], y_training=rng.integers(10, size=50)), X[50:]


def _forked(function: Callable[[], str]) -> str:
    """What a function says in a process of its own."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            said = function()
        except SkalError as error:
            said = f"refused: {error}"
        except BaseException as error:
            said = f"failed: {type(error).__name__}: {error}"
        os.write(writer, said.encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        said = file.read().decode()
    os.waitpid(child, 0)
    return said


def peak(strategy: Any, bound: str, learner: Any, X: np.ndarray, n_instances: int) -> str:
    """Bytes at the peak of a query beyond what was there before, as text; or why it was refused."""

    def measured() -> str:
        # a forked process has not touched the libraries' pages yet
        clone(strategy).select(learner, X[:WARM_UP], 5)

        ctypes.CDLL(None).malloc_trim(0)
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        with config_context(max_memory=bound):
            clone(strategy).select(learner, X, n_instances)
        return str(resident("VmHWM") - before)

    return _forked(measured)


def beyond(peak_bytes: int, bound: str, forecast_bytes: int) -> int:
    """By how many bytes a peak is larger than 1.2 times the bound or the forecast, whichever is smaller."""
    limit = parse_memory("benchmark", "max_memory", bound)
    assert limit is not None
    return round(peak_bytes - 1.2 * min(limit, forecast_bytes))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table of bound, forecast and peak."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.splitlines()[0])
    parser.add_argument("--pool", type=int, default=20_000)
    parser.add_argument("--instances", type=int, default=20)
    parser.add_argument("--bounds", nargs="+", default=["20MB", "200MB"])
    parser.add_argument("--only", default="")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    learner, X = make_learner(options.pool)
    rows: list[list[object]] = []
    worst = 0
    for name, strategy in CASES.items():
        if options.only not in name:
            continue
        clone(strategy).select(learner, X[:WARM_UP], 5)  # what is loaded or set up once
        for bound in options.bounds:

            def forecast(strategy: Any = strategy, bound: str = bound) -> str:
                with config_context(max_memory=bound):
                    return str(strategy.cost(learner, X, options.instances).memory)

            forecast_bytes = _forked(forecast)
            used = peak(strategy, bound, learner, X, options.instances)
            cells = [f"{int(text) / 1e6:.0f}" if text.isdecimal() else text[:300] for text in (forecast_bytes, used)]
            excess = beyond(int(used), bound, int(forecast_bytes)) if used.isdecimal() else None
            worst = worst if excess is None else max(worst, excess)
            rows.append([name, bound, *cells, "" if excess is None else f"{max(0, excess) / 1e6:.0f}"])
            print(rows[-1], flush=True)
    print(markdown(["query", "max_memory", "forecast, MB", "peak, MB", "beyond 1.2 times either, MB"], rows))
    print(f"Largest: {worst / 1e6:.1f} MB beyond; {ALLOWED / 1e6:.0f} MB are allowed.")


if __name__ == "__main__":
    main()
