# SPDX-License-Identifier: BSD-3-Clause
r"""Expected reduction of variance: which labels would leave the outputs least uncertain, where that matters.

Index letters as in :mod:`skal._lookahead.posterior`. With p the probabilities, S the covariance that the labels leave
and weights a, v and t, the score of a candidate x' is

    a(x') Σ_x v(x) S(x, x')² / (1 + t(x') S(x', x')),

and once it is picked, ``S ← S − S_j S_jᵀ / (S_jj + noise_j)``. No label is guessed: p stays as it is within a batch.
A kernel with blocks has ``tr[S(x, x') (I + t S(x', x'))⁻¹ S(x', x)] / B`` instead of the fraction.

The sums ``P(x') = Σ_x v(x) S(x', x) S(x, x')`` are kept. With ``S = S_0 − W Wᵀ`` another column w of W changes them by
``−V wᵀ − w Vᵀ + w Q wᵀ``, where ``V(x') = Σ_x v(x) S(x', x) w_x`` and ``Q = Σ_x v(x) w_xᵀ w_x``: one product of S_0
with a column for each pick. After some picks S_0 and the sums are made anew, so that no rounding piles up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skal._core.meaning import MEANINGS, Meaning
from skal._core.memory import rows_within
from skal._lookahead.posterior import WORKED_ON, Posterior, places
from skal.exceptions import InvalidParameterError
from skal.tangent._tangent_engine import no_gradients

# picks after which covariances and sums are made anew
_SETTLED_AFTER = 32


class Importance(NamedTuple):
    """The weight of every candidate, (N,) each, in units of the kernel."""

    as_candidate: Tensor  # a
    as_evaluation: Tensor  # v
    stiffness: Tensor  # t
    noise: Tensor  # noise of its label


def logit_variance(z: Tensor, meaning: Meaning = MEANINGS["classification"]) -> float:
    """τ, the prior variance of a logit: mean square of the (N, c) logits, of classes centred over them."""
    return float(meaning.center(z).square().mean())


def even_importance(like: Tensor, rho: float, scale: float) -> Importance:
    """Weights for numbers under squared loss, where all samples count alike: ``Σ_x S² / (ρ + S')``, S in units of
    ``scale``."""
    ones = torch.ones_like(like[:, 0])
    return Importance(ones / (rho * scale), ones, ones / rho, rho * ones)


def newton_importance(
    p: Tensor, tau: float, rho: float, scale: float, meaning: Meaning = MEANINGS["classification"]
) -> Importance:
    """One Newton step under cross-entropy: ``g = 1 − ‖p‖²`` is the expected squared residual.

    A step on the label of x' moves the outputs at x by ``τ S r/(1 + τ g S')`` with S in units of ``scale``. Of several
    labels with probabilities p the expected squared residual is ``Σ p (1 − p)``.
    """
    g = meaning.residual_variance(p)
    if g is None:
        return even_importance(p, rho, scale)
    return Importance(g / scale**2, g, tau * g / scale, torch.full_like(g, rho))


def margin_importance(p: Tensor, rho: float, scale: float, meaning: Meaning) -> Importance:
    """Weights for kernels on features: the margin ``m = 1 − (p_(1) − p_(2))`` says how unsure a label is, and how
    noisy.

    With ``h = max(m, 0.01)`` the score is ``h' Σ_x m(x) S² / (ρ + h' S')`` and the noise ρ/h, S in units of ``scale``:
    the same family, with 1/ρ for τ and a label that counts more where the classifier is unsure. Of several labels m is
    the mean of ``1 − |2p − 1|``.
    """
    m = meaning.margins(p)
    if m is None:
        return even_importance(p, rho, scale)
    h = m.clamp_min(0.01)
    return Importance(h / (rho * scale), m, h / rho, rho / h)


class VarianceGains:
    """Scores of all candidates, which picks bring down.

    The evaluation samples are those that are free now. They are a sample of all free candidates, or of those whose
    weight is not 0; a candidate's own term is counted apart, once.
    """

    def __init__(
        self,
        posterior: Posterior,
        importance: Importance,
        owner: str = "NTKLookahead",
        weights: np.ndarray | None = None,
    ) -> None:
        if not bool(posterior.prior.any()):
            raise no_gradients("The look-ahead")
        if not posterior.scale > 0 or bool((posterior.prior < 0).any()):
            expected, got = (
                "one with a positive diagonal",
                f"{posterior.scale:g} on average at the labelled samples",
            )
            remedy = "Use another kernel, or other features: those of the labelled samples are all zero."
            raise InvalidParameterError.for_parameter(owner, "kernel", expected, got, remedy)
        evaluation, free, B = posterior.evaluation, posterior.free, posterior.B
        counts = torch.ones_like(posterior.prior)  # 1 for candidates that are summed over, else 0
        if weights is not None:
            w = torch.as_tensor(weights, dtype=counts.dtype, device=counts.device)
            importance, counts = importance._replace(as_evaluation=importance.as_evaluation * w), (w > 0).to(counts)
        self.posterior, self.importance = posterior, importance
        self.v = importance.as_evaluation[evaluation] * free[evaluation]
        self._inside = (posterior.place >= 0) & free
        n_total = int(free.sum()) if posterior.n_total is None else posterior.n_total
        self._stands_for = (n_total - counts) / (int(free[evaluation].sum()) - self._inside.double()).clamp_min(1)
        self._width = max(1, len(evaluation)) * B**2
        if posterior.S is not None:
            self._own_covariances(posterior.S, torch.arange(posterior.N, device=evaluation.device))
        self.P = self.sums()

    def _own_covariances(self, S: Tensor, rows: Tensor) -> None:
        """Make those of a sample with itself exact where the others are estimated; (rB, eB)."""
        place, own = self.posterior.place[rows], self.posterior.own[rows].to(S.dtype)
        inside, B = (place >= 0).nonzero()[:, 0], self.posterior.B
        S.view(len(rows), B, -1, B)[inside, :, place[inside]] = own[inside]

    def sums(self) -> Tensor:
        """(N, B, B) P of the covariances as they are now."""
        posterior, B = self.posterior, self.posterior.B
        rows = torch.arange(posterior.N, device=posterior.own.device)
        # at once: small tensors between large ones would keep the system from taking memory back
        P = torch.empty(posterior.N, B, B, dtype=torch.float64, device=rows.device)
        for made in rows.split(rows_within(posterior.made, self._width)):
            if posterior.S is None:
                S = posterior.block(made, posterior.evaluation)
                self._own_covariances(S, made)
            else:
                S = posterior.S[int(made[0]) * B : (int(made[-1]) + 1) * B]
            worked_on = rows_within(WORKED_ON, self._width)
            for some, place in zip(S.split(worked_on * B), P[made[0] : made[-1] + 1].split(worked_on), strict=True):
                place.copy_(self._weighted_squares(some))
        return P

    def _weighted_squares(self, S: Tensor) -> Tensor:
        """(rB, eB) -> (r, B, B)."""
        B = self.posterior.B
        if B == 1:
            return (S.square() @ self.v.to(S.dtype))[:, None, None]
        S = S.reshape(-1, B, S.shape[1])
        return (S * self.v.repeat_interleave(B).to(S.dtype)) @ S.transpose(1, 2)

    def scores(self) -> Tensor:
        """(N,) of all candidates; 0 where nothing is left to learn."""
        posterior, P, B = self.posterior, self.P, self.posterior.B
        a, v, t, _ = self.importance
        own, inside, stands_for = posterior.own, self._inside, self._stands_for
        if B == 1:
            own = own[:, 0, 0]
            mine = v * own * own
            others = (P[:, 0, 0] - mine * inside) * stands_for
            gains = a * (others.clamp_min_(0) + mine) / (1 + t * own)
        else:
            mine = v[:, None, None] * (own @ own)
            others = (P - mine * inside[:, None, None]) * stands_for[:, None, None]
            eye = torch.eye(B, dtype=own.dtype, device=own.device)
            solved = torch.linalg.solve(eye + t[:, None, None] * own, others + mine)
            gains = a * (solved.diagonal(dim1=1, dim2=2).sum(1) / B).clamp_min_(0)
        return gains.masked_fill_(posterior.is_known(), 0)

    def choose(self, n_instances: int) -> tuple[Tensor, Tensor]:
        """Candidates in the order of choice, each as if those before had been labelled, and their scores then."""
        posterior, noise = self.posterior, self.importance.noise
        picked: list[int] = []
        gains: list[Tensor] = []
        while True:
            scores = self.scores().masked_fill_(~posterior.free, -torch.inf)
            picked.append(int(scores.argmax()))
            gains.append(scores[picked[-1]])
            if len(picked) == n_instances:
                return torch.tensor(picked, device=self.P.device), torch.stack(gains)
            w = posterior.take(picked[-1], float(noise[picked[-1]]))
            if posterior.unsettled.shape[1] == _SETTLED_AFTER * posterior.B:
                posterior.settle()
                self.P = self.sums()
            elif w is not None:
                self._update(w)

    def _update(self, w: Tensor) -> None:
        """All sums after a pick, the last column of W."""
        posterior, B = self.posterior, self.posterior.B
        assert posterior.S is not None
        before, here = posterior.unsettled[:, :-B], places(posterior.evaluation, B)
        weighted = w[here] * self.v.repeat_interleave(B)[:, None]
        V = (posterior.S @ weighted.to(posterior.S.dtype)).double()
        if before.shape[1]:
            V.addmm_(before, before[here].T @ weighted, alpha=-1)
        V, w_blocks = V.reshape(-1, B, B), w.reshape(-1, B, B)
        change = V @ w_blocks.transpose(1, 2)
        Q = w[here].T @ weighted
        self.P += w_blocks @ Q @ w_blocks.transpose(1, 2) - change - change.transpose(1, 2)
