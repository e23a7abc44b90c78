"""The multi-layer perceptron."""

from collections.abc import Sequence
from math import prod

import torch
from torch import nn

from ._validation import check_dropout, check_int, check_widths, dropout_layer

__all__ = ["MLP"]


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
            raise ValueError(
                "The n_features parameter of MLP must be an integer or the shape of a sample. "
                "Got an empty shape instead. Pass for example n_features=64 or n_features=(1, 8, 8)."
            )
        n_classes = check_int("MLP", "n_classes", n_classes)
        rate = check_dropout("MLP", dropout)

        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(shape)
        for next_width in check_widths("MLP", "hidden", hidden):
            layers += [nn.Linear(width, next_width), nn.ReLU(), dropout_layer(rate)]
            width = next_width
        self.features = nn.Sequential(*layers)
        self.fc = nn.Linear(width, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, n_classes) of samples (n, ...)."""
        return self.fc(self.features(x))
