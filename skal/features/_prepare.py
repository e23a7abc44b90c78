# SPDX-License-Identifier: BSD-3-Clause
"""Raw samples of any kind as features: what ``features="prepared"`` stands for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler, add_dummy_feature
from sklearn.utils import get_tags
from torch.utils.data import Dataset

from skal._core.containers import is_lazy, n_rows, take_rows
from skal._core.estimators import chain_transformers
from skal.features._table import TableFeatures
from skal.features._text import SparseFeatures, TextFeatures, is_texts

_MOST_ROWS = 20_000  # that features are fitted on
_WIDEST_TABLE = 512  # columns of a sparse matrix that is a table rather than counts of words
_MOST_LOOKED_AT = 200  # rows, to tell embeddings from a table
_WIDE = 100  # columns of what may be the features of a network
_DISTINCT = 0.9  # share of the rows of such a column, in the middle of them, that differ from all others
_NEAR_ONE = 1e-3  # the length of a row that was scaled to length 1, in half precision too


@dataclass(frozen=True)
class Preparation:
    """Fitted steps that make features of raw samples.

    Attributes
    ----------
    steps : tuple of transformers
        Those before the classifier, then what makes features of their output.
    kind : {"table", "texts", "sparse rows", "rows of length 1", "embeddings"}
        What that output is.
    """

    steps: tuple[Any, ...]
    kind: str

    @property
    def is_slow(self) -> bool:
        """True if features should be computed once for each sample."""
        return self.kind == "texts"

    def transform(self, X: Any) -> Any:
        """Features of raw samples: (n, d)."""
        chain = chain_transformers(list(self.steps))
        return X if chain is None else chain(X)


def prepare(X: Any, steps: Sequence[Any] = (), *, fitted: bool = False) -> Preparation | None:
    """Fit what makes features of raw samples, without labels; None where nothing is known of such samples.

    Parameters
    ----------
    X : data frame, array, sparse matrix, texts
        All samples. Of more than 20,000, only 20,000 are looked at.
    steps : sequence of transformers
        What stands before the classifier.
    fitted : bool
        Whether the steps are. Otherwise, and for texts, they are copied and fitted here, up to the first that needs
        labels.

    Examples
    --------
    >>> prepare(np.array([[1.0, 200.0], [2.0, 100.0], [3.0, 200.0]])).kind
    'table'
    >>> prepare(["some words", "other words"]).kind
    'texts'
    """
    if isinstance(X, (Mapping, Dataset)):
        return None
    n = n_rows(X)
    some = X if n <= _MOST_ROWS else take_rows(X, np.linspace(0, n - 1, _MOST_ROWS).astype(np.int64))
    if is_lazy(some):
        some = take_rows(some, slice(0, len(some)))
    # a vocabulary that was learnt from a few labelled texts lacks most words
    own = tuple(steps) if fitted and not is_texts(some) else _fit_without_labels(steps, some)
    chain = chain_transformers(list(own))
    output = some if chain is None else chain(some)
    kind, last = ("sparse rows", SparseFeatures()) if is_texts(some) and sp.issparse(output) else _choose(output)
    if kind is None:
        return None
    return Preparation(own if last is None else (*own, last.fit(output)), kind)


def _fit_without_labels(steps: Sequence[Any], X: Any) -> tuple[Any, ...]:
    """Copies of the steps, fitted one after the other, up to the first that needs labels."""
    fitted: list[Any] = []
    for step in steps:
        try:
            if get_tags(step).target_tags.required:
                break
            copied = clone(step)
            X = copied.fit(X).transform(X)
        except (TypeError, ValueError, AttributeError):  # it says so when it is fitted with labels
            break
        fitted.append(copied)
    return tuple(fitted)


def _choose(X: Any) -> tuple[str | None, Any]:
    """The kind of samples, and the transformer that makes features of them."""
    if is_texts(X):
        return "texts", TextFeatures()
    if sp.issparse(X):
        return ("sparse rows", SparseFeatures()) if X.shape[1] > _WIDEST_TABLE else ("table", _centre(_DenseTable()))
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu().numpy()
    if getattr(X, "ndim", 0) != 2 or 0 in X.shape:
        return None, None
    dtype = getattr(X, "dtype", None)
    if dtype is not None and dtype.kind == "f":
        lengths = np.linalg.norm(np.asarray(X, dtype=np.float64), axis=1)
        if np.all((np.abs(lengths - 1) < _NEAR_ONE) | (lengths == 0)) and lengths.any():
            return "rows of length 1", None
        if _are_embeddings(np.asarray(X[:_MOST_LOOKED_AT])):
            return "embeddings", _centre(TableFeatures())
    return "table", _centre(TableFeatures())


def _are_embeddings(rows: np.ndarray) -> bool:
    """True if rows may be a network's features: many columns, and hardly a number twice in most of them.

    A table with this many columns probably holds counts, or a column for each category.
    """
    if rows.shape[1] < _WIDE:
        return False
    shares = [len(np.unique(column)) / len(rows) for column in rows.T]
    return bool(np.median(shares) > _DISTINCT)


def _centre(features: TableFeatures) -> Any:
    """Directions are seen from the middle of the pool, and a column of ones leaves something of a row's length.

    Columns of 0 and 1 do not lie around 0. Without the ones, a table of one column would have two directions.
    """
    return make_pipeline(features, StandardScaler(with_std=False), FunctionTransformer(add_dummy_feature))


class _DenseTable(TableFeatures):
    """A table that comes as a sparse matrix, such as columns of 0 and 1."""

    def _read(self, X: Any, reset: bool) -> Any:
        return super()._read(X.toarray() if sp.issparse(X) else X, reset)
