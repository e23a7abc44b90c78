# SPDX-License-Identifier: BSD-3-Clause
"""CoreSet: k-centre greedy on features (Sener & Savarese 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal.base import query_function
from skal.context import QueryContext, product_rows, rows_within
from skal.exceptions import FeatureError
from skal.strategies._two_level import Choose, Chosen, TwoLevelStrategy

# a squared distance below this share of the squared norms is the rounding of float32 embeddings, and counts as zero
_ROUNDING = 1e-12
# bytes of distances to labelled samples that are held at once
_BLOCK_BYTES = 2**25
# and on a processor, so that they are read again while they are in the cache
_CACHE_BYTES = 2**20
# points with the largest distances that are brought up to date at first
_FIRST_LOOK = 64


class CoreSet(TwoLevelStrategy):
    """Query the samples that lie furthest from everything labelled or queried so far.

    Furthest-first traversal (k-centre greedy), in Euclidean distance between features: by default the inputs of the
    network's last layer, which is found by itself. The centres at the start are the labelled samples. Without labelled
    samples the first centre is the sample nearest to the pool's mean, whose metric is infinite.

    Parameters
    ----------
    features : {"auto", "input", "last_layer", "tangent"}, transformer, callable or nn.Module, default="auto"
        Between which distances are measured. ``auto`` is the input of a network's last layer, and the input itself for
        any other classifier. A transformer must be fitted; a callable gets samples and returns an (n, d) array; a
        module is a frozen backbone.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset.

    Warns
    -----
    TwoLevelWarning
        If ``max_memory`` makes a choice in two stages necessary.

    See Also
    --------
    BADGE : Diversity and uncertainty together.

    Notes
    -----
    The metrics are the distances to the nearest centre at the time of choice; they never increase. Distances are
    computed in float64 on the network's device. A sample's distance to new centres is looked at only when the sample
    comes into question: distances can only shrink, so that old ones are bounds. The choice is the same as if all were
    kept up to date.

    References
    ----------
    O. Sener and S. Savarese (2018). Active learning for convolutional neural networks: a core-set approach. ICLR.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.nets import MLP
    >>> from skal.strategies import CoreSet, coreset
    >>> digits = load("digits")
    >>> net = NeuralNetClassifier(MLP(64, 10), criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> learner = ActiveLearner(net, CoreSet(), X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool = digits.X_train[50:250]
    >>> indices, samples = learner.query(X_pool, n_instances=5)
    >>> samples.shape
    (5, 1, 8, 8)
    >>> bool((coreset(learner, X_pool, 5) == indices).all())  # the same, as a function
    True
    """

    needs_fitted = False  # where features come from the estimator, they ask for it

    def _sample_bytes(self, context: QueryContext) -> int:
        """The features as they come, and in float64 (on a processor a part); outputs of a network; distances."""
        outputs = context.n_classes * 8 if self._uses_network(context) else 0
        return context.feature_width(self.features) * 12 + outputs + 24

    def _reserved_bytes(self, context: QueryContext) -> int:
        return 2 * _block_bytes(context)

    def _chooser(self, context: QueryContext) -> Choose:
        def choose(some: np.ndarray | range, n: int, masses: Any) -> Chosen:
            pool = context.restrict(some).features(self.features)
            labelled = self._labelled_blocks(context, pool.shape[1])
            # how many points lie at a place does not matter here
            return *furthest_first(pool, labelled, n, _block_bytes(context)), None

        return choose

    def _labelled_blocks(self, context: QueryContext, width: int) -> Iterator[Tensor]:
        """Features of the labelled samples, a few thousand at a time."""
        step = max(4096, context.batch_size)
        for start in range(0, context.n_labelled, step):
            rows = range(start, min(start + step, context.n_labelled))
            block = context.features(self.features, context.labelled.take(rows))
            if block.shape[1] != width:
                got = f"{width} columns for the pool, and {block.shape[1]} for labelled samples"
                raise FeatureError.for_features(context.owner, "of one length for all samples", got)
            yield block


def _block_bytes(context: QueryContext) -> int:
    """Bytes of distances that are computed at once: a quarter of the bound, for there are two blocks at a time."""
    return min(_BLOCK_BYTES, context.memory // 8)


def furthest_first(
    points: Tensor,
    centres: Iterator[Tensor],
    n_instances: int,
    block_bytes: int = _BLOCK_BYTES,
    first_look: int = _FIRST_LOOK,
) -> tuple[np.ndarray, np.ndarray]:
    """K-centre greedy.

    Parameters
    ----------
    points : (N, d) tensor
    centres : iterator of (m, d) tensors
        The centres at the start, in blocks; if there are none, the first is the point nearest to the mean.
    n_instances : int
    block_bytes : int
        Of the distances that are computed at once.
    first_look : int
        How many points are brought up to date at first, when the furthest of all may have come nearer.

    Returns
    -------
    picked : (n_instances,) array, distinct, in the order of choice
    distances : (n_instances,) array
        Of each to the nearest centre when it was chosen.

    Examples
    --------
    >>> points = torch.tensor([[0.0], [1.0], [3.0], [-2.0]])
    >>> furthest_first(points, iter([torch.tensor([[0.0]])]), 3)
    (array([2, 3, 1]), array([3., 2., 1.]))
    """
    size = max(abs(float(x)) for x in torch.aminmax(points)) if points.numel() else 1.0
    if size > torch.finfo(torch.float64).max ** 0.5 / (8 * points.shape[1]):  # squares would overflow
        scaled = furthest_first(points / size, (c / size for c in centres), n_instances, block_bytes, first_look)
        return scaled[0], scaled[1] * size
    bounds = _Bounds(points, n_instances, block_bytes)
    any_centre = False
    for block in centres:
        bounds.compare(bounds.centre(block))
        any_centre = True
    picked: list[int] = []
    squares: list[float] = []
    if not any_centre:
        bounds.compare(torch.zeros_like(bounds.mean)[None])
        picked.append(int(bounds.nearest.argmin()))
        squares.append(np.inf)
        bounds.nearest.fill_(torch.inf)
        bounds.choose(picked[0])
        bounds.update(None)
    looked_at = torch.zeros(0, dtype=torch.int64, device=points.device)
    while len(picked) < n_instances:
        bounds.update(looked_at[:first_look])  # those that were furthest a moment ago are likely to be so again
        n_rows = first_look
        while not bounds.is_up_to_date(best := int(bounds.nearest.argmax())):  # the first of equals
            furthest = bounds.nearest.topk(min(n_rows, len(points))).indices
            looked_at = torch.cat([furthest, furthest.new_tensor([best])])
            bounds.update(looked_at if n_rows <= len(points) // 4 else None)
            n_rows *= 4
        picked.append(best)
        squares.append(float(bounds.nearest[best]))
        bounds.choose(best)
    return np.array(picked), np.sqrt(squares)


class _Bounds:
    """Squared distances of all points to the nearest centre, which may still ignore some of the chosen ones.

    A distance to the nearest centre can only shrink, so that an old one is a bound: points are brought up to date only
    when they may be the furthest.

    Parameters
    ----------
    points : (N, d) tensor
        Its rows are used in float64, a few at a time: a copy of all would take twice as much memory as they do.
    n_instances : int
        How many centres will be chosen at most.
    block_bytes : int
        Of the distances that are computed at once.
    """

    def __init__(self, points: Tensor, n_instances: int, block_bytes: int) -> None:
        self.points = points
        self.mean = points.new_zeros(points.shape[1], dtype=torch.float64)
        self.product_rows = product_rows(self.mean.expand_as(points))
        self.block_bytes = min(block_bytes, _CACHE_BYTES) if points.is_cpu else block_bytes
        for block in points.split(self.product_rows):
            self.mean += block.to(self.mean.dtype).sum(dim=0)
        self.mean /= max(1, len(points))
        self.nearest = torch.full_like(points[:, 0], torch.inf, dtype=self.mean.dtype)
        # how many of the chosen each point has been compared with
        self.known = torch.zeros_like(self.nearest, dtype=torch.int64)
        self.chosen = self.mean.new_empty(n_instances, points.shape[1])
        self.n_chosen = 0

    def centre(self, rows: Tensor) -> Tensor:
        """Rows (n, d) in float64, less the mean: distances do not change, and rounding shrinks."""
        return rows.to(self.mean.dtype, copy=True).sub_(self.mean)

    def compare(self, centres: Tensor, rows: Tensor | None = None) -> None:
        """Lower the bounds where one of these centres is nearer; of all points, or of some."""
        if not len(centres):
            return
        centre_norms = _squared_norms(centres)
        step = min(rows_within(self.block_bytes, centres.element_size() * len(centres)), self.product_rows)
        for start in range(0, len(self.points) if rows is None else len(rows), step):
            some = slice(start, start + step) if rows is None else rows[start : start + step]
            block = self.centre(self.points[some])
            squares = _nearest_squares(block, _squared_norms(block), centres, centre_norms)
            self.nearest[some] = torch.minimum(self.nearest[some], squares)

    def choose(self, row: int) -> None:
        """Make a point a centre, with which nothing is compared yet; it is never chosen again."""
        self.chosen[self.n_chosen] = self.centre(self.points[row])
        self.n_chosen += 1
        self.nearest[row] = -torch.inf

    def is_up_to_date(self, row: int) -> bool:
        """True if a point's bound is its exact distance."""
        return int(self.known[row]) == self.n_chosen

    def update(self, rows: Tensor | None) -> None:
        """Compare some points, or all, with the chosen ones that they have not been compared with."""
        known = self.known if rows is None else self.known[rows]
        if len(known):
            self.compare(self.chosen[int(known.min()) : self.n_chosen], rows)
            self.known[slice(None) if rows is None else rows] = self.n_chosen


def _squared_norms(points: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(points, dim=1)
    return norms.square()


def _nearest_squares(points: Tensor, norms: Tensor, centres: Tensor, centre_norms: Tensor) -> Tensor:
    """Squared distances (n,) of points (n, d) to the nearest of the centres (m, d)."""
    # the points' own norms do not change which centre is nearest
    squares = torch.addmm(centre_norms, points, centres.T, alpha=-2).amin(dim=1).add_(norms)
    # where a point lies on its centre both have the same norm
    return squares.masked_fill_(squares <= 2 * _ROUNDING * norms, 0)


coreset = query_function(CoreSet, "coreset", __name__)
