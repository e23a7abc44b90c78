# SPDX-License-Identifier: BSD-3-Clause
"""Pseudo-labels: the loss that they give, their refinement in the course of training, and an epoch's statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from skal.semi_supervised._darp import check_masses
from skal.semi_supervised._refinement import Refinement, column_residual, fit_refinement
from skal.validation import Choice


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
        The pseudo-labels, also of masked samples.

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


class RefinedLabels:
    """The latest probabilities of every sample, and DARP over all of them every ``every`` iterations.

    Parameters
    ----------
    n_samples : int
    target : (C,) float64 tensor
        Shares of the classes; everything is kept on its device, which may be another one than the network's.
    warmup, every : int
        The first iteration with refined labels, and how often the refinement is computed.
    alpha : float or None

    Attributes
    ----------
    residual : float
        The largest relative deviation from the target that a refinement was left with.
    """

    def __init__(
        self, n_samples: int, target: Tensor, *, warmup: int = 0, every: int = 10, alpha: float | None = 2.0
    ) -> None:
        self.target = target
        self.warmup, self.every, self.alpha = warmup, every, alpha
        self.table = torch.zeros(n_samples, len(target), device=target.device)
        self.seen = torch.zeros(n_samples, dtype=torch.bool, device=target.device)
        self.refinement: Refinement | None = None
        self.residual = 0.0

    def __call__(self, rows: Tensor, proba: Tensor, iteration: int) -> Tensor:
        """(n, C) labels of these rows: the probabilities, refined when it is time.

        The refinement comes from the whole table and is applied to the probabilities of this very batch, which are
        newer than those that the table held when it was computed.
        """
        here = self.table.device
        rows, known = rows.to(here), proba.to(here)
        self.table[rows] = known.to(self.table.dtype)
        self.seen[rows] = True
        if iteration < self.warmup:
            return proba
        if self.refinement is None or (iteration - self.warmup) % self.every == 0:
            self.refinement = self._refine()
        return self.refinement(known).to(proba.dtype).to(proba.device)

    def _refine(self) -> Refinement:
        table = self.table[self.seen].double()
        table /= table.sum(dim=1, keepdim=True)
        masses = self.target * len(table)
        start = None if self.refinement is None else self.refinement.multipliers
        refinement, _ = fit_refinement(table, masses, alpha=self.alpha, tol=1e-4, start=start)
        self.residual = max(self.residual, column_residual(refinement(table), masses))
        return refinement


def class_shares(owner: str, darp: Any, labels: np.ndarray, n_classes: int) -> Tensor | None:
    """(C,) shares of the classes that a ``darp`` parameter stands for, None for no refinement.

    ``"labels"`` counts one more of each class than there are labels of it: a class is not known to be absent because
    nobody has labelled one yet.
    """
    if darp is None:
        return None
    remedy = "Pass None, 'uniform', 'labels', or the classes' shares."
    if isinstance(darp, str):
        Choice("uniform", "labels", remedy=remedy).check(owner, "darp", darp)
        counts = np.bincount(labels[labels >= 0], minlength=n_classes) + 1.0 if darp == "labels" else np.ones(n_classes)
        shares = torch.as_tensor(counts, device="cpu")
    else:
        shares = check_masses(owner, "darp", darp, n_classes, remedy)
    return shares / shares.sum()


class EpochStatistics:
    """Sums over the iterations of an epoch, kept on the device so that nothing waits for them.

    Parameters
    ----------
    n_classes : int
    truth : (n,) tensor or None
        True labels of all samples, −1 where unknown.
    device : torch.device or str
    """

    def __init__(self, n_classes: int, truth: Tensor | None, device: torch.device | str) -> None:
        self.truth = None if truth is None else truth.to(device)
        self.n_classes = n_classes
        self.device = device
        self._reset()

    def _reset(self) -> None:
        self.n_batches = 0
        self.n_seen = 0
        self.losses = torch.zeros(2, device=self.device)
        self.kept = torch.zeros(self.n_classes, device=self.device)  # by pseudo-label
        self.right = torch.zeros(2, device=self.device)  # right, and known at all

    def add_labelled(self, loss: Tensor) -> None:
        """Take the loss of a labelled batch in."""
        self.n_batches += 1
        self.losses[0] += loss.detach()

    @torch.no_grad()
    def add_unlabelled(self, loss: Tensor, kept: Tensor, labels: Tensor, rows: Tensor) -> None:
        """Take the loss of an unlabelled batch in, and its pseudo-labels."""
        self.losses[1] += loss.detach()
        self.n_seen += len(kept)
        self.kept.index_add_(0, labels, kept.to(self.kept.dtype))
        if self.truth is not None:
            truth = self.truth[rows]
            known = kept & (truth >= 0)
            self.right += torch.stack([(known & (labels == truth)).sum(), known.sum()])

    def summary(self) -> dict[str, float | list[float] | None]:
        """The epoch's means, as the history takes them; then everything starts from zero."""
        labelled, unlabelled = (self.losses / max(self.n_batches, 1)).tolist()
        result: dict[str, float | list[float] | None] = {"labelled_loss": labelled}
        if self.n_seen:
            n_kept = float(self.kept.sum())
            result["unlabelled_loss"] = unlabelled
            result["mask_rate"] = n_kept / self.n_seen
            result["pseudo_distribution"] = (self.kept / max(n_kept, 1)).tolist()
            if self.truth is not None:
                right, known = self.right.tolist()
                result["pseudo_accuracy"] = right / known if known else None
        self._reset()
        return result
