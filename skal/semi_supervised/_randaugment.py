# SPDX-License-Identifier: BSD-3-Clause
"""RandAugment's operations on batches of images, in plain torch, every image with a magnitude of its own.

Images are (n, C, H, W) in [0, 1]; magnitudes ``m`` are (n,) in [0, 1]; operations return images of the same shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def _blend(base: Tensor | float, x: Tensor, m: Tensor) -> Tensor:
    """From base (factor 0) towards x (factor 1), with factors in [0.05, 0.95]."""
    factor = (0.05 + 0.9 * m)[:, None, None, None]
    return (base + factor * (x - base)).clamp(0, 1)


def _grey(x: Tensor) -> Tensor:
    """(n, 1, H, W) luminance; images without three channels give the mean of what they have."""
    if x.shape[1] != 3:
        return x.mean(dim=1, keepdim=True)
    return (x * x.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(dim=1, keepdim=True)


def identity(x: Tensor, m: Tensor) -> Tensor:
    """The image itself."""
    return x


def autocontrast(x: Tensor, m: Tensor) -> Tensor:
    """Every channel stretched to [0, 1]; constant ones stay."""
    low, high = x.amin(dim=(2, 3), keepdim=True), x.amax(dim=(2, 3), keepdim=True)
    return torch.where(high > low, (x - low) / (high - low).clamp(min=1e-12), x)


def brightness(x: Tensor, m: Tensor) -> Tensor:
    """Towards black."""
    return _blend(0.0, x, m)


def color(x: Tensor, m: Tensor) -> Tensor:
    """Towards grey."""
    return _blend(_grey(x), x, m)


def contrast(x: Tensor, m: Tensor) -> Tensor:
    """Towards the image's mean grey."""
    return _blend(_grey(x).mean(dim=(2, 3), keepdim=True), x, m)


def equalize(x: Tensor, m: Tensor) -> Tensor:
    """Every channel's histogram of 256 levels made even."""
    levels = (x * 255).round().long().clamp(0, 255).flatten(2)  # (n, C, HW)
    counts = torch.zeros(*levels.shape[:2], 256, dtype=x.dtype, device=x.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels, dtype=x.dtype))
    below = counts.cumsum(dim=2) - counts
    # the highest level that occurs becomes white, the lowest black; a constant channel stays
    span = below.gather(2, levels.amax(dim=2, keepdim=True))
    flat = torch.where(span > 0, below.gather(2, levels) / span.clamp(min=1), x.flatten(2))
    return flat.reshape(x.shape)


def posterize(x: Tensor, m: Tensor) -> Tensor:
    """The upper 4 to 8 bits of 8."""
    step = 2 ** (4 - (4 * m).floor())[:, None, None, None]
    return ((x * 255).div(step).floor() * step / 255).clamp(0, 1)


def sharpness(x: Tensor, m: Tensor) -> Tensor:
    """Towards the smoothed image; its border stays."""
    if min(x.shape[2:]) < 3:
        return x
    kernel = x.new_ones(x.shape[1], 1, 3, 3)
    kernel[:, :, 1, 1] = 5
    smooth = x.clone()
    smooth[:, :, 1:-1, 1:-1] = F.conv2d(x, kernel / 13, groups=x.shape[1])
    return _blend(smooth, x, m)


def solarize(x: Tensor, m: Tensor) -> Tensor:
    """Pixels of at least 1 − m inverted."""
    return torch.where(x >= (1 - m)[:, None, None, None], 1 - x, x)


def _affine(x: Tensor, entries: dict[tuple[int, int], Tensor | float]) -> Tensor:
    """The images seen through an affine map of the square [−1, 1]²: ``entries`` replace those of the identity."""
    theta = torch.eye(2, 3, dtype=x.dtype, device=x.device).repeat(len(x), 1, 1)
    for (row, column), value in entries.items():
        theta[:, row, column] = value
    return F.grid_sample(x, F.affine_grid(theta, list(x.shape), align_corners=False), align_corners=False)


def _draw_sign(m: Tensor, largest: float) -> Tensor:
    return largest * m * (2 * torch.randint(0, 2, m.shape, device=m.device) - 1)


def rotate(x: Tensor, m: Tensor) -> Tensor:
    """By up to 30 degrees."""
    angle = _draw_sign(m, math.pi / 6)
    ratio = x.shape[2] / x.shape[3]  # keep angles in images that are not square
    cos, sin = angle.cos(), angle.sin()
    return _affine(x, {(0, 0): cos, (0, 1): -sin * ratio, (1, 0): sin / ratio, (1, 1): cos})


def shear_x(x: Tensor, m: Tensor) -> Tensor:
    """By up to 0.3 of the height, sideways."""
    return _affine(x, {(0, 1): _draw_sign(m, 0.3)})


def shear_y(x: Tensor, m: Tensor) -> Tensor:
    """By up to 0.3 of the width, upwards or downwards."""
    return _affine(x, {(1, 0): _draw_sign(m, 0.3)})


def translate_x(x: Tensor, m: Tensor) -> Tensor:
    """By up to 0.3 of the width."""
    return _affine(x, {(0, 2): _draw_sign(m, 0.6)})  # the square is 2 wide


def translate_y(x: Tensor, m: Tensor) -> Tensor:
    """By up to 0.3 of the height."""
    return _affine(x, {(1, 2): _draw_sign(m, 0.6)})


OPERATIONS: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (
    identity, autocontrast, brightness, color, contrast, equalize, posterize,
    rotate, sharpness, shear_x, shear_y, solarize, translate_x, translate_y,
)  # fmt: skip


def randaugment(x: Tensor, n_ops: int = 2, probability: float = 0.5) -> Tensor:
    """``n_ops`` random operations of random magnitude on each image, each of them with that probability."""
    for _ in range(n_ops):
        choice = torch.randint(len(OPERATIONS), (len(x),), device="cpu")
        choice[torch.rand(len(x), device="cpu") >= probability] = 0  # the identity
        magnitude = torch.rand(len(x), dtype=x.dtype, device=x.device)
        result = x.clone()
        for number in choice.unique().tolist():
            rows = (choice == number).nonzero()[:, 0].to(x.device)
            result[rows] = OPERATIONS[number](x[rows], magnitude[rows])
        x = result
    return x


def cutout(x: Tensor, share: float = 0.5, fill: float = 0.5) -> Tensor:
    """A square whose side is that share of the image's shorter one, at a random place, filled; it may stick out."""
    n, _, height, width = x.shape
    half = share * min(height, width) / 2
    rows, columns = torch.arange(height, device=x.device) + 0.5, torch.arange(width, device=x.device) + 0.5
    y, x0 = torch.rand(n, 1, device=x.device) * height, torch.rand(n, 1, device=x.device) * width
    covered = ((rows - y).abs() <= half)[:, None, :, None] & ((columns - x0).abs() <= half)[:, None, None, :]
    return torch.where(covered, fill, x)
