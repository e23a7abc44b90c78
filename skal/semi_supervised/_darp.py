# SPDX-License-Identifier: BSD-3-Clause
"""DARP: change pseudo-labels as little as possible so that the classes have given sizes."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal._core.containers import all_finite
from skal.exceptions import (
    AdjustedInputWarning,
    ConvergenceWarning,
    InvalidParameterError,
    InvalidTypeError,
    NonFiniteError,
    shorten,
)
from skal.semi_supervised._refinement import column_residual, fit_refinement


@dataclass(frozen=True)
class DARPReport:
    """How a refinement went, and the changes that made the problem well posed.

    Attributes
    ----------
    converged : bool
        Whether both residuals are within the tolerance.
    n_iterations : int
        Newton steps.
    row_residual, column_residual : float
        Largest relative deviation of a row's sum from 1, and of a column's sum from its target.
    target : (K,) array
        The target that was used: it sums to N.
    target_normalised : bool
        Whether the given target had to be scaled for that.
    n_clipped : int
        Given probabilities below ``clip`` (zeros among them), which were raised to it.
    n_truncated : int
        Entries outside the ``alpha * M_k`` largest of their class, which were lowered to ``clip``.
    n_restored : int
        Rows that would have lost all their entries that way, and kept them.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.semi_supervised import solve_darp
    >>> _, report = solve_darp(np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]]), target=[2, 4])  # a DARPReport
    >>> report.target.tolist(), report.target_normalised, report.converged
    ([1.0, 2.0], True, True)
    """

    converged: bool
    n_iterations: int
    row_residual: float
    column_residual: float
    target: np.ndarray
    target_normalised: bool
    n_clipped: int
    n_truncated: int
    n_restored: int


def darp(
    proba: Any,
    target: Any = None,
    *,
    alpha: float | None = 2.0,
    clip: float = 1e-6,
    min_entropy: float = 1e-3,
    tol: float = 1e-7,
    max_iter: int = 200,
) -> Any:
    """Refine pseudo-labels so that the sizes of the classes match a target (Kim et al. 2020).

    Warns about changes to the input; :func:`solve_darp` gives the same labels with a report instead.

    Parameters
    ----------
    proba : (N, K) array or tensor
        Class probabilities: not negative; rows are scaled to sum to 1.
    target : (K,) array-like or None, default=None
        How many samples each class should have, or shares that sum to 1. What does not sum to N is scaled, with a
        warning unless it sums to 1. None is N/K each.
    alpha : float >= 1 or None, default=2.0
        Keep the ``alpha * M_k`` largest entries of every class, ties included, and lower all others to ``clip``. Rows
        that would keep nothing keep everything. None keeps all.
    clip : float, default=1e-6
        Probabilities are raised to at least this much, so that no label is impossible to move, and the target
        can always be met.
    min_entropy : float, default=1e-3
        Lower bound of ``H(q_n)``, in nats, in the weights.
    tol : float, default=1e-7
        Largest relative deviation of the columns' sums from the target.
    max_iter : int, default=200
        Newton steps.

    Returns
    -------
    refined : (N, K) array or tensor of float64
        Rows sum to 1 and columns to the target. A tensor stays on its device.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.semi_supervised import darp
    >>> proba = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    >>> refined = darp(proba)  # all four look like the first class, and two should be of the second
    >>> refined.argmax(axis=1), refined.sum(axis=0).round(6)
    (array([0, 0, 1, 1]), array([2., 2.]))
    """
    labels, report = solve_darp(
        proba, target, alpha=alpha, clip=clip, min_entropy=min_entropy, tol=tol, max_iter=max_iter
    )
    if report.target_normalised:
        text = f"target={shorten(target)} sums neither to the {len(labels)} samples nor to 1, so darp scaled it."
        warnings.warn(f"{text} Pass counts or shares to be sure of what is meant.", AdjustedInputWarning, stacklevel=2)
    if report.n_clipped:
        text = f"darp raised {report.n_clipped} probabilities below clip={clip:g} to that value."
        warnings.warn(f"{text} Lower clip to stay closer to such labels.", AdjustedInputWarning, stacklevel=2)
    if not report.converged:
        text = f"darp did not reach tol={tol:g} in {report.n_iterations} steps: the sum of a class differs from its "
        text += f"target by {report.column_residual:.1e} of it. Raise max_iter, clip or min_entropy."
        warnings.warn(text, ConvergenceWarning, stacklevel=2)
    return labels


def solve_darp(
    proba: Any,
    target: Any = None,
    *,
    alpha: float | None = 2.0,
    clip: float = 1e-6,
    min_entropy: float = 1e-3,
    tol: float = 1e-7,
    max_iter: int = 200,
) -> tuple[Any, DARPReport]:
    """The labels of :func:`darp`, with a report instead of warnings.

    Parameters
    ----------
    proba : (N, K) array or tensor
        Class probabilities; rows are scaled to sum to 1.
    target : (K,) array-like or None, default=None
        How many samples each class should have, or shares; None is N/K each.
    alpha : float or None, default=2.0
        Keep the ``alpha * M_k`` largest entries of every class; None keeps all.
    clip : float, default=1e-6
        Probabilities are raised to at least this much.
    min_entropy : float, default=1e-3
        Lower bound of a row's entropy, in nats, in the weights.
    tol : float, default=1e-7
        Largest relative deviation of the columns' sums from the target.
    max_iter : int, default=200
        Newton steps, at most.

    Returns
    -------
    refined : (N, K) array or tensor of float64
        Rows that sum to 1, with columns that sum to the target.
    report : DARPReport
        How it went.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.semi_supervised import solve_darp
    >>> labels, report = solve_darp(np.array([[1.0, 0.0], [0.9, 0.1], [0.6, 0.4]]), target=[1, 2])
    >>> report.converged, report.n_clipped, report.column_residual < 1e-6
    (True, 1, True)
    """
    table = _check_table(proba)
    masses, normalised = _check_target(target, table)
    refinement, counts = fit_refinement(
        table, masses, alpha=alpha, clip=clip, min_entropy=min_entropy, tol=tol, max_iter=max_iter
    )
    labels = refinement(table)
    residual = column_residual(labels, masses)
    report = DARPReport(
        converged=residual <= tol,
        row_residual=float((labels.sum(dim=1) - 1).abs().max()),
        column_residual=residual,
        target=masses.cpu().numpy(),
        target_normalised=normalised,
        **counts,
    )
    return (labels if isinstance(proba, Tensor) else labels.cpu().numpy()), report


def _check_table(proba: Any) -> Tensor:
    """(N, K) float64 on the data's device, rows scaled to sum to 1."""
    expected = "an (N, K) array or tensor of probabilities, with N >= 1 and K >= 2"
    remedy = "Pass what predict_proba gives, not logits."
    table = _real_numbers(proba)
    if table is None:
        raise InvalidTypeError.for_parameter("darp", "proba", expected, proba, remedy)
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 2:
        raise InvalidParameterError.for_parameter("darp", "proba", expected, tuple(table.shape), remedy)
    if not all_finite(table):
        raise NonFiniteError("The 'proba' of darp must be finite. Got NaN or infinity. Check the network's outputs.")
    total = table.sum(dim=1, keepdim=True)
    if bool((table < 0).any()) or bool((total <= 0).any()):
        expected = "probabilities: no entry below 0, no row of zeros"
        got = f"a smallest entry of {float(table.min()):g} and a smallest row sum of {float(total.min()):g}"
        raise InvalidParameterError.for_parameter("darp", "proba", expected, got, remedy)
    return table / total


