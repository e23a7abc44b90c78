"""Larger pools: two workers, a million images on disk, forecasts of a query's cost, and constants for planning.

``python -m benchmarks.scaling speedup|cost|million|constants [--quick] [--rows N] [--full N]``; all if none is named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import torch
from joblib import parallel_config
from joblib.externals.loky import get_reusable_executor
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from skorch import NeuralNetClassifier
from torch import nn

from benchmarks._cluster import two_workers
from benchmarks._measure import markdown
from skal import config_context
from skal._lookahead.query import make_source
from skal._lookahead.request import Settings
from skal._lookahead.sources import FeatureSource
from skal.loss_prediction import LossPredictionClassifier
from skal.nets import CNN, ResNet18, SquaredLoss
from skal.strategies import (
    ALBL,
    BADGE,
    BALD,
    EGL,
    NPC,
    CoreSet,
    DynamicAL,
    Entropy,
    LearningLoss,
    LeastConfidence,
    Margin,
    NTKLookahead,
    RandomSampling,
)

N_LABELLED = 100
BATCH = 100
COST_BATCH = 20
MILLION = 1_000_000
LIMIT = 2 * 10**9
SMALL = 64 * 10**6  # bytes about which no forecast is held to account


def _scaled(images: np.ndarray) -> np.ndarray:
    return images.astype(np.float32) / 255


def _images(n: int, folder: Path | None = None, seed: int = 0) -> np.ndarray:
    """Random uint8 images with a faint pattern for each of ten classes; a memory map if there is a folder."""
    rng = np.random.default_rng(seed)
    shape = (n, 3, 32, 32)
    X = np.empty(shape, np.uint8) if folder is None else np.memmap(folder / f"{n}.bin", np.uint8, "w+", shape=shape)
    patterns = rng.integers(0, 64, size=(10, 3, 32, 32), dtype=np.uint8)
    for start in range(0, n, 10_000):
        stop = min(start + 10_000, n)
        X[start:stop] = rng.integers(0, 192, size=(stop - start, 3, 32, 32), dtype=np.uint8)
        X[start:stop] += patterns[np.arange(start, stop) % 10]
    if folder is None:
        return X
    X.flush()
    return np.memmap(folder / f"{n}.bin", np.uint8, "r", shape=shape)


def _learner(criterion: type[nn.Module] = nn.CrossEntropyLoss, module: nn.Module | None = None) -> SimpleNamespace:
    """The tutorial's CNN behind a step that scales the images, as initialised, and 100 labelled samples."""
    torch.manual_seed(0)
    cls = LossPredictionClassifier if module is None else NeuralNetClassifier
    net = cls(module or CNN(dropout=0.1), criterion=criterion, train_split=None, verbose=0, max_epochs=1)
    X, y = _images(N_LABELLED, seed=1), np.arange(N_LABELLED) % 10
    pipeline = Pipeline([("scale", FunctionTransformer(_scaled)), ("net", net)]).fit(X, y)
    return SimpleNamespace(estimator=pipeline, X_training=X, y_training=y)


def _learner_for(strategy: Any) -> SimpleNamespace:
    return _learner(SquaredLoss if isinstance(strategy, NTKLookahead) else nn.CrossEntropyLoss)


class _Memory:
    """Peak of this process's own memory: pages of a mapped file belong to the system, which takes them back at will."""

    def __enter__(self) -> _Memory:
        self.baseline = self.peak = _anonymous()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.01):
            self.peak = max(self.peak, _anonymous())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def grown(self) -> int:
        return self.peak - self.baseline


def _anonymous() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("The benchmark reads /proc/self/status, which this system does not have.")


