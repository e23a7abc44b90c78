"""New pages of memory that a query takes from the system: ``python -m benchmarks._cost_pages NETWORK kept|given N``.

Prints the best processor seconds of a query by ``DynamicAL``, and its page faults in the middle of all. A process of
its own each time: what the C library keeps of freed memory depends on all that was freed before.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from statistics import median_low

import torch

from benchmarks._cost_problems import PROBLEMS
from skal.strategies import DynamicAL
from skal.tangent import _engine

_QUERIES = 8


def measured(network: str, memory: str, n_pool: int) -> tuple[float, int]:
    """Seconds and page faults, from another process; ``given`` is without the wish that freed memory be kept."""
    command = [sys.executable, "-m", "benchmarks._cost_pages", network, memory, str(n_pool)]
    seconds, faults = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(seconds), int(faults)


def main(network: str, memory: str, n_pool: int) -> None:
    """Measure in this process."""
    if memory == "given":
        _engine.keep_freed_memory = lambda: None  # type: ignore[assignment]
    torch.set_num_threads(1)
    problem = PROBLEMS[network]
    learner, X = problem.make(n_pool, problem.n_labelled)
    seconds, faults = [], []
    for _ in range(_QUERIES):
        before, start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt, time.process_time()
        DynamicAL().select(learner, X, 1)
        seconds.append(time.process_time() - start)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    print(min(seconds[1:]), median_low(faults[1:]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
