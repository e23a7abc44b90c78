# SPDX-License-Identifier: BSD-3-Clause
"""DropQuery: samples whose label changes when features are dropped, spread over clusters (Gupte et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import QueryStrategy, query_function
from skal.context import QueryContext, Samples, rows_within
from skal.exceptions import InvalidParameterError, OutputError, UnsupportedLayerError
from skal.strategies._kmeans import kmeans
from skal.strategies._pool_features import PoolFeatures
from skal.validation import Features, Integer, Real, make_generator

_SEEDS = 1000  # points at least, among which k-means finds its first centres
_SAMPLE_BYTES = 64  # for each sample of the pool: its key, and how often its class changes
_BLOCK_BYTES = 2**24  # bytes of points that are worked on at once
_ROUNDING = 1e-5  # error of squared distances in single precision


class DropQuery(QueryStrategy):
    """Query samples that the classifier takes for others when features are dropped, one from each of some clusters.

    What is dropped are the inputs of a network's last layer, and the inputs themselves of any other classifier: it is
    for a small classifier on frozen features. The samples whose predicted class changes in more than half of the
    trials are clustered, and those nearest to the centres are queried.

    Parameters
    ----------
    p : float, default=0.75
        Share of the features that is dropped.
    n_trials : int, default=3
        How often.
    features : {"auto", "input", "last_layer", "tangent"}, transformer, callable or nn.Module, default="auto"
        What is clustered, scaled to length 1; see :class:`MaxHerding`.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For what is dropped, k-means, and the subset.

    See Also
    --------
    BALD : Dropout inside the network, and how much its passes disagree.
    TypiClust : Clusters alone.

    Notes
    -----
    The metrics are the shares of trials in which the class changed. If fewer samples change than are asked for, those
    that change most often take part. Copies are queried only when nothing else takes part. If the features of those
    that change do not fit into the bound on memory, as many random ones of them take part as do.

    References
    ----------
    S. R. Gupte, J. Aklilu, J. J. Nirschl and S. Yeung-Levy (2024). Revisiting active learning in the era of vision
    foundation models. TMLR.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.strategies import DropQuery, drop_query
    >>> digits = load("digits")
    >>> X, y = digits.X_train.reshape(-1, 64), digits.y_train
    >>> strategy = DropQuery(random_state=0)
    >>> learner = ActiveLearner(LogisticRegression(max_iter=1000), strategy, X_training=X[:20], y_training=y[:20])
    >>> indices, samples = learner.query(X[20:], n_instances=10)
    >>> samples.shape
    (10, 64)
    >>> bool((drop_query(learner, X[20:], 10, random_state=0) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = {
        "p": Real(0.01, 0.99, remedy="Pass the share of features to drop."),
        "n_trials": Integer(1, 10**5),
        "features": Features(),
    }
    needs_network = False
    draws_from_pool = True

    def __init__(
        self,
        *,
        p: float = 0.75,
        n_trials: int = 3,
        features: Any = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.p = p
        self.n_trials = n_trials
        self.features = features
        self.subset = subset
        self.random_state = random_state

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        generator = make_generator(type(self).__name__, self.random_state)
        context = context.for_arms()  # one pass gives the features to cluster and those to drop
        read = PoolFeatures(context, self.features)
        n_points, n_seeds = self._sizes_that_fit(context, read, n_instances)
        changed = self._changes(context, generator, read.block_bytes)
        keys = read.copy_keys().cpu().numpy()
        candidates = unstable_rows(changed, keys, n_instances)
        if len(candidates) > n_points:
            candidates = np.sort(generator.choice(candidates, size=n_points, replace=False))
        nearest = nearest_to_centres(read.gather(candidates), n_instances, generator, n_seeds, read.block_bytes)
        return candidates[nearest], changed[candidates[nearest]]

    def _sizes_that_fit(self, context: QueryContext, read: PoolFeatures, n_instances: int) -> tuple[int, int]:
        """The number of changing samples that are clustered, and of those among which the first centres are.

        Half of a bound is for the pool's features, a quarter for those that are clustered, an eighth for k-means.
        """
        n_seeds = max(_SEEDS, 4 * n_instances)
        if context.memory_bound is None:
            return context.n_pool, n_seeds
        share, n_centres = context.memory // 8, 4 * n_instances
        smallest = max(4 * _SAMPLE_BYTES * context.n_pool // 3, 4 * n_centres * read.row_bytes, 8 * 16 * n_instances**2)
        if context.memory < smallest:
            expected = f"at least {smallest} bytes for {n_instances} clusters of {context.n_pool} samples"
            remedy = "Raise it, or take fewer of the pool with subset."
            raise InvalidParameterError.for_parameter(context.owner, "max_memory", expected, context.max_memory, remedy)
        n_seeds = max(n_instances, min(n_seeds, int((share / 16) ** 0.5), rows_within(share, 2 * read.row_bytes)))
        return rows_within(2 * share, read.row_bytes, at_least=n_instances), n_seeds

    def _changes(self, context: QueryContext, generator: np.random.Generator, block_bytes: int) -> np.ndarray:
        """Share of the trials in which the predicted class of each sample of the pool changes: (N,)."""
        last = context.last_layer if context.has_network else None
        if last is not None and not last.gives_logits:
            raise UnsupportedLayerError(
                f"For {context.owner} the network's output must be that of its last layer. Got the layer "
                f"{last.name!r}, whose output is changed before it is returned. Let forward return what it gives."
            )

        def predict(values: Tensor) -> np.ndarray:
            if last is None:
                classes = np.asarray(context.inner_estimator.predict(values.cpu().numpy()))
                if classes.shape != (len(values),):
                    raise OutputError(
                        f"The estimator's predict must give one class for each of the {len(values)} samples. Got an "
                        f"array of shape {classes.shape} instead. Pass a classifier."
                    )
                return classes
            with torch.no_grad():
                return _classes(last.layer(values))

        # a generator for each trial, so that what is dropped does not depend on the blocks
        trials = [np.random.default_rng(seed) for seed in generator.integers(2**63, size=self.n_trials)]
        changes = []
        for inputs, logits in self._blocks(context, block_bytes):
            before = predict(inputs) if logits is None else _classes(logits)
            found = np.zeros(len(inputs))
            for trial in trials:
                bits = np.packbits(trial.random(tuple(inputs.shape)) < self.p, axis=1)  # fewer bytes for a device
                dropped = unpack_bits(torch.as_tensor(bits, device=inputs.device))[:, : inputs.shape[1]]
                found += predict(inputs.masked_fill(dropped, 0)) != before
            changes.append(found)
        return np.concatenate(changes) / self.n_trials

    def _blocks(self, context: QueryContext, block_bytes: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Features to drop from and a network's logits, part by part; all at once without a memory bound."""
        width = context.feature_width()
        step = rows_within(block_bytes, 40 * width)  # 8 drawn, and of inputs and masked ones 8 each, on their way twice

        def read(part: Samples | None) -> tuple[Tensor, Tensor | None]:
            return context.embeddings(part) if context.has_network else (context.features("input", part), None)

        if context.memory_bound is None:
            inputs, logits = read(None)
            for start in range(0, context.n_pool, step):
                rows = slice(start, start + step)
                yield inputs[rows], None if logits is None else logits[rows]
        else:
            for start in range(0, context.n_pool, step):
                yield read(context.pool.take(range(start, min(start + step, context.n_pool))))


def unpack_bits(packed: Tensor) -> Tensor:
    """Truths of bytes, as numpy packs them: (n, m) -> (n, 8 m).

    Examples
    --------
    >>> unpack_bits(torch.tensor([[129]], dtype=torch.uint8))
    tensor([[ True, False, False, False, False, False, False,  True]])
    """
    places = torch.tensor([128, 64, 32, 16, 8, 4, 2, 1], dtype=torch.uint8, device=packed.device)
    found: Tensor = (packed[:, :, None] & places).bool().flatten(1)
    return found


def _classes(logits: Tensor) -> np.ndarray:
    """(n, C) -> (n,); one output is that of the second of two classes."""
    logits = logits if logits.ndim > 1 else logits[:, None]
    found = logits.argmax(1) if logits.shape[1] > 1 else (logits[:, 0] > 0).long()
    return found.cpu().numpy()


def unstable_rows(changed: np.ndarray, keys: np.ndarray, n_instances: int) -> np.ndarray:
    """Rows that change in more than half of the trials, at least as many as are asked for, copies last.

    Parameters
    ----------
    changed : (N,) array
    keys : (N,) array
        Equal for copies.
    n_instances : int
    """
    first = np.zeros(len(keys), dtype=bool)
    first[np.unique(keys, return_index=True)[1]] = True
    order = np.lexsort([-changed, ~first])
    return np.sort(order[: max(n_instances, int(((changed > 0.5) & first).sum()))])


def nearest_to_centres(
    points: Tensor,
    n_instances: int,
    generator: np.random.Generator,
    n_seeds: int = _SEEDS,
    block_bytes: int = _BLOCK_BYTES,
) -> np.ndarray:
    """The point nearest to the centre of each k-means cluster, the first of equals; distinct rows.

    Parameters
    ----------
    points : (n, d) tensor
    n_instances : int
        At most n; the number of clusters.
    generator : numpy.random.Generator
    n_seeds : int
        How many points the first centres are among, at least ``n_instances``.
    block_bytes : int
        Of differences that are computed at once.
    """
    rows = np.sort(generator.choice(len(points), size=min(len(points), n_seeds), replace=False))
    sample = points[torch.as_tensor(rows, device=points.device)]
    blocks = points.split(rows_within(block_bytes, 2 * points.element_size() * points.shape[1]))
    centres, _ = kmeans(lambda: blocks, sample, n_instances, generator)
    free = torch.ones(len(points), dtype=torch.bool, device=points.device)
    picked: list[int] = []
    for centre in centres:
        distances = torch.cat([(block - centre).square_().sum(1) for block in blocks]).masked_fill_(~free, torch.inf)
        # the two samples of a cluster are equally far from their centre: rounding must not choose between them
        picked.append(int((distances <= distances.min() * (1 + _ROUNDING)).to(torch.uint8).argmax()))
        free[picked[-1]] = False
    return np.array(picked)


drop_query = query_function(DropQuery, "drop_query", __name__)
