# SPDX-License-Identifier: BSD-3-Clause
"""DropQuery: samples whose label changes when features are dropped, spread over clusters (Gupte et al. 2024)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import QueryStrategy, query_function
from skal.context import QueryContext
from skal.exceptions import UnsupportedLayerError
from skal.strategies._kmeans import kmeans
from skal.strategies._pool_features import PoolFeatures
from skal.validation import Features, Integer, Real, make_generator


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
    that change most often take part. Copies are queried only when nothing else takes part.

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
        read = PoolFeatures(context, self.features)
        changed = self._changes(context, generator)
        keys = read.copy_keys().cpu().numpy()
        candidates = unstable_rows(changed, keys, n_instances)
        points = read(torch.as_tensor(candidates, device=read.device))
        nearest = nearest_to_centres(points, n_instances, generator)
        return candidates[nearest], changed[candidates[nearest]]

    def _changes(self, context: QueryContext, generator: np.random.Generator) -> np.ndarray:
        """Share of the trials in which the predicted class of each sample of the pool changes: (N,)."""
        if context.has_network:
            last = context.last_layer
            if not last.gives_logits:
                raise UnsupportedLayerError(
                    f"For {context.owner} the network's output must be that of its last layer. Got the layer "
                    f"{last.name!r}, whose output is changed before it is returned. Let forward return what it gives."
                )
            inputs, logits = context.embeddings()

            def predict(values: Tensor) -> np.ndarray:
                with torch.no_grad():
                    return _classes(last.layer(values))

            before = _classes(logits)
        else:
            inputs = context.features("input")

            def predict(values: Tensor) -> np.ndarray:
                return np.asarray(context.inner_estimator.predict(values.cpu().numpy()))

            before = predict(inputs)
        changes = np.zeros(len(before))
        for _ in range(self.n_trials):
            dropped = generator.random(tuple(inputs.shape)) < self.p
            masked = inputs.masked_fill(torch.as_tensor(dropped, device=inputs.device), 0)
            changes += predict(masked) != before
        return changes / self.n_trials


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


def nearest_to_centres(points: Tensor, n_instances: int, generator: np.random.Generator) -> np.ndarray:
    """Of each k-means cluster of the points the one nearest to its centre; distinct rows.

    Parameters
    ----------
    points : (n, d) tensor
    n_instances : int
        At most n; the number of clusters.
    generator : numpy.random.Generator
    """
    rows = np.sort(generator.choice(len(points), size=min(len(points), max(1000, 4 * n_instances)), replace=False))
    sample = points[torch.as_tensor(rows, device=points.device)]
    centres, _ = kmeans(lambda: [points], sample, n_instances, generator)
    free = torch.ones(len(points), dtype=torch.bool, device=points.device)
    picked: list[int] = []
    for centre in centres:
        distances = (points - centre).square().sum(1).masked_fill(~free, torch.inf)
        picked.append(int(distances.argmin()))
        free[picked[-1]] = False
    return np.array(picked)


drop_query = query_function(DropQuery, "drop_query", __name__)
