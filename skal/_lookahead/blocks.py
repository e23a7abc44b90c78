"""The look-ahead with a matrix kernel: every pair of samples has a C × C block. For small problems.

Index letters as in :mod:`skal._lookahead.posterior`. Matrices with all blocks, (NC, MC), have a sample's classes side
by side. One more label moves the outputs by ``S(x, x') (S(x', x') + ρI)⁻¹ r``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from skal._core.samples import Samples
from skal._lookahead.criteria import Probabilities, terms_of_outputs
from skal._lookahead.posterior import Outputs, RidgeSolver, copies_of_labelled, settle_known
from skal._lookahead.sequence import Sequence

__all__ = ["BlockLookahead", "BlockSource"]

_BLOCK = 2**18
_ROUNDING = 64


class BlockLookahead:
    """:class:`skal._lookahead.posterior.Lookahead` for a matrix kernel.

    Parameters
    ----------
    S : (NC, NC) float64 tensor
        Covariance that the labels leave among the candidates.
    blocks : (N, C, C) float64 tensor
        Its diagonal blocks.
    prior : (N,) float64 tensor
        Mean diagonal of the kernel's own diagonal blocks.
    outputs, linearized, rho, evaluation, copies, epsilon, n_total
        See :class:`skal._lookahead.posterior.Lookahead`.
    """

    def __init__(
        self,
        S: Tensor,
        blocks: Tensor,
        prior: Tensor,
        outputs: Outputs,
        linearized: Tensor,
        rho: float,
        evaluation: Tensor,
        copies: Tensor,
        *,
        epsilon: float,
        n_total: int | None,
    ) -> None:
        self.N, self.C = linearized.shape
        self.S = S.reshape(self.N, self.C, -1, self.C)
        self.blocks, self.outputs, self.linearized, self.rho = blocks, outputs, linearized.clone(), rho
        self.evaluation, self._n_total = evaluation, n_total
        self._rounding = _ROUNDING * epsilon * prior
        self._copies = copies.clone()
        self._shift = outputs.network - outputs.link
        self.free = torch.ones(self.N, dtype=torch.bool, device=S.device)

    @property
    def known(self) -> Tensor:
        """(N,) which candidates would change nothing; see :attr:`skal._lookahead.posterior.Lookahead.known`."""
        return self._copies | (_mean_diagonal(self.blocks) + self.rho <= self._rounding)

    def _u(self, rows: Tensor) -> Tensor:
        """(r, C, C) matrices ``S(x', x') + ρI``, with a little more where there is no ridge."""
        eye = torch.eye(self.C, dtype=self.S.dtype, device=self.S.device)
        floor = self.rho + torch.finfo(self.S.dtype).eps * self.blocks[rows].diagonal(dim1=1, dim2=2).mean(1)
        return self.blocks[rows] + floor[:, None, None] * eye

    def condition(self, j: int, label: int) -> None:
        """Take candidate j as labelled: it is no candidate and no evaluation sample any more."""
        self.free[j] = False
        variance = _mean_diagonal(self.blocks)
        self._copies |= variance + variance[j] - 2 * _mean_diagonal(self.S[:, :, j]) <= self._rounding
        residual = self._shift[j] - self.linearized[j]
        residual[label] += 1
        if bool(self.blocks[j].diagonal().mean() + self.rho <= self._rounding[j]):
            return
        column = self.S[:, :, j].reshape(-1, self.C).clone()  # (NC, C)
        # with the factor of u a block of the downdate is w_x w_x'ᵀ
        L = torch.linalg.cholesky(self._u(torch.tensor([j], device=self.S.device))[0])
        w = torch.linalg.solve_triangular(L, column.T, upper=False).T
        z = torch.linalg.solve_triangular(L, residual[:, None], upper=False)
        self.linearized += (w @ z).reshape(self.N, self.C)
        self.S.view(self.N * self.C, -1).addmm_(w, w.T, alpha=-1)
        w = w.reshape(self.N, self.C, self.C)
        self.blocks = self.blocks - w @ w.transpose(1, 2)

    def scores(
        self, criterion: str, reference: str, rows: Tensor | None = None, to_proba: Probabilities | None = None
    ) -> Tensor:
        """See :meth:`skal._lookahead.posterior.Lookahead.scores`."""
        rows = self.free.nonzero()[:, 0] if rows is None else rows
        evaluation = self.evaluation[self.free[self.evaluation]]
        inside = torch.isin(rows, evaluation)
        n_total = int(self.free.sum()) if self._n_total is None else self._n_total
        scale = (n_total - 1) / (len(evaluation) - inside.double()).clamp_min(1)
        n_labels = 1 if criterion == "mlmoc" else self.C
        totals = []
        for part in rows.split(max(1, _BLOCK // (max(1, len(evaluation)) * self.C * n_labels))):
            known = self.known[part]
            targets, weights = self._labels(criterion, part)
            residuals = targets + (self._shift[part] - self.linearized[part])[:, None]  # (r, y, C)
            eye = torch.eye(self.C, dtype=self.S.dtype, device=self.S.device)
            u = torch.where(known[:, None, None], eye, self._u(part))
            z = torch.linalg.solve(u, residuals.transpose(1, 2)).transpose(1, 2)
            z = z.masked_fill(known[:, None, None], 0)
            # the covariance is symmetric: its rows are the candidates here
            moves = torch.einsum("rdec,ryd->ryec", self.S[part][:, :, evaluation], z)
            terms = self._terms(criterion, reference, moves, evaluation, to_proba)
            own = torch.einsum("rcd,ryd->ryc", self.blocks[part], z)[:, :, None]
            own_term = self._terms(criterion, reference, own, part[:, None, None], to_proba)[..., 0]
            total = (terms.sum(-1) - own_term * inside[: len(part), None]) * scale[: len(part), None] + own_term
            inside, scale = inside[len(part) :], scale[len(part) :]
            totals.append((total * weights).sum(1))
        return settle_known(torch.cat(totals), self.known[rows], criterion)

    def _labels(self, criterion: str, rows: Tensor) -> tuple[Tensor, Tensor]:
        """(r, y, C) one-hot labels to be tried and their (r, y) probabilities."""
        eye = torch.eye(self.C, dtype=self.S.dtype, device=self.S.device)
        if criterion == "mlmoc":
            return eye[self.outputs.labels[rows]][:, None], eye.new_ones(len(rows), 1)
        return eye.expand(len(rows), self.C, self.C), self.outputs.proba[rows]

    def _terms(
        self, criterion: str, reference: str, moves: Tensor, points: Tensor, to_proba: Probabilities | None
    ) -> Tensor:
        start = self.linearized[points] if reference == "linearized" else self.outputs.network[points]
        return terms_of_outputs(criterion, self.linearized[points] + moves, start, to_proba)


class BlockSource:
    """Exact blocks of a matrix kernel; see :class:`skal._lookahead.sources.Source`.

    Parameters
    ----------
    kernel : callable, (Samples, Samples or None) -> (nC, mC) float64 tensor
    outputs : callable, Samples -> Outputs
    labelled : Samples
    targets : (n, C) float64 tensor
    ridge, epsilon : float
    memory : int
    """

    def __init__(
        self,
        kernel: Callable[[Samples, Samples | None], Tensor],
        outputs: Callable[[Samples], Outputs],
        labelled: Samples,
        targets: Tensor,
        *,
        ridge: float,
        epsilon: float,
        memory: int,
    ) -> None:
        self.kernel, self.outputs, self.labelled, self.memory, self.epsilon = kernel, outputs, labelled, memory, epsilon
        self.K_LL, self.ridge = kernel(labelled, None), ridge
        self.residuals = targets - outputs(labelled).link

    def room(self, n_evaluation: int) -> int:
        """Candidates whose blocks with one another fit; with the evaluation set and labels where these are more."""
        C = self.residuals.shape[1]
        by_pairs = int((self.memory / (3 * 8 * C * C)) ** 0.5)
        return max(0, min(by_pairs, self.memory // (8 * C * C * 3 * len(self.labelled))))

    def lookahead(
        self, pool: Samples, rows: np.ndarray, evaluation: np.ndarray, n_total: int | None, *, keep: bool = False
    ) -> BlockLookahead:
        """Among all candidates: their diagonal blocks are part of the answer."""
        samples = pool.take(rows)
        K = self.kernel(samples, None)
        arguments = self.K_LL, self.kernel(self.labelled, samples), self.residuals
        return self._build(K, self.outputs(samples), evaluation, n_total, *arguments)

    def sequence(self, pool: Samples, evaluation: np.ndarray) -> Sequence:
        """For labels that come one after the other."""
        K, outputs = self.kernel(pool, None), self.outputs(pool)
        C = self.residuals.shape[1]

        def column(j: int) -> Tensor:
            return K[:, j * C : (j + 1) * C]

        def build(*arguments: Tensor) -> BlockLookahead:
            return self._build(K.clone(), outputs, evaluation, None, *arguments)

        return Sequence(self.K_LL, self.kernel(self.labelled, pool), column, self.residuals, outputs, build)

    def linearized(self, samples: Samples) -> Tensor:
        """(n, C) outputs of the linearised network at any samples."""
        outputs = self.outputs(samples).network
        solved = RidgeSolver(self.K_LL, self.ridge)(self.residuals.reshape(-1, 1))
        step = max(1, self.memory // (16 * len(self.residuals) * self.residuals.shape[1] ** 2))
        parts = [samples.take(np.arange(i, min(i + step, len(samples)))) for i in range(0, len(samples), step)]
        moved = torch.cat([self.kernel(self.labelled, part).T @ solved for part in parts])
        return outputs + moved.reshape(outputs.shape)

    def _build(
        self,
        K: Tensor,
        outputs: Outputs,
        evaluation: np.ndarray,
        n_total: int | None,
        K_LL: Tensor,
        K_LC: Tensor,
        residuals: Tensor,
    ) -> BlockLookahead:
        N, C = outputs.network.shape
        solver = RidgeSolver(K_LL, self.ridge)
        alpha = solver(K_LC)
        prior = K.diagonal().reshape(N, C).mean(1)
        own = K_LL.diagonal().reshape(-1, C).mean(1)
        traces = K_LC.reshape(-1, C, N, C).diagonal(dim1=1, dim2=3).mean(2)  # (n, N)
        copies = copies_of_labelled(traces, own, prior, self.epsilon)
        S = K.addmm_(K_LC.T, alpha, alpha=-1)
        every = torch.arange(N, device=S.device)
        return BlockLookahead(
            S,
            S.reshape(N, C, N, C)[every, :, every].clone(),
            prior,
            outputs,
            outputs.network + (alpha.T @ residuals.reshape(-1, 1)).reshape(N, C),
            solver.rho,
            torch.as_tensor(evaluation, device=S.device),
            copies,
            epsilon=self.epsilon,
            n_total=n_total,
        )


def _mean_diagonal(blocks: Tensor) -> Tensor:
    """(N, C, C) -> (N,)."""
    return blocks.diagonal(dim1=1, dim2=2).mean(1)
