# SPDX-License-Identifier: BSD-3-Clause
"""TypiClust: the most typical sample of every cluster that has no label yet (Hacohen et al. 2022)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import QueryStrategy, query_function
from skal.context import QueryContext, rows_within
from skal.exceptions import InvalidParameterError
from skal.strategies._kmeans import kmeans, nearest_centres
from skal.strategies._pool_features import FeatureShape, PoolFeatures, feature_shape
from skal.strategies._typicality import BLOCK_BYTES, most_typical
from skal.validation import Features, Integer, make_generator

_POINTS_PER_CLUSTER = 256
_MOST_MEMBERS = 10_000  # of a cluster, among which the most typical is looked for
_FEWEST = 64  # of them that a bound must leave room for
_SEEDS = 500  # samples at least, among which k-means finds its first centres
_SAMPLE_BYTES = 64  # of a sample of the pool: its key, its cluster and its place there
_SMALL_CLUSTER = 5  # samples up to which a cluster is left for last


@dataclass(frozen=True)
class _Plan:
    """How a query uses its memory.

    Parameters
    ----------
    block_bytes : int
        Of what is worked on at once.
    step : int
        Samples that k-means reads at once.
    n_members : int
        Of a cluster, among which the most typical is looked for.
    n_seeds : int
        Samples among which k-means finds its first centres.
    n_bytes : int
        At the peak.
    """

    block_bytes: int
    step: int
    n_members: int
    n_seeds: int
    n_bytes: int


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
    The metrics are typicalities, one over the mean distance. Clusters of fewer than five samples come last. Copies of
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

    constraints: ClassVar = {
        "max_clusters": Integer(1),
        "n_neighbors": Integer(1),
        "features": Features(),
    }
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
        shape = feature_shape(context, self.features)
        plan = self._plan(context, context.n_pool, n_instances, shape)
        room = None if context.memory_bound is None else context.memory // 2
        read = PoolFeatures(context, self.features, room=room, block_bytes=plan.block_bytes)
        labelled = read.of(context.labelled) if context.n_labelled else read(torch.arange(0, device=read.device))
        n_clusters = self._n_clusters(context, n_instances)
        clusters, of_labelled = clustered(
            read, context.n_pool, labelled, n_clusters, plan.step, generator, n_seeds=plan.n_seeds
        )
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
            n_members=max(plan.n_members, n_instances),
            block_bytes=plan.block_bytes,
        )

    def _n_clusters(self, context: QueryContext, n_instances: int) -> int:
        return min(context.n_labelled + n_instances, self.max_clusters)

    def _plan(self, context: QueryContext, n: int, n_instances: int, shape: FeatureShape) -> _Plan:
        """Half of a bound for features, an eighth each for blocks of them, k-means and the members of a cluster."""
        row, n_clusters = shape.row_bytes, self._n_clusters(context, n_instances)
        of_member = row + 8 * shape.width  # in double precision too
        fixed = _SAMPLE_BYTES * n + (3 * context.n_labelled + 4 * n_clusters) * row
        if context.memory_bound is None:
            kept, share = 2 * row * n, context.memory // 8
        else:
            bound = context.memory
            smallest = max(3 * fixed // 2, 8 * _FEWEST * of_member, 8 * 16 * n_clusters**2)
            if bound < smallest:
                owner, remedy = type(self).__name__, "Raise it, or take fewer of the pool with subset."
                expected = f"at least {smallest} bytes for {n_clusters} clusters of {n} samples"
                raise InvalidParameterError.for_parameter(owner, "max_memory", expected, context.max_memory, remedy)
            kept, share = 2 * row * n if 2 * row * n <= bound // 2 else 0, bound // 8
        block_bytes = min(BLOCK_BYTES, share // 2)
        members = min(n, _MOST_MEMBERS, rows_within(share, of_member))
        n_seeds = max(n_clusters, min(max(_SEEDS, 4 * n_clusters), int((share / 16) ** 0.5)))
        work = min(max(members * of_member + block_bytes, 16 * n_seeds**2), 2 * share)
        step = rows_within(block_bytes, 4 * (row + 4 * n_clusters))
        n_bytes = fixed + max(kept, kept // 2 + work)
        return _Plan(block_bytes, step, members, n_seeds, n_bytes)


def clustered(
    read: PoolFeatures,
    n_pool: int,
    labelled: Tensor,
    n_clusters: int,
    step: int,
    generator: np.random.Generator,
    *,
    n_seeds: int | None = None,
) -> tuple[Tensor, Tensor]:
    """K-means clusters of the pool, and of the labelled samples: (N,), (n,).

    They are found on the labelled samples and at most 256 random ones of the pool per cluster: more would not move
    them. The others are then put into the nearest ones.
    """
    parts: list[Any] = _slices(n_pool, step)
    n = min(n_pool, _POINTS_PER_CLUSTER * n_clusters)
    if n < n_pool:
        rows = np.sort(generator.choice(n_pool, size=n, replace=False))
        parts = list(torch.as_tensor(rows, device=read.device).split(step))

    def blocks() -> Iterator[Tensor]:
        yield from map(read, parts)
        yield labelled

    n_seeds = min(n_pool, n_seeds or max(_SEEDS, 4 * n_clusters))
    few = np.sort(generator.choice(n_pool, size=n_seeds, replace=False))
    sample = torch.cat([read(torch.as_tensor(few, device=read.device)), labelled[-n_seeds:]])
    centres, clusters = kmeans(blocks, sample, n_clusters, generator)
    if n == n_pool:
        return clusters[:n], clusters[n:]
    return torch.cat([nearest_centres(read(rows), centres) for rows in _slices(n_pool, step)]), clusters[n:]


def _slices(n: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, n)) for start in range(0, n, step)]


def some_members(
    clusters: np.ndarray, n_clusters: int, n_most: int, generator: np.random.Generator
) -> list[np.ndarray]:
    """Rows of each cluster, in ascending order; of a larger one so many random ones."""
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
    block_bytes: int = BLOCK_BYTES,
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


typiclust = query_function(TypiClust, "typiclust", __name__)
