"""Linearised retraining: what the outputs would be if one more sample were labelled, without retraining.

Index letters: n labelled samples, N candidates, e evaluation samples (some of the candidates), c classes.

With the kernel K of the labelled samples, ``α_x = (K + ρI)⁻¹ k_x`` and the residuals R of the labelled samples, the
linearised network gives ``F(x) = f(x) + α_xᵀ R``, and ``S(x, x') = Θ(x, x') − k_xᵀ α_x'`` is the covariance that the
labels leave. One more label moves the outputs by ``S(x, x') r / u`` with ``u = S(x', x') + ρ`` and r the residual of
the linearised network at x'. With squared loss a residual is ``e_y − f``; with cross-entropy it is ``e_y − σ(f)``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from skal._lookahead.criteria import Probabilities, emoc_terms, expected_entropy_terms, mlmoc_terms
from skal.exceptions import NonFiniteError

__all__ = [
    "Covariance",
    "Lookahead",
    "MatrixCovariance",
    "Outputs",
    "Reading",
    "RidgeSolver",
    "copies_of_labelled",
    "lookahead_from_kernels",
]

# entries of the candidates × evaluation matrix that are made at once: large products are quick
_MADE = 2**21
# entries, times classes where there are such, that are worked on at once: what fits into the cache is quick
_BLOCK = 2**16
# differences of so many units of rounding, relative to the kernel's diagonal, are none
_ROUNDING = 64


class RidgeSolver:
    """``(K + ρI)⁻¹`` with ``ρ = ridge · mean diag K``.

    Parameters
    ----------
    K : (n, n) float64 tensor
    ridge : float
        0 where K alone is to be inverted; what of it is singular then gets as little as makes it regular.

    Attributes
    ----------
    rho : float
    """

    def __init__(self, K: Tensor, ridge: float) -> None:
        scale = float(K.diagonal().mean())
        if not math.isfinite(scale * (1 + ridge)):
            raise NonFiniteError(
                "The kernel of the labelled samples must be finite. Got NaN or infinity instead. Training has probably "
                "diverged: lower the learning rate or scale the inputs, and fit again."
            )
        self.rho = ridge * scale
        eye = torch.eye(len(K), dtype=K.dtype, device=K.device)
        jitter = self.rho
        self.L, failed = torch.linalg.cholesky_ex(K + jitter * eye)
        while bool(failed):
            jitter = max(10 * jitter, torch.finfo(K.dtype).eps * len(K) * scale, torch.finfo(K.dtype).tiny)
            self.L, failed = torch.linalg.cholesky_ex(K + jitter * eye)

    def __call__(self, B: Tensor) -> Tensor:
        """(n, m) -> (n, m)."""
        return torch.cholesky_solve(B, self.L)


class Outputs(NamedTuple):
    """What the network says about the candidates.

    Attributes
    ----------
    network : (N, c) float64 tensor
        f, the outputs before any softmax.
    link : (N, c) float64 tensor
        What the labels are compared with: f itself with squared loss, σ(f) with cross-entropy.
    proba : (N, c) float64 tensor
        Probabilities of the hypothetical labels.
    labels : (N,) tensor
        The most likely ones, ``argmax f``.
    """

    network: Tensor
    link: Tensor
    proba: Tensor
    labels: Tensor

    def take(self, rows: Tensor) -> Outputs:
        """Those of some candidates."""
        return Outputs(*(part[rows] for part in self))


@dataclass(frozen=True)
class Reading:
    """What a network's outputs mean.

    Attributes
    ----------
    squared_loss : bool
        Whether the labels are compared with the outputs themselves; otherwise with the probabilities.
    to_proba : callable or None
        Probabilities of outputs, (..., c) -> (..., c); None is the softmax.
    """

    squared_loss: bool
    to_proba: Callable[[Tensor], Tensor] | None = None

    def read(self, logits: Tensor) -> Outputs:
        """Outputs (n, c) of the network as everything that the look-ahead needs of them."""
        f = logits.double()
        proba = torch.softmax(f, dim=-1) if self.to_proba is None else self.to_proba(f)
        return Outputs(f, f if self.squared_loss else proba, proba, f.argmax(1))


class Covariance(Protocol):
    """What the labels leave of the kernel among the candidates.

    Attributes
    ----------
    variance : (N,) float64 tensor
        ``S(x, x)``.
    prior : (N,) float64 tensor
        ``Θ(x, x)``.
    """

    variance: Tensor
    prior: Tensor

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """(r, e) part of S, in float64."""

    def column(self, j: int) -> Tensor:
        """(N,) column of S, in float64."""

    def distance(self, j: int) -> Tensor:
        """(N,) squared distance to candidate j, zero for its copies, in float64."""


class MatrixCovariance:
    """S as a matrix, (N, N) or for some columns alone.

    Parameters
    ----------
    S : (N, m) float64 tensor
    variance, prior : (N,) float64 tensors
    columns : (m,) tensor or None
        Which candidates the columns are; None is all of them.
    make_column : callable or None
        What to ask for other columns, where they may be wanted.
    """

    def __init__(
        self,
        S: Tensor,
        variance: Tensor,
        prior: Tensor,
        columns: Tensor | None = None,
        make_column: Callable[[int], Tensor] | None = None,
    ) -> None:
        self.S, self.variance, self.prior, self._make_column = S, variance, prior, make_column
        self._place = torch.arange(len(S), device=S.device)
        if columns is not None:
            self._place = torch.full_like(self._place, S.shape[1])  # out of range: there is no such column
            self._place[columns] = torch.arange(S.shape[1], device=S.device)

    def block(self, rows: Tensor, columns: Tensor) -> Tensor:
        """(r, e) part of S."""
        return self.S[rows[:, None], self._place[columns]]

    def column(self, j: int) -> Tensor:
        """(N,) column of S."""
        place = int(self._place[j])
        if place == self.S.shape[1] and self._make_column is not None:
            return self._make_column(j)
        return self.S[:, place]

    def distance(self, j: int) -> Tensor:
        """(N,) squared distance to candidate j in what the labels leave."""
        return self.variance + self.variance[j] - 2 * self.column(j)


class Lookahead:
    """The linearised network at the candidates, and what one more label would do to it.

    Parameters
    ----------
    covariance : Covariance
    outputs : Outputs
    linearized : (N, c) float64 tensor
        F, the outputs of the linearised network at the candidates.
    rho : float
    evaluation : (e,) tensor
        The candidates over which the change is summed, standing for all.
    copies : (N,) bool tensor
        Which candidates are copies of labelled samples.
    epsilon : float
        Relative precision of the kernel: a variance below it is rounding.
    n_total : int or None
        How many samples the evaluation set stands for; None is all candidates.
    keep : bool
        Whether S between candidates and evaluation set is kept as a matrix, for more than one round of scores.
    memory : int or None
        Bytes for a part of S that is made at once; None is 16 MB.
    """

    def __init__(
        self,
        covariance: Covariance,
        outputs: Outputs,
        linearized: Tensor,
        rho: float,
        evaluation: Tensor,
        copies: Tensor,
        *,
        epsilon: float = torch.finfo(torch.float64).eps,
        n_total: int | None = None,
        keep: bool = False,
        memory: int | None = None,
    ) -> None:
        self._made = _MADE if memory is None else min(_MADE, memory // 8)
        self.covariance, self.outputs, self.rho, self.evaluation = covariance, outputs, rho, evaluation
        self.linearized = linearized.clone()
        self.variance = covariance.variance.clone()
        self._epsilon = epsilon
        self._rounding = _ROUNDING * epsilon * covariance.prior
        self._copies = copies.clone()
        self._shift = outputs.network - outputs.link
        self._n_total = n_total
        self.free = torch.ones(len(linearized), dtype=torch.bool, device=linearized.device)
        self._downdates: list[Tensor] = []  # w with S = S_0 − Σ w wᵀ
        everything = torch.arange(len(linearized), device=linearized.device)
        self._S = covariance.block(everything, evaluation) if keep else None

    def as_own_network(self) -> Lookahead:
        """The same with the linearised network in the place of the network: for a Gaussian process, which has none."""
        f = self.linearized
        outputs = Outputs(f, f, torch.softmax(f, dim=1), f.argmax(1))
        keep, epsilon = self._S is not None, self._epsilon
        return Lookahead(
            self.covariance,
            outputs,
            f,
            self.rho,
            self.evaluation,
            self._copies,
            epsilon=epsilon,
            n_total=self._n_total,
            keep=keep,
        )

    @property
    def known(self) -> Tensor:
        """(N,) which candidates would change nothing: copies of a labelled sample, or the same but for rounding.

        The second matters without a ridge, where u vanishes for whatever the labelled samples determine.
        """
        return self._copies | (self.variance + self.rho <= self._rounding)

    def column(self, j: int) -> Tensor:
        """(N,) covariance of candidate j with all."""
        column = self.covariance.column(j).clone()
        for w in self._downdates:
            column -= w[j] * w
        return column

    def condition(self, j: int, label: int) -> None:
        """Take candidate j as labelled: it is no candidate and no evaluation sample any more.

        One pass over the matrix, if it is kept; the outputs and variances follow from one column.
        """
        self.free[j] = False
        self._copies |= self.covariance.distance(j) <= self._rounding
        u = self.variance[j] + self.rho
        if bool(u <= self._rounding[j]):  # a second label for the same sample, and no ridge to weigh the two with
            return
        column = self.column(j)
        residual = self._shift[j] - self.linearized[j]
        residual[label] += 1
        w = column / u.sqrt()
        self.linearized += torch.outer(column, residual / u)
        self.variance -= w.square()
        if self._S is not None:
            self._S.addr_(w, w[self.evaluation], alpha=-1)
        self._downdates.append(w)

    def scores(
        self,
        criterion: str,
        reference: str,
        rows: Tensor | None = None,
        to_proba: Probabilities | None = None,
    ) -> Tensor:
        """(r,) scores of the free candidates, or of the given ones; one pass over the matrix.

        Samples that are known change nothing: they score 0, and for ``eer`` no more than any other.
        The evaluation set is a sample of all others; a candidate's own term is counted apart, once.
        """
        rows = self.free.nonzero()[:, 0] if rows is None else rows
        evaluation = self.evaluation[self.free[self.evaluation]]
        n_total = int(self.free.sum()) if self._n_total is None else self._n_total
        inside = torch.isin(rows, evaluation)
        scale = (n_total - 1) / (len(evaluation) - inside.double()).clamp_min(1)
        known = self.known[rows]
        u = (self.variance[rows] + self.rho).clamp_min(torch.finfo(torch.float64).tiny)
        totals = []
        width = max(1, len(evaluation))
        for made in torch.arange(len(rows), device=rows.device).split(max(1, self._made // width)):
            S = self._covariances(rows[made], evaluation)
            S.div_(u[made, None]).masked_fill_(known[made, None], 0)
            step = max(1, _BLOCK // (width * (1 if criterion == "mlmoc" else self.linearized.shape[1])))
            for here, s in zip(made.split(step), S.split(step), strict=True):
                part = rows[here]
                total = self._terms(criterion, reference, part, s, evaluation, to_proba).sum(1)
                own = (self.variance[part] / u[here]).masked_fill_(known[here], 0)
                self_term = self._terms(criterion, reference, part, own[:, None], None, to_proba)[:, 0]
                totals.append((total - self_term * inside[here]) * scale[here] + self_term)
        return settle_known(torch.cat(totals), known, criterion)

    def _covariances(self, rows: Tensor, evaluation: Tensor) -> Tensor:
        if self._S is not None:
            S = self._S[rows]
            return S[:, self.free[self.evaluation]] if len(evaluation) < len(self.evaluation) else S
        S = self.covariance.block(rows, evaluation)
        for w in self._downdates:
            S.addr_(w[rows], w[evaluation], alpha=-1)
        return S

    def _terms(
        self,
        criterion: str,
        reference: str,
        rows: Tensor,
        s: Tensor,
        evaluation: Tensor | None,
        to_proba: Probabilities | None,
    ) -> Tensor:
        """(r, e) terms; without an evaluation set those of the candidates themselves, (r, 1)."""
        points = rows[:, None] if evaluation is None else evaluation
        G = self.linearized[rows] - self._shift[rows]
        if criterion == "eer":
            return expected_entropy_terms(s, self.linearized[points], G, self.outputs.proba[rows], to_proba)
        moved = None if reference == "linearized" else self.linearized[points] - self.outputs.network[points]
        if criterion == "mlmoc":
            return mlmoc_terms(s, moved, G, self.outputs.labels[rows])
        return emoc_terms(s, moved, G, self.outputs.proba[rows])


def copies_of_labelled(K_LC: Tensor, own: Tensor, prior: Tensor, epsilon: float) -> Tensor:
    """Which candidates are at no distance from some labelled sample, as far as rounding lets one tell.

    Parameters
    ----------
    K_LC : (n, N) tensor
    own, prior : (n,) and (N,) tensors
        The kernel's diagonal at the labelled samples and at the candidates.
    epsilon : float
        Relative precision of the kernel.

    Returns
    -------
    (N,) bool tensor
    """
    distance = own[:, None] + prior - 2 * K_LC
    return (distance <= _ROUNDING * epsilon * torch.maximum(own[:, None], prior)).any(0)


def settle_known(scores: Tensor, known: Tensor, criterion: str) -> Tensor:
    """Give samples that are known the score of no change, 0; for ``eer`` at most that of the worst of the others."""
    if not bool(known.any()):
        return scores
    if criterion != "eer":
        return scores.masked_fill(known, 0)
    others = scores[~known]
    worst = others.min() if len(others) else scores.min()
    return torch.where(known, scores.clamp_max(worst), scores)


def lookahead_from_kernels(
    K_LL: Tensor,
    K_LC: Tensor,
    K_CC: Tensor,
    prior: Tensor,
    residuals: Tensor,
    outputs: Outputs,
    evaluation: Tensor,
    ridge: float,
    *,
    epsilon: float = torch.finfo(torch.float64).eps,
    n_total: int | None = None,
    keep: bool = False,
    column: Callable[[int], Tensor] | None = None,
) -> Lookahead:
    """A look-ahead from the blocks of any scalar kernel.

    Parameters
    ----------
    K_LL : (n, n), K_LC : (n, N) float64 tensors
    K_CC : (N, N) or (N, e) float64 tensor
        Among all candidates, or with the evaluation samples alone; overwritten.
    prior : (N,) float64 tensor
        Its diagonal, for all candidates.
    residuals : (n, c) float64 tensor
        Of the labelled samples, target minus link.
    outputs, evaluation, epsilon, n_total, keep
        See :class:`Lookahead`.
    ridge : float
        See :class:`RidgeSolver`.
    column : callable or None
        (N,) kernel between all candidates and one that is not in the evaluation set, if that may be labelled next.
    """
    solver = RidgeSolver(K_LL, ridge)
    alpha = solver(K_LC)
    columns = None if K_CC.shape[1] == len(K_CC) else evaluation
    S = K_CC.addmm_(K_LC.T, alpha if columns is None else alpha[:, columns], alpha=-1)
    variance = (prior - (K_LC * alpha).sum(0)).clamp_min_(0)

    def make_column(j: int) -> Tensor:
        assert column is not None
        return column(j) - K_LC.T @ alpha[:, j]

    covariance = MatrixCovariance(S, variance, prior, columns, None if column is None else make_column)
    linearized = outputs.network + alpha.T @ residuals
    copies = copies_of_labelled(K_LC, K_LL.diagonal(), prior, epsilon)
    return Lookahead(
        covariance, outputs, linearized, solver.rho, evaluation, copies, epsilon=epsilon, n_total=n_total, keep=keep
    )