def _check_target(target: Any, table: Tensor) -> tuple[Tensor, bool]:
    """(K,) masses that sum to N, and whether they were scaled although the caller did not ask for it."""
    n_samples, n_classes = table.shape
    if target is None:
        return torch.full((n_classes,), n_samples / n_classes, dtype=table.dtype, device=table.device), False
    remedy = "Pass counts or shares, or None for equal sizes."
    masses = check_masses("darp", "target", target, n_classes, remedy).to(table.device)
    total = float(masses.sum())
    as_meant = any(abs(total - meant) <= 1e-6 * meant for meant in (n_samples, 1.0))
    return masses * (n_samples / total), not as_meant


def check_masses(owner: str, name: str, value: Any, n_classes: int, remedy: str) -> Tensor:
    """(K,) float64 tensor of one finite number >= 0 for each class, not all of them 0."""
    expected = f"{n_classes} numbers >= 0, one for each class, not all of them 0"
    masses = _real_numbers(value)
    if masses is None:
        raise InvalidTypeError.for_parameter(owner, name, expected, value, remedy)
    if masses.shape != (n_classes,) or not all_finite(masses) or bool((masses < 0).any()) or float(masses.sum()) <= 0:
        raise InvalidParameterError.for_parameter(owner, name, expected, value, remedy)
    return masses


def _real_numbers(values: Any) -> Tensor | None:
    """Values as a float64 tensor, on the device of a tensor; None if they are no real numbers, or ragged."""
    if isinstance(values, Tensor):
        return None if values.is_complex() else values.detach().double()
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        return None
    return torch.as_tensor(np.array(array, dtype=np.float64), device="cpu") if array.dtype.kind in "fiub" else None
