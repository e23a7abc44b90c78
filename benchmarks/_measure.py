"""Side-by-side timings and peak memory, as ratios: absolute times mean little on a shared machine."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["interleaved", "markdown", "peak_memory", "print_baseline", "print_peak", "resident"]


def interleaved(
    tasks: dict[str, Callable[[], object]], repeats: int = 5, clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Best seconds of each task, the tasks taking turns so that a busy moment hits all of them alike.

    ``clock=time.process_time`` counts this process alone, where others run beside it.
    """
    best = dict.fromkeys(tasks, float("inf"))
    for task in tasks.values():
        task()  # warm up
    for _ in range(repeats):
        for name, task in tasks.items():
            start = clock()
            task()
            best[name] = min(best[name], clock() - start)
    return best


def markdown(header: list[str], rows: list[list[object]]) -> str:
    """A Markdown table; numbers with three significant digits, from 1,000 on without decimals."""

    def cell(value: object) -> str:
        if not isinstance(value, float):
            return str(value)
        return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"

    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(map(cell, row)) + " |" for row in rows])


def peak_memory(module: str, *arguments: str) -> int:
    """Bytes by which ``python -m module arguments`` grew beyond what it printed as its baseline.

    The process prints its own resident size once everything is loaded (:func:`print_baseline`), and its peak at the
    end (:func:`print_peak`).
    """
    done = subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, check=True)
    numbers = dict(line.split("=") for line in done.stdout.split() if "=" in line)
    return int(numbers["peak"]) - int(numbers["baseline"])


def print_baseline() -> None:
    """Print the highest resident size so far; call it when network and data are loaded and have been used once."""
    print(f"baseline={resident('VmHWM')}", flush=True)


def print_peak() -> None:
    """Print the highest resident size of the whole run."""
    print(f"peak={resident('VmHWM')}", flush=True)


def resident(name: str) -> int:
    """Bytes of this process in memory: now (``VmRSS``), or at most since it began (``VmHWM``); on Linux.

    What ``getrusage`` says begins with the peak of the process that started this one.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
