# SPDX-License-Identifier: BSD-3-Clause
"""One label after the other under cross-entropy, in closed form but for a Newton iteration in c unknowns.

Index letters as in :mod:`skal._lookahead.posterior`. A network that is linear in its parameters, with a Gaussian prior
of variance τ on its logits, is at f when sample j gets the label y. Its most likely outputs are then

    f(x) + τ S(x, j) r    with r solving    r = e_y − σ(f_j + τ S_jj r),

where S is the covariance that the labels before j leave. With the Cholesky factor L of ``K + ρI``, the samples in the
order of their labels, ``S(x, j) = (L⁻¹ k_x)_jᵀ L_jjᵀ``. All steps together are therefore ``k_xᵀ (K + ρI)⁻¹ R`` with
``R = L z`` and ``z_j = τ L_jjᵀ r_j``: what the residuals are with squared loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from skal._lookahead.posterior import RidgeSolver

_STEPS = 100  # a few suffice; each halves what is left at worst


def newton_residual(f: Tensor, S: Tensor, label: int) -> Tensor:
    """(c,) r with ``r = e_y − σ(f + S r)`` for (c,) logits and a (c, c) positive semi-definite S.

    It is where ``rᵀSr/2 + log Σ exp(f + Sr) − (f + Sr)_y`` is smallest, which is convex: steps that do not lower it are
    halved.

    Examples
    --------
    >>> r = newton_residual(torch.zeros(2).double(), torch.eye(2).double(), 0)
    >>> bool(torch.allclose(r + torch.softmax(r, 0), torch.tensor([1.0, 0.0]).double()))
    True
    """
    eye = torch.eye(len(f), dtype=f.dtype, device=f.device)
    target = eye[label]

    def height(r: Tensor) -> Tensor:
        moved = f + S @ r
        return r @ (S @ r) / 2 + torch.logsumexp(moved, 0) - moved[label]

    r = target - torch.softmax(f, 0)
    for _ in range(_STEPS):
        p = torch.softmax(f + S @ r, 0)
        wrong = r - target + p
        if float(wrong.abs().max()) <= 8 * torch.finfo(f.dtype).eps:
            break
        step = torch.linalg.solve(eye + (torch.diag(p) - torch.outer(p, p)) @ S, wrong)
        start, size = height(r), 1.0
        while size > 1e-6 and bool(height(r - size * step) > start):
            size /= 2
        if size <= 1e-6:  # nothing but rounding is left
            break
        r = r - size * step
    return r


@dataclass
class LabelSteps:
    """Labels in their order, of which the network has been trained on the first ``n_trained``."""

    f: Tensor  # (n, c), the network's logits
    labels: Tensor  # (n,)
    n_trained: int
    tau: float

    def append(self, f: Tensor, label: int) -> None:
        """One more, with (c,) logits."""
        self.f, self.labels = torch.cat([self.f, f[None]]), torch.cat([self.labels, self.labels.new_tensor([label])])

    def residuals(self, solver: RidgeSolver) -> Tensor:
        """(n, c) R; no change for what the network has been trained on."""
        n, c = self.f.shape
        L, B = solver.L, len(solver.L) // n
        z = self.f.new_zeros(n * B, c // B)
        every = torch.eye(c, dtype=L.dtype, device=L.device)
        tau = self.tau / solver.scale
        for k in range(self.n_trained, n):
            here = slice(k * B, (k + 1) * B)
            own = L[here, here]
            f = self.f[k] + (L[here, : k * B] @ z[: k * B]).flatten()
            u = own @ own.T * (every if B == 1 else 1)  # of a scalar kernel all outputs are alike
            r = newton_residual(f, tau * (u - solver.rho * every), int(self.labels[k]))
            z[here] = tau * (own.T @ r.reshape(B, c // B))
        return (L @ z).reshape(n, c)
