# SPDX-License-Identifier: BSD-3-Clause
"""Wide residual networks."""

import torch
from torch import nn

from skal.exceptions import InvalidParameterError
from skal.nets._blocks import MOST_LAYERS, check_sizes, dropout_layer, initialise_convolutions
from skal.validation import Choice, Integer, Real


class WideResNet(nn.Module):
    """Wide residual network WRN-depth-width (Zagoruyko and Komodakis 2016), with pre-activation blocks.

    A 3x3 convolution to 16 channels, three groups of ``(depth - 4) / 6`` blocks with 16, 32 and 64 times
    ``width`` channels, the last two of which halve the image, then batch norm, ReLU, global average pooling
    and a linear layer. Where a block changes the shape, its shortcut is a 1x1 convolution of the activated
    input. With ``groups`` the network ends after the first or the second group.

    Parameters
    ----------
    depth : int, default=28
        ``6 n + 4`` for n blocks per group: 10, 16, 22, 28, 40... It is the depth with all three groups.
    width : int, default=2
        Factor on the number of channels. ``WideResNet(28, 2)`` ends in 128 features.
    dropout : float, default=0.0
        Dropout rate between the two convolutions of each block.
    in_channels : int, default=3
        Channels of the images.
    n_classes : int, default=10
        Number of logits.
    groups : int, default=3
        How many groups there are: 1, 2 or 3. The networks of the NTK look-ahead papers have one block in one or two
        groups and at most 640 channels: ``WideResNet(10, 40, groups=1)`` and ``WideResNet(10, 20, groups=2)``.

    Examples
    --------
    >>> import torch
    >>> from skal.nets import WideResNet
    >>> net = WideResNet(depth=10, width=1, in_channels=1)
    >>> net(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    >>> WideResNet(10, 40, groups=1).fc.in_features, WideResNet(10, 20, groups=2).fc.in_features
    (640, 640)
    """

    def __init__(
        self,
        depth: int = 28,
        width: int = 2,
        dropout: float = 0.0,
        in_channels: int = 3,
        n_classes: int = 10,
        groups: int = 3,
    ) -> None:
        super().__init__()
        Integer(10, MOST_LAYERS).check("WideResNet", "depth", depth)
        Choice(1, 2, 3).check("WideResNet", "groups", groups)
        n_blocks, rest = divmod(depth - 4, 6)
        if rest:
            remedy = "Pass 10, 16, 22, 28 or 40 for n = 1, 2, 3, 4 or 6 blocks per group."
            raise InvalidParameterError.for_parameter("WideResNet", "depth", "6 n + 4 with n >= 1", depth, remedy)
        Real(0, 1, below_maximum=True).check("WideResNet", "dropout", dropout)
        check_sizes("WideResNet", in_channels, width=width, n_classes=n_classes)

        self.conv1 = nn.Conv2d(in_channels, 16, kernel_size=3, padding=1, bias=False)
        channels = 16
        for number in range(1, groups + 1):
            before, channels = channels, 8 * width * 2**number
            self.add_module(f"layer{number}", _group(n_blocks, before, channels, min(number, 2), dropout))
        self.groups = groups
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(channels, n_classes)
        initialise_convolutions(self)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, n_classes) of images (n, in_channels, height, width)."""
        x = self.conv1(x)
        for number in range(1, self.groups + 1):
            x = self.get_submodule(f"layer{number}")(x)
        x = self.avgpool(self.relu(self.bn(x)))
        logits: torch.Tensor = self.fc(self.flatten(x))
        return logits


class _PreActivationBlock(nn.Module):
    """Batch norm, ReLU, convolution, twice, added to the block's input."""

    def __init__(self, in_channels: int, channels: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.relu2 = nn.ReLU()
        self.dropout = dropout_layer(dropout)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Conv2d(in_channels, channels, kernel_size=1, stride=stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        activated = self.relu1(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        out = self.relu2(self.bn2(self.conv1(activated)))
        outputs: torch.Tensor = self.conv2(self.dropout(out)) + shortcut
        return outputs


def _group(n_blocks: int, in_channels: int, channels: int, stride: int, dropout: float) -> nn.Sequential:
    first = _PreActivationBlock(in_channels, channels, stride, dropout)
    rest = [_PreActivationBlock(channels, channels, 1, dropout) for _ in range(n_blocks - 1)]
    return nn.Sequential(first, *rest)
