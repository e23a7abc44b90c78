"""DARP's problem: what is solved, and its solution as a map.

Indices: n of N samples, k of K classes. The problem is ``min Σ_n w_n KL(x_n ‖ q_n)`` with rows that sum to 1 and
columns that sum to M_k, where ``w_n = 1 / H(q_n)``: sure labels are expensive to move. Its solution is
``x_n = softmax_k(log q_nk − H(q_n) ν_k)``, with one multiplier ν_k per class; the rows' multipliers are the softmax's
denominators. What remains is a smooth convex problem in the K numbers ν.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from skal.semi_supervised._darp_solver import solve
from skal.validation import check_integer, check_real

__all__ = ["Refinement", "column_residual", "fit_refinement"]


@dataclass(frozen=True)
class Refinement:
    """The solution as a map from probabilities to refined labels, for samples of the table and for new ones alike.

    Attributes
    ----------
    multipliers : (K,) tensor
        ν; infinite for classes whose target is 0.
    thresholds : (K,) tensor
        The smallest probability of each class that is not cut off.
    clip, min_entropy : float
    """

    multipliers: Tensor
    thresholds: Tensor
    clip: float
    min_entropy: float

    def __call__(self, proba: Tensor) -> Tensor:
        """(n, K) refined labels, float64, of (n, K) probabilities."""
        log_q, entropy, _, _ = _prepare(proba.double(), self.thresholds, self.clip, self.min_entropy)
        return torch.softmax(log_q - entropy[:, None] * self.multipliers, dim=1)


def column_residual(labels: Tensor, masses: Tensor) -> float:
    """The largest relative deviation of a column's sum from its target; columns whose target is 0 are left out."""
    wanted = masses > 0
    return float(((labels.sum(dim=0) - masses).abs() / masses)[wanted].max())


def fit_refinement(
    table: Tensor,
    masses: Tensor,
    *,
    alpha: float | None = 2.0,
    clip: float = 1e-6,
    min_entropy: float = 1e-3,
    tol: float = 1e-7,
    max_iter: int = 200,
    start: Tensor | None = None,
) -> tuple[Refinement, dict[str, int]]:
    """The map from probabilities to refined labels, and counts for the report.

    Parameters
    ----------
    table : (N, K) float64 tensor
        Rows sum to 1.
    masses : (K,) float64 tensor
        Sums to N.
    start : (K,) tensor or None
        Multipliers to start from, such as those of a similar table.
    """
    _check_settings(alpha, clip, min_entropy, tol, max_iter)
    thresholds = _thresholds(table, masses, alpha)
    log_q, entropy, n_truncated, n_restored = _prepare(table, thresholds, clip, min_entropy)
    wanted = masses > 0
    start = None if start is None else start[wanted]
    multipliers = torch.full_like(masses, torch.inf)
    part = log_q if bool(wanted.all()) else log_q[:, wanted]
    solved, n_iterations = solve(part, entropy, masses[wanted], start, tol, max_iter)
    multipliers[wanted] = solved
    counts = {
        "n_iterations": n_iterations,
        "n_clipped": int((table < clip).sum()),
        "n_truncated": n_truncated,
        "n_restored": n_restored,
    }
    return Refinement(multipliers, thresholds, clip, min_entropy), counts


def _thresholds(table: Tensor, masses: Tensor, alpha: float | None) -> Tensor:
    """(K,) the ``ceil(alpha * M_k)``-th largest entry of each column, 0 where all are kept."""
    n_samples, n_classes = table.shape
    thresholds = torch.zeros(n_classes, dtype=table.dtype, device=table.device)
    if alpha is None:
        return thresholds
    keep = torch.ceil(alpha * masses - 1e-9).long().clamp(min=1)
    ordered = torch.sort(table, dim=0, descending=True).values if bool((keep < n_samples).any()) else table
    for k, count in enumerate(keep.tolist()):
        if count < n_samples:
            thresholds[k] = ordered[count - 1, k]
    return thresholds


def _prepare(table: Tensor, thresholds: Tensor, clip: float, min_entropy: float) -> tuple[Tensor, Tensor, int, int]:
    """``log q``, ``H(q)`` of the truncated, clipped and rescaled rows, and how many entries and rows that touched."""
    kept = table >= thresholds
    emptied = ~kept.any(dim=1)
    kept |= emptied[:, None]
    q = torch.where(kept, table, 0.0).clamp_(min=clip)
    q /= q.sum(dim=1, keepdim=True)
    log_q = q.log()
    entropy = -(q * log_q).sum(dim=1)
    n_truncated = int((~kept & (table > clip)).sum())
    return log_q, entropy.clamp_(min=min_entropy), n_truncated, int(emptied.sum())


def _check_settings(alpha: Any, clip: Any, min_entropy: Any, tol: Any, max_iter: Any) -> None:
    if alpha is not None:
        check_real("darp", "alpha", alpha, 1, remedy="Pass None to keep all entries.")
    check_real("darp", "clip", clip, 1e-100, 1e-2)
    check_real("darp", "min_entropy", min_entropy, 1e-12, 1)
    check_real("darp", "tol", tol, 1e-14, 1)
    check_integer("darp", "max_iter", max_iter, 1)
