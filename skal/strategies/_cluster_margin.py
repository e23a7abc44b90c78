# SPDX-License-Identifier: BSD-3-Clause
"""ClusterMargin: one of each cluster of the most uncertain samples (Zhdanov 2019; Citovsky et al. 2021)."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from skal.base import QueryStrategy, query_function
from skal.context import QueryContext
from skal.strategies._pool_features import PoolFeatures
from skal.strategies._probabilities import UNCERTAINTIES
from skal.validation import Choice, Features, Integer, make_generator

_MOST_SWEEPS = 25


class ClusterMargin(QueryStrategy):
    """Query one sample of each cluster of those that the model is most uncertain about.

    The ``oversample · b`` most uncertain samples are clustered by k-means into b clusters, in which uncertain samples
    weigh more, and the sample nearest to the centre of each is taken. It costs little more than :class:`Margin`: only
    the most uncertain samples are compared.

    Parameters
    ----------
    uncertainty : {"margin", "entropy", "least_confidence"}, default="margin"
        What samples are ranked and weighed by; see :class:`UHerding`.
    oversample : int, default=10
        How many times the batch takes part in the clustering.
    features : {"auto", "input", "last_layer", "tangent"}, transformer, callable or nn.Module, default="auto"
        What samples are clustered by, scaled to length 1; see :class:`MaxHerding`.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For k-means, and the subset.

    See Also
    --------
    Margin : The uncertainty alone.
    UHerding : Covers everything that is uncertain, labelled samples counted.

    Notes
    -----
    The metrics are uncertainties, and the most uncertain sample comes first. Copies of labelled samples, and of one
    another, are left out as long as twice as many of the most uncertain samples hold enough others.

    References
    ----------
    F. Zhdanov (2019). Diverse mini-batch active learning. arXiv:1901.05954.

    G. Citovsky, G. DeSalvo, C. Gentile, L. Karydas, A. Rajagopalan, A. Rostamizadeh and S. Kumar (2021). Batch active
    learning at scale. NeurIPS. Its clusters are agglomerative, and of the whole pool.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.strategies import ClusterMargin, cluster_margin
    >>> digits = load("digits")
    >>> X, y = digits.X_train.reshape(-1, 64), digits.y_train
    >>> strategy = ClusterMargin(random_state=0)
    >>> learner = ActiveLearner(LogisticRegression(max_iter=1000), strategy, X_training=X[:20], y_training=y[:20])
    >>> indices, samples = learner.query(X[20:], n_instances=10)
    >>> samples.shape
    (10, 64)
    >>> bool((cluster_margin(learner, X[20:], 10, random_state=0) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = {
        "uncertainty": Choice(*UNCERTAINTIES),
        "oversample": Integer(1),
        "features": Features(),
    }
    needs_network = False
    draws_from_pool = True

    def __init__(
        self,
        *,
        uncertainty: str = "margin",
        oversample: int = 10,
        features: Any = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.uncertainty = uncertainty
        self.oversample = oversample
        self.features = features
        self.subset = subset
        self.random_state = random_state

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        uncertainty = UNCERTAINTIES[self.uncertainty](context.predict_proba())
        order = np.argsort(-uncertainty, kind="stable")
        # copies among the most uncertain give way to others
        n_first = min(context.n_pool, 2 * self.oversample * n_instances)
        part = context.restrict(order[:n_first])
        read = PoolFeatures(part, self.features)
        keys = read.copy_keys().cpu().numpy()
        is_first = np.zeros(n_first, dtype=bool)
        is_first[np.unique(keys, return_index=True)[1]] = True
        if context.n_labelled:
            is_first &= ~np.isin(keys, read.copy_keys(context.labelled).cpu().numpy())
        different = np.flatnonzero(is_first)[: self.oversample * n_instances]
        if len(different) > n_instances:
            seed = int(make_generator(type(self).__name__, self.random_state).integers(2**31))
            features = read.gather(different).double().cpu().numpy()
            different = different[centre_rows(features, uncertainty[order[different]], n_instances, seed)]
        # ascending positions are falling uncertainty; then what is left, copies among it
        rows = order[np.sort(different)]
        rows = np.concatenate([rows, order[~np.isin(order, rows)][: n_instances - len(rows)]])
        return rows, uncertainty[rows]


def centre_rows(features: np.ndarray, weights: np.ndarray, n_clusters: int, seed: int) -> np.ndarray:
    """The row nearest to the centre, the weighted mean, of each k-means cluster: (n, d), (n,) -> (n_clusters,).

    Clusters that share all their rows with others, or have none, are replaced by the heaviest rows that are left.

    Examples
    --------
    >>> features = np.array([[0.0], [0.1], [0.3], [5.0], [5.2]])
    >>> centre_rows(features, np.array([1.0, 1.0, 1.0, 1.0, 9.0]), 2, 0)
    array([1, 4])
    """
    weights = np.maximum(weights, 1e-12)  # k-means needs weights above 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different features than clusters
        model = KMeans(n_clusters, n_init=1, max_iter=_MOST_SWEEPS, random_state=seed)
        distances = model.fit_transform(features, sample_weight=weights)
    own = distances[np.arange(len(features)), model.labels_]
    nearest = np.lexsort((own, model.labels_))  # cluster by cluster, the nearest row first
    chosen = nearest[np.unique(model.labels_[nearest], return_index=True)[1]]
    heaviest = np.argsort(-weights, kind="stable")
    return np.sort(np.concatenate([chosen, heaviest[~np.isin(heaviest, chosen)][: n_clusters - len(chosen)]]))


cluster_margin = query_function(ClusterMargin, "cluster_margin", __name__)
