"""Coverage of a set of samples by some of them, maximised greedily.

``Cov(S) = Σ_x w(x) max_{s ∈ S} k(x, s)`` is monotone and submodular in S for weights w ≥ 0. A gain can only shrink when
S grows, so that an old gain is an upper bound: lazy evaluation makes the same picks as greedy evaluation of everything.

Index letters: N candidates, e evaluation samples, m centres, d features.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal._core.memory import rows_within
from skal.strategies._pool_features import row_keys

KERNELS = ["rbf", "laplace", "tophat", "cosine"]
BLOCK_BYTES = 2**26  # of features that are read at once
CACHE_BYTES = 2**21  # of similarities that are made at once: they are worked on several times, near the processor
_FIRST_LOOK = 16  # candidates whose gains are brought up to date at first

Similarity = Callable[..., Tensor]


def similarity_to(points: Tensor, kernel: str, radius: float) -> Similarity:
    """Function that gives the similarity of other rows to the points, or to those from ``start`` on.

    It maps (n, d) rows to (n, e - start) values, in [0, 1] for features of length 1.

    Examples
    --------
    >>> points = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> similarity_to(points, "tophat", 1.0)(points[:1])
    tensor([[1., 0.]])
    """
    if kernel == "cosine":
        return lambda rows, start=0: (rows @ points[start:].T).clamp_min_(0)
    dtype = points.dtype
    if kernel == "laplace":  # the root of a small square has half of its digits
        points = points.double()
    lengths = points.square().sum(1)

    def squares(rows: Tensor, start: int) -> Tensor:
        rows = rows.to(points)
        products = torch.addmm(lengths[start:], rows, points[start:].T, alpha=-2)
        return products.add_(rows.square().sum(1, keepdim=True)).clamp_min_(0)

    if kernel == "rbf":
        return lambda rows, start=0: squares(rows, start).mul_(-1 / radius**2).exp_()
    if kernel == "laplace":
        return lambda rows, start=0: squares(rows, start).sqrt_().mul_(-1 / radius).exp_().to(dtype)
    # a distance that equals the radius counts, whatever rounding says
    limit = radius**2 * (1 + 8 * torch.finfo(dtype).eps)
    return lambda rows, start=0: (squares(rows, start) <= limit).to(dtype)


def nearest_distances(points: Tensor, block_bytes: int = BLOCK_BYTES) -> Tensor:
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
    return float(nearest.min() if radius == "minimum" else nearest.median())


class _Gains:
    """By how much candidates would raise the coverage, with their similarities kept as far as there is room.

    Candidates that are asked for once are likely to be asked for again, so that a store that is too small for all of
    them holds those that came after the first look at everything.
    """

    def __init__(self, read: Any, n: int, similarity: Similarity, weights: Tensor, covered: Tensor, room: int) -> None:
        self._read, self._similarity, self._weights, self.covered = read, similarity, weights, covered
        e, size = len(weights), weights.element_size()
        self._step = rows_within(CACHE_BYTES, size * e, at_least=8)
        self._reads = max(self._step, rows_within(BLOCK_BYTES // 4, 4096))
        capacity = min(n, room // (size * e))
        self._keeping = capacity == n
        self._store = weights.new_empty((capacity, e))
        self._place = torch.full((n,), -1, device=weights.device)
        self._n_stored = 0

    def of_all(self, symmetric: bool) -> tuple[Tensor, Tensor]:
        """Gains of all candidates, and numbers that tell their features apart: (N,), (N,)."""
        if symmetric and self._keeping:
            known = self._fill_by_symmetry()
            return self.of(self._place), known
        gains, keys = [], []
        for rows in torch.arange(len(self._place), device=self._place.device).split(self._reads):
            features = self._read(rows)
            keys.append(row_keys(features))
            gains += [self._gains(self._computed(*part)) for part in self._parts(rows, features)]
        self._keeping = True
        return torch.cat(gains), torch.cat(keys)

    def _fill_by_symmetry(self, step: int = 128) -> Tensor:
        """Half of the similarities, each of which stands in two places; returns the keys."""
        keys = []
        everything = torch.arange(len(self._place), device=self._place.device)
        for start, rows in zip(range(0, len(everything), step), everything.split(step), strict=True):
            features = self._read(rows)
            keys.append(row_keys(features))
            values, stop = self._similarity(features, start), start + len(rows)
            self._store[start:stop, start:] = values
            self._store[stop:, start:stop] = values[:, len(rows) :].T
        self._place, self._n_stored = everything, len(everything)
        return torch.cat(keys)

    def of(self, rows: Tensor) -> Tensor:
        """Gains of some candidates: (r,) -> (r,)."""
        gains = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
        kept = self._place[rows] >= 0
        places = self._place[rows[kept]]
        if len(places):
            gains[kept] = torch.cat([self._gains(self._store[some]) for some in places.split(self._step)])
        if len(places) < len(rows):
            # part by part: there may be no room for the features of all of them
            parts = (part for some in rows[~kept].split(self._reads) for part in self._parts(some, self._read(some)))
            gains[~kept] = torch.cat([self._gains(self._computed(*part)) for part in parts])
        return gains

    def cover(self, row: Tensor) -> None:
        """Count a candidate among those that cover."""
        place = int(self._place[row])
        values = self._store[place] if place >= 0 else self._similarity(self._read(row))[0]
        self.covered = torch.maximum(self.covered, values)

    def _parts(self, rows: Tensor, features: Tensor) -> Any:
        return zip(rows.split(self._step), features.split(self._step), strict=True)

    def _computed(self, rows: Tensor, features: Tensor) -> Tensor:
        values = self._similarity(features)
        n_kept = min(len(rows), len(self._store) - self._n_stored) if self._keeping else 0
        if n_kept:
            places = slice(self._n_stored, self._n_stored + n_kept)
            self._store[places] = values[:n_kept]
            self._place[rows[:n_kept]] = torch.arange(places.start, places.stop, device=rows.device)
            self._n_stored += n_kept
        return values

    def _gains(self, values: Tensor) -> Tensor:
        """From similarities that may be overwritten."""
        return (values.sub_(self.covered).clamp_min_(0) @ self._weights).double()


def greedy_coverage(
    read: Callable[[Tensor], Tensor],
    keys: Tensor,
    similarity: Similarity,
    weights: Tensor,
    covered: Tensor,
    taken: Tensor,
    n_instances: int,
    *,
    symmetric: bool = False,
    room: int = 2**29,
    first_look: int = _FIRST_LOOK,
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates that raise the coverage most, one after the other.

    A copy of a taken or picked sample is not picked while others are left. Of candidates whose gains are equal but for
    rounding, one is picked by the content of its features, so that the order of the candidates does not matter.

    Parameters
    ----------
    read : callable
        Features of some candidates: (r,) rows -> (r, d) tensor.
    keys : (N,) tensor
        Equal for copies; see :meth:`PoolFeatures.copy_keys`.
    similarity : callable
        Of features to the evaluation samples: (n, d) -> (n, e).
    weights : (e,) tensor
        w ≥ 0, in the precision of the similarities.
    covered : (e,) tensor
        ``max_s k(x, s)`` over the samples that are labelled already.
    taken : (m,) tensor
        The keys of those samples.
    n_instances : int
        At most N.
    symmetric : bool
        Whether the candidates are the evaluation samples, in their order.
    room : int
        Bytes for similarities that are kept.
    first_look : int
        How many gains are brought up to date at first.

    Returns
    -------
    picked : (n_instances,) array, distinct, in the order of choice
    gains : (n_instances,) array
        By how much each raised the coverage.

    Examples
    --------
    >>> X = torch.tensor([[0.0], [0.1], [5.0], [0.2]])
    >>> near = similarity_to(X, "tophat", 0.15)
    >>> greedy_coverage(X.__getitem__, torch.arange(4), near, torch.ones(4), torch.zeros(4), torch.zeros(0), 2)
    (array([1, 2]), array([3., 1.]))
    """
    gains_of = _Gains(read, len(keys), similarity, weights, covered, room)
    bounds, order = gains_of.of_all(symmetric)
    equal = 1 - torch.finfo(weights.dtype).eps ** 0.75
    up_to_date = torch.zeros_like(bounds, dtype=torch.int64)  # how many picks a gain knows of
    spent = torch.isin(keys, taken.to(keys))  # copies of what is labelled or picked
    free = torch.ones_like(spent)
    picked: list[int] = []
    gains: list[float] = []
    for number in range(n_instances):
        open_ = free & ~spent
        if not bool(open_.any()):
            open_ = free
        ranked = bounds.masked_fill(~open_, -torch.inf)
        n_looked_at = first_look
        while True:
            best = ranked.amax()
            rows = (ranked >= best * equal).nonzero()[:, 0]
            if bool((up_to_date[rows] == number).all()):
                break
            if len(rows) < n_looked_at:
                rows = ranked.topk(min(n_looked_at, len(keys))).indices
            rows = rows[(up_to_date[rows] < number) & open_[rows]]
            bounds[rows] = ranked[rows] = gains_of.of(rows)
            up_to_date[rows] = number
            n_looked_at *= 4
        chosen = rows[order[rows].argmax()]
        picked.append(int(chosen))
        gains.append(float(bounds[chosen]))
        free[chosen] = False
        spent |= keys == keys[chosen]
        gains_of.cover(chosen[None])
    return np.array(picked), np.array(gains)
