# SPDX-License-Identifier: BSD-3-Clause
"""The small convolutional network of PyTorch's CIFAR-10 tutorial."""

import torch
from torch import nn

from skal.nets._blocks import MOST_UNITS, check_sizes, dropout_layer
from skal.validation import Integer, Real

# Two unpadded 5x5 convolutions, each followed by 2x2 pooling, leave at least one pixel from this size on.
_SMALLEST_UNPADDED = 16


class CNN(nn.Module):
    """The network of PyTorch's CIFAR-10 tutorial, for square images of any size from 4x4.

    Two 5x5 convolutions (6 and 16 channels), each followed by ReLU and 2x2 max pooling, then fully connected
    layers of 120 and 84 units and the logits. Layer names are the tutorial's: ``conv1``, ``conv2``, ``fc1``,
    ``fc2``, ``fc3``.

    Parameters
    ----------
    in_channels : int, default=3
        Channels of the images.
    n_classes : int, default=10
        Number of logits.
    image_size : int, default=32
        Side of the images. From 16 up the convolutions are unpadded, as in the tutorial; below that they are
        padded by 2 pixels, which keeps the image size, since nothing would be left otherwise.
    dropout : float, default=0.0
        Dropout rate before each of the three fully connected layers.

    Examples
    --------
    >>> import torch
    >>> from skal.nets import CNN
    >>> net = CNN(in_channels=1, image_size=28, dropout=0.5)
    >>> net(torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 10])
    """

    def __init__(self, in_channels: int = 3, n_classes: int = 10, image_size: int = 32, dropout: float = 0.0) -> None:
        super().__init__()
        check_sizes("CNN", in_channels, n_classes=n_classes)
        Integer(4, MOST_UNITS, remedy="Enlarge images that are smaller than 4x4.").check(
            "CNN", "image_size", image_size
        )
        Real(0, 1, below_maximum=True).check("CNN", "dropout", dropout)

        padding = 0 if image_size >= _SMALLEST_UNPADDED else 2
        side = image_size
        for _ in range(2):
            side = (side + 2 * padding - 4) // 2

        # One module per call, not one shared by all: per-layer hooks then see each layer once.
        self.conv1 = nn.Conv2d(in_channels, 6, kernel_size=5, padding=padding)
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(6, 16, kernel_size=5, padding=padding)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2)
        self.flatten = nn.Flatten()
        self.dropout1 = dropout_layer(dropout)
        self.fc1 = nn.Linear(16 * side * side, 120)
        self.relu3 = nn.ReLU()
        self.dropout2 = dropout_layer(dropout)
        self.fc2 = nn.Linear(120, 84)
        self.relu4 = nn.ReLU()
        self.dropout3 = dropout_layer(dropout)
        self.fc3 = nn.Linear(84, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, n_classes) of images (n, in_channels, image_size, image_size)."""
        x = self.pool1(self.relu1(self.conv1(x)))
        x = self.pool2(self.relu2(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu3(self.fc1(self.dropout1(x)))
        x = self.relu4(self.fc2(self.dropout2(x)))
        logits: torch.Tensor = self.fc3(self.dropout3(x))
        return logits
