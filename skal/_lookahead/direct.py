"""Linearised retraining without a shortcut: one linear system for every candidate and label.

The yardstick of :mod:`skal._lookahead.posterior`, in time and in value.

Index letters: n labelled samples, N candidates, e evaluation samples (some of the candidates), c classes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from skal._core.samples import Samples
from skal._lookahead.posterior import _ROUNDING, Outputs, copies_of_labelled
from skal.tangent._engine import TangentEngine
from skal.tangent._kernels import kernel_matrix

__all__ = ["DirectSolver", "solve_directly"]


def solve_directly(K: Tensor, K_E: Tensor, residuals: Tensor, f_E: Tensor, rho: float) -> Tensor:
    """Outputs of the linearised network, trained to convergence, from the kernel system of its training samples.

    Parameters
    ----------
    K : (m, m) tensor, or (m c, m c) for a matrix kernel
        Kernel between the training samples.
    K_E : (e, m) tensor, or (e c, m c)
        Kernel between the evaluation samples and them.
    residuals : (m, c) tensor
        Targets minus what the network says now.
    f_E : (e, c) tensor
        The network's outputs at the evaluation samples.
    rho : float
        Added to the diagonal of K.

    Returns
    -------
    (e, c) tensor

    Examples
    --------
    >>> solve_directly(torch.eye(2), torch.ones(1, 2), torch.ones(2, 3), torch.zeros(1, 3), 1.0)  # 2 · 1 / (1 + 1)
    tensor([[1., 1., 1.]])
    """
    augmented = K + rho * torch.eye(len(K), dtype=K.dtype, device=K.device)
    target = residuals if len(K) == len(residuals) else residuals.reshape(-1, 1)
    return f_E + (K_E @ torch.linalg.solve(augmented, target)).reshape(f_E.shape)


class DirectSolver:
    """Solves the augmented system of any candidate and label.

    Parameters
    ----------
    engine : TangentEngine
    labelled, candidates : Samples
    kind : {"pntk", "logit", "entk"}
    residuals : (n, c) float64 tensor
        Of the labelled samples: target minus link.
    outputs : Outputs
        Of the candidates.
    evaluation : (e,) tensor
    ridge : float
        Relative to the mean diagonal of the labelled samples' kernel.

    Attributes
    ----------
    rho : float
    start : (N, c) float64 tensor
        The linearised network's outputs at the candidates, before any of them is labelled.
    known : (N,) bool tensor
        Which candidates are copies of labelled samples, or the same but for rounding; these would change nothing.
    """

    def __init__(
        self,
        engine: TangentEngine,
        labelled: Samples,
        candidates: Samples,
        kind: str,
        residuals: Tensor,
        outputs: Outputs,
        evaluation: Tensor,
        ridge: float,
    ) -> None:
        self._engine, self._candidates, self._kind = engine, candidates, kind
        self._residuals, self._outputs, self._evaluation = residuals, outputs, evaluation
        self._wide = residuals.shape[1] if kind == "entk" else 1  # rows of the kernel for each sample
        self._K_LL = kernel_matrix(engine, labelled, None, kind)
        self._K_CL = kernel_matrix(engine, candidates, labelled, kind)
        self.rho = ridge * float(self._K_LL.diagonal().mean())
        self.start = solve_directly(self._K_LL, self._K_CL, residuals, outputs.network, self.rho)
        self._K_own = torch.cat([self._own(candidates.take(rows)) for rows in _groups(len(candidates))])
        prior, epsilon = self._diagonal(self._K_own), torch.finfo(engine.network.dtype).eps
        own = self._K_LL.diagonal().reshape(-1, self._wide).mean(1)
        blocks = self._K_CL.reshape(len(prior), self._wide, len(own), self._wide)
        copies = copies_of_labelled(blocks.diagonal(dim1=1, dim2=3).mean(2).T, own, prior, epsilon)
        self.known = copies | (self._variance() + self.rho <= _ROUNDING * epsilon * prior)
        self._K_EL = self._K_CL[self._rows(evaluation)]
        # half of the memory for the kernel between some candidates and the evaluation set
        per_candidate = 8 * self._wide**2 * (len(evaluation) + 1)
        self._block_size = max(1, engine.memory // (2 * per_candidate))
        self._block = -1

    def _rows(self, samples: Tensor) -> Tensor:
        return (samples[:, None] * self._wide + torch.arange(self._wide, device=samples.device)).flatten()

    def _load(self, block: int) -> None:
        if block == self._block:
            return
        stop = min(len(self._candidates), (block + 1) * self._block_size)
        part = self._candidates.take(np.arange(block * self._block_size, stop))
        everywhere = self._candidates.take(self._evaluation.cpu().numpy())
        self._K_BE = kernel_matrix(self._engine, part, everywhere, self._kind)
        self._block = block

    def _variance(self) -> Tensor:
        """(N,) mean diagonal of what the labels leave of each candidate's own kernel."""
        eye = torch.eye(len(self._K_LL), dtype=self._K_LL.dtype, device=self._K_LL.device)
        inverse = torch.linalg.pinv(self._K_LL + self.rho * eye, hermitian=True)
        k = self._K_CL.reshape(len(self._K_own), self._wide, -1)
        return self._diagonal(self._K_own - k @ inverse @ k.transpose(1, 2))

    def _diagonal(self, blocks: Tensor) -> Tensor:
        return blocks.diagonal(dim1=1, dim2=2).mean(1)

    def _own(self, samples: Samples) -> Tensor:
        """(m, w, w) kernel of each sample with itself, w = 1 or c."""
        K = kernel_matrix(self._engine, samples, None, self._kind)
        blocks = K.reshape(len(samples), self._wide, len(samples), self._wide)
        return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)

    def new_outputs(self, j: int, label: int) -> Tensor:
        """(e + 1, c) outputs at the evaluation samples, and at candidate j itself, once j is labelled."""
        f = self._outputs.network
        if bool(self.known[j]):
            return torch.cat([self.start[self._evaluation], self.start[j : j + 1]])
        self._load(j // self._block_size)
        place = torch.tensor([j % self._block_size], device=self._evaluation.device)
        own, k = self._K_own[j], self._K_CL[self._rows(torch.full_like(place, j))]
        k_E = self._K_BE[self._rows(place)].T
        K = torch.cat([torch.cat([self._K_LL, k.T], dim=1), torch.cat([k, own], dim=1)])
        K_E = torch.cat([torch.cat([self._K_EL, k_E], dim=1), torch.cat([k, own], dim=1)])
        residual = -self._outputs.link[j]
        residual[label] += 1
        f_E = torch.cat([f[self._evaluation], f[j : j + 1]])
        return solve_directly(K, K_E, torch.cat([self._residuals, residual[None]]), f_E, self.rho)


def _groups(n: int, size: int = 64) -> Iterator[np.ndarray]:
    return (np.arange(start, min(start + size, n)) for start in range(0, n, size))
