"""What a hypothetical label would change: the criteria of the look-ahead, term by term.

Index letters: r candidates, e evaluation samples, c classes, y hypothetical labels. Retraining on candidate j with the
label y moves the outputs at a sample x from F to ``F + s (e_y − G)``: s is one number for each pair (j, x), and G the
candidate's own output, shifted where the loss is the cross-entropy. Every function returns the terms of the sum over
evaluation samples, (r, e), so that a caller can weigh them.

A "point" argument has the shape (e, c), the same evaluation samples for every candidate, or (r, 1, c), one sample for
each candidate.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["CRITERIA", "emoc_terms", "expected_entropy_terms", "mlmoc_terms", "terms_of_outputs"]

CRITERIA = ["mlmoc", "emoc", "eer"]
Probabilities = Callable[[Tensor], Tensor]


def _dots(points: Tensor, vectors: Tensor) -> Tensor:
    """(e, c) or (r, 1, c) points, (r, c) vectors -> (r, e) or (r, 1) inner products."""
    return vectors @ points.T if points.ndim == 2 else (points * vectors[:, None]).sum(-1)


def _squares(residuals: Tensor) -> Tensor:
    return residuals.square().sum(-1)


def mlmoc_terms(s: Tensor, moved: Tensor | None, G: Tensor, labels: Tensor) -> Tensor:
    """``‖b + s r‖`` with the most likely label: ``‖b‖² + 2 s b·r + s² ‖r‖²`` under the root.

    Parameters
    ----------
    s : (r, e) tensor
    moved : point or None
        b, how far the outputs have moved from the reference already; None is nowhere.
    G : (r, c) tensor
    labels : (r,) tensor
    """
    residual = -G
    residual[torch.arange(len(G), device=G.device), labels] += 1
    length = _squares(residual).sqrt()[:, None]
    if moved is None:
        return s.abs() * length
    return _norms(s, _squares(moved), _dots(moved, residual), length.square())


def _norms(s: Tensor, bb: Tensor, br: Tensor, rr: Tensor) -> Tensor:
    # s (s rr + 2 br) + bb, which rounding may leave below zero where b and s r cancel
    return (s * rr).add_(br, alpha=2).mul_(s).add_(bb).clamp_min_(0).sqrt_()


def emoc_terms(s: Tensor, moved: Tensor | None, G: Tensor, proba: Tensor) -> Tensor:
    """``Σ_y p_y ‖b + s r_y‖``; the labels share everything but ``b·r_y = b_y − b·G`` and ``‖r_y‖``."""
    rr = _squares(G)[:, None] - 2 * G + 1  # (r, c): ‖e_y − G‖²
    if moved is None:
        return s.abs() * (proba * rr.clamp_min(0).sqrt()).sum(1, keepdim=True)
    br = moved - _dots(moved, G)[..., None]  # (r, e, c)
    norms = _norms(s[..., None], _squares(moved)[..., None], br, rr[:, None])
    return torch.einsum("rec,rc->re", norms, proba)


def expected_entropy_terms(
    s: Tensor, outputs: Tensor, G: Tensor, proba: Tensor, to_proba: Probabilities | None = None
) -> Tensor:
    """``−Σ_y p_y H(p⁺)`` with p⁺ the softmax of ``F + s (e_y − G)``, or another function of it.

    A label moves one entry of ``a = F − s G`` alone, so that all labels share the exponentials.
    """
    a = outputs - s[..., None] * G[:, None]  # (r, e, c)
    if to_proba is not None:
        labels = torch.eye(G.shape[1], dtype=G.dtype, device=G.device)
        new = a[..., None, :] + s[..., None, None] * labels  # (r, e, y, c)
        return -torch.einsum("rey,ry->re", _entropies(to_proba(new)), proba)
    step = s[..., None]
    a -= torch.maximum(a, a + step).amax(-1, keepdim=True)
    before, after = a.exp(), (a + step).exp()
    total = before.sum(-1, keepdim=True) - before + after
    weighted = before * a
    mean = (weighted.sum(-1, keepdim=True) - weighted + after * (a + step)) / total
    return -torch.einsum("rec,rc->re", total.log() - mean, proba)


def _entropies(proba: Tensor) -> Tensor:
    return torch.special.entr(proba).sum(-1)


def terms_of_outputs(criterion: str, new: Tensor, start: Tensor, to_proba: Probabilities | None = None) -> Tensor:
    """The same terms from the new outputs themselves: (..., e, c) and (e, c) -> (..., e), for one label each."""
    if criterion != "eer":
        return torch.linalg.vector_norm(new - start, dim=-1)
    return -_entropies(torch.softmax(new, dim=-1) if to_proba is None else to_proba(new))
