# SPDX-License-Identifier: BSD-3-Clause
"""Benchmarks: is a strategy better than Random, or is it noise?

The papers' protocols are in :mod:`skal.bench.papers`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

# imported when they are first used: the command line refuses a wrong name, and lists presets, without torch
_HOMES = {"BenchmarkError": "_benchmark", "run_benchmark": "_benchmark", "Protocol": "_protocol", "Run": "_run"}
_HOMES |= dict.fromkeys(("html_report", "markdown_report", "terminal_report", "write_report"), "_report")
_HOMES |= {"BenchmarkResult": "_result", "BenchmarkSuite": "_suite"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
