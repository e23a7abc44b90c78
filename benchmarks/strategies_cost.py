"""What a query costs: every strategy over one forward pass of the pool, how it grows, and what is fixed.

``python -m benchmarks.strategies_cost ratio|bounds|products|batches|growth|overhead|npc [--only TEXT ...] [--quick]``;
all if none is named. One thread; a strategy and the forward pass that it is compared with take turns.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from modAL.uncertainty import margin_sampling
from sklearn.linear_model import LogisticRegression

from benchmarks._cost_bounds import bounds, covariances_alone, picks_alone
from benchmarks._cost_problems import LARGER, PROBLEMS, STRATEGIES, learner_for, make_strategy
from benchmarks._measure import interleaved, markdown
from skal import ActiveLearner
from skal.strategies import NPC, Entropy, Margin

BATCH = 50
# what grows, and its sizes; everything else is as in the first column
GROWTH: dict[str, list[int]] = {
    "N": [1000, 2000, 4000],
    "n": [100, 200, 400],
    "b": [10, 20, 40],
    "C": [5, 10, 20],
    "P": [64, 128, 256],
}


def forward(learner: Any, X: np.ndarray, batch_size: int) -> None:
    """A plain pass over the pool."""
    module = learner.estimator.module_.eval()
    with torch.no_grad():
        for start in range(0, len(X), batch_size):
            module(torch.from_numpy(X[start : start + batch_size]))


def query(name: str, learner: Any, X: np.ndarray, n_instances: int) -> Callable[[], object]:
    """A call that makes one query."""
    learner = learner_for(name, learner)
    return lambda: make_strategy(name, X).select(learner, X, n_instances)


def best_of(tasks: dict[str, Callable[[], object]], seconds: float = 3.0, repeats: int = 15) -> dict[str, float]:
    """Best processor seconds of tasks that take turns: as often as fits into some seconds, at least once."""
    start = time.perf_counter()
    best = interleaved(tasks, repeats=1, clock=time.process_time)
    for _ in range(repeats - 1):
        if time.perf_counter() - start > seconds:
            break
        best = {name: min(taken, best[name]) for name, taken in _one_turn(tasks).items()}
    return best


def _one_turn(tasks: dict[str, Callable[[], object]]) -> dict[str, float]:
    taken = {}
    for name, task in tasks.items():
        start = time.process_time()  # of this process alone: others may run beside it
        task()
        taken[name] = time.process_time() - start
    return taken


def ratio_table(args: argparse.Namespace) -> str:
    """Time of a query of 50 samples over that of a plain forward pass, at batch size 64 or 256 as is quicker."""
    names = _wanted(args)
    cells: dict[str, list[object]] = {name: [f"`{name}`"] for name in names}
    for problem in PROBLEMS.values():
        n = 300 if args.quick else problem.n_pool
        learner, X = problem.make(n, problem.n_labelled)
        for name in names:
            tasks = {
                "64": partial(forward, learner, X, 64),
                "256": partial(forward, learner, X, 256),
                "query": query(name, learner, X, BATCH),
            }
            best = best_of(tasks, repeats=2 if args.quick else 15)
            cells[name].append(best["query"] / min(best["64"], best["256"]))
            print(name, cells[name][-1], file=sys.stderr, flush=True)
    sizes = [f"{label}, N = {problem.n_pool:,}" for label, problem in PROBLEMS.items()]
    return markdown(["strategy", *sizes], list(cells.values()))


def bounds_table(args: argparse.Namespace) -> str:
    """What strategies cannot do without, in plain torch, over a plain forward pass of the pool."""
    cells: dict[str, list[object]] = {}
    for problem in PROBLEMS.values():
        learner, X = problem.make(100 if args.quick else problem.n_pool, problem.n_labelled)
        work, seconds = bounds(learner, X), 0.0 if args.quick else 15.0
        best = best_of(
            {f"{name}|{size}": task for name, sizes in work.items() for size, task in sizes.items()}, seconds
        )
        least = {name: min(best[f"{name}|{size}"] for size in sizes) for name, sizes in work.items()}
        for name, seconds in least.items():
            cells.setdefault(name, [name]).append(seconds / least["a forward pass"])
    sizes = [f"{label}, N = {problem.n_pool:,}" for label, problem in PROBLEMS.items()]
    return markdown(["passes alone", *sizes], list(cells.values()))


def products_table(args: argparse.Namespace) -> str:
    """What the look-ahead multiplies on the MLP head, in plain torch, over a plain forward pass of the pool."""
    n = 300 if args.quick else PROBLEMS["MLP head"].n_pool
    learner, X = PROBLEMS["MLP head"].make(n, 100)
    tasks: dict[str, Callable[[], object]] = {f"{size}": partial(forward, learner, X, size) for size in (64, 256)}
    for e in (2000, 500):
        for dtype in (torch.float64, torch.float32):
            e, name = min(e, n), f"{e:,} evaluation samples, {str(dtype).removeprefix('torch.')}"
            tasks[f"{name}|covariances"] = covariances_alone(learner.estimator.module_, n, e, dtype)
            tasks[f"{name}|picks"] = picks_alone(n, e, BATCH, dtype)
    best = best_of(tasks, 0.0 if args.quick else 30.0)
    least = min(best["64"], best["256"])
    names = dict.fromkeys(name.split("|")[0] for name in tasks if "|" in name)
    rows = [[name, *(best[f"{name}|{part}"] / least for part in ("covariances", "picks"))] for name in names]
    return markdown(["MLP head, N = 10,000", "covariances", f"{BATCH} picks"], [list(row) for row in rows])


def batches_table(args: argparse.Namespace) -> str:
    """A plain pass by the number of samples that go through the network at once, and ``Margin`` with its 256."""
    sizes = (16, 64, 256)
    rows: list[list[object]] = []
    for label, problem in (PROBLEMS if args.quick else PROBLEMS | LARGER).items():
        n = 100 if args.quick else problem.n_pool
        learner, X = problem.make(n, problem.n_labelled)
        tasks = {f"{size}": partial(forward, learner, X, size) for size in sizes}
        best = best_of(tasks | {"Margin": query("Margin", learner, X, BATCH)}, 0.0 if args.quick else 15.0)
        least = min(best[f"{size}"] for size in sizes)
        rows.append([f"{label}, N = {problem.n_pool:,}", *(seconds / least for seconds in best.values())])
    return markdown(["network", *(f"{size} at once" for size in sizes), "`Margin`"], rows)


def growth_table(args: argparse.Namespace) -> str:
    """Exponents x of ``seconds ~ size^x`` on the MLP head, over the last doubling; everything else is fixed."""
    problem = PROBLEMS["MLP head"]
    names = _wanted(args)
    rows: dict[str, list[object]] = {name: [f"`{name}`"] for name in names}
    start = {"N": 200, "n": 20, "b": 5, "C": 5, "P": 64} if args.quick else {k: v[0] for k, v in GROWTH.items()}
    for axis, sizes in GROWTH.items():
        made = {}
        for size in [start[axis], 2 * start[axis]] if args.quick else sizes:
            now = start | {axis: size}
            made[size] = problem.make(now["N"], now["n"], now["C"], width=now["P"])
        for name in names:
            tasks = {
                str(size): query(name, learner, X, size if axis == "b" else start["b"])
                for size, (learner, X) in made.items()
            }
            seconds = best_of(tasks, seconds=1.0)
            exponent = np.polyfit(np.log(list(made)), np.log([seconds[str(size)] for size in made]), 1)[0]
            rows[name].append(f"{exponent:.2f}")
        print(axis, file=sys.stderr, flush=True)
    return markdown(["strategy", *(f"{axis}, {s[0]:,} … {s[-1]:,}" for axis, s in GROWTH.items())], list(rows.values()))


def overhead_table(args: argparse.Namespace) -> str:
    """Milliseconds of one query on 100 samples, beside modAL's own function on the same learner."""
    problem = PROBLEMS["MLP head"]
    learner, X = problem.make(100, 100)
    classifier = LogisticRegression().fit(learner.X_training, learner.y_training)
    networks = {"LogisticRegression": classifier, "MLP": learner.estimator}
    rows: list[list[object]] = []
    for label, estimator in networks.items():
        asking = ActiveLearner(estimator, margin_sampling)
        asking.X_training, asking.y_training = learner.X_training, learner.y_training
        tasks = {
            "modAL": partial(margin_sampling, asking, X),
            "Margin": partial(Margin(), asking, X),
            "Entropy": partial(Entropy(), asking, X),
        }
        best = best_of(tasks, repeats=20 if args.quick else 500)
        own = best["modAL"]
        rows.append([label, *(1000 * best[name] for name in tasks), best["Margin"] / own])
    return markdown(["estimator", "modAL's margin, ms", "`Margin`, ms", "`Entropy`, ms", "Margin / modAL"], rows)


