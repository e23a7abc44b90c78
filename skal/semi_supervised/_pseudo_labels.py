"""Pseudo-labels: the loss that they give, and their refinement over the whole data set in the course of training."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from skal.exceptions import InvalidParameterError
from skal.semi_supervised._checks import real_numbers
from skal.semi_supervised._refinement import Refinement, column_residual, fit_refinement

__all__ = ["PseudoLabels", "check_target", "pseudo_label_loss"]


def pseudo_label_loss(logits: Tensor, proba: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """``mean_i 1[max p_i ≥ τ]·CE(logits_i, argmax p_i)``, over all samples, the masked ones too.

    Parameters
    ----------
    logits : (n, C) tensor
        Of the strongly augmented samples.
    proba : (n, C) tensor
        Of the weakly augmented ones; no gradient flows into it.
    threshold : float

    Returns
    -------
    loss : scalar tensor
    kept : (n,) bool tensor
    labels : (n,) tensor
        The pseudo-labels, those of masked samples too.

    Examples
    --------
    >>> proba = torch.tensor([[0.97, 0.03], [0.6, 0.4]])
    >>> loss, kept, labels = pseudo_label_loss(torch.zeros(2, 2), proba, 0.95)
    >>> round(loss.item(), 4), kept.tolist(), labels.tolist()  # log(2) / 2
    (0.3466, [True, False], [0, 0])
    """
    confidence, labels = proba.detach().max(dim=1)
    kept = confidence >= threshold
    losses = F.cross_entropy(logits, labels, reduction="none")
    return (losses * kept).mean(), kept, labels


class PseudoLabels:
    """The latest probabilities of every sample, and DARP over all of them every so many iterations.

    Parameters
    ----------
    n_samples, n_classes : int
    target : (C,) array or None
        Shares of the classes; None leaves the probabilities as they are and stores nothing.
    warmup, every : int
        The first iteration with refined labels, and how often the refinement is computed.
    alpha : float or None
    device : torch.device

    Attributes
    ----------
    residual : float
        The largest relative deviation from the target that a refinement was left with.
    """

    def __init__(
        self,
        n_samples: int,
        n_classes: int,
        target: np.ndarray | None,
        *,
        warmup: int = 0,
        every: int = 10,
        alpha: float | None = 2.0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.target = None
        self.refinement: Refinement | None = None
        self.residual = 0.0
        self.warmup, self.every, self.alpha = warmup, every, alpha
        if target is not None:
            self.target = torch.as_tensor(target, dtype=torch.float64, device=device)
            self.table = torch.zeros(n_samples, n_classes, device=device)
            self.seen = torch.zeros(n_samples, dtype=torch.bool, device=device)

    def __call__(self, rows: Tensor, proba: Tensor, iteration: int) -> Tensor:
        """(n, C) labels of these rows: the probabilities, refined when it is time.

        The refinement comes from the whole table and is applied to the probabilities of this very batch, which are
        newer than those that the table held when it was computed.
        """
        if self.target is None:
            return proba
        self.table[rows] = proba.to(self.table.dtype)
        self.seen[rows] = True
        if iteration < self.warmup:
            return proba
        if self.refinement is None or (iteration - self.warmup) % self.every == 0:
            self._refine(self.target)
        assert self.refinement is not None
        return self.refinement(proba).to(proba.dtype)

    def _refine(self, target: Tensor) -> None:
        table = self.table[self.seen].double()
        table /= table.sum(dim=1, keepdim=True)
        masses = target * len(table)
        start = None if self.refinement is None else self.refinement.multipliers
        self.refinement, _ = fit_refinement(table, masses, alpha=self.alpha, tol=1e-4, start=start)
        self.residual = max(self.residual, column_residual(self.refinement(table), masses))


def check_target(owner: str, darp: Any, labels: np.ndarray, n_classes: int) -> np.ndarray | None:
    """(C,) shares of the classes that a ``darp`` parameter stands for, None for no refinement.

    ``"labels"`` counts one more of each class than there are labels of it: a class is not known to be absent because
    nobody has labelled one yet.
    """
    if darp is None:
        return None
    if isinstance(darp, str) and darp == "uniform":
        return np.full(n_classes, 1 / n_classes)
    if isinstance(darp, str) and darp == "labels":
        counts = np.bincount(labels[labels >= 0], minlength=n_classes) + 1.0
        return counts / counts.sum()
    shares = real_numbers(darp)
    target = np.empty(0) if shares is None else shares.cpu().numpy()
    if target.shape != (n_classes,) or not np.isfinite(target).all() or (target < 0).any() or target.sum() <= 0:
        raise InvalidParameterError.for_parameter(
            owner,
            "darp",
            f"None, 'uniform', 'labels', or {n_classes} numbers >= 0, one for each class, not all of them 0",
            darp,
            "Pass the classes' shares.",
        )
    return target / target.sum()
