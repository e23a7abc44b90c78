# SPDX-License-Identifier: BSD-3-Clause
"""The binary cross-entropy of those labels that are known."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits


class KnownLabelsLoss(nn.BCEWithLogitsLoss):
    """``BCEWithLogitsLoss`` for several labels of which some are unknown: targets below 0 do not count.

    Parameters
    ----------
    weight : tensor, optional
        As of :class:`torch.nn.BCEWithLogitsLoss`, as are the others.
    size_average, reduce : bool, optional
        Old forms of ``reduction``.
    reduction : {"mean", "sum", "none"}, default="mean"
        The mean is over the known labels.
    pos_weight : tensor, optional
        Weights of labels that hold.

    Examples
    --------
    >>> import torch
    >>> from skal.nets import KnownLabelsLoss
    >>> outputs = torch.tensor([[0.0, 5.0], [0.0, -5.0]])
    >>> KnownLabelsLoss()(outputs, torch.tensor([[1.0, -1.0], [0.0, -1.0]]))  # ln 2
    tensor(0.6931)
    """

    def forward(self, input: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss of outputs (n, L) for targets (n, L) that are 0, 1 or, if unknown, −1."""
        known = target >= 0
        if bool(known.all()):
            return super().forward(input, target)
        options = {"weight": self.weight, "pos_weight": self.pos_weight, "reduction": "none"}
        losses = binary_cross_entropy_with_logits(input, target.clamp_min(0), **options) * known  # type: ignore[arg-type]
        if self.reduction == "none":
            return losses
        return losses.sum() if self.reduction == "sum" else losses.sum() / known.sum().clamp_min(1)
