# SPDX-License-Identifier: BSD-3-Clause
"""Layers that several networks have."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import nn

from skal.validation import Integer

MOST_UNITS = 10**7  # of a layer, or pixels a side
MOST_LAYERS = 10**4


def check_sizes(owner: str, in_channels: Any, **sizes: Any) -> None:
    """Refuse channels of images, and other sizes, that are not integers >= 1."""
    Integer(1, MOST_UNITS, remedy="Pass 1 for grey or 3 for colour.").check(owner, "in_channels", in_channels)
    for name, value in sizes.items():
        Integer(1, MOST_LAYERS if name == "depth" else MOST_UNITS).check(owner, name, value)


def check_widths(owner: str, name: str, value: Any) -> tuple[int, ...]:
    """Layer widths as a tuple; a single integer stands for one layer."""
    widths = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for width in widths:
        Integer(1, MOST_UNITS, remedy="Pass an integer or a sequence of integers, such as (128, 128).").check(
            owner, name, width
        )
    return tuple(widths)


def dropout_layer(rate: float) -> nn.Module:
    """Dropout, or the identity for rate 0, so that a search for dropout layers finds none."""
    return nn.Dropout(rate) if rate else nn.Identity()


def hidden_layers(widths: Sequence[int], dropout: float, activation: type[nn.Module] = nn.ReLU) -> list[nn.Module]:
    """Fully connected layers from each width to the next, each with a nonlinearity and dropout."""
    layers: list[nn.Module] = []
    for width, next_width in pairwise(widths):
        layers += [nn.Linear(width, next_width), activation(), dropout_layer(dropout)]
    return layers


def initialise_convolutions(module: nn.Module) -> None:
    """He's initialisation, by the number of outputs."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
