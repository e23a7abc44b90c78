"""The tangent kernel of an infinitely wide convolutional network with global average pooling.

Convolutions of 3 × 3 pixels with zero padding, ReLU, the mean over the image and a linear layer, in the parametrisation
of ``skal._lookahead.comparators``, whose arc-cosine functions κ it has as well. For pixels p of one image and r of
another, with the nine shifts δ of a convolution (pixels outside are 0),

    Θ_1[p, r] = q_1[p, r] = σ_w² / 9 Σ_δ x[p+δ]·z[r+δ] / channels + σ_b²,
    q_{l+1}[p, r] = σ_w² / 9 Σ_δ κ_1(q_l)[p+δ, r+δ] + σ_b²,
    Θ_{l+1}[p, r] = q_{l+1}[p, r] + σ_w² / 9 Σ_δ (κ_0(q_l) Θ_l)[p+δ, r+δ],
    Θ = σ_w² mean_{p, r} (κ_1(q_L) + κ_0(q_L) Θ_L) + σ_b².
"""

from __future__ import annotations

from math import pi

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from skal._lookahead.comparators import BIAS_VARIANCE, WEIGHT_VARIANCE

PAIRS_AT_ONCE = 256


def convolutional_kernel(X: np.ndarray, depth: int = 3) -> np.ndarray:
    """(n, n) kernel between images (n, channels, height, width), in float64."""
    images = torch.as_tensor(X).double()
    scaled = images / images.shape[1] ** 0.5
    # (depth, n, h, w): the variance of every pixel's outputs in each layer
    variances = [WEIGHT_VARIANCE / 9 * _sum_shifts(scaled.square().sum(1), 1) + BIAS_VARIANCE]
    for _ in range(depth - 1):
        variances.append(WEIGHT_VARIANCE / 9 * _sum_shifts(variances[-1] / 2, 1) + BIAS_VARIANCE)
    K = torch.empty(len(images), len(images), dtype=torch.float64)
    rows, columns = torch.triu_indices(len(images), len(images))
    for i, j in zip(rows.split(PAIRS_AT_ONCE), columns.split(PAIRS_AT_ONCE), strict=True):
        products = torch.einsum("kchw,kcuv->khwuv", scaled[i], scaled[j])
        K[i, j] = K[j, i] = _pairs(products, [(v[i], v[j]) for v in variances])
    return K.numpy()


def _sum_shifts(x: Tensor, n_images: int) -> Tensor:
    """Sum over the nine shifts of the last 2 · n_images axes, all images shifted alike; zeros outside."""
    padded = pad(x, (1, 1) * (2 * n_images))
    total = torch.zeros_like(x)
    for dy in range(3):
        for dx in range(3):
            part = padded
            for axis, shift in enumerate((dy, dx) * n_images, start=x.ndim - 2 * n_images):
                part = part.narrow(axis, shift, x.shape[axis])
            total += part
    return total


def _pairs(products: Tensor, variances: list[tuple[Tensor, Tensor]]) -> Tensor:
    """(k,) kernels of k pairs from the (k, h, w, h, w) products of their pixels."""
    q = WEIGHT_VARIANCE / 9 * _sum_shifts(products, 2) + BIAS_VARIANCE
    theta = q
    for number, (own, other) in enumerate(variances, start=1):
        norms = (own[:, :, :, None, None] * other[:, None, None]).sqrt()
        cosine = (q / norms).clamp(-1, 1)
        angle = torch.arccos(cosine)
        slope = (pi - angle) / (2 * pi)
        moment = norms * (torch.sin(angle) / (2 * pi) + slope * cosine)
        if number == len(variances):
            break
        q = WEIGHT_VARIANCE / 9 * _sum_shifts(moment, 2) + BIAS_VARIANCE
        theta = q + WEIGHT_VARIANCE / 9 * _sum_shifts(slope * theta, 2)
    result: Tensor = WEIGHT_VARIANCE * (moment + slope * theta).mean((1, 2, 3, 4)) + BIAS_VARIANCE
    return result
