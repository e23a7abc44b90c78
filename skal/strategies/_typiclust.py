"""TypiClust: the most typical sample of every cluster that has no label yet (Hacohen et al. 2022)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.cluster import MiniBatchKMeans
from torch import Tensor

from skal._core.memory import rows_within
from skal.base import Passes, QueryStrategy, query_function
from skal.context import QueryContext
from skal.strategies._coverage import row_keys
from skal.strategies._features import PoolFeatures, check_features, come_from_estimator
from skal.validation import check_integer, make_generator

_BLOCK_BYTES = 2**26
_SWEEPS = 10  # of mini-batch k-means over the samples
_SMALL_CLUSTER = 5  # samples below which a cluster is left for last, as in the paper


class TypiClust(QueryStrategy):
    """Query the most typical samples of the clusters with the fewest labels.

    The labelled samples and the pool are clustered by k-means into as many clusters as there will be labels after the
    query. From the clusters with the fewest labelled samples, the largest first, the sample is taken that is nearest
    to its neighbours. No labels and no trained model are needed.

    Parameters
    ----------
    max_clusters : int, default=500
        At most so many clusters.
    n_neighbors : int, default=20
        A sample is typical if the mean distance to so many neighbours in its cluster is small.
    features : {"auto", "input", "last_layer", "tangent"}, transformer, callable or nn.Module, default="auto"
        See :class:`MaxHerding`.
    subset, batch_size, max_memory, n_jobs, verbose
        See :class:`MaxHerding`.
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

    needs_fitted = needs_network = False
    draws_from_pool = True

    def __init__(
        self,
        *,
        max_clusters: int = 500,
        n_neighbors: int = 20,
        features: Any = "auto",
        subset: int | None = None,
        batch_size: int = 256,
        max_memory: int | str | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        verbose: int = 0,
    ) -> None:
        self.max_clusters = max_clusters
        self.n_neighbors = n_neighbors
        self.features = features
        self.subset = subset
        self.batch_size = batch_size
        self.max_memory = max_memory
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.verbose = verbose

    def _check_params(self) -> None:
        super()._check_params()
        owner = type(self).__name__
        check_integer(owner, "max_clusters", self.max_clusters, 1)
        check_integer(owner, "n_neighbors", self.n_neighbors, 1)
        check_features(owner, self.features)

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        seed = int(make_generator(type(self).__name__, self.random_state).integers(2**31))
        room = None if context.memory_bound is None else context.memory // 2
        read = PoolFeatures(context, self.features, room=room)
        labelled = read.of(context.labelled) if context.n_labelled else read(torch.arange(0, device=read.device))
        n_clusters = min(context.n_labelled + n_instances, self.max_clusters)
        step = rows_within(min(_BLOCK_BYTES, context.memory // 8), 16 * (read.width + n_clusters))
        blocks = torch.arange(context.n_pool, device=read.device).split(step)
        assigned = clustered(read, blocks, labelled, n_clusters, seed)
        keys = torch.cat([row_keys(read(rows)) for rows in blocks])
        spent = torch.isin(keys, row_keys(labelled)).cpu().numpy() if len(labelled) else np.zeros(len(keys), bool)
        clusters, counts = assigned[: context.n_pool], np.bincount(assigned[context.n_pool :], minlength=n_clusters)
        return typical_choice(read, clusters, counts, keys.cpu().numpy(), spent, n_instances, self.n_neighbors)

    def _passes(self, context: QueryContext, n: int, n_instances: int) -> Passes:
        forward = context.has_network and come_from_estimator(self.features)
        return Passes(forward=n, labelled_forward=context.n_labelled) if forward else Passes()

    def _memory(self, context: QueryContext, n: int, n_instances: int) -> int:
        width = PoolFeatures(context.restrict(range(1)), self.features).width
        kept = 2 * n * width * 4 if context.memory_bound is None else min(2 * n * width * 4, context.memory // 2)
        return kept + 40 * n + min(_BLOCK_BYTES, context.memory // 8)


def clustered(
    read: PoolFeatures, blocks: tuple[Tensor, ...], labelled: Tensor, n_clusters: int, seed: int
) -> np.ndarray:
    """K-means clusters of the pool, then of the labelled samples: (N + n,) array."""
    parts = [*blocks, None] if len(labelled) else list(blocks)

    def rows_of(part: Tensor | None) -> np.ndarray:
        return (labelled if part is None else read(part)).float().cpu().numpy()

    n = sum(map(len, blocks)) + len(labelled)
    settings = {"batch_size": 4096, "init_size": max(3 * n_clusters, 1000), "n_init": 1, "max_iter": _SWEEPS}
    kmeans = MiniBatchKMeans(n_clusters, random_state=seed, **settings)
    if len(parts) == 1 or n * read.width * 4 <= _BLOCK_BYTES * 64:
        return kmeans.fit_predict(np.concatenate([rows_of(part) for part in parts]))
    for part in parts:
        if part is None or len(part) >= n_clusters:
            kmeans.partial_fit(rows_of(part))
    return np.concatenate([kmeans.predict(rows_of(part)) for part in parts])


def typical_choice(
    read: Any,
    clusters: np.ndarray,
    n_labelled: np.ndarray,
    keys: np.ndarray,
    spent: np.ndarray,
    n_instances: int,
    n_neighbors: int,
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

    Returns
    -------
    picked : (n_instances,) array
    typicality : (n_instances,) array
    """
    members = {k: np.flatnonzero(clusters == k) for k in np.unique(clusters)}
    sizes = {k: len(rows) for k, rows in members.items()}
    labels, spent = n_labelled.copy(), spent.copy()
    ranked: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    free = np.ones(len(clusters), dtype=bool)
    picked: list[int] = []
    values: list[float] = []
    while len(picked) < n_instances:
        fresh = [k for k, rows in members.items() if (free[rows] & ~spent[rows]).any()]
        candidates = fresh or [k for k, rows in members.items() if free[rows].any()]
        best = min(candidates, key=lambda k: (sizes[k] < _SMALL_CLUSTER, labels[k], -sizes[k], k))
        if best not in ranked:
            values_of = typicality(read(torch.as_tensor(members[best], device=read.device)), n_neighbors)
            order = np.argsort(-values_of, kind="stable")
            ranked[best] = members[best][order], values_of[order]
        rows, typical = ranked[best]
        usable = free[rows] & ~spent[rows] if fresh else free[rows]
        place = int(np.argmax(usable))
        picked.append(int(rows[place]))
        values.append(float(typical[place]))
        free[rows[place]] = False
        spent |= keys == keys[rows[place]]
        labels[best] += 1
    return np.array(picked), np.array(values)


def typicality(points: Tensor, n_neighbors: int, block_bytes: int = _BLOCK_BYTES) -> np.ndarray:
    """One over the mean distance to the nearest other points: (n, d) -> (n,).

    A point without neighbours, or with copies alone, is as typical as can be.
    """
    k = min(n_neighbors, len(points) - 1)
    if k == 0:
        return np.full(len(points), 1e300)
    means = []
    for rows in torch.arange(len(points), device=points.device).split(rows_within(block_bytes, 8 * len(points))):
        distances = torch.cdist(points[rows], points)
        distances[torch.arange(len(rows), device=points.device), rows] = torch.inf
        means.append(distances.topk(k, largest=False).values.double().mean(1))
    mean = torch.cat(means).cpu().numpy()
    return 1 / np.maximum(mean, 1e-300)


typiclust = query_function(TypiClust, "typiclust", __name__)
