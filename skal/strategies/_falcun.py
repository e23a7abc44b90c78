# SPDX-License-Identifier: BSD-3-Clause
"""Falcun: samples that are uncertain, and predicted otherwise than those already chosen (Gilhuber et al. 2024)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch.utils.data import Dataset

from skal.base import QueryStrategy, query_function
from skal.context import QueryContext, copy_groups
from skal.strategies._probabilities import UNCERTAINTIES
from skal.validation import Real, make_generator


class Falcun(QueryStrategy):
    """Draw samples that the model is uncertain about, and whose predictions differ from those drawn before.

    Everything is computed from the class probabilities, so that it takes any classifier and little time.

    Parameters
    ----------
    gamma : float, default=10
        The larger, the less is left to chance: samples are drawn in proportion to their relevance to this power.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the draws, and the subset.

    See Also
    --------
    Margin : The uncertainty alone.
    BADGE : Diversity of gradients, which are as long as the model is uncertain.

    Notes
    -----
    The metrics are the relevances at the time of each draw. Copies of a drawn sample are drawn only when nothing else
    is left; samples of a Dataset are not compared.

    References
    ----------
    S. Gilhuber, A. Beer, Y. Ma and T. Seidl (2024). FALCUN: a simple and efficient deep active learning strategy.
    ECML PKDD.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.strategies import Falcun, falcun
    >>> digits = load("digits")
    >>> X, y = digits.X_train.reshape(-1, 64), digits.y_train
    >>> strategy = Falcun(random_state=0)
    >>> learner = ActiveLearner(LogisticRegression(max_iter=1000), strategy, X_training=X[:20], y_training=y[:20])
    >>> indices, samples = learner.query(X[20:], n_instances=10)
    >>> samples.shape
    (10, 64)
    >>> bool((falcun(learner, X[20:], 10, random_state=0) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = {"gamma": Real(0)}
    needs_network = False
    draws_from_pool = True

    def __init__(self, *, gamma: float = 10.0, subset: int | None = None, random_state: Any = None) -> None:
        self.gamma = gamma
        self.subset = subset
        self.random_state = random_state

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        generator = make_generator(type(self).__name__, self.random_state)
        is_dataset = isinstance(context.pool.X, Dataset)
        keys = np.arange(context.n_pool) if is_dataset else copy_groups(context.pool.digests())
        return draw_relevant(context.predict_proba(), keys, n_instances, self.gamma, generator)


def draw_relevant(
    proba: np.ndarray, keys: np.ndarray, n_instances: int, gamma: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Rows, one after the other, in proportion to ``(uncertainty + distance)^gamma``.

    The distance is that to the nearest prediction that has been drawn, in the sum of absolute differences, scaled to
    [0, 1] over the pool; at first it is the uncertainty.

    Parameters
    ----------
    proba : (N, C) array
    keys : (N,) array
        Equal for copies.
    n_instances : int
    gamma : float
    generator : numpy.random.Generator

    Returns
    -------
    picked : (n_instances,) array
    relevance : (n_instances,) array
        Of each when it was drawn.
    """
    uncertainty = UNCERTAINTIES["margin"](proba)
    distance, free, spent = uncertainty.copy(), np.ones(len(proba), dtype=bool), np.zeros(len(proba), dtype=bool)
    picked: list[int] = []
    relevances: list[float] = []
    for _ in range(n_instances):
        open_ = free & ~spent if (free & ~spent).any() else free
        relevance = uncertainty + distance
        # powers of large numbers do not overflow if the largest of them is 1
        weights = np.where(open_, relevance / max(relevance[open_].max(), np.finfo(float).tiny), 0) ** gamma * open_
        row = int(generator.choice(len(proba), p=weights / weights.sum() if weights.sum() > 0 else open_ / open_.sum()))
        picked.append(row)
        relevances.append(float(relevance[row]))
        free[row] = False
        spent |= keys == keys[row]
        distance = np.minimum(distance, np.abs(proba - proba[row]).sum(axis=1))
        distance -= distance.min()
        distance /= max(distance.max(), np.finfo(float).tiny)
    return np.array(picked), np.array(relevances)


falcun = query_function(Falcun, "falcun", __name__)
