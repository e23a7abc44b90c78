# SPDX-License-Identifier: BSD-3-Clause
"""The theory's quantities: pure functions of arrays, each with a form (``..._of``) that takes a network and data."""

from skal.diagnostics._alignment import (
    alignment,
    alignment_of,
    convergence,
    convergence_of,
    generalization_bound,
    generalization_bound_of,
)
from skal.diagnostics._dynamics import (
    approximation_ratio,
    approximation_ratio_of,
    training_dynamics,
    training_dynamics_of,
)
from skal.diagnostics._kernel_report import kernel_report, kernel_report_of
from skal.diagnostics._mmd import mmd, mmd_of, mmd_squared
from skal.diagnostics._overlap import query_overlap

__all__ = [
    "alignment",
    "alignment_of",
    "approximation_ratio",
    "approximation_ratio_of",
    "convergence",
    "convergence_of",
    "generalization_bound",
    "generalization_bound_of",
    "kernel_report",
    "kernel_report_of",
    "mmd",
    "mmd_of",
    "mmd_squared",
    "query_overlap",
    "training_dynamics",
    "training_dynamics_of",
]
