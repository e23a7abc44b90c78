"""Wide residual networks."""

import torch
from torch import nn

from skal.exceptions import InvalidParameterError
from skal.nets._layers import check_sizes, dropout_layer, initialise_convolutions
from skal.validation import check_integer, check_real


class WideResNet(nn.Module):
    """Wide residual network WRN-depth-width (Zagoruyko and Komodakis 2016), with pre-activation blocks.

    A 3x3 convolution to 16 channels, three groups of ``(depth - 4) / 6`` blocks with 16, 32 and 64 times
    ``width`` channels, the last two of which halve the image, then batch norm, ReLU, global average pooling
    and a linear layer. Where a block changes the shape, its shortcut is a 1x1 convolution of the activated
    input.

    Parameters
    ----------
    depth : int, default=28
        ``6 n + 4`` for n blocks per group: 10, 16, 22, 28, 40... The "1-block WideResNet" of the NTK
        look-ahead paper is ``depth=10``.
    width : int, default=2
        Factor on the number of channels. ``WideResNet(28, 2)`` ends in 128 features.
    dropout : float, default=0.0
        Dropout rate between the two convolutions of each block.
    in_channels : int, default=3
        Channels of the images.
    n_classes : int, default=10
        Number of logits.

    Examples
    --------
    >>> import torch
    >>> from skal.nets import WideResNet
    >>> net = WideResNet(depth=10, width=1, in_channels=1)
    >>> net(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        depth: int = 28,
        width: int = 2,
        dropout: float = 0.0,
        in_channels: int = 3,
        n_classes: int = 10,
    ) -> None:
        super().__init__()
        check_integer("WideResNet", "depth", depth, 10)
        n_blocks, rest = divmod(depth - 4, 6)
        if rest:
            remedy = "Pass 10, 16, 22, 28 or 40 for n = 1, 2, 3, 4 or 6 blocks per group."
            raise InvalidParameterError.for_parameter("WideResNet", "depth", "6 n + 4 with n >= 1", depth, remedy)
        check_real("WideResNet", "dropout", dropout, 0, 1, below_maximum=True)
        check_sizes("WideResNet", in_channels, width=width, n_classes=n_classes)

        self.conv1 = nn.Conv2d(in_channels, 16, kernel_size=3, padding=1, bias=False)
        self.layer1 = _group(n_blocks, 16, 16 * width, 1, dropout)
        self.layer2 = _group(n_blocks, 16 * width, 32 * width, 2, dropout)
        self.layer3 = _group(n_blocks, 32 * width, 64 * width, 2, dropout)
        self.bn = nn.BatchNorm2d(64 * width)
        self.relu = nn.ReLU()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(64 * width, n_classes)
        initialise_convolutions(self)
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, n_classes) of images (n, in_channels, height, width)."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
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