def _seconds(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def _select(strategy: Any, learner: Any, X: np.ndarray) -> None:
    with config_context(n_jobs=None, max_memory=SPEEDUP_MEMORY):  # as joblib is told
        strategy.select(learner, X, BATCH)


def _spent() -> np.ndarray:
    """Processor seconds and page faults of this process and of all that it has started, and processor seconds of
    the whole machine, from /proc.
    """
    ticks, total = os.sysconf("SC_CLK_TCK"), np.zeros(3)
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / ticks, int(fields[7]), 0
    busy = [int(word) for word in Path("/proc/stat").read_text().split()[1:8]]
    total[2] = (sum(busy) - busy[3] - busy[4]) / ticks  # but for idle and waiting
    return total


SPEEDUP_MEMORY = "4GB"  # NPC keeps gradients; within less it computes them again for every group of candidates
# those that need gradients are held to a target
SPEEDUP_STRATEGIES = {Entropy(): None, BADGE(random_state=0): None, EGL(): 1.7, DynamicAL(): 1.7}
SPEEDUP_STRATEGIES |= {NTKLookahead(random_state=0): 1.7, NPC(n_candidates=100, random_state=0): None}
ONE, LOKY, AS_IT_COMES, KEPT = WHO = (
    "one process", "two of loky", "two of Dask, as it comes", "two of Dask, with the remedy"
)  # fmt: skip


@contextmanager
def _workers(who: str) -> Iterator[None]:
    """Workers of one kind for joblib. No others wait: two idle clusters of Dask take a fifth of a core.

    Beside two workers, the process that asks has two threads: it computes while they wait, and waits while they do.
    """
    torch.set_num_threads(1 if who == ONE else 2)
    if who in (AS_IT_COMES, KEPT):
        with two_workers(keep_memory=who == KEPT):
            yield
    else:
        with parallel_config(**({"backend": "sequential"} if who == ONE else {"backend": "loky", "n_jobs": 2})):
            yield
        get_reusable_executor().shutdown(wait=True)


def speedup_table(args: argparse.Namespace) -> tuple[str, bool]:
    """One process on one core and two workers on two, by turns; the best turn of each, after a small query."""
    warnings.simplefilter("ignore")
    n, n_turns = args.rows or (512 if args.quick else 4096), 1 if args.quick else args.turns
    X, module = _images(n), ResNet18(width=16)
    found: dict[tuple[str, str], tuple[float, np.ndarray]] = {}
    for strategy in SPEEDUP_STRATEGIES:
        name = type(strategy).__name__
        if args.only and name not in args.only:
            continue
        learner = _learner(SquaredLoss if name == "NTKLookahead" else nn.CrossEntropyLoss, deepcopy(module))
        for turn in range(n_turns):
            for who in WHO if turn % 2 else reversed(WHO):
                with _workers(who):
                    _select(strategy, learner, X[:400])  # starts the workers, which have to import torch
                    before = _spent()
                    taken = _seconds(lambda s=strategy, le=learner: _select(s, le, X))
                    spent = _spent() - before
                best = found.get((name, who), (float("inf"), spent))
                found[name, who] = min(best, (taken, spent), key=lambda pair: pair[0])
                print(name, who, f"{taken:.2f} s", spent.round(2), file=sys.stderr, flush=True)
    rows: list[list[object]] = []
    good = True
    for strategy, target in SPEEDUP_STRATEGIES.items():
        name = type(strategy).__name__
        for who in (who for who in WHO if (name, who) in found):
            seconds, (processor, faults, busy) = found[name, who]
            ratio = found[name, ONE][0] / seconds
            held = target if who in (LOKY, KEPT) else None
            good &= args.quick or held is None or ratio >= held
            goal = "" if held is None else f"{held} ×"
            others = f"{max(0.0, busy - processor):.1f}"
            rows.append([name, who, seconds, f"{ratio:.2f} ×", goal, float(processor), others, f"{int(faults):,}"])
    header = [f"strategy, ResNet-18 of width 16, {n:,} images", "workers", "seconds", "as quick as one process"]
    return markdown([*header, "target", "processor seconds", "of others", "page faults"], rows), good


STRATEGIES = [
    RandomSampling(random_state=0),
    LeastConfidence(),
    Margin(),
    Entropy(),
    LearningLoss(),
    BALD(random_state=0),
    BALD(batch="joint", n_passes=5, random_state=0),
    CoreSet(),
    BADGE(random_state=0),
    EGL(layers="last"),
    EGL(),
    DynamicAL(),
    DynamicAL(batch="greedy", random_state=0),
    NTKLookahead(random_state=0),
    NPC(n_candidates=100, random_state=0),
    NPC(search="greedy", random_state=0),
    ALBL(random_state=0),
]


def cost_table(args: argparse.Namespace) -> tuple[str, bool]:
    """Forecast and measurement of one query for every strategy, on one thread, each in a process of its own."""
    n = args.rows or (1_500 if args.quick else 20_000)
    rows: list[list[object]] = []
    good = True
    for number, strategy in enumerate(STRATEGIES):
        if args.only and type(strategy).__name__ not in args.only:
            continue
        # in two processes: the small queries behind a forecast leave memory behind that the query would find
        found = _in_own_process("_cost", str(number), str(n)) | _in_own_process("_grown", str(number), str(n))
        ratio = found["forecast"] / found["seconds"]
        good &= 0.5 <= ratio <= 2 or max(found["forecast"], found["seconds"]) < 0.05
        share = found["memory"] / max(1, found["grown"])
        good &= 0.5 <= share <= 2 or max(found["memory"], found["grown"]) < SMALL
        passes = f"{found['forward'] / n:.3g} / {found['backward'] / n:.3g}"
        memory = [f"{found['memory'] / 1e6:,.0f} MB", f"{found['grown'] / 1e6:,.0f} MB"]
        rows.append([f"`{strategy!r}`", passes, found["forecast"], found["seconds"], f"{ratio:.2f}", *memory])
        print(rows[-1], file=sys.stderr, flush=True)
    header = ["strategy", "passes over the pool, forward / backward", "forecast, s", "measured, s", "ratio"]
    return markdown([*header, "memory, forecast", "measured"], rows), good


def _cost_task(number: int, n: int) -> dict[str, float]:
    X, strategy, learner = _cost_problem(number, n)
    cost = strategy.cost(learner, X, COST_BATCH)
    seconds = _seconds(lambda: strategy.select(learner, X, COST_BATCH))
    passes = {"forward": cost.passes.forward, "backward": cost.passes.backward}
    return passes | {"seconds": seconds, "forecast": cost.seconds, "memory": cost.memory}


def _grown_task(number: int, n: int) -> dict[str, float]:
    X, strategy, learner = _cost_problem(number, n)
    with _Memory() as memory:
        strategy.select(learner, X, COST_BATCH)
    return {"grown": memory.grown}


def _cost_problem(number: int, n: int) -> tuple[np.ndarray, Any, SimpleNamespace]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    return _images(n), STRATEGIES[number], _learner_for(STRATEGIES[number])


def _in_own_process(*words: str) -> dict[str, float]:
    """What a task of this module gives in a process of its own, where no other has left memory behind."""
    command = [sys.executable, "-m", "benchmarks.scaling", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


MILLION_STRATEGIES = {
    "Entropy": Entropy(),
    "BADGE": BADGE(random_state=0),
    "DynamicAL": DynamicAL(),
    "NTKLookahead": NTKLookahead(random_state=0),
}


def million_table(args: argparse.Namespace) -> tuple[str, bool]:
    """A query on a memory map of uint8 images, each in a process of its own."""
    rows: list[list[object]] = []
    good = True
    full = args.full or (4_000 if args.quick else MILLION)
    with tempfile.TemporaryDirectory() as folder:
        _images(full, Path(folder))
        for name in args.only or MILLION_STRATEGIES:
            n = min(full, args.rows or full)
            found = _in_own_process("_million", name, str(n), folder, str(full))
            good &= found["grown"] <= LIMIT
            time_text = f"{found['seconds'] * MILLION / n / 60:,.0f} min"
            rows.append([name, f"{n:,}", found["seconds"], f"{found['grown'] / 1e6:,.0f} MB", time_text])
            print(rows[-1], file=sys.stderr, flush=True)
    header = ["strategy", "images", "seconds", "memory above the baseline", "per million, one thread"]
    return markdown(header, rows), good


def _million_task(name: str, n: int, folder: str, full: int) -> dict[str, float]:
    torch.set_num_threads(1)
    strategy = MILLION_STRATEGIES[name]
    learner = _learner_for(strategy)
    X = np.memmap(Path(folder) / f"{full}.bin", np.uint8, "r", shape=(full, 3, 32, 32))[:n]
    warnings.simplefilter("ignore")
    strategy.select(learner, X[: 4 * BATCH], 2)
    with _Memory() as memory, config_context(max_memory="1GB"):
        seconds = _seconds(lambda: strategy.select(learner, X, BATCH))
    return {"seconds": seconds, "grown": memory.grown}


def _feature_bytes(strategy: NTKLookahead, X: np.ndarray) -> int:
    context = strategy.prepare(_learner_for(strategy), X)
    source = make_source(context, Settings.of(strategy), np.random.default_rng(0), 1250)
    assert isinstance(source, FeatureSource)
    return source.reader.bytes_per_sample


def constants_table(args: argparse.Namespace) -> tuple[str, bool]:
    """Seconds and bytes per sample, for plans: the slope between two pool sizes, on one thread."""
    torch.set_num_threads(1)
    n = args.rows or (600 if args.quick else 4_000)
    X = _images(2 * n)
    rows: list[list[object]] = []
    plans = {
        "Entropy": (Entropy(), 8 + 24 * 10, 10 * 4),
        "BADGE": (BADGE(random_state=0), (84 + 10) * 12 + 32, (84 + 10) * 4),
        "CoreSet": (CoreSet(), 84 * 12 + 10 * 8 + 24, (84 + 10) * 4),
        "DynamicAL": (DynamicAL(), 40, 16),
        "NTKLookahead": (NTKLookahead(random_state=0), 16, _feature_bytes(NTKLookahead(random_state=0), X)),
    }
    for name, (strategy, kept, moved) in plans.items():
        learner = _learner_for(strategy)
        taken = []
        for size in (n, 2 * n):
            task = partial(strategy.select, learner, X[:size], 20)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                taken.append(min(_seconds(task) for _ in range(2)))
        slope = (taken[1] - taken[0]) / n
        rows.append([name, f"{slope * 1e6:,.0f} µs", f"{1 / slope:,.0f}", kept, moved])
    header = ["strategy", "time per sample", "samples per second", "bytes kept per sample", "bytes sent per sample"]
    return markdown(header, rows), True


TASKS = {"speedup": speedup_table, "cost": cost_table, "million": million_table, "constants": constants_table}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for; 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("tasks", nargs="*", help=", ".join(TASKS))
    parser.add_argument("--quick", action="store_true", help="small sizes, no targets on time")
    parser.add_argument("--rows", type=int, default=None, help="how many samples to query from")
    parser.add_argument("--full", type=int, default=None, help="how many images the memory map holds")
    parser.add_argument("--turns", type=int, default=2, help="how often each kind of worker has its turn")
    parser.add_argument("--only", nargs="*", default=None, help="strategies of the tables, by class")
    args = parser.parse_args(argv)
    if args.tasks[:1] == ["_million"]:
        name, n, folder, full = args.tasks[1:]
        print(json.dumps(_million_task(name, int(n), folder, int(full))))
        return 0
    for name, task in (("_cost", _cost_task), ("_grown", _grown_task)):
        if args.tasks[:1] == [name]:
            print(json.dumps(task(*map(int, args.tasks[1:]))))
            return 0
    if unknown := set(args.tasks) - set(TASKS):
        parser.error(f"unknown table {', '.join(sorted(unknown))}. Choose from: {', '.join(TASKS)}")
    failed = False
    for name in args.tasks or TASKS:
        table, good = TASKS[name](args)
        failed |= not good
        print(f"\n### {name}\n\n{table}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
