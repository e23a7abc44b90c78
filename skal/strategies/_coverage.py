"""Coverage of a set of samples by some of them, maximised greedily.

``Cov(S) = Σ_x w(x) max_{s ∈ S} k(x, s)`` is monotone and submodular in S for weights w ≥ 0. A gain can only shrink when
S grows, so that an old gain is an upper bound: lazy evaluation makes the same picks as greedy evaluation of everything.

Index letters: N candidates, e evaluation samples, m centres, d features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skal._core.memory import rows_within
from skal.strategies._gains import Gains, Similarity
from skal.strategies._pool_features import row_keys

KERNELS = ["rbf", "laplace", "tophat", "cosine"]
BLOCK_BYTES = 2**24  # of features and similarities that are worked on at once
_FIRST_LOOK = 64  # candidates whose gains are brought up to date at first
_MOST_RIVALS = 256  # candidates whose gains are compared in double precision; of more, content decides
_DOUBLE_ERROR = 1e-10  # of a similarity, below which nothing more can be told in double precision
_COLUMNS = 512  # points that are made double at once
_PRODUCT_ERROR = 16  # of a squared distance of features of length 1, in units of rounding


def similarity_to(points: Tensor, kernel: str, radius: float) -> Similarity:
    """Function that gives the similarity of other rows to the points, or to those from ``start`` to ``stop``.

    It maps (n, d) rows to (n, stop - start) values, in [0, 1] for features of length 1.

    Examples
    --------
    >>> points = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> similarity_to(points, "tophat", 1.0)(points[:1])
    tensor([[1., 0.]])
    """
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


def _correct_near(squares: Tensor, limit: float, rows: Tensor, points: Tensor) -> None:
    """Compute those squared distances in double precision that rounding may have put on the wrong side of a limit."""
    unsure = ((squares - limit).abs_() <= _PRODUCT_ERROR * torch.finfo(squares.dtype).eps).nonzero()
    if len(unsure) > squares.numel() // 64:  # whole products are quicker
        for start in range(0, len(points), _COLUMNS):
            some = slice(start, start + _COLUMNS)
            squares[:, some] = _outside(torch.cdist(rows.double(), points[some].double()).square_(), limit)
        return
    for i, j in (pairs.T for pairs in unsure.split(rows_within(2**21, 24 * rows.shape[1]))):
        squares[i, j] = _outside((rows[i].double() - points[j].double()).square_().sum(1), limit)


def _outside(squares: Tensor, limit: float) -> Tensor:
    """Squared distances as twice the limit if they are above it, and 0 otherwise, which no rounding moves."""
    return (squares > limit).float() * (2 * limit)


@dataclass(frozen=True)
class Kernel:
    """Similarity of samples with features of length 1.

    Parameters
    ----------
    name : {"rbf", "laplace", "tophat", "cosine"}
    radius : float
        σ
    """

    name: str
    radius: float

    def to(self, points: Tensor) -> Similarity:
        """What gives the similarity of other rows to the points."""
        return similarity_to(points, self.name, self.radius)

    def error(self, dtype: torch.dtype) -> float:
        """By how much a similarity may be wrong for rounding; that of a ball is right or wrong as a whole."""
        eps = torch.finfo(dtype).eps
        square = _PRODUCT_ERROR * eps
        root = (_PRODUCT_ERROR * torch.finfo(torch.float64).eps) ** 0.5  # of a square in double precision, near 0
        errors = {"rbf": square / self.radius**2, "laplace": root / self.radius, "cosine": square, "tophat": -eps}
        bound: float = errors[self.name] + eps
        return bound

    def precisely_to(self, points: Tensor) -> Similarity:
        """The same in double precision, right to the last digits: distances come from differences."""
        points = points.double()
        if self.name != "laplace":
            return self.to(points)
        mode = "donot_use_mm_for_euclid_dist"
        return lambda rows: torch.cdist(rows.double(), points, compute_mode=mode).mul_(-1 / self.radius).exp_()


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


def covered_by(centres: Tensor, similarity: Similarity, n: int, block_bytes: int, like: Tensor) -> Tensor:
    """The largest similarity of each of n evaluation samples to a centre, 0 without any: (m, d) -> (n,)."""
    covered = like.new_zeros(n)
    for some in centres.split(rows_within(block_bytes, 24 * n)) if len(centres) else ():
        covered = torch.maximum(covered, similarity(some).amax(0))
    return covered


def _gains_in_double(
    features: Tensor, centres: Tensor, kernel: Kernel, evaluation: Tensor, weights: Tensor, block_bytes: int
) -> Tensor:
    """Gains of some candidates, in double precision: (r, d), and (m, d) features of what covers already -> (r,)."""
    features, centres = features.double(), centres.double()
    gains = features.new_zeros(len(features))
    step = rows_within(block_bytes, 8 * (2 * features.shape[1] + 3 * len(features)))
    for points, weight in zip(evaluation.split(step), weights.split(step), strict=True):
        similarity = kernel.precisely_to(points)
        covered = covered_by(centres, similarity, len(points), block_bytes, centres)
        gains += similarity(features).sub_(covered).clamp_min_(0) @ weight.double()
    return gains


class _Content:
    """Numbers that depend on nothing but a candidate's features."""

    def __init__(self, read: Callable[[Tensor], Tensor], n: int, step: int) -> None:
        self._read, self._n, self._step = read, n, step
        self._of_all: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        if self._of_all is None and len(rows) <= _MOST_RIVALS:
            return row_keys(self._read(rows))
        if self._of_all is None:  # so many will be asked for again
            self._of_all = torch.empty(self._n, dtype=torch.float64, device=rows.device)
            for some in torch.arange(self._n, device=rows.device).split(self._step):
                self._of_all[some] = row_keys(self._read(some))
        return self._of_all[rows]


