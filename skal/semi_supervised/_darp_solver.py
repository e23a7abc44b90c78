"""The multipliers of DARP's problem: a smooth convex minimum in as many variables as there are classes.

Shapes: ``log_q`` (N, K), ``entropy`` (N,) the H_n > 0, ``masses`` (K,) the M_k > 0, which sum to N; ν is ``nu`` (K,).
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["solve"]

_LARGE = 10_000  # rows from which a quarter of the table is solved first


def solve(
    log_q: Tensor, entropy: Tensor, masses: Tensor, start: Tensor | None, tol: float, max_iter: int
) -> tuple[Tensor, int]:
    """The multipliers ν (K,), and the number of steps on the whole table.

    A part of a large table has nearly the same solution, at a fraction of the cost: its solution is the start.
    """
    if start is None:
        start = torch.zeros_like(masses)
        if len(log_q) >= _LARGE:
            part = log_q[::4]
            start, _ = solve(part, entropy[::4], masses * (len(part) / len(log_q)), None, 1e-3, max_iter)
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
