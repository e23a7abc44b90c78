r"""Expected reduction of variance: which labels would leave the outputs least uncertain, where that matters.

Index letters as in :mod:`skal._lookahead.posterior`. With p the probabilities, S the covariance that the labels leave
and weights a, v and t, the score of a candidate x' is

    a(x') Σ_x v(x) S(x, x')² / (1 + t(x') S(x', x')),

and once it is picked, ``S ← S − S_j S_jᵀ / (S_jj + noise_j)``. No label is guessed: p stays as it is within a batch.
A kernel with blocks has ``tr[S(x, x') (I + t S(x', x'))⁻¹ S(x', x)] / B`` in the place of the fraction.

The sums ``P(x') = Σ_x v(x) S(x', x) S(x, x')`` are kept. With ``S = S_0 − W Wᵀ`` another column w of W changes them by
``−V wᵀ − w Vᵀ + w Q wᵀ``, where ``V(x') = Σ_x v(x) S(x', x) w_x`` and ``Q = Σ_x v(x) w_xᵀ w_x``: one product of S_0
with a column for each pick, and S_0 is never written to.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from skal._core.losses import sum_of_others
from skal._core.memory import rows_within
from skal._lookahead.posterior import WORKED_ON, Posterior, places
from skal.exceptions import InvalidParameterError
from skal.tangent._engine import no_gradients

# outputs of squared loss are divided by this to be logits: labels are 0 and 1, one apart
TEMPERATURE = 0.15
# columns of the kernel that are made at once, for candidates that are likely to be picked next
_COLUMNS = 16


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
        self.place = torch.full_like(posterior.groups, -1)  # among the evaluation samples
        self.place[evaluation] = torch.arange(len(evaluation), device=evaluation.device)
        self._inside = (self.place >= 0) & free
        n_total = int(free.sum()) if posterior.n_total is None else posterior.n_total
        self._stands_for = (n_total - 1) / (int(free[evaluation].sum()) - self._inside.double()).clamp_min(1)
        self._columns: dict[int, Tensor] = {}
        rows = torch.arange(posterior.N, device=evaluation.device)
        width = max(1, len(evaluation)) * B**2
        parts = []
        for made in rows.split(rows_within(posterior.made, width)):
            S = self._covariances(made)
            parts += [self._weighted_squares(some) for some in S.split(rows_within(WORKED_ON, width) * B)]
        self.P = torch.cat(parts)

    def _covariances(self, rows: Tensor) -> Tensor:
        """(rB, eB) with the evaluation samples, exact on the diagonal where the others are estimated."""
        posterior = self.posterior
        kept, B = posterior.S, posterior.B
        S = posterior.block(rows, posterior.evaluation) if kept is None else kept[places(rows, B)]
        inside = (self.place[rows] >= 0).nonzero()[:, 0]
        blocks = S.reshape(len(rows), B, -1, B)
        blocks[inside, :, self.place[rows[inside]]] = posterior.own[rows[inside]]
        if kept is not None:
            kept[places(rows, B)] = S
        return S

    def _weighted_squares(self, S: Tensor) -> Tensor:
        """(rB, eB) -> (r, B, B)."""
        B = self.posterior.B
        if B == 1:
            return (S.square() @ self.v)[:, None, None]
        S = S.reshape(-1, B, S.shape[1])
        return (S * self.v.repeat_interleave(B)) @ S.transpose(1, 2)

    def scores(self) -> Tensor:
        """(N,) of all candidates; 0 where nothing is left to learn."""
        return self.gains_of(self.P)

    def gains_of(self, P: Tensor, rows: Tensor | slice = slice(None)) -> Tensor:
        """(r, B, B) sums of the given candidates -> (r,) scores."""
        posterior, B = self.posterior, self.posterior.B
        a, v, t = (weight[rows] for weight in self.importance[:3])
        own, inside, stands_for = posterior.own[rows], self._inside[rows], self._stands_for[rows]
        mine = v[:, None, None] * (own @ own)
        others = (P - mine * inside[:, None, None]) * stands_for[:, None, None]
        if B == 1:
            total, own = (others.clamp_min_(0) + mine)[:, 0, 0], own[:, 0, 0]
            gains = a * total / (1 + t * own)
        else:
            eye = torch.eye(B, dtype=own.dtype, device=own.device)
            solved = torch.linalg.solve(eye + t[:, None, None] * own, others + mine)
            gains = a * (solved.diagonal(dim1=1, dim2=2).sum(1) / B).clamp_min_(0)
        return gains.masked_fill(posterior.known[rows], 0)

    def choose(self, n_instances: int, lazy: bool = True) -> tuple[Tensor, Tensor]:
        """Candidates in the order of choice, each as if those before had been labelled, and their scores then.

        With a scalar kernel scores are evaluated lazily, which makes the same choice.
        """
        posterior = self.posterior
        sums = LazySums(self, n_instances) if lazy and posterior.B == 1 else None
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
                    picked[-1], float(self.importance.noise[picked[-1]]), self._column(picked[-1], scores)
                )
                if w is not None:
                    self._update(w) if sums is None else sums.append(w)
        return torch.tensor(picked, device=self.P.device), torch.stack(gains)

    def _update(self, w: Tensor) -> None:
        """All sums after a pick, the last column of W."""
        posterior, B = self.posterior, self.posterior.B
        assert posterior.S is not None
        before = posterior.taken[:, :-B]
        here = places(posterior.evaluation, B)
        weighted = w[here] * self.v.repeat_interleave(B)[:, None]
        V = posterior.S @ weighted
        if before.shape[1]:
            V.addmm_(before, before[here].T @ weighted, alpha=-1)
        V, w_blocks = V.reshape(-1, B, B), w.reshape(-1, B, B)
        change = V @ w_blocks.transpose(1, 2)
        Q = w[here].T @ weighted
        self.P += w_blocks @ Q @ w_blocks.transpose(1, 2) - change - change.transpose(1, 2)

    def _column(self, j: int, scores: Tensor) -> Tensor:
        """(NB, B) of S_0; columns of the next best are made with it, at the speed of a matrix product."""
        posterior, B = self.posterior, self.posterior.B
        place = int(self.place[j])
        if place >= 0:
            assert posterior.S is not None
            return posterior.S[:, place * B : (place + 1) * B].clone()
        if j not in self._columns:
            if len(self._columns) * posterior.N * B**2 > posterior.made:
                self._columns.clear()
            here = torch.tensor([j], device=scores.device)
            next_best = scores.masked_fill(self.place >= 0, -torch.inf)
            next_best[j] = -torch.inf
            next_best[list(self._columns)] = -torch.inf
            n_more = max(0, min(_COLUMNS, posterior.made // (posterior.N * B**2), int((next_best > 0).sum()) + 1) - 1)
            made = torch.cat([here, next_best.topk(n_more).indices])
            block = posterior.block(torch.arange(posterior.N, device=scores.device), made)
            self._columns.update({int(row): block[:, i * B : (i + 1) * B] for i, row in enumerate(made)})
        return self._columns.pop(j)


class LazySums:
    """The sums P of a scalar kernel, brought up to date only for candidates that may be the next pick.

    ``√P(x')`` is the length of ``S(·, x')``, with weights v. A pick changes that vector by ``−w(x') w``, so that its
    length grows by at most ``|w(x')| √Q``: an old length plus these is an upper bound. A candidate whose bound is below
    the best exact score is not the best. The others are brought up to date for all picks that they have missed, with
    one product of matrices: ``P = P_0 − 2 Σ_k w_k(x') V_k(x') + Σ_kl w_k(x') Q_kl w_l(x')``, ``V_k = S_0 (v w_k)``.
    """

    def __init__(self, gains: VarianceGains, n_instances: int) -> None:
        self._gains, self._start = gains, gains.P[:, 0, 0]
        self._length = self._start.clamp_min(0).sqrt()
        self._n = 0  # picks so far that changed something
        self._knows_of = torch.zeros_like(gains.place)  # how many of them a length knows of
        N, e = len(self._start), len(gains.v)
        self._V = self._start.new_empty(N, max(0, n_instances - 1))
        self._weighted = self._start.new_empty(e, max(0, n_instances - 1))  # v w_k at the evaluation samples
        self._Q = self._start.new_empty(n_instances, n_instances)

    def append(self, w: Tensor) -> None:
        """One more pick, (N, 1)."""
        gains, n = self._gains, self._n
        here = w[gains.posterior.evaluation, 0]
        self._weighted[:, n] = gains.v * here
        row = here @ self._weighted[:, : n + 1]
        self._Q[n, : n + 1] = self._Q[: n + 1, n] = row
        self._length += w[:, 0].abs() * row[n].clamp_min(0).sqrt()
        self._n += 1

    def bounds_with_best(self) -> Tensor:
        """(N,) upper bounds of the scores; the largest is exact."""
        gains = self._gains
        bounds = gains.gains_of(self._length.square()[:, None, None]).masked_fill_(~gains.posterior.free, -torch.inf)
        n_looked_at = 128
        while int(self._knows_of[bounds.argmax()]) < self._n:
            rows = bounds.topk(min(n_looked_at, len(bounds))).indices
            rows = rows[(self._knows_of[rows] < self._n) & gains.posterior.free[rows]]
            bounds[rows] = gains.gains_of(self._exact(rows)[:, None, None], rows)
            n_looked_at *= 2
        return bounds

    def _exact(self, rows: Tensor) -> Tensor:
        """(r,) sums as they are now."""
        S, n = self._gains.posterior.S, self._n
        assert S is not None
        n_missed = n - self._knows_of[rows]
        for size in (2**power for power in range(n.bit_length())):  # those that have missed about as many at once
            some = rows[(n_missed >= size) & (n_missed < 2 * size)]
            if len(some):
                missed = slice(int(self._knows_of[some].min()), n)
                self._V[some, missed] = S[some] @ self._weighted[:, missed]
        w = self._gains.posterior.taken[rows]
        P = self._start[rows] - 2 * (w * self._V[rows, :n]).sum(1) + ((w @ self._Q[:n, :n]) * w).sum(1)
        self._length[rows], self._knows_of[rows] = P.clamp_min(0).sqrt(), n
        return P
