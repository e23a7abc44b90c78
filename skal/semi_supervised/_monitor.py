"""What an epoch's pseudo-labels were like."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["Monitor"]


class Monitor:
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

    @torch.no_grad()
    def add(
        self,
        labelled_loss: Tensor,
        unlabelled_loss: Tensor | None = None,
        kept: Tensor | None = None,
        labels: Tensor | None = None,
        rows: Tensor | None = None,
    ) -> None:
        """Take one iteration in; without unlabelled samples only its loss."""
        self.n_batches += 1
        self.losses[0] += labelled_loss.detach()
        if unlabelled_loss is None or kept is None or labels is None or rows is None:
            return
        self.losses[1] += unlabelled_loss.detach()
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
