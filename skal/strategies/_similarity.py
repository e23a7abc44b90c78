# SPDX-License-Identifier: BSD-3-Clause
"""How similar samples are, by kernels on features of length 1, and the radius that labelled samples suggest.

Index letters: n rows, m points, d features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skal.context import rows_within
from skal.strategies._pool_features import row_keys

KERNELS = ["rbf", "laplace", "tophat", "cosine"]
Similarity = Callable[..., Tensor]
_BLOCK_BYTES = 2**24  # bytes of distances that are worked on at once
_COLUMNS = 512  # points that are made double at once
PRODUCT_ERROR = 16  # error of a squared distance of features of length 1, in units of rounding


def similarity_to(points: Tensor, kernel: str, radius: float) -> Similarity:
    """Function that gives the similarity of other rows to the points, or to those from ``start`` to ``stop``.

    It maps (n, d) rows to (n, stop - start) values, in [0, 1] for features of length 1.

    Examples
    --------
    >>> points = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> similarity_to(points, "tophat", 1.0)(points[:1])
    tensor([[1., 0.]])
    """
    if kernel == "forest":
        return _share_of_trees(points)
    if kernel == "cosine":
        return lambda rows, start=0, stop=None: (rows @ points[start:stop].T).clamp_min_(0)
    dtype = points.dtype
    if kernel == "laplace":  # the root of a small square has half of its digits
        points = points.double()
    lengths = points.square().sum(1)

    def squares(rows: Tensor, start: int, stop: int | None) -> Tensor:
        rows = rows.to(points)
        products = torch.addmm(lengths[start:stop], rows, points[start:stop].T, alpha=-2)
        return products.add_(rows.square().sum(1, keepdim=True)).clamp_min_(0)

    if kernel == "rbf":
        return lambda rows, start=0, stop=None: squares(rows, start, stop).mul_(-1 / radius**2).exp_()
    if kernel == "laplace":
        return lambda rows, start=0, stop=None: squares(rows, start, stop).sqrt_().mul_(-1 / radius).exp_().to(dtype)
    # a distance that equals the radius counts, whatever rounding says
    limit = radius**2 * (1 + 8 * torch.finfo(dtype).eps)

    def inside(rows: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        found = squares(rows, start, stop)
        if dtype != torch.float64:
            _correct_near(found, limit, rows, points[start:stop])
        return (found <= limit).to(dtype)

    return inside


def _share_of_trees(leaves: Tensor) -> Similarity:
    """A function that gives the share of trees in which rows share a leaf: (m, T), then (n, T) -> (n, m)."""
    dtype, by_tree = leaves.dtype, leaves.to(torch.int32).T.contiguous()
    counter = torch.uint8 if len(by_tree) < 256 else torch.int32  # smaller is quicker

    def share(rows: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
        rows, points = rows.to(torch.int32), by_tree[:, start:stop]
        counts = torch.zeros(len(rows), points.shape[1], dtype=counter, device=points.device)
        for tree in range(len(points)):
            counts += (rows[:, tree, None] == points[tree]).view(torch.uint8)
        return counts.to(dtype).div_(len(points))

    return share


def _correct_near(squares: Tensor, limit: float, rows: Tensor, points: Tensor) -> None:
    """Compute those squared distances in double precision that rounding may have put on the wrong side of a limit."""
    unsure = true_positions((squares - limit).abs_() <= PRODUCT_ERROR * torch.finfo(squares.dtype).eps)
    if len(unsure) > squares.numel() // 64:  # whole products are quicker
        for start in range(0, len(points), _COLUMNS):
            some = slice(start, start + _COLUMNS)
            squares[:, some] = _outside(torch.cdist(rows.double(), points[some].double()).square_(), limit)
        return
    for some in unsure.split(rows_within(2**21, 24 * rows.shape[1])):
        i = some.div(len(points), rounding_mode="floor")
        j = some - i * len(points)
        squares[i, j] = _outside((rows[i].double() - points[j].double()).square_().sum(1), limit)


def _outside(squares: Tensor, limit: float) -> Tensor:
    """Squared distances as twice the limit if they are above it, and 0 otherwise, which no rounding moves."""
    return (squares > limit).float() * (2 * limit)


@dataclass(frozen=True)
class Kernel:
    """Similarity of samples with features of length 1.

    Parameters
    ----------
    name : {"rbf", "laplace", "tophat", "cosine", "forest"}
        ``forest`` compares leaves, see :mod:`skal.strategies._leaves`.
    radius : float
        σ
    """

    name: str
    radius: float

    def to(self, points: Tensor) -> Similarity:
        """A function that gives the similarity of other rows to the points."""
        return similarity_to(points, self.name, self.radius)

    def error(self, dtype: torch.dtype) -> float:
        """The largest error that rounding makes in a similarity; for balls a similarity is either right or wrong."""
        eps = torch.finfo(dtype).eps
        square = PRODUCT_ERROR * eps
        root = (PRODUCT_ERROR * torch.finfo(torch.float64).eps) ** 0.5  # of a square near 0, in double precision
        errors = {
            "rbf": square / self.radius**2,
            "laplace": root / self.radius,
            "cosine": square,
            "tophat": -eps,
            "forest": 0.0,
        }
        bound: float = errors.get(self.name, 0.0) + eps  # leaves are counted
        return bound

    def precisely_to(self, points: Tensor) -> Similarity:
        """Similarities in double precision, right to the last digits: distances come from differences."""
        points = points.double()
        if self.name != "laplace":
            return self.to(points)
        mode = "donot_use_mm_for_euclid_dist"
        return lambda rows: torch.cdist(rows.double(), points, compute_mode=mode).mul_(-1 / self.radius).exp_()


def nearest_distances(points: Tensor, block_bytes: int = _BLOCK_BYTES) -> Tensor:
    """Distance from every point to the nearest one that is no copy of it; inf if there is none: (n, d) -> (n,)."""
    points = points.double()
    keys = row_keys(points)
    nearest = points.new_full((len(points),), torch.inf)
    for rows in torch.arange(len(points), device=points.device).split(rows_within(block_bytes, 24 * len(points))):
        distances = torch.cdist(points[rows], points, compute_mode="donot_use_mm_for_euclid_dist")
        distances.masked_fill_(keys[rows, None] == keys, torch.inf)
        nearest[rows] = distances.amin(1)
    return nearest


def labelled_radius(labelled: Tensor, radius: str) -> float:
    """Median (``"auto"``) or smallest distance of labelled samples to the nearest one that is no copy; 1 without."""
    nearest = nearest_distances(labelled) if len(labelled) > 1 else labelled.new_empty(0)
    nearest = nearest[torch.isfinite(nearest)]
    if len(nearest) == 0:
        return 1.0
    return float(nearest.min() if radius == "minimum" else np.median(nearest.cpu()))  # torch's is the lower median


def half_median_distance(points: Tensor) -> float:
    """Half the median distance between two different points; 1 if there are no two: (n, d) -> float."""
    distances = torch.pdist(points.double())
    distances = distances[distances > 0]
    return float(distances.quantile(0.5)) / 2 if len(distances) else 1.0


def coverage_by(centres: Tensor, similarity: Similarity, n: int, block_bytes: int, like: Tensor) -> Tensor:
    """The largest similarity of each of n evaluation samples to a centre, 0 without any: (m, d) -> (n,)."""
    covered = like.new_zeros(n)
    for some in centres.split(rows_within(block_bytes, 24 * n)) if len(centres) else ():
        covered = torch.maximum(covered, similarity(some).amax(0))
    return covered


def true_positions(mask: Tensor) -> Tensor:
    """Flat positions where a mask is true: (n, m) -> (p,)."""
    if mask.device.type == "cpu":  # several times faster
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.flatten().nonzero()[:, 0]
