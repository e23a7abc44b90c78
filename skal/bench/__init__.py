# SPDX-License-Identifier: BSD-3-Clause
"""Benchmarks: is a strategy better than Random, or is it noise?

``PRESETS`` has the papers' protocols by name, each a tuple of :class:`Protocol`, for :func:`preset` and
``skal bench --preset NAME``; ``NAME_scaled`` is a smaller variant of each.

>>> from skal.bench import PRESETS
>>> "dynamic_al_table2" in PRESETS and "dynamic_al_table2_scaled" in PRESETS
True
"""

from skal.bench._benchmark import BenchmarkError, run_benchmark
from skal.bench._presets import PRESETS, preset
from skal.bench._protocol import Protocol
from skal.bench._report import html_report, markdown_report, terminal_report, write_report
from skal.bench._result import BenchmarkResult
from skal.bench._run import Run
from skal.bench._suite import BenchmarkSuite

__all__ = [
    "PRESETS",
    "BenchmarkError",
    "BenchmarkResult",
    "BenchmarkSuite",
    "Protocol",
    "Run",
    "html_report",
    "markdown_report",
    "preset",
    "run_benchmark",
    "terminal_report",
    "write_report",
]
