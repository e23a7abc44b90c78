# SPDX-License-Identifier: BSD-3-Clause
"""The strategy that we recommend: ``query_strategy="auto"``, and ``None``.

| the estimator works on | before the first training | afterwards |
|---|---|---|
| inputs that are numbers, without a network | MaxHerding | UHerding |
| a network with frozen (pre-trained) layers | MaxHerding | UHerding |
| a network that starts from random weights | RandomSampling | Margin |
| text, sparse or missing values, constant inputs | RandomSampling | Margin |
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from skal.base import QueryStrategy
from skal.context import QueryContext
from skal.strategies._names import make_strategy


def recommend(context: QueryContext) -> tuple[str, str]:
    """Name of the strategy for a query, and why it is this one.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from sklearn.linear_model import LogisticRegression
    >>> learner = SimpleNamespace(estimator=LogisticRegression(), X_training=None, y_training=None)
    >>> recommend(QueryContext(learner, np.eye(3)))
    ('max_herding', 'no labels yet, and the inputs are features')
    """
    reason = _why_no_features(context)
    started = context.is_fitted and context.n_labelled > 0
    if reason is not None:
        return ("margin", reason) if started else ("random", f"no labels yet, and {reason}")
    source = "the frozen layers give features" if context.has_network else "the inputs are features"
    return ("uherding", source) if started else ("max_herding", f"no labels yet, and {source}")


def _why_no_features(context: QueryContext) -> str | None:
    """Why features of the pool would say nothing; None if they do."""
    if context.has_network:
        if not context.is_fitted:
            return "the network is not initialised"
        frozen = any(not parameter.requires_grad for parameter in context.network.module.parameters())
        return None if frozen else "the network started from random weights"
    first = None
    constant = True
    for start in range(0, context.n_pool, 4096):
        rows = context.pool.read(start, min(start + 4096, context.n_pool))
        rows = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else rows
        array = np.asarray(rows) if isinstance(rows, np.ndarray) or hasattr(rows, "iloc") else None
        if array is None or array.dtype.kind not in "fiub" or array.ndim < 2:
            return "the inputs are no table of numbers"
        if not np.isfinite(array).all():
            return "the inputs have missing values"
        # features are compared by their directions
        array = array.reshape(len(array), -1).astype(np.float64)
        array /= np.maximum(np.linalg.norm(array, axis=1, keepdims=True), np.finfo(float).tiny)
        first = array[:1] if first is None else first
        constant = constant and np.allclose(array, first)
    return "the inputs all have one direction" if constant else None


class Recommended(QueryStrategy):
    """The recommended strategy, decided anew for every query: see the table above.

    Parameters
    ----------
    random_state : None, int, Generator or RandomState, default=None
        For strategies that draw.

    Attributes
    ----------
    strategy_ : QueryStrategy
        The one that answered the last query.
    reason_ : str
        Why it was this one.
    """

    needs_fitted = needs_network = False

    def __init__(self, *, random_state: Any = None) -> None:
        self.random_state = random_state

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        name, self.reason_ = recommend(context)
        self.strategy_ = make_strategy(name)
        if "random_state" in self.strategy_.get_params():
            self.strategy_.set_params(random_state=self.random_state)
        # what it needs has been looked at: a random start is there before anything is fitted
        return self.strategy_._select(context.for_strategy(**self.strategy_.context_settings()), n_instances)
