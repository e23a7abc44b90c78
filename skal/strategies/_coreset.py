# SPDX-License-Identifier: BSD-3-Clause
"""CoreSet: k-centre greedy on features (Sener & Savarese 2018)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal._core.memory import product_rows, rows_within
from skal.base import Passes, query_function
from skal.context import QueryContext
from skal.strategies._features import feature_width, features_of, settled
from skal.strategies._two_level import Choose, Chosen, TwoLevelStrategy

# a squared distance below this share of the squared norms is the rounding of float32 embeddings, and counts as zero
_ROUNDING = 1e-12
# bytes of distances to labelled samples that are held at once
_BLOCK_BYTES = 2**25
# and on a processor, so that they are read again while they are in the cache
_CACHE_BYTES = 2**20
# points at the top of the list whose distances are brought up to date at first
_FIRST_LOOK = 32


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
    batch_size : int, default=256
        Samples per network pass.
    max_memory : int, str or None, default=None
        Bound on the memory for the embeddings, such as ``"2GB"``. For a pool that needs more the choice is made in two
        levels: every part of the pool that fits names a shortlist, four times the batch if there is room, and the
        batch is chosen among those. None is no bound.
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset.
    n_jobs : int or None, default=None
        Workers that share the passes over the pool, as in scikit-learn: None is 1, or what ``joblib.parallel_config``
        says; -1 is all processors.
    progress : bool, default=False
        Show a bar over the parts of the pool.

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
        """The features as they come, and in float64; outputs of a network; distances."""
        outputs = context.n_classes * 8 if self._uses_network(context) else 0
        return feature_width(context, self.features) * 12 + outputs + 24

    def _reserved_bytes(self, context: QueryContext) -> int:
        return 2 * _block_bytes(context)

    def _chooser(self, context: QueryContext) -> Choose:
        features = settled(context, self.features)

        def choose(some: np.ndarray | range, n: int, masses: Any) -> Chosen:
            pool = features_of(context.restrict(some), features)
            pool = pool.to(_exact(pool), copy=True)
            mean = pool.mean(dim=0)
            pool.sub_(mean)  # distances do not change, and rounding shrinks
            labelled = (x - mean for x in self._labelled_blocks(context, features)) if context.n_labelled else iter(())
            # how many points lie at a place does not matter here
            return *furthest_first(pool, labelled, n, _block_bytes(context)), None

        return choose

    def _labelled_blocks(self, context: QueryContext, features: Any) -> Iterator[Tensor]:
        """Features of the labelled samples, a few thousand at a time."""
        step = max(4096, self.batch_size)
        for start in range(0, context.n_labelled, step):
            rows = range(start, min(start + step, context.n_labelled))
            block = features_of(context, features, context.labelled.take(rows))
            yield block.to(_exact(block))

    def _passes(self, context: QueryContext, n: int, n_instances: int) -> Passes:
        labelled = context.n_labelled if self._uses_network(context) else 0
        return super()._passes(context, n, n_instances) + Passes(labelled_forward=labelled)

    def _memory(self, context: QueryContext, n: int, n_instances: int) -> int:
        blocks = 2 * min(_block_bytes(context), 8 * n * max(1, context.n_labelled))
        return super()._memory(context, n, n_instances) + blocks


def _block_bytes(context: QueryContext) -> int:
    """For distances that are computed at once, of which there are two blocks at a time: a quarter of the bound."""
    return min(_BLOCK_BYTES, context.memory // 8)


def _exact(tensor: Tensor) -> torch.dtype:
    """float64, where the device has it."""
    return torch.float32 if tensor.device.type == "mps" else torch.float64


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
        Not far from the origin, compared with the distances between them.
    centres : iterator of (m, d) tensors
        The centres at the start, in blocks; if there are none, the first is the point nearest to the origin.
    n_instances : int
    block_bytes : int
        Of the distances that are computed at once.
    first_look : int
        How many points are brought up to date at first, when the furthest is looked for.

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
    if size > torch.finfo(points.dtype).max ** 0.5 / (4 * points.shape[1]):  # squares would overflow
        scaled = furthest_first(points / size, (c / size for c in centres), n_instances, block_bytes, first_look)
        return scaled[0], scaled[1] * size
    norms = torch.linalg.vector_norm(points, dim=1).square()
    nearest = torch.full_like(norms, torch.inf)
    any_centre = False
    for block in centres:
        _update(nearest, points, norms, block, block_bytes)
        any_centre = True
    chosen = points.new_empty(n_instances, points.shape[1])
    known = torch.zeros_like(norms, dtype=torch.int64)  # how many of the chosen each point has been compared with
    picked: list[int] = []
    squares: list[Tensor] = []
    for number in range(n_instances):
        if number or any_centre:
            best = _furthest(nearest, known, points, norms, chosen[:number], block_bytes, first_look)
        else:
            best = int(norms.argmin())
        picked.append(best)
        squares.append(nearest[best].clone())
        chosen[number] = points[best]
        nearest[best] = -torch.inf  # never again
    distances = torch.stack(squares).sqrt()
    return np.array(picked), distances.double().cpu().numpy()


def _furthest(
    nearest: Tensor, known: Tensor, points: Tensor, norms: Tensor, chosen: Tensor, block_bytes: int, size: int
) -> int:
    """The point furthest from all centres, when ``nearest`` may still ignore some of the chosen ones.

    A distance to the nearest centre can only shrink, so that an old one is a bound: only points at the top of the
    list are brought up to date, ``size`` of them and then more, until the first of them is.
    """
    while True:
        best = int(nearest.argmax())
        if int(known[best]) == len(chosen):
            return best
        if size > len(points) // 4:
            _update(nearest, points, norms, chosen[int(known.min()) :], block_bytes)
            known.fill_(len(chosen))
            continue
        rows = nearest.topk(size).indices
        part = nearest[rows]
        _update(part, points[rows], norms[rows], chosen[int(known[rows].min()) :], block_bytes)
        nearest[rows] = part
        known[rows] = len(chosen)
        size *= 4


def _update(nearest: Tensor, points: Tensor, norms: Tensor, centres: Tensor, block_bytes: int) -> None:
    """Lower the squared distances to the nearest centre, in place, where one of the centres is nearer."""
    centre_norms = centres.square().sum(dim=1)
    limit = min(block_bytes, _CACHE_BYTES) if points.is_cpu else block_bytes
    step = rows_within(limit, points.element_size() * len(centres))
    step = min(step, product_rows(points))
    for start in range(0, len(points), step):
        rows = slice(start, start + step)
        own = norms[rows]
        # the points' own norms do not change which centre is nearest
        squares = torch.addmm(centre_norms, points[rows], centres.T, alpha=-2).amin(dim=1).add_(own)
        # where a point lies on its centre both have the same norm
        squares.masked_fill_(squares <= 2 * _ROUNDING * own, 0)
        nearest[rows] = torch.minimum(nearest[rows], squares)


coreset = query_function(CoreSet, "coreset", __name__)
