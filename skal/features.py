# SPDX-License-Identifier: BSD-3-Clause
"""Features of samples: computed by a frozen network, a transformer or a function, once per sample if asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn
from torch.utils.data import Dataset

from skal._core.cache import Cache
from skal._core.containers import dataset_input, take_rows
from skal._core.feeding import as_tensor
from skal._core.guard import evaluating
from skal._core.identity import object_digest, sample_digests
from skal._core.memory import fill_rows
from skal._core.network import Network
from skal._core.pool import Samples
from skal.config import get_config
from skal.exceptions import FeatureError, InvalidTypeError, NotFittedError, shorten

__all__ = ["Cache", "RememberedFeatures", "compute_features"]

_ROWS = 4096  # that are handed to a function of the user's at once


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
        """Whether ``transform`` may be called: always."""
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


def compute_features(features: Any, samples: Samples, *, owner: str = "skal") -> Tensor:
    """Features of samples, by a transformer, a function, a frozen module, or the samples themselves.

    Parameters
    ----------
    features : transformer, callable, nn.Module or None
        What computes them. None takes the samples as they are, behind the transform that they bring.
    samples : Samples
        What they are computed for, n of them.
    owner : str
        Who works on the features, for messages.

    Returns
    -------
    (n, d) tensor
        Finite, of float32 or float64, where they were computed.

    Examples
    --------
    >>> from skal.context import Samples
    >>> from skal.features import compute_features
    >>> compute_features(lambda X: X[:, :1], Samples(np.eye(2)))
    tensor([[1.],
            [0.]], dtype=torch.float64)
    """
    return fill_rows(_blocks(features, samples, owner), len(samples))


def _blocks(features: Any, samples: Samples, owner: str) -> Iterator[Tensor]:
    width = None
    step = max(1, len(samples)) if features is None else _ROWS
    for start in range(0, len(samples), step):
        part = samples.take(range(start, min(start + step, len(samples))))
        block = check_finite_features(_as_matrix(_apply(features, part, owner), len(part), owner), owner, start)
        width = block.shape[1] if width is None else width
        if block.shape[1] != width:
            got = f"{width} columns at first, and {block.shape[1]} from sample {start} on"
            raise feature_error(owner, "of one length for all samples", got)
        yield block


def _apply(features: Any, part: Samples, owner: str) -> Any:
    if isinstance(features, nn.Module):
        # a backbone sees samples as they are, whatever classifier comes after it
        return pass_module(features, replace(part, transform=None))
    rows = part.read(0, len(part))
    if features is None:
        return rows if part.transform is None else part.transform(rows)
    try:
        return features.transform(rows) if hasattr(features, "transform") else features(rows)
    except AttributeError as error:
        if not _is_unfitted(features, error):
            raise
        raise NotFittedError(
            f"The transformer given to {owner} as features must be fitted. Got an unfitted "
            f"{type(features).__name__} instead. Fit it on the pool before the first query."
        ) from error


def pass_module(module: nn.Module, samples: Samples) -> Tensor:
    """(n, d) outputs of a frozen module, flattened, in eval mode and without gradient."""
    network, batch_size = Network(module), get_config()["batch_size"]
    with evaluating(network.module), torch.no_grad():
        return torch.cat([network.output(batch).flatten(1) for batch in network.passes(samples, batch_size)])


def _is_unfitted(features: Any, error: AttributeError) -> bool:
    """Whether this error means it: before scikit-learn 1.8 PCA looks for its components first, and just lacks them."""
    if isinstance(error, SklearnNotFittedError):
        return True
    if not hasattr(features, "fit"):
        return False
    try:
        check_is_fitted(features)
    except SklearnNotFittedError:
        return True
    return False


def _as_matrix(values: Any, n: int, owner: str) -> Tensor:
    """Whatever holds numbers, row by row, as a floating-point tensor (n, d)."""
    if isinstance(values, Mapping):
        return torch.cat([_as_matrix(value, n, owner) for value in values.values()], dim=1)
    if isinstance(values, Dataset):
        values = torch.stack([torch.as_tensor(dataset_input(values[i]), device="cpu") for i in range(n)])
    if sp.issparse(values):
        values = values.toarray()
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise feature_error(owner, "numbers", f"{shorten(values)} of dtype {array.dtype}")
        values = as_tensor(array)
    values = values.detach()
    if values.ndim == 0 or len(values) != n or values[:1].numel() == 0:
        got = f"shape {tuple(values.shape)}"
        raise feature_error(owner, f"an array of {n} rows with at least one column", got)
    return at_least_float32(values.flatten(1) if values.ndim > 1 else values[:, None])


def at_least_float32(values: Tensor) -> Tensor:
    """The same numbers in a precision that can be computed with."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def check_finite_features(values: Tensor, owner: str, start: int = 0) -> Tensor:
    """The features, if they are finite; ``start`` is the number of the first sample, for the message."""
    if bool(torch.isfinite(values.sum(1)).all()):  # a sum is finite only if all of its terms are
        return values
    bad = ~torch.isfinite(values).all(1)
    if bool(bad.any()):
        raise feature_error(owner, "finite", f"NaN or infinity, first for sample {start + int(bad.nonzero()[0, 0])}")
    return values


def feature_error(owner: str, expected: str, got: str) -> FeatureError:
    """What is wrong with features, in the words that all messages have."""
    return FeatureError(
        f"The features that {owner} works on must be {expected}. Got {got} instead. Pass other features="
        ": a fitted transformer, a function X -> (n, d), or a frozen nn.Module."
    )
