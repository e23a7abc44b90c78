# SPDX-License-Identifier: BSD-3-Clause
"""DARP's problem, its solution as a map, and the solver.

Indices: n of N samples, k of K classes. The problem is ``min Σ_n w_n KL(x_n ‖ q_n)`` with rows that sum to 1 and
columns that sum to M_k, where ``w_n = 1 / H(q_n)``: sure labels are expensive to move. Its solution is
``x_n = softmax_k(log q_nk − H(q_n) ν_k)``, with one multiplier ν_k per class; the rows' multipliers are the softmax's
denominators. What remains is a smooth convex problem in the K numbers ν.

Shapes: ``log_q`` (N, K), ``entropy`` (N,) the H_n > 0, ``masses`` (K,) the M_k > 0, which sum to N; ν is ``nu`` (K,).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from skal.validation import Integer, Real

_LARGE = 10_000  # rows from which a quarter of the table is solved first


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
    Real(1, optional=True, remedy="Pass None to keep all entries.").check("darp", "alpha", alpha)
    Real(1e-100, 1e-2).check("darp", "clip", clip)
    Real(1e-12, 1).check("darp", "min_entropy", min_entropy)
    Real(1e-14, 1).check("darp", "tol", tol)
    Integer(1, 10**9).check("darp", "max_iter", max_iter)
    thresholds = _thresholds(table, masses, alpha)
    log_q, entropy, n_truncated, n_restored = _prepare(table, thresholds, clip, min_entropy)
    wanted = masses > 0
    start = None if start is None else start[wanted]
    multipliers = torch.full_like(masses, torch.inf)
    multipliers[wanted], n_iterations = _solve(log_q[:, wanted], entropy, masses[wanted], start, tol, max_iter)
    counts = {
        "n_iterations": n_iterations,
        "n_clipped": int((table < clip).sum()),
        "n_truncated": n_truncated,
        "n_restored": n_restored,
    }
    return Refinement(multipliers, thresholds, clip, min_entropy), counts


def _thresholds(table: Tensor, masses: Tensor, alpha: float | None) -> Tensor:
    """(K,) the ``ceil(alpha * M_k)``-th largest entry of each column, 0 where all are kept."""
    if alpha is None:
        return torch.zeros_like(masses)
    keep = torch.ceil(alpha * masses - 1e-9).long().clamp(1, len(table))
    ordered = torch.sort(table, dim=0, descending=True).values
    return torch.where(keep < len(table), ordered.gather(0, keep[None] - 1)[0], 0.0)


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


def _solve(
    log_q: Tensor, entropy: Tensor, masses: Tensor, start: Tensor | None, tol: float, max_iter: int
) -> tuple[Tensor, int]:
    """The multipliers ν (K,), and the number of steps on the whole table.

    A part of a large table has nearly the same solution, at a fraction of the cost: its solution is the start.
    """
    if start is None:
        start = torch.zeros_like(masses)
        if len(log_q) >= _LARGE:
            part = log_q[::4]
            start, _ = _solve(part, entropy[::4], masses * (len(part) / len(log_q)), None, 1e-3, max_iter)
    return _newton(log_q, entropy, masses, start, tol, max_iter)


def _newton(
    log_q: Tensor, entropy: Tensor, masses: Tensor, start: Tensor, tol: float, max_iter: int
) -> tuple[Tensor, int]:
    """The minimum of the dual ``Σ_n logsumexp_k(log q_nk − H_n ν_k) / H_n + Σ_k M_k ν_k`` over ν, and the steps taken.

    Gradient ``M_k − Σ_n x_nk``, Hessian ``Σ_n H_n (diag(x_n) − x_n x_nᵀ)``. Where labels are so sure that a Newton step
    leads nowhere, all columns are set right one by one instead, which always lowers the dual.
    """
    nu, damping = start, 1e-3
    value, size, labels = _dual(log_q, entropy, masses, nu)
    for step in range(max_iter):
        gradient = masses - labels.sum(dim=0)
        if bool((gradient.abs() <= tol * masses).all()):
            return nu, step
        hessian, diagonal = _hessian(labels, entropy)
        while damping <= 10:
            factor, info = torch.linalg.cholesky_ex(hessian + torch.diag(damping * diagonal))
            direction = -torch.cholesky_solve(gradient[:, None], factor)[:, 0]
            candidate = nu + direction
            new_value, size, new_labels = _dual(log_q, entropy, masses, candidate)
            lower = new_value <= value + 1e-4 * float(gradient @ direction)
            # close to the minimum its decrease drowns in rounding: then the gradient decides
            level = new_value <= value + 1e-14 * size
            if int(info) == 0 and (
                lower or (level and float((masses - new_labels.sum(dim=0)).norm()) < 0.5 * float(gradient.norm()))
            ):
                damping = max(damping / 30, 1e-10)
                break
            damping *= 10
        else:
            candidate = nu + _columnwise(log_q, entropy, masses, nu)
            new_value, size, new_labels = _dual(log_q, entropy, masses, candidate)
            damping = 1.0
        # the dual does not change when all ν change alike
        nu, value, labels = candidate - candidate.mean(), new_value, new_labels
    return nu, max_iter


def _hessian(labels: Tensor, entropy: Tensor) -> tuple[Tensor, Tensor]:
    """The dual's (K, K) Hessian, made regular along equal changes of all ν, and the (K,) scale of its damping."""
    weighted = labels * entropy[:, None]
    diagonal = weighted.sum(dim=0)
    return torch.diag(diagonal) - labels.T @ weighted + diagonal.mean() / len(diagonal), diagonal.clamp(min=1e-300)


def _columnwise(log_q: Tensor, entropy: Tensor, masses: Tensor, nu: Tensor, max_iter: int = 50) -> Tensor:
    """(K,) changes δ of ν for which ``Σ_n x_nk exp(−H_n δ_k) = M_k``, every column for itself.

    The logarithm of the sum is convex and falls in δ, so that Newton's method comes from one side after its first step
    and needs no bracket.
    """
    delta = torch.zeros_like(masses)
    log_labels = torch.log_softmax(log_q - entropy[:, None] * nu, dim=1)
    for _ in range(max_iter):
        terms = log_labels - entropy[:, None] * delta
        top = terms.amax(dim=0)
        terms = terms.sub_(top).exp_()
        total = terms.sum(dim=0)
        excess = total.log() + top - masses.log()
        if bool((excess.abs() < 1e-3).all()):
            break
        delta = delta + excess * total / (entropy @ terms)
    return delta


def _dual(log_q: Tensor, entropy: Tensor, masses: Tensor, nu: Tensor) -> tuple[float, float, Tensor]:
    """The dual's value, the size of its terms, and the (N, K) labels that belong to ν."""
    logits = torch.addcmul(log_q, entropy[:, None], nu, value=-1)
    top = logits.amax(dim=1, keepdim=True)
    labels = logits.sub_(top).exp_()
    total = labels.sum(dim=1, keepdim=True)
    terms = (total.log() + top)[:, 0] / entropy
    shares = masses * nu
    return float(terms.sum() + shares.sum()), float(terms.abs().sum() + shares.abs().sum()), labels.div_(total)
