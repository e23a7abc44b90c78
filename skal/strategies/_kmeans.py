# SPDX-License-Identifier: BSD-3-Clause
"""K-means on the device of the points: seeds by k-means++ on some of them, then Lloyd's sweeps over all.

Index letters: n points, d features, K clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from skal.context import rows_within

_CACHE_BYTES = 2**21  # bytes of products that are made at once


def kmeans(
    blocks: Callable[[], Iterable[Tensor]],
    sample: Tensor,
    n_clusters: int,
    generator: np.random.Generator,
    *,
    tol: float = 0.01,
    max_sweeps: int = 50,
) -> tuple[Tensor, Tensor]:
    """Clusters and their centres, which are the means of their points.

    Parameters
    ----------
    blocks : callable
        Gives all n points, in parts of (m, d); called once for every sweep.
    sample : (s, d) tensor
        Some of the points, for the seeds.
    n_clusters : int
        K
    generator : numpy.random.Generator
    tol : float
        Stop when a sweep has lowered the sum of squared distances by less than this share. The clusters are then those
        of the last sweep.
    max_sweeps : int

    Returns
    -------
    centres : (K, d) tensor
        Copies among them, if there are fewer different points.
    clusters : (n,) tensor

    Examples
    --------
    >>> points = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> centres, clusters = kmeans(lambda: points.split(2), points, 2, np.random.default_rng(0))
    >>> centres[clusters].T
    tensor([[0.0500, 0.0500, 5.0500, 5.0500]])
    """
    chosen = seeds(sample.cpu().numpy(), n_clusters, generator)
    centres = sample[torch.as_tensor(chosen, device=sample.device)]
    last = torch.inf
    for _ in range(max_sweeps):
        sums, total, clusters = torch.zeros_like(centres), 0.0, []
        for points in blocks():
            clusters.append(nearest_centres(points, centres))
            sums.index_add_(0, clusters[-1], points)
            total += float(torch.linalg.vector_norm(points).double() ** 2)
        counts = torch.bincount(torch.cat(clusters), minlength=n_clusters)[:, None]
        # a cluster that has lost all its points stays where it was
        centres = torch.where(counts > 0, sums / counts.clamp_min(1), centres)
        # of the squared distances to the new centres, which are means
        total -= float((counts * centres.square()).sum(dtype=torch.float64))
        if total >= last * (1 - tol):
            break
        last = total
    return centres, torch.cat(clusters)


def nearest_centres(points: Tensor, centres: Tensor) -> Tensor:
    """The nearest centre of every point: (n, d), (K, d) -> (n,)."""
    half, columns = centres.square().sum(1) / 2, centres.T.contiguous()
    step = rows_within(_CACHE_BYTES, points.element_size() * len(centres), at_least=64)
    # half of the squared distance, without what all centres have in common
    return torch.cat([torch.addmm(half, some, columns, alpha=-1).argmin(1) for some in points.split(step)])


def seeds(points: np.ndarray, n_seeds: int, generator: np.random.Generator) -> np.ndarray:
    """Points far from one another, by greedy k-means++: of a few draws in proportion to the squared distance, the best.

    Parameters
    ----------
    points : (n, d) array
    n_seeds : int
        K
    generator : numpy.random.Generator

    Returns
    -------
    (K,) array
        Some more than once, if there are fewer different points.
    """
    lengths = np.square(points).sum(1)
    squares = points @ points.T
    squares *= -2
    squares += lengths
    squares += lengths[:, None]
    np.maximum(squares, 0, out=squares)
    np.fill_diagonal(squares, 0)
    n_draws = 2 + int(np.log(n_seeds))
    chosen = [int(generator.integers(len(points)))]
    nearest = squares[chosen[0]]
    while len(chosen) < n_seeds:
        heights = np.cumsum(nearest, dtype=np.float64)
        draws = np.searchsorted(heights, generator.random(n_draws) * heights[-1], side="right")
        draws = np.minimum(draws, len(points) - 1)
        candidates = np.minimum(squares[draws], nearest)
        best = int(candidates.sum(1).argmin())
        chosen.append(int(draws[best]))
        nearest = candidates[best]
    return np.array(chosen)
