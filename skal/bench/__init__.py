# SPDX-License-Identifier: BSD-3-Clause
"""Benchmarks: is a strategy better than Random, or is it noise?

The papers' protocols are in :mod:`skal.bench.papers`.
"""

from skal.bench._benchmark import BenchmarkError, run_benchmark
from skal.bench._protocol import Protocol
from skal.bench._report import html_report, markdown_report, terminal_report, write_report
from skal.bench._result import BenchmarkResult
from skal.bench._run import Run
from skal.bench._suite import BenchmarkSuite

__all__ = [
    "BenchmarkError",
    "BenchmarkResult",
    "BenchmarkSuite",
    "Protocol",
    "Run",
    "html_report",
    "markdown_report",
    "run_benchmark",
    "terminal_report",
    "write_report",
]
