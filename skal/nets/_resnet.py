# SPDX-License-Identifier: BSD-3-Clause
"""ResNet-18 with torchvision's parameter names, and a stem for small images."""

from typing import Literal

import torch
from torch import nn

from skal.nets._blocks import check_sizes, initialise_convolutions
from skal.validation import Choice


class ResNet18(nn.Module):
    """ResNet-18 (He et al. 2016), for small or large images.

    Structure, parameter names and initialisation are torchvision's, so that
    ``ResNet18(stem="imagenet", n_classes=1000).load_state_dict(weights)`` takes its weights. With the
    ``"cifar"`` stem all but ``conv1.weight`` has the same shape too.

    Parameters
    ----------
    stem : {"cifar", "imagenet"}, default="cifar"
        The first layer. ``"cifar"`` is a 3x3 convolution that keeps the image size, without pooling.
        ``"imagenet"`` is a 7x7 convolution and max pooling, which divide the size by 4.
    width : int, default=64
        Channels of the first stage; the others have 2, 4 and 8 times as many.
    in_channels : int, default=3
        Channels of the images.
    n_classes : int, default=10
        Number of logits.

    Examples
    --------
    >>> import torch
    >>> from skal.nets import ResNet18
    >>> net = ResNet18(stem="cifar", width=8, in_channels=1)
    >>> net(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(
        self,
        stem: Literal["cifar", "imagenet"] = "cifar",
        width: int = 64,
        in_channels: int = 3,
        n_classes: int = 10,
    ) -> None:
        super().__init__()
        remedy = "Use 'cifar' for images up to about 64x64, 'imagenet' for larger ones."
        Choice("cifar", "imagenet", remedy=remedy).check("ResNet18", "stem", stem)
        check_sizes("ResNet18", in_channels, width=width, n_classes=n_classes)

        size, stride = (7, 2) if stem == "imagenet" else (3, 1)
        self.conv1 = nn.Conv2d(in_channels, width, kernel_size=size, stride=stride, padding=size // 2, bias=False)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1) if stem == "imagenet" else nn.Identity()
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _stage(width, width, stride=1)
        self.layer2 = _stage(width, 2 * width, stride=2)
        self.layer3 = _stage(2 * width, 4 * width, stride=2)
        self.layer4 = _stage(4 * width, 8 * width, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8 * width, n_classes)
        initialise_convolutions(self)  # batch norm starts at weight 1 and bias 0, fc as PyTorch has it

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, n_classes) of images (n, in_channels, height, width)."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = torch.flatten(self.avgpool(x), 1)
        logits: torch.Tensor = self.fc(x)
        return logits


class _BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to the block's input."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, channels, kernel_size=1, stride=stride, bias=False),
                nn.BatchNorm2d(channels),
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        outputs: torch.Tensor = self.relu(out)
        return outputs


def _stage(in_channels: int, channels: int, stride: int) -> nn.Sequential:
    return nn.Sequential(_BasicBlock(in_channels, channels, stride), _BasicBlock(channels, channels, 1))
