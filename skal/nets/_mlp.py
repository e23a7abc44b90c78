# SPDX-License-Identifier: BSD-3-Clause
"""The multi-layer perceptron."""

from collections.abc import Sequence
from math import prod

import torch
from torch import nn

from skal.exceptions import InvalidParameterError
from skal.nets._blocks import MOST_UNITS, check_widths, hidden_layers
from skal.validation import Choice, Integer, Real

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
}
KEPT_DEVIATION = 0.8796  # of a normal variable with standard deviation 1 that is cut off at -2 and 2


class MLP(nn.Module):
    """Fully connected network, which flattens its input.

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
    activation : {"relu", "leaky_relu", "elu", "gelu", "tanh"}, default="relu"
        Nonlinearity of the hidden layers.
    init : {"uniform", "he_normal", "truncated_normal"}, default="uniform"
        How the weights of all layers start. ``uniform`` is PyTorch's own, for weights and biases. The other two have
        zero biases, and weights of mean 0 and variance 2 / (inputs of the layer), as He et al. have it;
        ``truncated_normal`` has none beyond two standard deviations of the normal distribution that is cut off.

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
        activation: str = "relu",
        init: str = "uniform",
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
        Choice(*ACTIVATIONS).check("MLP", "activation", activation)
        Choice("uniform", "he_normal", "truncated_normal").check("MLP", "init", init)
        widths = (prod(shape), *check_widths("MLP", "hidden", hidden))
        self.features = nn.Sequential(nn.Flatten(), *hidden_layers(widths, dropout, ACTIVATIONS[activation]))
        self.fc = nn.Linear(widths[-1], n_classes)
        if init != "uniform":
            for layer in self.modules():
                if isinstance(layer, nn.Linear):
                    _start(layer, truncated=init == "truncated_normal")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, n_classes) of samples (n, ...)."""
        logits: torch.Tensor = self.fc(self.features(x))
        return logits


def _start(layer: nn.Linear, *, truncated: bool) -> None:
    deviation = (2 / layer.in_features) ** 0.5
    if truncated:
        wide = deviation / KEPT_DEVIATION
        nn.init.trunc_normal_(layer.weight, std=wide, a=-2 * wide, b=2 * wide)
    else:
        nn.init.normal_(layer.weight, std=deviation)
    nn.init.zeros_(layer.bias)
