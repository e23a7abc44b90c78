# SPDX-License-Identifier: BSD-3-Clause
"""ProbCover: cover the pool with balls of one radius (Yehuda et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import query_function
from skal.context import QueryContext, rows_within
from skal.strategies._coverage_strategy import CoverageStrategy
from skal.strategies._kmeans import kmeans, nearest_centres
from skal.strategies._pool_features import PoolFeatures
from skal.strategies._similarity import PRODUCT_ERROR
from skal.validation import Integer, Real, make_generator

_MOST_POINTS = 5000  # clustered for the radius
_MOST_BALLS = 2000  # compared with the whole pool: a share of 95 % is then right to half a point
_FEWEST_POINTS = 200
_COPIES = 4  # of the points that are in memory at once
_SEEDS = 500  # points at least, among which k-means finds its first centres
_ROWS = 4096  # rows that k-means reads at once
_BLOCK_BYTES = 2**22
_UNKNOWN_CLASSES = 10


class ProbCover(CoverageStrategy):
    """Query the samples whose neighbourhoods hold most samples that no labelled neighbourhood holds.

    A neighbourhood is a ball of one radius for all. Samples are chosen one after the other. No labels and no trained
    model are needed.

    Parameters
    ----------
    radius : "auto" or float, default="auto"
        ``auto`` is the largest radius at which a share ``purity`` of the balls hold samples of one cluster only, of
        as many k-means clusters as there are classes. Of a large pool 2,000 random balls are looked at.
    purity : float, default=0.95
        See ``radius``.
    n_clusters : int or None, default=None
        See ``radius``. None is the estimator's number of classes, and 10 before it is fitted.
    features : {"auto", "input", "last_layer", "tangent"}, transformer, callable or nn.Module, default="auto"
        What similarity is measured on; see :class:`MaxHerding`.
    evaluation : "auto", int or None, default="auto"
        Number of random samples of the pool over which coverage is summed; see :class:`MaxHerding`.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For k-means, the subset and the evaluation samples.

    See Also
    --------
    MaxHerding : Coverage by a smooth kernel, whose radius matters less.
    TypiClust : The most typical sample of every cluster.

    Notes
    -----
    The metrics are the numbers of samples that become covered. Once all samples are covered, they are 0, and the rest
    of the batch is arbitrary, copies last.

    References
    ----------
    O. Yehuda, A. Dekel, G. Hacohen and D. Weinshall (2022). Active learning through a covering lens. NeurIPS.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.strategies import ProbCover, prob_cover
    >>> digits = load("digits")
    >>> X_pool = digits.X_train.reshape(-1, 64)
    >>> learner = ActiveLearner(LogisticRegression(max_iter=1000), ProbCover(random_state=0))  # no labels yet
    >>> indices, samples = learner.query(X_pool, n_instances=10)
    >>> samples.shape
    (10, 64)
    >>> bool((prob_cover(learner, X_pool, 10, random_state=0) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = {
        "purity": Real(0, 1),
        "n_clusters": Integer(2, optional=True),
        "radius": Real(1e-12, 1e12, words=("auto",), remedy="Pass a number > 0, or 'auto'."),
    }
    needs_fitted = False
    draws_from_pool = True
    kernel = "tophat"

    def __init__(
        self,
        *,
        radius: float | str = "auto",
        purity: float = 0.95,
        n_clusters: int | None = None,
        features: Any = "auto",
        evaluation: int | str | None = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.radius = radius
        self.purity = purity
        self.n_clusters = n_clusters
        self.features = features
        self.evaluation = evaluation
        self.subset = subset
        self.random_state = random_state

    def _radius(self, context: QueryContext, read: PoolFeatures, labelled: Tensor) -> float:
        if not isinstance(self.radius, str):
            return float(self.radius)
        generator = make_generator(type(self).__name__, self.random_state)
        # before similarities are made, there is room for the points and for distances to some of them
        room = context.memory // 4
        n = min(context.n_pool, _MOST_POINTS, rows_within(room, _COPIES * 8 * read.width, at_least=_FEWEST_POINTS))
        rows = np.sort(generator.choice(context.n_pool, size=n, replace=False))
        points = read.gather(rows)
        known = context.is_fitted and context.meaning.is_exclusive
        n_clusters = min(n, self.n_clusters or (context.n_classes if known else _UNKNOWN_CLASSES))
        few = torch.as_tensor(generator.permutation(n)[: max(_SEEDS, 4 * n_clusters)], device=points.device)
        centres = kmeans(lambda: points.split(_ROWS), points[few], n_clusters, generator)[0]
        balls = points[torch.as_tensor(generator.permutation(n)[:_MOST_BALLS], device=points.device)]

        def parts() -> Iterator[tuple[Tensor, Tensor]]:
            size = rows_within(min(_BLOCK_BYTES, room // 4), 24 * (len(balls) + read.width))
            for start in range(0, context.n_pool, size):
                part = read(slice(start, min(start + size, context.n_pool)))
                yield part, nearest_centres(part, centres)

        return pure_radius(balls, nearest_centres(balls, centres), parts, self.purity)


def pure_radius(
    balls: Tensor, clusters: Tensor, parts: Callable[[], Iterable[tuple[Tensor, Tensor]]], purity: float
) -> float:
    """The largest radius at which a share of the balls hold points of one cluster only.

    A ball is pure as long as its radius is below the distance to the nearest point of another cluster, so that the
    radius is a quantile of those distances. Points that all lie in one cluster give 1.

    Parameters
    ----------
    balls : (m, d) tensor
        Where the balls have their centres, of length 1 at most.
    clusters : (m,) tensor
        Of the balls.
    parts : callable
        Gives all points of the pool and their clusters, in parts of (n, d) and (n,).
    purity : float

    Examples
    --------
    >>> points, clusters = torch.tensor([[0.0], [0.1], [0.6], [0.8]]), torch.tensor([0, 0, 1, 1])
    >>> round(pure_radius(points, clusters, lambda: [(points, clusters)], 1.0), 3)
    0.5
    """
    squares = _squares_to_others(balls, clusters, parts()).sort().values
    # of the first ball that must not become impure
    square = float(squares[min(len(balls) - 1, int(np.ceil((1 - purity) * len(balls) - 1e-9)))])
    error = PRODUCT_ERROR * torch.finfo(balls.dtype).eps
    if square < 1000 * error and balls.dtype != torch.float64:
        return pure_radius(balls.double(), clusters, parts, purity)
    radius = max(0.0, square - error) ** 0.5 * (1 - 1e-6)  # less, by more than rounding can say too much
    return radius if 0 < radius < np.inf else 1.0


def _squares_to_others(balls: Tensor, clusters: Tensor, parts: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Squared distance of every ball to the nearest point of another cluster; inf if there is none: (m, d) -> (m,)."""
    lengths = balls.square().sum(1)
    squares = torch.full_like(lengths, torch.inf)
    for points, others in parts:
        points = points.to(balls)
        found = torch.addmm(lengths, points, balls.T, alpha=-2).add_(points.square().sum(1, keepdim=True))
        squares = squares.minimum(found.masked_fill_(others[:, None] == clusters, torch.inf).amin(0))
    return squares


prob_cover = query_function(ProbCover, "prob_cover", __name__)
