# SPDX-License-Identifier: BSD-3-Clause
"""Features that are computed once per sample, in memory and if asked for on disk."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from torch.utils.data import Dataset

from skal._core.cache import Cache
from skal._core.containers import take_rows
from skal._core.identity import object_digest, sample_digests
from skal._core.pool import Samples
from skal.exceptions import InvalidTypeError
from skal.features._compute import compute_features


class RememberedFeatures(TransformerMixin, BaseEstimator):
    """Features of samples, remembered by the samples' content, in memory and if asked for on disk.

    Hand it to a strategy as ``features``. In every round the pool is another one, but its samples have been seen
    before, so that a fixed backbone is run on each of them once. A loop (:class:`~skal.ActiveLearningClassifier` and
    its sessions) does so by itself, as long as it runs; this class is for loops of your own, and for features that
    another process should find again.

    Parameters
    ----------
    features : transformer, callable or nn.Module
        What computes them: a fitted transformer, a function ``X -> (n, d)``, or a frozen backbone.
    folder : path or None, default=None
        Where to keep the features, beside the checkpoint of a loop for example. None keeps them in memory alone.

    Attributes
    ----------
    n_computed_ : int
        Samples whose features had to be computed by this object.

    Notes
    -----
    A clone is the same object, so that copies of a strategy share what they remember. What computes the features is
    recognised by its content: parameters and fitted attributes, the code of a function and what it uses. If it changes,
    other features are computed, and a folder of other features is refused.

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

    _cache: Cache | None = None

    def __init__(self, features: Any, *, folder: Any = None) -> None:
        self.features = features
        self.folder = folder

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
        """True if ``transform`` may be called: always."""
        return True

    def __sklearn_clone__(self) -> RememberedFeatures:
        """The same object: a copied memory would be empty."""
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Features of samples; only those of samples that are new are computed.

        Parameters
        ----------
        X : array-like, tensor or dict of arrays, n samples
            What the backbone takes.

        Returns
        -------
        (n, d) array
            One row per sample.
        """
        owner = type(self).__name__
        if isinstance(X, Dataset):
            expected, remedy = "an array, a tensor, a data frame, a list, or a dict of these", "Pass an array."
            raise InvalidTypeError.for_parameter(owner, "X", expected, X, remedy)
        digest = object_digest(self.features)
        if digest is None:
            expected = "something that can be pickled, so that a change of it is noticed"
            remedy = "Pass a fitted transformer, a function, or an nn.Module."
            raise InvalidTypeError.for_parameter(owner, "features", expected, self.features, remedy)
        if self._cache is None:
            self._cache = Cache("1TB", self.folder)  # the user asked for all of them to be kept
        name = getattr(self.features, "__qualname__", type(self.features).__qualname__)
        values = self._cache.rows(
            f"{name} {digest[:16]}",
            sample_digests(X),
            lambda rows: compute_features(self.features, Samples(take_rows(X, rows)), owner=owner).cpu().numpy(),
        )
        self.n_computed_ = self._cache.n_computed
        return values
