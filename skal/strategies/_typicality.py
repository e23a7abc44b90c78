# SPDX-License-Identifier: BSD-3-Clause
"""Typicality: one over the mean distance of a sample to its nearest neighbours.

Index letters: n points of a cluster, d features, k neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from skal.context import rows_within

BLOCK_BYTES = 2**26
# squared distances of features of length 1 are wrong by less than 2e-6 in single precision, so that mean distances of
# more than this are right to 5e-5
_SURELY = 0.15
_CLOSE = 1e-4


def typicality(points: Tensor, n_neighbors: int, block_bytes: int = BLOCK_BYTES) -> np.ndarray:
    """One over the mean distance to the nearest other points, in double precision: (n, d) -> (n,).

    A point without neighbours, or with copies alone, is as typical as can be.

    Examples
    --------
    >>> typicality(torch.tensor([[0.0], [1.0], [3.0]]), n_neighbors=1)
    array([1. , 1. , 0.5])
    """
    if len(points) == 1:
        return np.full(1, 1e300)
    points = points.double()  # squares of small distances lose half of their digits
    typicalities: np.ndarray = 1 / np.maximum(_mean_distances(points, n_neighbors, block_bytes).cpu().numpy(), 1e-300)
    return typicalities


def most_typical(
    load: Callable[[], Tensor], n_neighbors: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[tuple[int, float]]:
    """Points by their typicality, the most typical first: pairs of position and typicality.

    Where single precision, if that is the features' own, tells the first one from all others, the others are computed
    when they are asked for. Until then the points, which ``load`` gives, are not kept.
    """
    first, points = None, load()
    if points.dtype == torch.float32 and len(points) > 1:
        means = _mean_distances(points, n_neighbors, block_bytes)
        low = means.min()
        if float(low) > _SURELY and int((means <= low * (1 + _CLOSE)).sum()) == 1:
            first = int(means.argmin())
            del points
            yield first, 1 / float(low)
            points = load()
    typical = typicality(points, n_neighbors, block_bytes)
    del points
    for row in np.argsort(-typical, kind="stable").tolist():
        if row != first:
            yield row, float(typical[row])


def _mean_distances(points: Tensor, n_neighbors: int, block_bytes: int) -> Tensor:
    """Of every point to its nearest other points: (n, d) -> (n,)."""
    k = min(n_neighbors, len(points) - 1)
    lengths, means = points.square().sum(1), []
    step = rows_within(block_bytes, 2 * points.element_size() * len(points))
    for start, rows in zip(range(0, len(points), step), points.split(step), strict=True):
        squares = torch.addmm(lengths, rows, points.T, alpha=-2).add_(lengths[start : start + len(rows), None])
        squares.diagonal(start).fill_(torch.inf)
        means.append(squares.topk(k, largest=False, sorted=False).values.clamp_min_(0).sqrt_().mean(1))
    return torch.cat(means)
