# SPDX-License-Identifier: BSD-3-Clause
"""Fisher information of a last layer, block by block of classes, and a batch that makes it large.

The information of a sample about the weights of class c is ``s_c φ φᵀ`` with ``s_c = p_c (1 − p_c)``. With
``M_c = λI + Σ s_c φ φᵀ`` over labelled and chosen samples, and F_c the mean of ``s_c φ φᵀ`` over the pool, a batch is
to make ``Σ_c tr(M_c⁻¹ F_c)`` small. A sample changes M_c by one rank, so that all candidates' effects follow from two
numbers for each class, ``q = s φᵀ M⁻¹ φ`` and ``r = s φᵀ M⁻¹ F M⁻¹ φ``, which are brought up to date.

Index letters: N candidates, n labelled samples, C classes, d features.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from skal.context import rows_within

BLOCK_BYTES = 2**21  # of features in double precision that are worked on at once


class _Design:
    """The inverse of M, and what candidates would do to the objective."""

    def __init__(self, features: Tensor, variances: Tensor, inverse: Tensor, information: Tensor) -> None:
        self._features, self._variances = features, variances  # (N, d), (N, C)
        self._inverse, self._information = inverse, information  # M⁻¹, F: (C, d, d)
        self._q, self._r = torch.empty_like(variances), torch.empty_like(variances)
        for c, (P, F) in enumerate(zip(inverse, information, strict=True)):
            self._q[:, c] = variances[:, c] * _forms(features, P)
            self._r[:, c] = variances[:, c] * _forms(features, P @ F @ P)

    def effects(self, sign: int) -> Tensor:
        """By how much the objective falls with each candidate (1), or rises without it (−1): (N,)."""
        return (self._r / (1 + sign * self._q)).sum(1)

    def change(self, row: int, sign: int) -> None:
        """Count a candidate (1), or no more (−1)."""
        phi, s = self._features[row], self._variances[row]
        u = self._inverse @ phi  # (C, d)
        scale = sign * s / (1 + sign * self._q[row])
        Fu = torch.einsum("cij,cj->ci", self._information, u)
        PFu = torch.einsum("cij,cj->ci", self._inverse, Fu)
        a, h = self._features @ u.T, self._features @ PFu.T  # (N, C)
        self._q -= self._variances * scale * a.square()
        self._r -= self._variances * (2 * scale * a * h - scale.square() * (u * Fu).sum(1) * a.square())
        self._inverse.baddbmm_((u * -scale[:, None])[:, :, None], u[:, None, :])

    def of(self, rows: Tensor) -> _Design:
        """The same for some of the candidates, with everything computed anew."""
        return _Design(self._features[rows], self._variances[rows], self._inverse, self._information)


def blocks(rows: Tensor, row_bytes: int | None = None) -> tuple[Tensor, ...]:
    """Parts of rows, to be worked on one after the other."""
    blocks: tuple[Tensor, ...] = rows.split(rows_within(BLOCK_BYTES, row_bytes or rows.element_size() * rows.shape[1]))
    return blocks


def _forms(features: Tensor, matrix: Tensor) -> Tensor:
    """φᵀ A φ of every row: (N, d), (d, d) -> (N,)."""
    return torch.cat([(some @ matrix).mul_(some).sum(1) for some in blocks(features)])


def information(features: Tensor, variances: Tensor) -> Tensor:
    """Sum of the Fisher information of samples: (n, d), (n, C) -> (C, d, d)."""
    found = features.new_zeros(variances.shape[1], features.shape[1], features.shape[1])
    parts = blocks(features)
    for some, s in zip(parts, variances.split(max(1, len(parts[0]))), strict=True):
        for c in range(len(found)):
            found[c].addmm_((some * s[:, c, None]).T, some)
    return found


def forward_backward(
    features: Tensor,
    variances: Tensor,
    labelled: Tensor,
    labelled_variances: Tensor,
    ridge: float,
    keys: Tensor,
    taken: Tensor,
    n_instances: int,
    oversample: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates that lower the objective most, some of them given back.

    Parameters
    ----------
    features, variances : (N, d), (N, C) tensors
        In double precision.
    labelled, labelled_variances : (n, d), (n, C) tensors
    ridge : float
        λ
    keys, taken : (N,), (n,) tensors
        Equal for copies: copies of taken or chosen samples are chosen only when nothing else is left.
    n_instances, oversample : int
        ``oversample * n_instances`` are chosen, as far as there are so many different ones.

    Returns
    -------
    picked : (n_instances,) array
        The most useful first.
    rises : (n_instances,) array
        Of the objective without each.
    """
    M = information(labelled, labelled_variances)
    M.diagonal(dim1=1, dim2=2).add_(ridge)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(M))
    design = _Design(features, variances, inverse, information(features, variances).div_(len(features)))
    spent, free = torch.isin(keys, taken), torch.ones(len(keys), dtype=torch.bool, device=keys.device)
    picked: list[int] = []
    while len(picked) < min(len(keys), oversample * n_instances):
        open_ = free & ~spent
        if not bool(open_.any()):
            if len(picked) >= n_instances:
                break
            open_ = free
        row = int(design.effects(1).masked_fill_(~open_, -torch.inf).argmax())
        design.change(row, 1)
        picked.append(row)
        free[row] = False
        spent |= keys == keys[row]
    chosen = torch.tensor(picked, device=keys.device)
    design, left = design.of(chosen), torch.ones(len(picked), dtype=torch.bool, device=keys.device)
    while int(left.sum()) > n_instances:
        row = int(design.effects(-1).masked_fill_(~left, torch.inf).argmin())
        design.change(row, -1)
        left[row] = False
    rises = design.effects(-1)[left]
    order = rises.argsort(descending=True, stable=True)
    return chosen[left][order].cpu().numpy(), rises[order].cpu().numpy()
