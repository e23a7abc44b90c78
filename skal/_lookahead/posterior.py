# SPDX-License-Identifier: BSD-3-Clause
"""Linearised retraining: what the outputs would be if one more sample were labelled, without retraining.

Index letters: n labelled samples, N candidates, e evaluation samples (some of the candidates), c classes, B rows of the
kernel for each sample: 1, or c for a matrix kernel. Matrices of all blocks, (NB, MB), have a sample's rows together.

With the kernel K of the labelled samples, ``α_x = (K + ρI)⁻¹ k_x`` and the residuals R of the labelled samples, the
linearised network gives ``F(x) = f(x) + α_xᵀ R``, and ``S(x, x') = Θ(x, x') − k_xᵀ α_x'`` is the covariance that the
labels leave. One more label moves the outputs by ``S(x, x') u⁻¹ r`` with ``u = S(x', x') + ρI`` and r the residual of
the linearised network at x'. With squared loss a residual is ``e_y − f``; with cross-entropy it is ``e_y − σ(f)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from skal._core.meaning import MEANINGS
from skal._core.memory import rows_within
from skal._core.network import Network
from skal._core.outputs import compares_outputs, probabilities_of_logits
from skal._lookahead.criteria import Probabilities, criterion_terms, settle_known
from skal.exceptions import NonFiniteError
from skal.tangent._tangent_engine import no_gradients

# entries of the candidates × evaluation matrix that are made at once: large products are quick
MADE = 2**21
# entries, times labels, that are worked on at once: what fits into the cache is quick
WORKED_ON = 2**16

# outputs of squared loss are divided by this to be logits: labels are 0 and 1, one apart
TEMPERATURE = 0.15
# (r,) rows, (m,) columns -> (rB, mB) float64
Block = Callable[[Tensor, Tensor], Tensor]


def factor(K: Tensor) -> Tensor:
    """Cholesky factor of a symmetric matrix; what of it is singular gets as little as makes it regular."""
    scale, jitter, eye = float(K.diagonal().mean()), 0.0, torch.eye(len(K), dtype=K.dtype, device=K.device)
    L: Tensor
    L, failed = torch.linalg.cholesky_ex(K)
    while bool(failed) and math.isfinite(jitter):
        jitter = max(10 * jitter, torch.finfo(K.dtype).eps * len(K) * abs(scale), torch.finfo(K.dtype).tiny)
        L, failed = torch.linalg.cholesky_ex(K + jitter * eye)
    return L


class RidgeSolver:
    """``(K + ρI)⁻¹`` for an (n, n) float64 kernel, with ``ρ = ridge · mean diag K`` as the attribute ``rho``.

    The mean diagonal is the attribute ``scale``, the Cholesky factor of ``K + ρI`` the attribute ``L``. Without a
    ridge, what of K is singular gets as little as makes it regular.
    """

    def __init__(self, K: Tensor, ridge: float) -> None:
        self.scale = scale = float(K.diagonal().mean())
        if not math.isfinite(scale * (1 + ridge)):
            raise NonFiniteError(
                "The kernel of the labelled samples must be finite. Got NaN or infinity instead. Training has probably "
                "diverged: lower the learning rate or scale the inputs, and fit again."
            )
        self.rho = ridge * scale
        self.L = factor(K + self.rho * torch.eye(len(K), dtype=K.dtype, device=K.device))

    def __call__(self, B: Tensor) -> Tensor:
        """(n, m) -> (n, m)."""
        return torch.cholesky_solve(B, self.L)


class Outputs(NamedTuple):
    """A network's outputs for N samples, in float64."""

    f: Tensor  # (N, c), before any softmax
    link: Tensor  # (N, c), what labels are compared with: f with squared loss, σ(f) with cross-entropy
    proba: Tensor  # (N, c), of the hypothetical labels
    to_proba: Probabilities | None = None  # (..., c) -> (..., c) for other outputs; None is the softmax
    temperature: float = 1.0  # f over this are the logits

    @property
    def logits(self) -> Tensor:
        """(N, c) of which the softmax is a good guess at the probabilities, also with squared loss."""
        return self.f / self.temperature

    @property
    def beliefs(self) -> Tensor:
        """(N, c) probabilities by those logits, or by the user's own nonlinearity."""
        return torch.softmax(self.logits, dim=1) if self.to_proba is None else self.proba

    @property
    def labels(self) -> Tensor:
        """(N,) most likely labels."""
        return self.f.argmax(1)

    def residual(self, j: int, label: int) -> Tensor:
        """(c,) what a label of sample j leaves to be learnt."""
        residual = -self.link[j]
        residual[label] += 1
        return residual


