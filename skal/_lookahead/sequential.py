# SPDX-License-Identifier: BSD-3-Clause
"""Labels that come one after the other while the candidates are read once.

Index letters as in :mod:`skal._lookahead.posterior`. With squared loss, and in look-ahead queries, a label leaves the
residual ``e_y − f``: :class:`KernelBlocks`.

Under cross-entropy a network that is linear in its parameters, with a Gaussian prior of variance τ on its logits, is at
f when sample j gets the label y. Its most likely outputs are then

    f(x) + τ S(x, j) r    with r solving    r = e_y − σ(f_j + τ S_jj r),

where S is the covariance that the labels before j leave. With the Cholesky factor L of ``K + ρI``, the samples in the
order of their labels, ``S(x, j) = (L⁻¹ k_x)_jᵀ L_jjᵀ``. All steps together are therefore ``k_xᵀ (K + ρI)⁻¹ R`` with
``R = L z`` and ``z_j = τ L_jjᵀ r_j``: what the residuals are with squared loss.

Gradient flow on ``½ Σ ‖f(x) − y‖²`` for a time t takes a linearised network with residuals R to (Equation 5 of the
look-ahead paper)

    f_t(x) = f(x) + k_xᵀ K⁻¹ (I − e^{−tK}) R,

which is what t/η steps of gradient descent with a small learning rate η lead to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from skal._lookahead.posterior import Block, Outputs, Posterior, RidgeSolver, mean_diagonal, places
from skal._lookahead.variance import logit_variance

_STEPS = 100  # a few suffice; each halves what is left at worst


def newton_residual(f: Tensor, S: Tensor, label: int) -> Tensor:
    """(c,) r with ``r = e_y − σ(f + S r)`` for (c,) logits and a (c, c) positive semi-definite S.

    It is where ``rᵀSr/2 + log Σ exp(f + Sr) − (f + Sr)_y`` is smallest, which is convex: steps that raise it by more
    than rounding are halved.

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

    r, eps = target - torch.softmax(f, 0), torch.finfo(f.dtype).eps
    level, before = False, math.inf
    for _ in range(_STEPS):
        p = torch.softmax(f + S @ r, 0)
        wrong = r - target + p
        largest = float(wrong.abs().max())
        if largest <= 8 * eps or (level and largest >= before):  # nothing but rounding is left
            break
        step = torch.linalg.solve(eye + (torch.diag(p) - torch.outer(p, p)) @ S, wrong)
        start, size = float(height(r)), 1.0
        rounding = 8 * eps * (1 + abs(start))
        while size > 1e-6 and (reached := float(height(r - size * step))) > start + rounding:
            size /= 2
        if size <= 1e-6:
            break
        level, before = reached >= start - rounding, largest
        r = r - size * step
    return r


