# SPDX-License-Identifier: BSD-3-Clause
"""TypiClust: the most typical sample of every cluster that has no label yet (Hacohen et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import ANY_TASK, QueryStrategy, query_function
from skal.context import QueryContext, rows_within
from skal.exceptions import InvalidParameterError
from skal.strategies._kmeans import kmeans, nearest_centres
from skal.strategies._pool_features import PoolFeatures
from skal.validation import Features, Integer, make_generator

_POINTS_PER_CLUSTER = 256
_MOST_MEMBERS = 10_000  # among these the most typical one of a cluster is found
_FEWEST = 64  # members for which a bound must leave room
_SEEDS = 500  # samples at least, among which k-means finds its first centres
_SAMPLE_BYTES = 64  # for each sample of the pool: its key, its cluster and its place there
_SMALL_CLUSTER = 5  # samples up to which a cluster is left for last
_BLOCK_BYTES = 2**26
# squared distances of features of length 1 are wrong by less than 2e-6 in single precision, so that mean distances of
# more than this are right to 5e-5
_SURELY = 0.15
_CLOSE = 1e-4


class TypiClust(QueryStrategy):
    """Query the most typical samples of the clusters with the fewest labels.

    The labelled samples and the pool are clustered by k-means into as many clusters as there will be labels after the
    query. From the clusters with the fewest labelled samples, the largest first, the sample is taken that is nearest
    to its neighbours. No labels and no trained model are needed.

    Parameters
    ----------
    max_clusters : int, default=500
        Largest number of clusters.
    n_neighbors : int, default=20
        A sample is typical if the mean distance to this many neighbours in its cluster is small.
    features : {"auto", "input", "last_layer", "tangent"}, transformer, callable or nn.Module, default="auto"
        See :class:`MaxHerding`.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For k-means, and the subset.

    See Also
    --------
    MaxHerding : Coverage without clusters.

    Notes
    -----
    The metrics are typicalities, one over the mean distance. Clusters of five samples and fewer come last. Copies of
    labelled or queried samples are queried only when nothing else is left in the clusters that are asked.

    References
    ----------
    G. Hacohen, A. Dekel and D. Weinshall (2022). Active learning on a budget: opposite strategies suit high and low
    budgets. ICML.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.strategies import TypiClust, typiclust
    >>> digits = load("digits")
    >>> X_pool = digits.X_train.reshape(-1, 64)
    >>> learner = ActiveLearner(LogisticRegression(max_iter=1000), TypiClust(random_state=0))  # no labels yet
    >>> indices, samples = learner.query(X_pool, n_instances=10)
    >>> samples.shape
    (10, 64)
    >>> bool((typiclust(learner, X_pool, 10, random_state=0) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = {"max_clusters": Integer(1), "n_neighbors": Integer(1), "features": Features()}
    tasks = ANY_TASK
    needs_fitted = needs_network = False
    draws_from_pool = True

    def __init__(
        self,
        *,
        max_clusters: int = 500,
        n_neighbors: int = 20,
        features: Any = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.max_clusters = max_clusters
        self.n_neighbors = n_neighbors
        self.features = features
        self.subset = subset
        self.random_state = random_state

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        generator = make_generator(type(self).__name__, self.random_state)
        read = PoolFeatures(context, self.features)
        n_clusters = min(context.n_labelled + n_instances, self.max_clusters)
        n_members, n_seeds = self._sizes_that_fit(context, read, n_clusters)
        labelled = read.of(context.labelled) if context.n_labelled else read(torch.arange(0, device=read.device))
        clusters, of_labelled = cluster_pool(read, context.n_pool, labelled, n_clusters, generator, n_seeds)
        counts = torch.bincount(of_labelled, minlength=n_clusters)
        keys = read.copy_keys()
        taken = read.copy_keys(context.labelled) if context.n_labelled else keys[:0]
        return typical_choice(
            read,
            clusters.cpu().numpy(),
            counts.cpu().numpy(),
            keys.cpu().numpy(),
            torch.isin(keys, taken).cpu().numpy(),
            n_instances,
            self.n_neighbors,
            generator,
            n_members=max(n_members, n_instances),
            block_bytes=min(_BLOCK_BYTES, context.memory // 16),
        )

    def _sizes_that_fit(self, context: QueryContext, read: PoolFeatures, n_clusters: int) -> tuple[int, int]:
        """Members of a cluster that are compared, and samples among which k-means finds its first centres.

        Half of a bound is for features, an eighth each for blocks of them, k-means and the members of a cluster.
        """
        of_member, share = read.row_bytes + 8 * read.width, context.memory // 8  # in double precision too
        fixed = _SAMPLE_BYTES * context.n_pool + (3 * context.n_labelled + 4 * n_clusters) * read.row_bytes
        smallest = max(3 * fixed // 2, 8 * _FEWEST * of_member, 8 * 16 * n_clusters**2)
        if context.memory_bound is not None and context.memory < smallest:
            expected = f"at least {smallest} bytes for {n_clusters} clusters of {context.n_pool} samples"
            remedy = "Raise it, or take fewer of the pool with subset."
            raise InvalidParameterError.for_parameter(context.owner, "max_memory", expected, context.max_memory, remedy)
        n_seeds = max(n_clusters, min(max(_SEEDS, 4 * n_clusters), int((share / 16) ** 0.5)))
        return min(_MOST_MEMBERS, rows_within(share, of_member)), n_seeds


def cluster_pool(
    read: Any, n_pool: int, labelled: Tensor, n_clusters: int, generator: np.random.Generator, n_seeds: int = _SEEDS
) -> tuple[Tensor, Tensor]:
    """K-means clusters of the pool, and of the labelled samples: (N,), (n,).

    They are found on the labelled samples and at most 256 random ones of the pool per cluster: more would not move
    them. The others are then put into the nearest ones. ``read`` gives the features of rows.
    """
    step = rows_within(read.block_bytes, 4 * (read.row_bytes + 4 * n_clusters))
    parts: list[Any] = _slices(n_pool, step)
    n = min(n_pool, _POINTS_PER_CLUSTER * n_clusters)
    if n < n_pool:
        rows = np.sort(generator.choice(n_pool, size=n, replace=False))
        parts = list(torch.as_tensor(rows, device=read.device).split(step))

    def blocks() -> Iterator[Tensor]:
        yield from map(read, parts)
        yield labelled

    n_seeds = min(n_pool, n_seeds)
    few = np.sort(generator.choice(n_pool, size=n_seeds, replace=False))
    sample = torch.cat([read(torch.as_tensor(few, device=read.device)), labelled[max(0, len(labelled) - n_seeds) :]])
    centres, clusters = kmeans(blocks, sample, n_clusters, generator)
    if n == n_pool:
        return clusters[:n], clusters[n:]
    return torch.cat([nearest_centres(read(rows), centres) for rows in _slices(n_pool, step)]), clusters[n:]


def _slices(n: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def some_members(
    clusters: np.ndarray, n_clusters: int, n_most: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Rows of each cluster, in ascending order; a random sample of larger clusters."""
    order = np.argsort(clusters, kind="stable")
    members = np.split(order, np.searchsorted(clusters[order], np.arange(1, n_clusters)))
    return [
        rows if len(rows) <= n_most else np.sort(generator.choice(rows, size=n_most, replace=False)) for rows in members
    ]


def typical_choice(
    read: Any,
    clusters: np.ndarray,
    n_labelled: np.ndarray,
    keys: np.ndarray,
    spent: np.ndarray,
    n_instances: int,
    n_neighbors: int,
    generator: np.random.Generator,
    *,
    n_members: int = _MOST_MEMBERS,
    block_bytes: int = _BLOCK_BYTES,
) -> tuple[np.ndarray, np.ndarray]:
    """One sample after the other from the cluster with the fewest labels; of several the largest.

    Parameters
    ----------
    read : callable
        Features of rows of the pool.
    clusters : (N,) array
        Of the pool.
    n_labelled : (K,) array
        Labelled samples in each cluster.
    keys : (N,) array
        Equal for copies.
    spent : (N,) bool array
        Which samples are copies of labelled ones.
    n_instances, n_neighbors : int
    generator : numpy.random.Generator
    n_members : int
        Of a larger cluster, this many random ones stand for all.
    block_bytes : int
        Of distances that are computed at once.

    Returns
    -------
    picked : (n_instances,) array
    typicality : (n_instances,) array
    """
    sizes = np.bincount(clusters, minlength=len(n_labelled)) + n_labelled
    members = some_members(clusters, len(n_labelled), n_members, generator)
    ranked: dict[int, Iterator[tuple[int, float]]] = {}
    spent = spent.copy()
    copies: list[tuple[int, float]] = []
    picked: list[int] = []
    values: list[float] = []
    # small clusters last, then by labels, then by size
    queue = [(sizes[k] <= _SMALL_CLUSTER, n_labelled[k], -sizes[k], k) for k in range(len(sizes)) if len(members[k])]
    heapify(queue)
    while len(picked) < n_instances:
        if not queue:  # nothing but copies is left
            picked += [row for row, _ in copies]
            values += [value for _, value in copies]
            break
        small, labels, size, k = heappop(queue)
        if k not in ranked:
            load = partial(read, torch.as_tensor(members[k], device=read.device))
            ranked[k] = most_typical(load, n_neighbors, block_bytes)
        for position, value in ranked[k]:
            row = int(members[k][position])
            if not spent[row]:
                break
            copies.append((row, value))
        else:
            continue
        picked.append(row)
        values.append(value)
        spent |= keys == keys[row]
        heappush(queue, (small, labels + 1, size, k))
    return np.array(picked[:n_instances]), np.array(values[:n_instances])


def typicality(points: Tensor, n_neighbors: int, block_bytes: int = _BLOCK_BYTES) -> np.ndarray:
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
    load: Callable[[], Tensor], n_neighbors: int, block_bytes: int = _BLOCK_BYTES
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
    """Mean distance of every point to its nearest other points: (n, d) -> (n,)."""
    k = min(n_neighbors, len(points) - 1)
    lengths, means = points.square().sum(1), []
    step = rows_within(block_bytes, 2 * points.element_size() * len(points))
    for start, rows in zip(range(0, len(points), step), points.split(step), strict=True):
        squares = torch.addmm(lengths, rows, points.T, alpha=-2).add_(lengths[start : start + len(rows), None])
        squares.diagonal(start).fill_(torch.inf)
        means.append(squares.topk(k, largest=False, sorted=False).values.clamp_min_(0).sqrt_().mean(1))
    return torch.cat(means)


typiclust = query_function(TypiClust, "typiclust", __name__)
