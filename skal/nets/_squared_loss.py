# SPDX-License-Identifier: BSD-3-Clause
"""The squared error between outputs and one-hot labels."""

from typing import Literal

import torch
from torch import nn

from skal.exceptions import InvalidParameterError
from skal.validation import Choice


class SquaredLoss(nn.Module):
    r"""Half the squared error between the outputs and the one-hot labels, a criterion for skorch.

    The loss of a sample with outputs f and label y is

    .. math:: \tfrac12 \sum_c (f_c - 1[c = y])^2

    whose gradient in f is ``f - one_hot(y)``, the residual of neural tangent kernel theory.

    Parameters
    ----------
    reduction : {"mean", "sum", "none"}, default="mean"
        Mean or sum over the samples (classes are always summed), or one value per sample.

    Notes
    -----
    The network is trained as a regression, so with this criterion the ``predict_proba`` of a skorch
    ``NeuralNetClassifier`` returns the outputs as they are: ``predict`` is right, but rows need not sum to 1.

    Examples
    --------
    >>> import torch
    >>> from skal.nets import SquaredLoss
    >>> outputs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    >>> SquaredLoss()(outputs, torch.tensor([0, 2]))
    tensor(0.2500)
    >>> SquaredLoss(reduction="none")(outputs, torch.tensor([0, 2]))
    tensor([0.0000, 0.5000])
    """

    def __init__(self, reduction: Literal["mean", "sum", "none"] = "mean") -> None:
        super().__init__()
        remedy = "Use 'mean' to train with skorch."
        Choice("mean", "sum", "none", remedy=remedy).check("SquaredLoss", "reduction", reduction)
        self.reduction = reduction

    def forward(self, outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the loss of outputs (n, C) for integer labels (n,)."""
        if outputs.ndim != 2 or target.ndim != 1 or len(outputs) != len(target):
            raise InvalidParameterError(
                f"SquaredLoss expects outputs of shape (n, C) and a target of shape (n,). "
                f"Got {tuple(outputs.shape)} and {tuple(target.shape)} instead. "
                f"Pass labels as integers, not one-hot, and one row of outputs per label."
            )
        if target.is_floating_point() or target.is_complex() or target.dtype == torch.bool:
            raise InvalidParameterError(
                f"The target of SquaredLoss must hold integer labels 0..C-1. Got {target.dtype} instead. "
                f"Convert it, for example y.astype('int64')."
            )
        residual = outputs - _one_hot(target, outputs)
        losses = 0.5 * residual.square().sum(dim=1)
        return losses if self.reduction == "none" else getattr(losses, self.reduction)()

    def extra_repr(self) -> str:
        """The text that ``repr`` shows in parentheses."""
        return f"reduction={self.reduction!r}"


def _one_hot(target: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    # scatter rather than F.one_hot, which reads the labels' values and so fails under torch.func.vmap.
    # For the same reason the range of the labels is left to scatter to check.
    try:
        return torch.zeros_like(outputs).scatter(1, target.long().unsqueeze(1), 1.0)
    except RuntimeError as error:
        raise InvalidParameterError(
            f"The target of SquaredLoss must hold labels 0..{outputs.shape[1] - 1}, one for each output. "
            f"Got a label outside instead ({error}). Relabel y, or give the network more outputs."
        ) from error
