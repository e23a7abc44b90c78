# SPDX-License-Identifier: BSD-3-Clause
"""A stack of convolutions with global average pooling, the convolutional network of NTK theory."""

import torch
from torch import nn

from skal.nets._blocks import check_sizes


class ConvNet(nn.Module):
    """Convolutions with ReLU, global average pooling, and a linear layer.

    All convolutions are 3x3 with stride 1, padding 1 and ``width`` channels; there is no other pooling and no
    normalisation, so images may have any size. Convolutions start from He's initialisation, which keeps the
    scale of the signal whatever the depth.

    Parameters
    ----------
    in_channels : int, default=3
        Channels of the images.
    n_classes : int, default=10
        Number of logits.
    depth : int, default=3
        Number of convolutions.
    width : int, default=64
        Channels of every convolution.

    Examples
    --------
    >>> import torch
    >>> from skal.nets import ConvNet
    >>> net = ConvNet(in_channels=1, n_classes=10, depth=3, width=16)
    >>> net(torch.zeros(5, 1, 8, 8)).shape
    torch.Size([5, 10])
    """

    def __init__(self, in_channels: int = 3, n_classes: int = 10, depth: int = 3, width: int = 64) -> None:
        super().__init__()
        check_sizes("ConvNet", in_channels, n_classes=n_classes, depth=depth, width=width)

        layers: list[nn.Module] = []
        for channels in (in_channels, *[width] * (depth - 1)):
            convolution = nn.Conv2d(channels, width, kernel_size=3, padding=1)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
            layers += [convolution, nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(width, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, n_classes) of images (n, in_channels, height, width)."""
        logits: torch.Tensor = self.fc(self.flatten(self.avgpool(self.features(x))))
        return logits
