# SPDX-License-Identifier: BSD-3-Clause
"""Features that are computed once per project, not once per round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from torch import nn

from skal._core.containers import take_rows
from skal._core.content import content_digest
from skal._core.evaluation import evaluating
from skal._core.feature_store import FeatureStore, sample_keys
from skal.exceptions import FeatureError, InvalidTypeError
from skal.validation import check_integer

__all__ = ["RememberedFeatures"]


class RememberedFeatures(TransformerMixin, BaseEstimator):
    """Features of samples, remembered by the samples' content, in memory and if asked for on disk.

    Hand it to a strategy as ``features``. In every round the pool is another one, but its samples have been seen
    before, so that a fixed backbone is run on each of them once. A loop (:class:`~skal.ActiveLearningClassifier` and
    its sessions) does so by itself, as long as it runs; this class is for loops of your own, and for features that are
    to be found again by another process.

    Parameters
    ----------
    features : transformer, callable or nn.Module
        What computes them: a fitted transformer, a function ``X -> (n, d)``, or a frozen backbone.
    folder : path or None, default=None
        Where to keep the features, beside the checkpoint of a loop for example. None keeps them in memory alone.
    batch_size : int, default=256
        Samples per pass of a backbone.

    Attributes
    ----------
    n_computed_ : int
        Samples whose features had to be computed by this object.

    Notes
    -----
    A clone is the same object, so that copies of a strategy share what they remember. What computes the features is
    recognised by its content: parameters and fitted attributes, the code of a function and what it uses. If it changes,
    what was in memory is forgotten, and a folder of other features is refused. What cannot be looked at is refused.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.features import RememberedFeatures
    >>> from skal.strategies import MaxHerding
    >>> X = np.random.default_rng(0).normal(size=(100, 5))
    >>> features = RememberedFeatures(lambda X: X[:, :3])  # imagine something slow
    >>> learner = ActiveLearner(LogisticRegression(), MaxHerding(features=features))
    >>> for _ in range(3):
    ...     indices, samples = learner.query(X, n_instances=10)
    >>> features.n_computed_
    100
    """

    def __init__(self, features: Any, *, folder: Any = None, batch_size: int = 256) -> None:
        self.features = features
        self.folder = folder
        self.batch_size = batch_size

    _store: FeatureStore | None = None
    _n_forgotten: int = 0

    def fit(self, X: Any = None, y: Any = None) -> RememberedFeatures:
        """Do nothing: what computes the features is fixed.

        Parameters
        ----------
        X, y : object, optional
            Not looked at.

        Returns
        -------
        RememberedFeatures
            Itself.
        """
        return self

    def __sklearn_is_fitted__(self) -> bool:
        """Whether ``transform`` may be called: always."""
        return True

    def __sklearn_clone__(self) -> RememberedFeatures:
        """The same object: memory that is copied is no memory."""
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Features of samples; only those of samples that are new are computed.

        Parameters
        ----------
        X : array-like, tensor, Dataset or dict of arrays, n samples
            What the backbone takes.

        Returns
        -------
        (n, d) array
            One row per sample.
        """
        return self.looked_at()(X)

    def looked_at(self) -> Callable[[Any], np.ndarray]:
        """``transform`` for one query: what computes the features is looked at now, and not at every call.

        Returns
        -------
        callable
            A function of X that gives an (n, d) array.
        """
        check_integer(type(self).__name__, "batch_size", self.batch_size, 1)
        store = self._current_store()

        def transform(X: Any) -> np.ndarray:
            values = store.rows(sample_keys(X), lambda rows: self._computed(take_rows(X, rows), len(rows), store.width))
            self.n_computed_ = self._n_forgotten + store.n_computed
            return values

        return transform

    def _current_store(self) -> FeatureStore:
        digest = content_digest(self.features)
        if digest is None:
            expected = "something that can be pickled, so that a change of it is noticed"
            remedy = "Pass a fitted transformer, a function, or an nn.Module."
            raise InvalidTypeError.for_parameter(type(self).__name__, "features", expected, self.features, remedy)
        source = f"{getattr(self.features, '__qualname__', type(self.features).__qualname__)} {digest[:16]}"
        if self._store is None or self._store.source != source:
            store = FeatureStore(source, self.folder)
            self._n_forgotten = self.n_computed_ = getattr(self, "n_computed_", 0)
            self._store = store
        return self._store

    def _computed(self, X: Any, n: int, width: int | None) -> np.ndarray:
        if isinstance(self.features, nn.Module):
            values: Any = torch.cat([self._passed(X, start, n) for start in range(0, n, self.batch_size)]).numpy()
        elif hasattr(self.features, "transform"):
            values = self.features.transform(X)
        else:
            values = self.features(X)
        values = values.toarray() if sp.issparse(values) else values
        found: np.ndarray = np.asarray(values.detach().cpu() if isinstance(values, torch.Tensor) else values)
        if found.ndim != 2 or len(found) != n or width not in (None, found.shape[1]):
            raise FeatureError(
                f"The features that RememberedFeatures remembers must be an array of {n} rows with "
                f"{width or 'at least one'} columns. Got shape {found.shape} instead. Check what computes them."
            )
        return found

    def _passed(self, X: Any, start: int, n: int) -> torch.Tensor:
        rows = np.asarray(take_rows(X, slice(start, min(start + self.batch_size, n))))
        device = next((parameter.device for parameter in self.features.parameters()), torch.device("cpu"))
        with evaluating(self.features), torch.no_grad():
            values: torch.Tensor = self.features(torch.as_tensor(rows, device=device)).flatten(1).cpu()
            return values
