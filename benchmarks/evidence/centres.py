"""The other usual start: the samples nearest to the centres of k-means."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.cluster import KMeans

from skal.base import ANY_TASK, QueryStrategy
from skal.context import QueryContext
from skal.strategies import margin


def nearest_to_centres(X: np.ndarray, n: int) -> np.ndarray:
    """(n,) positions, one for each cluster; a sample that is nearest to two centres is taken once."""
    X = np.asarray(X, dtype=np.float64).reshape(len(X), -1)
    centres = KMeans(n, n_init=1, random_state=0).fit(X).cluster_centers_
    chosen: list[int] = []
    for centre in centres:
        distances = np.square(X - centre).sum(1)
        distances[chosen] = np.inf
        chosen.append(int(distances.argmin()))
    return np.array(chosen)


class KMeansStart(QueryStrategy):
    """The same on columns that are prepared by their kind."""

    tasks = ANY_TASK
    needs_fitted = needs_network = False

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        chosen = nearest_to_centres(np.asarray(context.features("prepared")), n_instances)
        return chosen, np.zeros(n_instances)


def centres_then_margin(learner: Any, X_pool: np.ndarray, n_instances: int = 1) -> Any:
    """Margin, but for the first labels."""
    if learner.X_training is None:
        return nearest_to_centres(X_pool, n_instances)
    return margin(learner, X_pool, n_instances)