def npc_table(args: argparse.Namespace) -> str:
    """Seconds of NPC where it is large: 500 labelled samples, 250 to query, and what ``cost`` said before."""
    sizes = [(200, 20, 10, 50)] if args.quick else [(10_000, 500, 250, 1000)]
    rows: list[list[object]] = []
    for N, n, b, m in sizes:
        learner, X = PROBLEMS["MLP head"].make(N, n)
        plain = min(best_of({"f": partial(forward, learner, X, 256)}).values())
        strategy = NPC(n_candidates=m, random_state=0)
        start = time.perf_counter()
        strategy.select(learner, X, b)
        seconds = time.perf_counter() - start
        cost = strategy.cost(learner, X, b)
        rows.append([f"{N:,}", n, b, m, seconds, seconds / plain, cost.seconds, f"{cost.memory / 1e6:,.0f} MB"])
    header = ["N", "n", "b", "candidates", "seconds", "forward passes", "forecast, s", "forecast, memory"]
    return markdown(header, rows)


def _wanted(args: argparse.Namespace) -> list[str]:
    return [name for name in STRATEGIES if not args.only or any(text in name for text in args.only)]


TABLES = {
    "ratio": ratio_table,
    "bounds": bounds_table,
    "products": products_table,
    "batches": batches_table,
    "growth": growth_table,
    "overhead": overhead_table,
    "npc": npc_table,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.strategies_cost", description=__doc__)
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"{', '.join(TABLES)}; all if none is named")
    parser.add_argument("--only", nargs="*", default=None, help="strategies whose names hold one of these texts")
    parser.add_argument("--quick", action="store_true", help="sizes that say nothing, to see that it runs")
    args = parser.parse_args(argv)
    if unknown := set(args.tables) - set(TABLES):
        parser.error(f"unknown table {', '.join(sorted(unknown))}. Choose from: {', '.join(TABLES)}")
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in args.tables or TABLES:
            print(f"\n### {name}\n\n{TABLES[name](args)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