def greedy_coverage(
    read: Callable[[Tensor], Tensor],
    keys: Tensor,
    kernel: Kernel,
    evaluation: Tensor,
    weights: Tensor,
    labelled: Tensor,
    taken: Tensor,
    n_instances: int,
    *,
    symmetric: bool = False,
    room: int = 2**29,
    block_bytes: int = BLOCK_BYTES,
    first_look: int = _FIRST_LOOK,
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates that raise the coverage most, one after the other.

    A copy of a taken or picked sample is not picked while others are left. Candidates whose gains are equal but for
    the rounding of single precision are compared in double precision. Of those that are still equal, one is picked by
    its content, so that the order of the candidates does not matter.

    Parameters
    ----------
    read : callable
        Features of some candidates: (r,) rows -> (r, d) tensor.
    keys : (N,) tensor
        Equal for copies; see :meth:`PoolFeatures.copy_keys`.
    kernel : Kernel
        k
    evaluation : (e, d) tensor
        Features of the samples x that are summed over.
    weights : (e,) tensor
        w ≥ 0, in the precision of the features.
    labelled : (n, d) tensor
        Features of the samples that are labelled already.
    taken : (m,) tensor
        The keys of those samples.
    n_instances : int
        At most N.
    symmetric : bool
        Whether the candidates are the evaluation samples, in their order.
    room, block_bytes : int
        Bytes for similarities that are kept, and for what is worked on.
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
    >>> ball = Kernel("tophat", 0.15)
    >>> greedy_coverage(X.__getitem__, torch.arange(4), ball, X, torch.ones(4), X[:0], torch.zeros(0), 2)
    (array([1, 2]), array([3., 1.]))
    """
    similarity = kernel.to(evaluation)
    covered = covered_by(labelled, similarity, len(evaluation), min(2**21, block_bytes), weights)
    error = kernel.error(weights.dtype)
    width = evaluation.shape[1]
    gains_of = Gains(read, len(keys), similarity, weights, covered, error, width, room, block_bytes)

    def compared(rows: Tensor) -> Tensor:
        """Gains of rivals, summed over the samples that one of them may cover better."""
        features = read(rows)
        counting = gains_of.samples_for(features)
        centres = torch.cat([labelled, read(torch.as_tensor(picked, dtype=torch.int64, device=rows.device))])
        return _gains_in_double(features, centres, kernel, evaluation[counting], weights[counting], block_bytes)

    content = _Content(read, len(keys), rows_within(block_bytes, 12 * width))
    gains, errors = gains_of.of_all(symmetric)
    up_to_date = torch.full_like(gains, -1, dtype=torch.int32)  # how many picks a gain knows of
    spent = torch.isin(keys, taken.to(keys))  # copies of what is labelled or picked
    free = torch.ones_like(spent)
    picked: list[int] = []
    metrics: list[float] = []
    for number in range(n_instances):
        open_ = free & ~spent
        if not bool(open_.any()):
            open_ = free
        n_looked_at = first_look
        while True:
            highest = (gains + errors).masked_fill_(~open_, -torch.inf)  # what a gain may be at most
            known = (up_to_date == number) & open_
            at_least = (gains - errors)[known].amax() if bool(known.any()) else -torch.inf
            rivals = highest >= at_least
            stale = (rivals & ~known & open_).nonzero()[:, 0]
            if len(stale) == 0:
                break
            if len(stale) > n_looked_at:
                stale = stale[highest[stale].topk(n_looked_at).indices]
            gains[stale], errors[stale] = gains_of.of(stale)
            up_to_date[stale] = number
            n_looked_at *= 4
        rows = (rivals & open_).nonzero()[:, 0]
        if 1 < len(rows) <= _MOST_RIVALS and error > _DOUBLE_ERROR:
            gains[rows] = exact = compared(rows)
            rows = rows[exact >= exact.amax() * (1 - 1e-12)]
        chosen = rows if len(rows) == 1 else rows[content(rows).argmax()][None]
        picked.append(int(chosen))
        metrics.append(float(gains[chosen]))
        free[chosen] = False
        spent |= keys == keys[chosen]
        gains_of.cover(chosen)
    return np.array(picked), np.array(metrics)
