# SPDX-License-Identifier: BSD-3-Clause
"""What a hypothetical label would change: the criteria of the look-ahead, term by term.

Index letters: r candidates, e evaluation samples, c classes, y hypothetical labels. Retraining on candidate j with the
label y moves the outputs at a sample x from F to ``F + A (e_y − G)``. G is the candidate's own output, shifted where
the loss is the cross-entropy. A is one number s for each pair (j, x), or a c × c matrix if the kernel has matrices.

Terms are (r, e), so that a caller can weigh them before they are summed over the evaluation samples. A "point" has the
shape (e, c), the same evaluation samples for every candidate, or (r, 1, c), one sample for each candidate.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from skal._core.outputs import sum_of_others

CRITERIA = ["mlmoc", "emoc", "eer"]  # those that need a hypothetical label; ``variance`` needs none
Probabilities = Callable[[Tensor], Tensor]


def criterion_terms(
    criterion: str, A: Tensor, F: Tensor, moved: Tensor | None, G: Tensor, p: Tensor, to_proba: Probabilities | None
) -> Tensor:
    """(r, e) terms of a criterion.

    ``mlmoc`` is how far the outputs move under the most likely label, ``emoc`` the expectation of that over the labels,
    and ``eer`` minus the entropy that the outputs are expected to be left with.

    A is (r, e), or (r, c, e, c) for a matrix kernel, the first c those of the candidate.
    F is a point: the outputs of the linearised network.
    moved is a point: b, how far F is from the reference already; None is nowhere.
    G and p are (r, c): p are probabilities of the labels, for ``mlmoc`` 1 for the most likely one.
    to_proba makes class probabilities of outputs; None is the softmax.
    """
    if A.ndim == 4:
        eye = torch.eye(G.shape[1], dtype=G.dtype, device=G.device)
        labels, weights = (p[:, None], p.sum(1, keepdim=True)) if criterion == "mlmoc" else (eye, p)
        moves = torch.einsum("rdec,ryd->ryec", A, labels - G[:, None])
        if moved is None:
            moved = torch.zeros_like(F)
        F, moved = (point if point.ndim == 2 else point[:, None] for point in (F, moved))
        return torch.einsum("rye,ry->re", terms_of_outputs(criterion, F + moves, moved + moves, to_proba), weights)
    if criterion == "eer":
        return _expected_entropies(A, F, G, p, to_proba)
    return _lengths(A, moved, p - G) if criterion == "mlmoc" else _expected_lengths(A, moved, G, p)


def terms_of_outputs(criterion: str, new: Tensor, moves: Tensor, to_proba: Probabilities | None = None) -> Tensor:
    """The terms from the new outputs and how far they have moved: (..., e, c) -> (..., e), for one label each."""
    if criterion != "eer":
        lengths: Tensor = torch.linalg.vector_norm(moves, dim=-1)
        return lengths
    return -_entropies(torch.softmax(new, dim=-1) if to_proba is None else to_proba(new))


def settle_known(scores: Tensor, known: Tensor, criterion: str) -> Tensor:
    """Give samples that are known the score of no change, 0; for ``eer`` at most that of the worst of the others."""
    if criterion != "eer":
        return scores.masked_fill(known, 0)
    worst = scores.min() if bool(known.all()) else scores[~known].min()
    return torch.where(known, scores.clamp_max(worst), scores)


def _lengths(s: Tensor, moved: Tensor | None, residual: Tensor) -> Tensor:
    """``‖b + s r‖`` for (r, c) residuals: ``‖b‖² + 2 s b·r + s² ‖r‖²`` under the root."""
    if moved is None:
        return s.abs() * _squares(residual).sqrt()[:, None]
    return _norms(s, _squares(moved), _dots(moved, residual), _squares(residual)[:, None])


def _expected_lengths(s: Tensor, moved: Tensor | None, G: Tensor, p: Tensor) -> Tensor:
    """``Σ_y p_y ‖b + s r_y‖``; the labels share everything but ``b·r_y`` and ``‖r_y‖``, with ``r_y = e_y − G``.

    The residual of the label t that G fits best may be tiny. It is never a difference of squares or of large products:
    ``‖r_y‖² = (1 − G_y)² + Σ_{others} G²`` and ``b·r_y = b·r_t + b_y − b_t``.
    """
    rr = (1 - G).square() + sum_of_others(G.square())  # (r, c)
    if moved is None:
        return s.abs() * (p * rr.sqrt()).sum(1, keepdim=True)
    best = G.argmax(1)
    residual = one_hot(best, G.shape[1]).to(G) - G
    own = moved[:, best].T if moved.ndim == 2 else moved.gather(2, best[:, None, None])[..., 0]  # b_t: (r, e) or (r, 1)
    br = _dots(moved, residual)[..., None] + (moved - own[..., None])  # (r, e, c)
    norms = _norms(s[..., None], _squares(moved)[..., None], br, rr[:, None])
    return torch.einsum("rec,rc->re", norms, p)


def _expected_entropies(s: Tensor, F: Tensor, G: Tensor, p: Tensor, to_proba: Probabilities | None) -> Tensor:
    """``−Σ_y p_y H(p⁺)``; a label moves one entry of ``a = F − s G`` alone, so that all labels share exponentials."""
    a, step = F - s[..., None] * G[:, None], s[..., None]  # (r, e, c), (r, e, 1)
    if to_proba is not None:
        new = a[..., None, :] + step[..., None] * torch.eye(G.shape[1], dtype=G.dtype, device=G.device)  # (r, e, y, c)
        return -torch.einsum("rey,ry->re", _entropies(to_proba(new)), p)
    a -= torch.maximum(a, a + step).amax(-1, keepdim=True)
    before, after = a.exp(), (a + step).exp()
    total = before.sum(-1, keepdim=True) - before + after
    weighted = before * a
    mean = (weighted.sum(-1, keepdim=True) - weighted + after * (a + step)) / total
    return -torch.einsum("rec,rc->re", total.log() - mean, p)


def _dots(points: Tensor, vectors: Tensor) -> Tensor:
    """(e, c) or (r, 1, c) points, (r, c) vectors -> (r, e) or (r, 1) inner products."""
    return vectors @ points.T if points.ndim == 2 else (points * vectors[:, None]).sum(-1)


def _squares(vectors: Tensor) -> Tensor:
    return vectors.square().sum(-1)


def _norms(s: Tensor, bb: Tensor, br: Tensor, rr: Tensor) -> Tensor:
    # s (s rr + 2 br) + bb, which rounding may leave below zero where b and s r cancel
    return (s * rr).add_(br, alpha=2).mul_(s).add_(bb).clamp_min_(0).sqrt_()


def _entropies(proba: Tensor) -> Tensor:
    entropies: Tensor = torch.special.entr(proba).sum(-1)
    return entropies
