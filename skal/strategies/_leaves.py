# SPDX-License-Identifier: BSD-3-Clause
"""Leaves of a forest that samples end in: a similarity that labels teach.

``k(x, x')`` is the share of trees in which x and x' end in the same leaf: positive semi-definite, 1 for x itself. It
needs no scaling, and columns that say nothing about the labels hardly count. Labels of one class teach nothing: then
all samples are alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from torch import Tensor

from skal.context import QueryContext, Samples
from skal.strategies._pool_features import PoolFeatures

_TREES = 100
_FEWEST_TREES = 10  # trees that an estimator must have: shares of fewer are too coarse
_ROWS = 4096  # samples that go through the trees at once


class PoolLeaves(PoolFeatures):
    """Leaves of the pool's samples: (N, T) whole numbers, one for each tree, in the place of features.

    The estimator's own trees if it is a forest or boosted; otherwise those of a random forest that is fitted on the
    labels so far, on the same features that other kernels compare.

    Parameters
    ----------
    context : QueryContext
    features
        What a forest beside the estimator is fitted on; see :meth:`~skal.context.QueryContext.features`.
    room : int, optional
        Bytes for the leaves; see :class:`PoolFeatures`.
    """

    def __init__(self, context: QueryContext, features: object, *, room: int | None = None) -> None:
        self._leaves_of = _own_trees(context) or _trees_beside(context, features)
        super().__init__(context, features, normalize=False, room=room)

    def of(self, samples: Samples | None) -> Tensor:
        """(n, T) leaves, as numbers that a float holds exactly."""
        samples = self._context.pool if samples is None else samples
        # without a bound all at once: the features of a pool that is read as a whole are computed once
        step = len(samples) if self._context.memory_bound is None else _ROWS
        starts = range(0, len(samples), step)
        parts = [self._leaves_of(samples.take(range(i, min(i + step, len(samples))))) for i in starts]
        leaves = torch.from_numpy(np.concatenate(parts).astype(np.float32))
        return leaves.to(self._context.device) if self._context.has_network else leaves  # where its outputs are

    def copy_keys(self, samples: Samples | None = None) -> Tensor:
        """Numbers that copies share: samples with the same leaves are alike, but no copies."""
        return self._keys_by_content(self._context.pool if samples is None else samples)

    def _refuse_constant(self, first: Tensor) -> None:
        """Nothing: where all samples end in the same leaves, each covers all others."""


def _own_trees(context: QueryContext) -> Callable[[Samples], np.ndarray] | None:
    """A function that gives the leaves of the estimator's own trees; None if it has none."""
    estimator = context.inner_estimator
    if context.has_network or not context.is_fitted or not hasattr(estimator, "apply"):
        return None

    def leaves(samples: Samples) -> np.ndarray:
        rows = samples.read(0, len(samples))
        for step in context.transformers:
            rows = step.transform(rows)
        found = np.asarray(estimator.apply(rows))
        return found.reshape(len(found), -1)  # boosted trees have one for each class

    return leaves if leaves(context.pool.take(range(1))).shape[1] >= _FEWEST_TREES else None


def _trees_beside(context: QueryContext, features: object) -> Callable[[Samples], np.ndarray]:
    """A function that gives the leaves of a forest fitted on the labelled samples."""
    kind = RandomForestClassifier if context.meaning.has_probabilities else RandomForestRegressor
    forest = _fit(kind(_TREES, random_state=0), context.features(features, context.labelled), _complete(context.labels))

    def leaves(samples: Samples) -> np.ndarray:
        found: np.ndarray = forest.apply(context.features(features, samples).cpu().numpy())
        return found

    return leaves


def _complete(labels: np.ndarray) -> np.ndarray:
    """Fill in unknown ones (−1) of several labels as most samples have them; leave other labels as they are.

    Examples
    --------
    >>> _complete(np.array([[0, 1], [0, -1], [-1, 1]])).tolist()
    [[0, 1], [0, 1], [0, 1]]
    """
    if labels.ndim != 2 or labels.dtype.kind != "i":
        return labels
    usual = (labels == 1).sum(axis=0) > (labels == 0).sum(axis=0)
    return np.where(labels < 0, usual, labels)


def shares_of_neighbours(values: Tensor, labels: np.ndarray) -> np.ndarray:
    """The share of a sample's neighbours, in leaves of trees that have not seen it, with its label: (n, d) -> (n,).

    Examples
    --------
    >>> values = torch.arange(40.0)[:, None]
    >>> bool(shares_of_neighbours(values, np.arange(40) >= 20).mean() > 0.9)
    True
    >>> bool(shares_of_neighbours(values, np.arange(40) % 2).mean() > 0.5)  # neighbours are of the other class
    False
    """
    forest = _fit(RandomForestClassifier(_TREES, oob_score=True, random_state=0), values, labels)
    own = np.searchsorted(forest.classes_, labels)
    shares: np.ndarray = np.nan_to_num(forest.oob_decision_function_)[np.arange(len(own)), own]  # NaN: all have seen it
    return shares


def _fit(forest: Any, values: Tensor, labels: np.ndarray) -> Any:
    with warnings.catch_warnings():
        # few labels of many classes are how a loop starts
        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
        return forest.fit(values.cpu().numpy(), labels)
