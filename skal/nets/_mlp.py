# SPDX-License-Identifier: BSD-3-Clause
"""The multi-layer perceptron."""

from collections.abc import Sequence
from math import prod

import torch
from torch import nn

from skal.exceptions import InvalidParameterError
from skal.nets._blocks import MOST_UNITS, check_widths, hidden_layers
from skal.validation import Integer, Real


class MLP(nn.Module):
    """Fully connected network with ReLU, which flattens its input.

    Parameters
    ----------
    n_features : int or sequence of int
        Number of values per sample, or the shape of a sample, such as ``(1, 8, 8)``.
    n_classes : int, default=10
        Number of logits.
    hidden : int or sequence of int, default=(128, 128)
        Widths of the hidden layers; ``()`` gives a linear classifier.
    dropout : float, default=0.0
        Dropout rate after each hidden layer.

    Examples
    --------
    >>> import torch
    >>> from skal.nets import MLP
    >>> net = MLP(n_features=(1, 8, 8), n_classes=10, hidden=(32,))
    >>> net(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        n_features: int | Sequence[int],
        n_classes: int = 10,
        hidden: int | Sequence[int] = (128, 128),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        shape = check_widths("MLP", "n_features", n_features)
        if not shape:
            expected = "an integer or the shape of a sample"
            raise InvalidParameterError.for_parameter(
                "MLP", "n_features", expected, n_features, "Pass (1, 8, 8) or 64."
            )
        Integer(1, MOST_UNITS).check("MLP", "n_classes", n_classes)
        Real(0, 1, below_maximum=True).check("MLP", "dropout", dropout)
        widths = (prod(shape), *check_widths("MLP", "hidden", hidden))
        self.features = nn.Sequential(nn.Flatten(), *hidden_layers(widths, dropout))
        self.fc = nn.Linear(widths[-1], n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, n_classes) of samples (n, ...)."""
        logits: torch.Tensor = self.fc(self.features(x))
        return logits