@dataclass
class LabelSteps:
    """Labels in their order, of which the network has been trained on the first ``n_trained``."""

    f: Tensor  # (n, c), the network's logits
    labels: Tensor  # (n,)
    n_trained: int

    @property
    def tau(self) -> float:
        """From the samples that the network has been trained on: the same whatever pools have been seen since."""
        return logit_variance(self.f[: self.n_trained] if self.n_trained else self.f)

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
            u = own @ own.T * (every if B == 1 else 1)  # all outputs are alike for a scalar kernel
            r = newton_residual(f, tau * (u - solver.rho * every), int(self.labels[k]))
            z[here] = tau * (own.T @ r.reshape(B, c // B))
        return (L @ z).reshape(n, c)


def stopped_residuals(solver: RidgeSolver, residuals: Tensor, time: float) -> Tensor:
    """(n, c) R_t with ``(K + ρI)⁻¹ R_t = K⁻¹ (I − e^{−tK}) R``: what stands for the residuals after a time t.

    Parameters
    ----------
    solver : RidgeSolver
        Of K, (nB, nB); ρ has no part in the outcome.
    residuals : (n, c) tensor
        R
    time : float
        t
    """
    eigenvalues, V = torch.linalg.eigh(solver.L @ solver.L.T)
    of_kernel = (eigenvalues - solver.rho).clamp_min(0)
    # (1 − e^{−tλ}) / λ, which tends to t where λ vanishes
    safe = of_kernel.clamp_min(torch.finfo(of_kernel.dtype).tiny)
    share = torch.where(of_kernel * time > 1e-14, -torch.expm1(-time * of_kernel) / safe, time)
    in_basis = V.T @ residuals.reshape(len(V), -1)
    stopped: Tensor = V @ ((eigenvalues * share)[:, None] * in_basis)
    return stopped.reshape(residuals.shape)


@dataclass(eq=False)
class KernelBlocks:
    """A kernel between labelled samples and candidates, to which labels can be added."""

    K_LL: Tensor  # (nB, nB)
    K_LC: Tensor  # (nB, NB)
    K_CE: Tensor  # (NB, eB)
    own: Tensor  # (N, B, B), of every candidate with itself
    residuals: Tensor  # (n, c), of the labelled samples: target minus link
    outputs: Outputs  # of the candidates
    evaluation: Tensor  # (e,)
    ridge: float
    groups: Tensor  # (N,), see Posterior
    epsilon: float
    among: Block | None = None  # among the candidates, if they may be labelled
    steps: LabelSteps | None = None  # how labels change the outputs under cross-entropy, instead of residuals

    def append(self, j: int, label: int) -> None:
        """Candidate j has got this label; it stays a candidate until somebody takes it away."""
        assert self.among is not None
        N, B = self.own.shape[:2]
        everyone, here = torch.arange(N, device=self.own.device), slice(j * B, (j + 1) * B)
        column = self.among(everyone, everyone[j : j + 1])  # (NB, B)
        column[here] = self.own[j]  # exact where the others are estimated
        side = self.K_LC[:, here]
        self.K_LL = torch.cat([torch.cat([self.K_LL, side], dim=1), torch.cat([side.T, column[here]], dim=1)])
        self.K_LC = torch.cat([self.K_LC, column.T])
        self.residuals = torch.cat([self.residuals, self.outputs.residual(j, label)[None]])
        if self.steps is not None:
            self.steps.append(self.outputs.f[j], label)
        self.groups = self.groups.masked_fill(self.groups == self.groups[j], -1)

    def posterior(self, n_total: int | None = None) -> Posterior:
        """The posterior for one more label; conditioning it changes nothing here.

        It is made anew after each label: the ridge is relative to the labelled samples' kernel, so that another label
        changes it. That takes one product of a (candidates × labels) and a (labels × evaluation) matrix.
        """
        N, B = self.own.shape[:2]
        K_LC, among, f, evaluation, epsilon = self.K_LC, self.among, self.outputs.f, self.evaluation, self.epsilon
        solver = RidgeSolver(self.K_LL, self.ridge)
        rho, alpha = solver.rho, solver(K_LC)

        def block(rows: Tensor, columns: Tensor) -> Tensor:
            assert among is not None
            return among(rows, columns) - K_LC[:, places(rows, B)].T @ alpha[:, places(columns, B)]

        S = torch.addmm(self.K_CE, K_LC.T, alpha[:, places(evaluation, B)], alpha=-1)
        k, a = (x.reshape(-1, N, B).transpose(0, 1) for x in (K_LC, alpha))  # (N, nB, B)
        own = self.own - k.transpose(1, 2) @ a
        own = own.clamp_min_(0) if B == 1 else own
        residuals = self.residuals if self.steps is None else self.steps.residuals(solver)
        F = f + (alpha.T @ residuals.reshape(len(alpha), -1)).reshape(f.shape)
        prior, groups = mean_diagonal(self.own), self.groups
        given = (block, own, prior, self.outputs, F, rho, evaluation, groups, epsilon, S)
        return Posterior(*given, n_total=n_total, scale=solver.scale)
