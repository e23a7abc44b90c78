"""Interrupts at random points of queries: is anything changed afterwards?

``python -m benchmarks.interrupts [--interrupts 1000]``. A query of each strategy is run once to count the lines of
Python that it passes. It is then run again and again, and interrupted by a ``KeyboardInterrupt`` at a line drawn at
random. The learner, the pool, torch's settings and the random generators are compared with what they were, to the bit,
with the same snapshot that the public conformance checks use.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks._attack_cases import fresh_learner, loss_predicting
from benchmarks._measure import markdown
from benchmarks.attack import strategies
from skal.checks._state import snapshot


def passed_lines(call: Callable[[], Any], stop: int | None = None) -> int:
    """Run something under a trace that counts lines, and interrupts it at line ``stop``; how many lines it passed."""
    count = 0

    def trace(frame: Any, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if count == stop:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()  # coverage, or a debugger
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return count


def interrupted(n: int, seed: int = 0) -> dict[str, list[list[str]]]:
    """What was changed by each of n interrupts, shared among the strategies, by strategy."""
    learner, X = fresh_learner()
    predicting = loss_predicting(learner)
    # a small pool: more of the lines are those of the ends of things
    X, every = X[:12], strategies()
    rng, found = np.random.default_rng(seed), {}
    for position, (name, strategy) in enumerate(every.items()):
        own = predicting if name == "LearningLoss" else learner
        own.estimator.module_.train()

        def query(strategy: Any = strategy, own: Any = own) -> Any:
            from sklearn.base import clone

            return clone(strategy).select(own, X, 2)

        times = n // len(every) + (position < n % len(every))
        if not times:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            query()
            lines = passed_lines(query)
            for _ in range(times):
                before = snapshot(own)
                passed_lines(query, int(rng.integers(1, lines + 1)))
                after = snapshot(own)
                changed = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
                found.setdefault(name, []).append(sorted(changed))
                if changed:  # the next one starts from a sound learner
                    torch.set_grad_enabled(True)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print how many interrupts left something changed, and what."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.interrupts", description=__doc__.splitlines()[0])
    parser.add_argument("--interrupts", type=int, default=1000)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = interrupted(options.interrupts)
    rows = [[name, len(runs), sum(map(bool, runs))] for name, runs in found.items()]
    rows.append(["all", sum(row[1] for row in rows), sum(row[2] for row in rows)])
    print(markdown(["strategy", "interrupts", "something changed"], rows))
    for what, times in Counter(key for runs in found.values() for run in runs for key in run).most_common():
        print(f"{times} times: {what}")


if __name__ == "__main__":
    main()
