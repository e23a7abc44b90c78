# SPDX-License-Identifier: BSD-3-Clause
"""LCMD: the farthest sample of the largest cluster (Holzmüller, Zaverkin, Kästner and Steinwart 2023)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import ANY_TASK, QueryStrategy, query_function
from skal.context import QueryContext, rows_within
from skal.strategies._linear_posterior import CONSTRAINTS, read_candidates

# a squared distance below this share of the squared norms is the rounding of float32 features, and counts as zero
_ROUNDING = 1e-12
_BLOCK_BYTES = 2**24


class LCMD(QueryStrategy):
    """Query the farthest sample of the cluster that is spread out most.

    Every sample of the pool belongs to the nearest labelled or chosen one, by the distance of their features. The
    cluster with the largest sum of squared distances is taken, and in it the farthest sample; then the clusters are
    updated. It needs no uncertainties, covers dense regions with more samples than thin ones, and is strong with
    networks that predict numbers.

    Parameters
    ----------
    features : {"auto", "input", "prepared", "last_layer", "tangent"}, transformer, callable or module, default="auto"
        Between which distances are measured. ``auto`` is the gradient of a network's outputs, the predictions of the
        members of an ensemble of regressors, and the prepared inputs for any other estimator.
    n_features : "auto", int or None, default="auto"
        Length of the sketch of a network's gradients. ``auto`` keeps gradients of up to 4096 numbers as they are, and
        sketches others to 1024; None never sketches.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the subset, and for the samples that take part where memory does not hold all.

    See Also
    --------
    CoreSet : The farthest sample of all.
    MaxDet : The most uncertain sample, one after the other.

    Notes
    -----
    The metrics are the squared distances at the time of choice, in units of the mean squared length of the pool's
    features. Without labelled samples the first choice is the longest. Copies of labelled or chosen samples have the
    distance 0 and come last.

    References
    ----------
    D. Holzmüller, V. Zaverkin, J. Kästner and I. Steinwart (2023). A framework and benchmark for deep batch active
    learning for regression. JMLR 24.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> from skal import ActiveLearner
    >>> from skal.strategies import LCMD, lcmd
    >>> X, y = make_regression(n_samples=200, n_features=5, random_state=0)
    >>> learner = ActiveLearner(RandomForestRegressor(20, random_state=0), LCMD(), X_training=X[:20], y_training=y[:20])
    >>> indices, samples = learner.query(X[20:], n_instances=5)
    >>> samples.shape
    (5, 5)
    >>> bool((lcmd(learner, X[20:], 5) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = CONSTRAINTS
    tasks = ANY_TASK
    needs_network = False

    def __init__(
        self,
        *,
        features: Any = "auto",
        n_features: int | str | None = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.features = features
        self.n_features = n_features
        self.subset = subset
        self.random_state = random_state

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        rows, phi, labelled = read_candidates(self, context, n_instances)
        picked, squares = largest_clusters(phi, labelled, n_instances)
        return rows[picked], squares


def largest_clusters(phi: Tensor, centres: Tensor, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
    """Largest cluster, maximum distance.

    Parameters
    ----------
    phi : (N, d) tensor
        Features of the candidates, in float64.
    centres : (n, d) tensor
        Of the labelled samples; there may be none.
    n_instances : int

    Returns
    -------
    picked : (n_instances,) array, distinct, in the order of choice
    squares : (n_instances,) array
        Squared distances to the nearest centre when they were chosen; for a first one without centres its own square.

    Examples
    --------
    >>> phi = torch.tensor([[1.0], [1.1], [9.0], [0.2]], dtype=torch.float64)
    >>> largest_clusters(phi, torch.zeros(1, 1).double(), 2)
    (array([2, 1]), array([81.  ,  1.21]))
    """
    lengths = phi.square().sum(1)
    nearest = torch.full_like(lengths, torch.inf)
    cluster = torch.zeros(len(phi), dtype=torch.int64, device=phi.device)
    free = torch.ones_like(cluster, dtype=torch.bool)
    for number, some in _numbered_blocks(centres, len(phi)):
        squares = _squared_distances(phi, lengths, some)
        found, index = squares.min(dim=1)
        closer = found < nearest
        cluster[closer] = number + index[closer]
        nearest[closer] = found[closer]
    picked: list[int] = []
    metrics: list[float] = []
    while len(picked) < n_instances:
        if len(centres) + len(picked) == 0:
            best, square = int(lengths.argmax()), float(lengths.max())
        else:
            sums = torch.zeros(len(centres) + len(picked), dtype=nearest.dtype, device=phi.device)
            sums.index_add_(0, cluster, nearest)
            # of equal clusters the first, of equal distances the first; a copy only when nothing else is left
            inside = (cluster == int(sums.argmax())) & free
            inside = inside if bool((nearest[inside] > 0).any()) else free
            best = int(nearest.masked_fill(~inside, -torch.inf).argmax())
            square = float(nearest[best])
        picked.append(best)
        metrics.append(square)
        free[best] = False
        squares = _squared_distances(phi, lengths, phi[best : best + 1])[:, 0]
        squares[best] = 0
        closer = squares < nearest
        cluster[closer] = len(centres) + len(picked) - 1
        nearest = torch.minimum(nearest, squares)
    return np.array(picked), np.array(metrics)


def _numbered_blocks(centres: Tensor, n: int) -> list[tuple[int, Tensor]]:
    """Parts of the centres, whose distances to n candidates are worked on at once, with the number of the first."""
    size = rows_within(_BLOCK_BYTES, 8 * n)
    return [(start, centres[start : start + size]) for start in range(0, len(centres), size)]


def _squared_distances(phi: Tensor, lengths: Tensor, centres: Tensor) -> Tensor:
    """(N, d), (N,), (m, d) -> (N, m); those that are rounding are 0."""
    scale = lengths[:, None] + centres.square().sum(1)
    squares = torch.addmm(scale, phi, centres.T, alpha=-2)
    return squares.masked_fill_(squares <= _ROUNDING * scale, 0)


lcmd = query_function(LCMD, "lcmd", __name__)
