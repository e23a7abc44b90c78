# SPDX-License-Identifier: BSD-3-Clause
"""The strategy that we recommend: ``query_strategy="auto"``, and ``None``.

| the estimator works on | before the first training | afterwards |
|---|---|---|
| rows of numbers: a table, embeddings | MaxHerding | UHerding |
| a network with frozen (pre-trained) layers | MaxHerding | UHerding |
| any other network: images from random weights | MaxHerding | NTKLookahead |
| text, sparse or missing values, constant inputs | RandomSampling | Margin |

The settings called development in ``benchmarks/evidence`` decided this; the others judge it. A network
without labels has no features yet: MaxHerding compares its inputs then. Rows of numbers are compared as they are,
whatever network follows: they were better than its hidden layer, which has seen few labels. Where look-ahead cannot
work on a network, Margin does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from skal.base import QueryStrategy
from skal.context import QueryContext
from skal.exceptions import SampleError, SkalError
from skal.strategies._names import make_strategy

# pixels of larger images say little, and their distances cost much
_MOST_INPUTS = 4096


def recommend(context: QueryContext) -> tuple[str, str]:
    """Strategy for a query, by name and parameters, and why it is this one.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from sklearn.linear_model import LogisticRegression
    >>> learner = SimpleNamespace(estimator=LogisticRegression(), X_training=None, y_training=None)
    >>> recommend(QueryContext(learner, np.eye(3)))
    ('max_herding', 'no labels yet, and the inputs are features')
    """
    started = context.is_fitted and context.n_labelled > 0
    if context.has_network and _has_frozen_layers(context):
        return _herding(started, "the frozen layers give features")
    if context.has_network and started and not _are_vectors(context):
        return "ntk_lookahead", "the network started from random weights"
    reason = _why_no_features(context)
    if reason is None:
        # the hidden layer of a network has learnt nothing without labels, and less than the inputs say from a few
        return _herding(started, "the inputs are features", "(features='input')" if context.has_network else "")
    if context.has_network and started:
        return "ntk_lookahead", f"the network started from random weights, and {reason}"
    return ("margin", reason) if started else ("random", f"no labels yet, and {reason}")


def _herding(started: bool, source: str, parameters: str = "") -> tuple[str, str]:
    if started:
        return f"uherding{parameters}", source
    return f"max_herding{parameters}", f"no labels yet, and {source}"


def _are_vectors(context: QueryContext) -> bool:
    """Whether every input is a row of numbers, and no image or sequence."""
    return getattr(context.pool.read(0, 1), "ndim", 0) == 2


def _has_frozen_layers(context: QueryContext) -> bool:
    return context.is_fitted and any(not p.requires_grad for p in context.network.module.parameters())


def _why_no_features(context: QueryContext) -> str | None:
    """Why comparing the inputs would say nothing; None if it does."""
    first = None
    constant = True
    for start in range(0, context.n_pool, 4096):
        rows = context.pool.read(start, min(start + 4096, context.n_pool))
        rows = rows.cpu().numpy() if isinstance(rows, torch.Tensor) else rows
        array = np.asarray(rows) if isinstance(rows, np.ndarray) or hasattr(rows, "iloc") else None
        if array is None or array.dtype.kind not in "fiub" or array.ndim < 2:
            return "the inputs are no table of numbers"
        if context.has_network and array.dtype.kind != "f":
            return "whole numbers that a network takes may be names, such as those of words"
        if context.has_network and array[0].size > _MOST_INPUTS:
            return f"the inputs have more than {_MOST_INPUTS:,} numbers each"
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
        try:
            return self._ask(name, context, n_instances)
        except SkalError as error:
            if name != "ntk_lookahead" or isinstance(error, SampleError):
                raise
            # gradients need more of a network than outputs do; what is wrong with the pool, Margin refuses, too
            self.reason_ = f"look-ahead cannot work on this network: {error}"
            return self._ask("margin", context, n_instances)

    def _ask(self, name: str, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        self.strategy_ = make_strategy(name)
        if "random_state" in self.strategy_.get_params():
            self.strategy_.set_params(random_state=self.random_state)
        # what it needs has been looked at: a random start is there before anything is fitted
        return self.strategy_._select(context.for_strategy(type(self.strategy_).__name__), n_instances)
