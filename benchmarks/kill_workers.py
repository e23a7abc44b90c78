"""Kill workers of a Dask cluster at random moments of a query, and compare the picks with those of one process.

``python -m benchmarks.kill_workers [--kills 30] [--rows 2000] [--out FILE]``. Four strategies query a pool in memory,
whose rows are sent to two workers. At a random moment of each query one worker is killed with SIGKILL; its nanny starts
another one. With ``--out`` every query that is done is a line of the file, and the same call goes on from there.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from distributed import Client
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._cluster import two_workers
from benchmarks._kept import Kept
from benchmarks._measure import markdown
from skal import config_context
from skal.exceptions import WorkerWarning
from skal.nets import CNN, SquaredLoss
from skal.strategies import BADGE, DynamicAL, Margin, NTKLookahead

STRATEGIES = {
    "Margin": Margin(),
    "BADGE": BADGE(random_state=0),
    "DynamicAL": DynamicAL(),
    "NTKLookahead": NTKLookahead(random_state=0),
}
OUTCOMES = ("same picks", "other picks", "errors")


def make_learner(squared: bool) -> Any:
    """A small network for images, as initialised, and 40 labelled samples."""
    torch.manual_seed(0)
    criterion = SquaredLoss if squared else nn.CrossEntropyLoss
    net = NeuralNetClassifier(CNN(), criterion=criterion, train_split=None, verbose=0).initialize()
    X = np.random.default_rng(1).normal(size=(40, 3, 32, 32)).astype(np.float32)
    return SimpleNamespace(estimator=net, X_training=X, y_training=np.arange(40) % 10)


def processes(client: Client) -> list[int]:
    """The process ids of both workers, as soon as both are there; TimeoutError if a nanny has given up."""
    for _ in range(10):
        client.wait_for_workers(2, timeout=120)
        with suppress(Exception):  # one that is being lost cannot answer
            if len(found := client.run(os.getpid)) == 2:
                return list(found.values())
        time.sleep(1)
    raise TimeoutError("the workers come and go")


def disturb(name: str, number: int, client: Client, learner: Any, X: np.ndarray, alone: Any) -> dict[str, Any]:
    """One query in which a worker is killed: what came of it, and in how many seconds."""
    rng, done = random.Random(f"{name} {number}"), threading.Event()
    process, after, killed = rng.choice(processes(client)), rng.random() * alone.seconds, []

    def kill() -> None:
        if not done.wait(after):
            os.kill(process, signal.SIGKILL)
            killed.append(process)

    killer = threading.Thread(target=kill)
    start = time.perf_counter()
    killer.start()
    said = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            indices = STRATEGIES[name].select(learner, X, 20)[0]
            outcome = "same picks" if indices.tolist() == alone.picks else "other picks"
        except Exception as error:
            outcome, said = "errors", f"{type(error).__name__}: {error}"[:300]
    seconds = time.perf_counter() - start
    done.set()
    killer.join()
    here = any(issubclass(warning.category, WorkerWarning) for warning in caught)
    return {"outcome": outcome, "killed": bool(killed), "here": here, "seconds": seconds, "said": said}


def run(args: argparse.Namespace, kept: Kept) -> list[list[object]]:
    """A row of counts for each strategy."""
    X = np.random.default_rng(0).normal(size=(args.rows, 3, 32, 32)).astype(np.float32)
    rows: list[list[object]] = []
    with two_workers() as client:
        for name, strategy in STRATEGIES.items():
            learner = make_learner(name == "NTKLookahead")
            with config_context(n_jobs=1):
                picks = strategy.select(learner, X, 20)[0].tolist()
            strategy.select(learner, X[:512], 20)  # the workers import torch
            start = time.perf_counter()
            strategy.select(learner, X, 20)
            alone = SimpleNamespace(picks=picks, seconds=time.perf_counter() - start)
            found, number = [], 0
            while sum(one["killed"] for one in found) < args.kills:
                key = f"{name}, {args.rows} rows, query {number}"
                one = kept(key, lambda n=name, k=number, le=learner, a=alone: disturb(n, k, client, le, X, a))
                found.append(one)
                number += 1
                print(key, one, file=sys.stderr, flush=True)
            found = [one for one in found if one["killed"]]
            counts = [sum(one["outcome"] == outcome for one in found) for outcome in OUTCOMES]
            longest = max(one["seconds"] for one in found)
            here = sum(one["here"] for one in found)
            rows.append([name, len(found), *counts, here, f"{alone.seconds:.1f}", f"{longest:.1f}"])
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Print what came of every kill; 1 if a query failed or picked other samples."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kill_workers", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30, help="for each strategy")
    parser.add_argument("--rows", type=int, default=2000, help="samples of the pool")
    parser.add_argument("--out", type=Path, default=None, help="a file that keeps what is done")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    kept, rows = Kept(args.out), None
    while rows is None:
        with suppress(TimeoutError):  # a cluster with one worker left, on a busy machine; what is done is kept
            rows = run(args, kept)
    header = ["strategy", "kills", *OUTCOMES, "ended in this process", "undisturbed, s", "longest, s"]
    print(markdown(header, rows))
    return int(any(row[3] or row[4] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
