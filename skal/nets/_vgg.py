# SPDX-License-Identifier: BSD-3-Clause
"""VGG-11 for small images."""

from collections.abc import Sequence

import torch
from torch import nn

from skal.nets._blocks import check_sizes, check_widths, hidden_layers
from skal.validation import Choice, Real

# Channels of each 3x3 convolution; "M" is 2x2 max pooling. Configuration A of Simonyan and Zisserman (2015).
_CONFIGURATION: tuple[int | str, ...] = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512, "M")


class VGG11(nn.Module):
    """VGG-11 with torchvision's convolutions and a classifier for small images.

    The ``features`` have torchvision's configuration, names and initialisation, so that its ``features``
    weights load. Pooling rounds sizes up, so that one pixel stays one pixel: images may have any size, and
    sizes divisible by 32 give exactly torchvision's maps. What is left is averaged to one pixel of 512
    channels. The classifier has ReLU and dropout after each hidden layer, as torchvision's, but is 512 wide
    instead of 4096, whose 120 million parameters are meant for 224x224 images. It starts from PyTorch's
    default initialisation.

    Parameters
    ----------
    batch_norm : bool, default=True
        Batch normalisation after every convolution.
    in_channels : int, default=3
        Channels of the images.
    n_classes : int, default=10
        Number of logits.
    dropout : float, default=0.5
        Dropout rate after each hidden layer of the classifier.
    hidden : int or sequence of int, default=(512, 512)
        Widths of the classifier's hidden layers; ``()`` leaves one linear layer.

    Examples
    --------
    >>> import torch
    >>> from skal.nets import VGG11
    >>> net = VGG11(batch_norm=True, in_channels=3, n_classes=10)
    >>> net(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        batch_norm: bool = True,
        in_channels: int = 3,
        n_classes: int = 10,
        dropout: float = 0.5,
        hidden: int | Sequence[int] = (512, 512),
    ) -> None:
        super().__init__()
        remedy = "Pass in_channels and n_classes by name if one of them was meant."
        Choice(True, False, remedy=remedy).check("VGG11", "batch_norm", batch_norm)
        check_sizes("VGG11", in_channels, n_classes=n_classes)
        Real(0, 1, below_maximum=True).check("VGG11", "dropout", dropout)
        widths = (512, *check_widths("VGG11", "hidden", hidden))

        self.features = _features(in_channels, batch_norm)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Sequential(*hidden_layers(widths, dropout), nn.Linear(widths[-1], n_classes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, n_classes) of images (n, in_channels, height, width)."""
        logits: torch.Tensor = self.classifier(self.flatten(self.avgpool(self.features(x))))
        return logits


def _features(channels: int, batch_norm: bool) -> nn.Sequential:
    """The convolutions and pooling layers, in torchvision's order and with its initialisation."""
    layers: list[nn.Module] = []
    for entry in _CONFIGURATION:
        if isinstance(entry, str):
            layers.append(nn.MaxPool2d(kernel_size=2, stride=2, ceil_mode=True))
            continue
        convolution = nn.Conv2d(channels, entry, kernel_size=3, padding=1)
        nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
        layers.append(convolution)
        if batch_norm:
            layers.append(nn.BatchNorm2d(entry))
        layers.append(nn.ReLU(inplace=True))
        channels = entry
    return nn.Sequential(*layers)