def read_outputs(network: Network, logits: Tensor) -> Outputs:
    """(n, c) logits of a network as everything that the look-ahead needs of them."""
    f = logits.double()
    meaning = MEANINGS[network.task]
    if not meaning.is_exclusive:
        link = meaning.link(f)
        return Outputs(f, link, link, torch.sigmoid)  # the probabilities are what they are
    to_proba = probabilities_of_logits(network.net)
    proba = torch.softmax(f, dim=-1) if to_proba is None else to_proba(f)
    squared = compares_outputs(network.criterion)
    return Outputs(f, f if squared else proba, proba, to_proba, TEMPERATURE if squared else 1.0)


def join_outputs(parts: list[Outputs]) -> Outputs:
    """Outputs of several sets of samples, of one network, as those of one set."""
    if len(parts) == 1:
        return parts[0]
    f, link = torch.cat([part.f for part in parts]), torch.cat([part.link for part in parts])
    return parts[0]._replace(f=f, link=link, proba=torch.cat([part.proba for part in parts]))


@dataclass(eq=False)
class Posterior:
    """The linearised network at the candidates, and what one more label would do to it."""

    block: Block  # S among the candidates
    own: Tensor  # (N, B, B), S(x, x)
    prior: Tensor  # (N,), mean diagonal of Θ(x, x)
    outputs: Outputs  # of the candidates
    linearized: Tensor  # (N, c), F at the candidates
    rho: float
    evaluation: Tensor  # (e,), the candidates over which the change is summed, standing for all
    groups: Tensor  # (N,) integers that copies share; −1 for copies of labelled samples
    epsilon: float  # a variance below this part of the prior one is rounding
    S: Tensor | None = None  # (NB, eB), with the evaluation set; None if it is made whenever it is needed
    n_total: int | None = None  # how many samples the evaluation set stands for; None is all free candidates
    made: int = MADE
    scale: float = 1.0  # mean diagonal of the labelled samples' kernel

    def __post_init__(self) -> None:
        self.own, self.linearized, self.groups = self.own.clone(), self.linearized.clone(), self.groups.clone()
        self.N, self.B = self.own.shape[:2]
        self.free = torch.ones_like(self.groups, dtype=torch.bool)  # candidates that can still be labelled
        self._everyone = torch.arange(self.N, device=self.own.device)
        self.place = torch.full_like(self.groups, -1)  # among the evaluation samples
        self.place[self.evaluation] = self._everyone[: len(self.evaluation)]
        self.others = (self.place < 0).nonzero()[:, 0]  # candidates that are no evaluation samples
        self._rounding = (self.epsilon if self.B == 1 else max(1e-11, self.epsilon)) * self.prior
        self._W = self.own.new_empty(self.N * self.B, 0)  # (NB, mB) with S = S_0 − W Wᵀ for m candidates taken
        self._n_settled = 0  # columns of W that the kept matrix knows of

    @property
    def variance(self) -> Tensor:
        """(N,) mean diagonal of ``S(x, x)``."""
        return mean_diagonal(self.own)

    def is_known(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """(r,) which candidates would change nothing: copies of a labelled sample, or the same but for rounding.

        The second matters without a ridge, where u vanishes for whatever the labelled samples determine.
        """
        return (self.groups[rows] < 0) | (mean_diagonal(self.own[rows]) + self.rho <= self._rounding[rows])

    def condition(self, j: int, label: int) -> None:
        """Take candidate j as labelled: it is no candidate and no evaluation sample any more.

        One pass over the matrix, if it is kept; the outputs and variances follow from one column.
        """
        here = self._everyone[j : j + 1]
        residual = self.outputs.residual(j, label) + self.outputs.f[j] - self.linearized[j]
        L = factor(self._u(here)[0])
        w = self.take(j)
        if w is None:
            return
        z = torch.linalg.solve_triangular(L, residual.reshape(self.B, -1), upper=False)
        self.linearized += (w @ z).reshape(self.linearized.shape)
        self.settle()

    def settle(self) -> None:
        """Bring the kept matrix up to date with all candidates that were taken, by one product."""
        w = self.unsettled
        if self.S is not None and w.shape[1]:
            self.S.addmm_(w.to(self.S.dtype), w[places(self.evaluation, self.B)].T.to(self.S.dtype), alpha=-1)
            self._n_settled = self._W.shape[1]

    def take(self, j: int, noise: float | None = None) -> Tensor | None:
        """Condition the variances on candidate j: the (NB, B) w of ``S − w wᵀ``, None where there is nothing to learn.

        The noise of its label is ρ unless it is given. The kept matrix is left as it is until it is settled.
        """
        self.free[j] = False
        here = self._everyone[j : j + 1]
        self.groups = self.groups.masked_fill(self.groups == self.groups[j], -1)  # copies of a labelled sample
        if bool(mean_diagonal(self.own[here]) + self.rho <= self._rounding[j]):
            return None  # a second label for the same sample, and no ridge to weigh the two with
        column, taken = self._column(j), self.unsettled
        if taken.shape[1]:
            column.addmm_(taken, taken[places(here, self.B)].T, alpha=-1)
        column[places(here, self.B)] = self.own[j]  # exact where the others are estimated
        # with the factor of u a block of the downdate is w_x w_x'ᵀ
        w: Tensor = torch.linalg.solve_triangular(factor(self._u(here, noise)[0]), column.T, upper=False).T
        self._W = torch.cat([self._W, w], dim=1)
        blocks = w.reshape(self.N, self.B, self.B)
        self.own -= blocks @ blocks.transpose(1, 2)
        return w

    def _column(self, j: int) -> Tensor:
        """(NB, B) of S as the kept matrix has it, in float64."""
        here, B, place = self._everyone[j : j + 1], self.B, int(self.place[j])
        if self.S is None:
            return self.block(self._everyone, here)
        if place >= 0:
            return self.S[:, place * B : (place + 1) * B].to(self.own.dtype, copy=True)
        others, settled = places(self.others, B), self._W[:, : self._n_settled]
        column = self.own.new_empty(self.N * B, B)
        column[places(self.evaluation, B)] = self.S[places(here, B)].T.to(column.dtype)
        column[others] = torch.addmm(
            self.block(self.others, here), settled[others], settled[places(here, B)].T, alpha=-1
        )
        return column

    @property
    def unsettled(self) -> Tensor:
        """The columns of W that the kept matrix does not include yet."""
        return self._W[:, self._n_settled :]

    def _u(self, rows: Tensor, noise: float | None = None) -> Tensor:
        """(r, B, B) matrices ``S(x', x') + ρI``, with a little more where there is no ridge."""
        own = self.own[rows]
        floor = (self.rho if noise is None else noise) + torch.finfo(own.dtype).eps * mean_diagonal(own)
        if self.B > 1:  # outputs that sum to a constant leave a direction without any variance
            floor = floor + self._rounding[rows] / 4
        return own + floor[:, None, None] * torch.eye(self.B, dtype=own.dtype, device=own.device)

    def scores(self, criterion: str, reference: str, rows: Tensor | None = None) -> Tensor:
        """(r,) scores of the free candidates, or of the given ones; one pass over the matrix.

        Samples that are known change nothing: they score 0, and for ``eer`` no more than any other.
        The evaluation set is a sample of all others; a candidate's own term is counted apart, once.
        """
        if not bool(self.prior.any()):
            raise no_gradients("The look-ahead")
        rows = self.free.nonzero()[:, 0] if rows is None else rows
        evaluation = self.evaluation[self.free[self.evaluation]]
        n_total = int(self.free.sum()) if self.n_total is None else self.n_total
        inside = torch.isin(rows, evaluation)
        scale = (n_total - 1) / (len(evaluation) - inside.double()).clamp_min(1)
        known, u = self.is_known(rows), self._u(rows)
        u[known] = torch.eye(self.B, dtype=u.dtype, device=u.device)  # regular; it moves nothing
        width = max(1, len(evaluation)) * self.B
        step = rows_within(WORKED_ON, width * (1 if criterion == "mlmoc" else self.outputs.f.shape[1]))
        totals = []
        for made in torch.arange(len(rows), device=rows.device).split(rows_within(self.made, width * self.B)):
            S = self.covariances(rows[made], evaluation)
            for here, part in zip(made.split(step), S.split(step * self.B), strict=True):
                some, own = rows[here], self.own[rows[here]].flatten(0, 1)
                A, A_own = (self._moves(x, u[here], known[here]) for x in (part, own))
                total = self._terms(criterion, reference, some, A, evaluation).sum(1)
                own_term = self._terms(criterion, reference, some, A_own, some[:, None])[:, 0]
                totals.append((total - own_term * inside[here]) * scale[here] + own_term)
        return settle_known(torch.cat(totals), known, criterion)

    def covariances(self, rows: Tensor, evaluation: Tensor) -> Tensor:
        """(rB, mB) covariance with the evaluation samples that are left."""
        here = places(rows, self.B)
        if self.S is not None:
            left = self.free[self.evaluation].nonzero()[:, 0]
            return self.S[here] if len(left) == len(self.evaluation) else self.S[here][:, places(left, self.B)]
        S, W = self.block(rows, evaluation), self._W
        return S.addmm_(W[here], W[places(evaluation, self.B)].T, alpha=-1) if W.shape[1] else S

    def _moves(self, S: Tensor, u: Tensor, known: Tensor) -> Tensor:
        """(rB, mB) covariances -> (r, m) or (r, B, m, B): how far a residual moves the outputs, ``u⁻¹ S``."""
        S = S.unflatten(0, (len(u), self.B))
        A = (S / u if self.B == 1 else torch.linalg.solve(u, S)).masked_fill_(known[:, None, None], 0)
        return A[:, 0] if self.B == 1 else A.unflatten(2, (A.shape[2] // self.B, self.B))

    def _terms(self, criterion: str, reference: str, rows: Tensor, A: Tensor, points: Tensor) -> Tensor:
        """(r, m) terms of the criterion; points are (m,) samples for all candidates, or (r, 1), one for each."""
        f, link, proba, to_proba, _ = self.outputs
        F, G = self.linearized[points], self.linearized[rows] - (f[rows] - link[rows])
        moved = None if reference == "linearized" else F - f[points]
        p = one_hot(f[rows].argmax(1), f.shape[1]).to(f) if criterion == "mlmoc" else proba[rows]
        return criterion_terms(criterion, A, F, moved, G, p, to_proba)


def precision_of_variances(gradients: torch.dtype, products: torch.dtype) -> float:
    """The size of rounding errors in a variance of zero, relative to the kernel's diagonal.

    A variance is a squared distance of gradients: their own rounding enters squared, that of their products as it is.
    """
    return 4 * torch.finfo(gradients).eps ** 2 + 64 * torch.finfo(products).eps


def diagonal_blocks(K: Tensor, B: int) -> Tensor:
    """(NB, NB) -> (N, B, B)."""
    N = len(K) // B
    return K.reshape(N, B, N, B).diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def mean_diagonal(blocks: Tensor) -> Tensor:
    """(N, B, B) -> (N,)."""
    return blocks[:, 0, 0].clone() if blocks.shape[1] == 1 else blocks.diagonal(dim1=1, dim2=2).mean(1)


def places(samples: Tensor, B: int) -> Tensor:
    """(m,) positions of samples -> (mB,) those of their rows in a matrix of all blocks."""
    return samples if B == 1 else (samples[:, None] * B + torch.arange(B, device=samples.device)).flatten()
