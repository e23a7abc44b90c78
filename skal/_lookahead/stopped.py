# SPDX-License-Identifier: BSD-3-Clause
"""The linearised network after a finite time of training: Equation 5 of the look-ahead paper.

Gradient flow on ``½ Σ ‖f(x) − y‖²`` for a time t takes a linearised network with the kernel K of its labelled samples
and their residuals R to

    f_t(x) = f(x) + k_xᵀ K⁻¹ (I − e^{−tK}) R,

which is what t/η steps of gradient descent with a small learning rate η lead to.
"""

from __future__ import annotations

import torch
from torch import Tensor

from skal._lookahead.posterior import RidgeSolver


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
