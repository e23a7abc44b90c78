# SPDX-License-Identifier: BSD-3-Clause
r"""Expected reduction of variance: which labels would leave the outputs least uncertain, where that matters.

Index letters as in :mod:`skal._lookahead.posterior`. With p the probabilities, S the covariance that the labels leave
and weights a, v and t, the score of a candidate x' is

    a(x') Σ_x v(x) S(x, x')² / (1 + t(x') S(x', x')),

and once it is picked, ``S ← S − S_j S_jᵀ / (S_jj + noise_j)``. No label is guessed: p stays as it is within a batch.
A kernel with blocks has ``tr[S(x, x') (I + t S(x', x'))⁻¹ S(x', x)] / B`` in the place of the fraction.

The sums ``P(x') = Σ_x v(x) S(x', x) S(x, x')`` are kept. With blocks they are made anew after each pick; with numbers
:class:`LazySums` brings up to date what may be picked next.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from skal._core.losses import sum_of_others
from skal._core.memory import rows_within
from skal._lookahead.posterior import WORKED_ON, Posterior
from skal.exceptions import InvalidParameterError
from skal.tangent._tangent_engine import no_gradients

# columns of the kernel that are made at once, for candidates that are likely to be picked next
_COLUMNS = 32
# candidates that are brought up to date at first, to see whether the best is among them
_LOOKED_AT = 256
# picks after which the covariances are brought up to date
_SETTLED_AFTER = 32


class Importance(NamedTuple):
    """How much every candidate counts, (N,) each, in units of the kernel."""

    as_candidate: Tensor  # a
    as_evaluation: Tensor  # v
    stiffness: Tensor  # t
    noise: Tensor  # of its label


def logit_variance(z: Tensor) -> float:
    """τ, the prior variance of a logit: mean square of the (N, c) logits, centred over the classes."""
    return float((z - z.mean(1, keepdim=True)).square().mean())


def newton_importance(p: Tensor, tau: float, rho: float, scale: float) -> Importance:
    """One Newton step under cross-entropy: ``g = 1 − ‖p‖²`` is the expected squared residual.

    A step on the label of x' moves the outputs at x by ``τ S r/(1 + τ g S')`` with S in units of ``scale``.
    """
    g = (p * sum_of_others(p)).sum(1)
    return Importance(g / scale**2, g, tau * g / scale, torch.full_like(g, rho))


def margin_importance(p: Tensor, tau: float, rho: float, scale: float) -> Importance:
    """For kernels on features: the margin ``m = 1 − (p_(1) − p_(2))`` says how unsure a label is, and how noisy.

    With ``h = max(m, 0.01)`` the score is ``h' Σ_x m(x) S² / (ρ + h' S')`` and the noise ρ/h, S in units of ``scale``:
    the same family, with 1/ρ for τ and a label that counts more where the classifier is unsure.
    """
    first, second = p.topk(2, dim=1).values.T
    m = (1 - (first - second)).clamp_min(0)
    h = m.clamp_min(0.01)
    return Importance(h / (rho * scale), m, h / rho, rho / h)


class VarianceGains:
    """Scores of all candidates, which picks bring down.

    The evaluation samples are those that are free now. They are a sample of all free candidates; a candidate's own term
    is counted apart, once.
    """

    def __init__(self, posterior: Posterior, importance: Importance, owner: str = "NTKLookahead") -> None:
        if not bool(posterior.prior.any()):
            raise no_gradients("The look-ahead")
        if not posterior.scale > 0 or bool((posterior.prior < 0).any()):
            expected, got = (
                "one with a positive diagonal",
                f"{posterior.scale:g} on average at the labelled samples",
            )
            remedy = "Use another kernel, or other features: those of the labelled samples are all zero."
            raise InvalidParameterError.for_parameter(owner, "kernel", expected, got, remedy)
        self.posterior, self.importance = posterior, importance
        evaluation, free, B = posterior.evaluation, posterior.free, posterior.B
        self.v = importance.as_evaluation[evaluation] * free[evaluation]
        self._inside = (posterior.place >= 0) & free
        n_total = int(free.sum()) if posterior.n_total is None else posterior.n_total
        self._stands_for = (n_total - 1) / (int(free[evaluation].sum()) - self._inside.double()).clamp_min(1)
        self._columns: dict[int, Tensor] = {}
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
        rows, parts = torch.arange(posterior.N, device=posterior.own.device), []
        for made in rows.split(rows_within(posterior.made, self._width)):
            if posterior.S is None:
                S = posterior.block(made, posterior.evaluation)
                self._own_covariances(S, made)
            else:
                S = posterior.S[int(made[0]) * B : (int(made[-1]) + 1) * B]
            parts += [self._weighted_squares(some) for some in S.split(rows_within(WORKED_ON, self._width) * B)]
        return torch.cat(parts).double()

    def _weighted_squares(self, S: Tensor) -> Tensor:
        """(rB, eB) -> (r, B, B)."""
        B = self.posterior.B
        if B == 1:
            return (S.square() @ self.v.to(S.dtype))[:, None, None]
        S = S.reshape(-1, B, S.shape[1])
        return (S * self.v.repeat_interleave(B).to(S.dtype)) @ S.transpose(1, 2)

    def scores(self) -> Tensor:
        """(N,) of all candidates; 0 where nothing is left to learn."""
        return self.gains_of(self.P)

    def gains_of(self, P: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """(r, B, B) sums of the given candidates -> (r,) scores."""
        posterior, B = self.posterior, self.posterior.B
        a, v, t = (weight[rows] for weight in self.importance[:3])
        own, inside, stands_for = posterior.own[rows], self._inside[rows], self._stands_for[rows]
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
        return gains.masked_fill_(posterior.known(rows), 0)

    def choose(self, n_instances: int, lazy: bool = True) -> tuple[Tensor, Tensor]:
        """Candidates in the order of choice, each as if those before had been labelled, and their scores then.

        With a scalar kernel scores are evaluated lazily, which makes the same choice.
        """
        posterior = self.posterior
        sums = LazySums(self) if lazy and posterior.B == 1 else None
        picked: list[int] = []
        gains: list[Tensor] = []
        while len(picked) < n_instances:
            if sums is not None:
                scores = sums.bounds_with_best()
            else:
                scores = self.scores().masked_fill_(~posterior.free, -torch.inf)
            picked.append(int(scores.argmax()))
            gains.append(scores[picked[-1]])
            if len(picked) < n_instances:
                w = posterior.take(
                    picked[-1], float(self.importance.noise[picked[-1]]), self._with_others(picked[-1], scores)
                )
                if w is not None and sums is not None:
                    sums.append(w)
                elif w is not None:
                    posterior.settle()
                    self.P = self.sums()
        return torch.tensor(picked, device=self.P.device), torch.stack(gains)

    def _with_others(self, j: int, scores: Tensor) -> Tensor | None:
        """(.., B) kernel of candidate j with those that are no evaluation samples, unless it is one.

        That of the next best is made with it, at the speed of a matrix product.
        """
        posterior, B = self.posterior, self.posterior.B
        if posterior.place[j] >= 0:
            return None
        if j not in self._columns:
            entries = len(posterior.others) * B**2
            if len(self._columns) * entries > posterior.made:
                self._columns.clear()
            here = torch.tensor([j], device=scores.device)
            next_best = scores.masked_fill(posterior.place >= 0, -torch.inf)
            next_best[[j, *self._columns]] = -torch.inf
            n_more = max(0, min(_COLUMNS, posterior.made // entries, int((next_best > 0).sum()) + 1) - 1)
            made = torch.cat([here, next_best.topk(n_more).indices])
            block = posterior.block(posterior.others, made)
            self._columns.update({int(row): block[:, i * B : (i + 1) * B] for i, row in enumerate(made)})
        return self._columns.pop(j)


class LazySums:
    """The sums P of a scalar kernel, brought up to date only for candidates that may be the next pick.

    ``√P(x')`` is the length of ``S(·, x')``, with weights v. A pick changes that vector by ``−w(x') w``, so that its
    length grows by at most ``|w(x')| √Q``: an old length plus these is an upper bound. A candidate whose bound is below
    the best exact score is not the best. The others are brought up to date for all picks that they have missed, with
    one product of matrices: ``P = P_0 − 2 Σ_k w_k(x') V_k(x') + Σ_kl w_k(x') Q_kl w_l(x')``, ``V_k = S_0 (v w_k)``.
    After some picks S_0 and P_0 are made anew for all, which leaves less to catch up with, and no sum of many terms.
    """

    def __init__(self, gains: VarianceGains) -> None:
        self._gains, S = gains, gains.posterior.S
        assert S is not None
        self._S = S
        # zero for candidates that are no evaluation samples: quicker than to gather those that are, again and again
        self._everyones_v = torch.zeros_like(gains.importance.as_evaluation)
        self._everyones_v[gains.posterior.evaluation] = gains.v
        self._V = S.new_empty(len(S), _SETTLED_AFTER)
        self._weighted = S.new_empty(_SETTLED_AFTER, S.shape[1])  # v w_k at the evaluation samples
        self._Q = gains.v.new_empty(_SETTLED_AFTER, _SETTLED_AFTER)
        self._begin(gains.P)

    def _begin(self, P: Tensor) -> None:
        self._start = P[:, 0, 0]
        self._length = self._start.clamp_min(0).sqrt()
        self._n = 0  # picks since then that changed something
        self._knows_of = torch.zeros_like(self._gains.posterior.place)  # how many of them a length knows of

    def append(self, w: Tensor) -> None:
        """One more pick, (N, 1)."""
        gains, n = self._gains, self._n
        if n == _SETTLED_AFTER - 1:
            gains.posterior.settle()
            self._begin(gains.sums())
            return
        weighted = self._everyones_v * w[:, 0]
        self._weighted[n] = weighted[gains.posterior.evaluation]
        row = weighted @ gains.posterior.unsettled
        self._Q[n, : n + 1] = self._Q[: n + 1, n] = row
        self._length += w[:, 0].abs() * row[n].clamp_min(0).sqrt()
        self._n += 1

    def bounds_with_best(self) -> Tensor:
        """(N,) upper bounds of the scores; the largest is exact."""
        gains = self._gains
        bounds = gains.gains_of(self._length.square()[:, None, None]).masked_fill_(~gains.posterior.free, -torch.inf)
        n_looked_at = _LOOKED_AT
        while int(self._knows_of[bounds.argmax()]) < self._n:
            rows = bounds.topk(min(n_looked_at, len(bounds))).indices
            rows = rows[(self._knows_of[rows] < self._n) & gains.posterior.free[rows]]
            bounds[rows] = gains.gains_of(self._exact(rows)[:, None, None], rows)
            n_looked_at *= 2
        return bounds

    def _exact(self, rows: Tensor) -> Tensor:
        """(r,) sums as they are now."""
        n = self._n
        missed = slice(int(self._knows_of[rows].min()), n)
        self._V[rows, missed] = self._S.index_select(0, rows) @ self._weighted[missed].T
        w = self._gains.posterior.unsettled[rows]
        P = self._start[rows] - 2 * (w * self._V[rows, :n]).sum(1) + ((w @ self._Q[:n, :n]) * w).sum(1)
        self._length[rows], self._knows_of[rows] = P.clamp_min(0).sqrt(), n
        return P
