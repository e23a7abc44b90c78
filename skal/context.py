"""What a strategy sees of the learner that calls it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNet
from torch.utils.data import Dataset

from skal._core.containers import check_finite, dataset_target, is_lazy, n_rows
from skal._core.last_layer import LastLayer, LastOutput, embeddings, find_last_layer
from skal._core.network import Network
from skal._core.samples import Samples
from skal._core.sharding import Sharding
from skal.exceptions import (
    EmptyPoolError,
    InvalidTypeError,
    NoLabelledDataError,
    NoNetworkError,
    NonFiniteError,
    NotFittedError,
    OutputError,
    shorten,
)

__all__ = ["QueryContext", "check_distributions", "unwrap_estimator"]

# where wrappers keep the fitted estimator that does the work, in the order in which they are looked at
_FITTED_INSIDE = ("best_estimator_", "estimator_", "classifier_", "estimator")


def unwrap_estimator(estimator: Any) -> tuple[Any, list[Any]]:
    """The innermost estimator, and the fitted transformers that its input goes through first.

    Looks into Pipelines, search objects (``best_estimator_``) and wrappers that keep a fitted ``estimator_``.

    Parameters
    ----------
    estimator : estimator

    Returns
    -------
    estimator : estimator
        A skorch net if there is one.
    transformers : list
        In the order in which they are applied.

    Examples
    --------
    >>> from skal.context import unwrap_estimator
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> unwrap_estimator(make_pipeline(StandardScaler(), LogisticRegression()))
    (LogisticRegression(), [StandardScaler()])
    """
    transformers: list[Any] = []
    while not isinstance(estimator, NeuralNet):
        if isinstance(estimator, Pipeline):
            transformers += [step for _, step in estimator.steps[:-1] if step is not None and step != "passthrough"]
            estimator = estimator.steps[-1][1]
            continue
        candidates = (getattr(estimator, name, None) for name in _FITTED_INSIDE)
        inside = next((candidate for candidate in candidates if _is_estimator(candidate)), None)
        if inside is None:
            break
        estimator = inside
    return estimator, transformers


def _is_estimator(value: Any) -> bool:
    return hasattr(value, "fit") and hasattr(value, "predict") and not isinstance(value, type)


def _chain(transformers: list[Any]) -> Callable[[Any], Any] | None:
    if not transformers:
        return None

    def transform(X: Any) -> Any:
        for transformer in transformers:
            try:
                X = transformer.transform(X)
            except SklearnNotFittedError as error:
                raise NotFittedError(
                    "The steps before the network must be fitted. "
                    f"Got an unfitted {type(transformer).__name__} instead. Fit the whole Pipeline before query."
                ) from error
        return X

    return transform


class QueryContext:
    """The estimator and its network, the labelled set and the pool, as one query needs them.

    Everything costly (number of classes, last layer) is found when first asked for, once.

    Parameters
    ----------
    learner : object with ``estimator``, ``X_training`` and ``y_training``
    X_pool : array-like, tensor, memory map, Dataset, or dict of arrays
    batch_size : int
        Samples per network pass.
    owner : str
        The strategy's name, for messages.
    sharding : Sharding, optional
        Who shares the passes over the pool; by default this process makes them alone.

    Attributes
    ----------
    pool : Samples
        The pool, transformed by the steps before the network.
    transformers : list
        Those steps.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.context import QueryContext
    >>> context = QueryContext(*make_learner())  # a strategy's _score or _select gets one
    >>> context.n_pool, context.n_labelled, context.n_classes
    (40, 16, 4)
    >>> context.predict_proba().shape
    (40, 4)
    >>> inputs, logits = context.embeddings()  # of the last layer
    >>> inputs.shape, logits.shape
    (torch.Size([40, 16]), torch.Size([40, 4]))
    """

    def __init__(
        self,
        learner: Any,
        X_pool: Any,
        *,
        batch_size: int = 256,
        owner: str = "QueryStrategy",
        sharding: Sharding | None = None,
    ) -> None:
        if not hasattr(learner, "estimator"):
            raise InvalidTypeError(
                f"The learner that calls {owner} must have the attributes estimator, X_training and y_training. "
                f"Got {type(learner).__name__} instead. Pass a modAL or skal ActiveLearner."
            )
        self.learner = learner
        self.estimator = learner.estimator
        self.batch_size = batch_size
        self.owner = owner
        self.sharding = sharding or Sharding()
        if n_rows(X_pool, "X_pool") == 0:
            raise EmptyPoolError(
                f"The X_pool given to {owner} must hold at least one sample. Got an empty pool instead. "
                "Stop the loop when everything is labelled, or pass more data."
            )
        _check_fitted(self.estimator, owner)
        self.inner_estimator, self.transformers = unwrap_estimator(self.estimator)
        # a first step that takes NaN (an imputer, a histogram booster) says so in its tags
        first = self.transformers[0] if self.transformers else self.inner_estimator
        self._raw_nan = not isinstance(first, NeuralNet) and _allows_nan(first)
        self.pool = self._samples(X_pool, "X_pool")

    def _samples(self, X: Any, name: str) -> Samples:
        transform = _chain(self.transformers) if self.has_network else None
        samples = Samples(X, name=name, transform=transform, allow_nan=self._raw_nan and not self.has_network)
        # what may not fit in memory is checked chunk by chunk, when it is read
        if not self._raw_nan and not isinstance(X, (Dataset, np.memmap)) and not is_lazy(X):
            check_finite(samples.X, name)
        return samples

    def require_network(self) -> None:
        """Raise :class:`~skal.exceptions.NoNetworkError` unless the estimator ends in a skorch net."""
        _ = self.net

    def require_labels(self) -> None:
        """Raise :class:`~skal.exceptions.NoLabelledDataError` unless there are labelled samples, each with a label."""
        _ = self.y_labelled

    def restrict(self, rows: np.ndarray | range) -> QueryContext:
        """The same query on a part of the pool."""
        part = object.__new__(QueryContext)
        part.__dict__.update(self.__dict__)
        part.pool = self.pool.take(rows)
        return part

    @property
    def n_pool(self) -> int:
        """Number of samples in the pool."""
        return len(self.pool)

    @property
    def has_network(self) -> bool:
        """Whether the estimator is a skorch net, or ends in one."""
        return isinstance(self.inner_estimator, NeuralNet)

    @property
    def net(self) -> NeuralNet:
        """The skorch net."""
        if not self.has_network:
            raise NoNetworkError(
                f"The estimator that {self.owner} works on must be a skorch net, or a Pipeline or search object that "
                f"ends in one. Got {type(self.inner_estimator).__name__} instead. Wrap a torch module in "
                "skorch.NeuralNetClassifier, or use a strategy that needs only predict_proba (margin, entropy)."
            )
        return self.inner_estimator

    @cached_property
    def network(self) -> Network:
        """The net's module, with its inputs and outputs understood."""
        return Network(self.net, self.sharding)

    @property
    def device(self) -> torch.device:
        """Where the network lives."""
        return self.network.device

    @cached_property
    def n_classes(self) -> int:
        """From the network's output; with few labels not every class has been seen yet."""
        return self.network.n_classes(self.pool) if self.has_network else int(self.predict_proba(first=1).shape[1])

    @cached_property
    def last_layer(self) -> LastLayer:
        """The last parameterised layer, found by hooks."""
        return find_last_layer(self.network, self.pool)

    @cached_property
    def logit_network(self) -> Network:
        """The network with the logits behind a softmax, if its module ends in one.

        A softmax and NLLLoss leave only log-probabilities, which have another Jacobian than the logits behind them.
        """
        if isinstance(self.network.criterion, torch.nn.NLLLoss) and self.last_layer.gives_logits:
            return LastOutput(self.net, self.last_layer, self.sharding)
        return self.network

    def embeddings(self, samples: Samples | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs of the last layer (n, d) and logits (n, C), on the network's device."""
        return embeddings(self.network, samples or self.pool, self.batch_size, self.last_layer)

    @property
    def n_labelled(self) -> int:
        """Number of labelled samples; 0 before the first."""
        X = getattr(self.learner, "X_training", None)
        return 0 if X is None else n_rows(X, "X_training")

    @cached_property
    def labelled(self) -> Samples:
        """The labelled samples, transformed like the pool."""
        if self.n_labelled == 0:
            raise NoLabelledDataError(
                f"{self.owner} needs labelled data: the learner's X_training must hold at least one sample. "
                "Got none instead. Teach the learner a few labels first, or use random_sampling for the first batch."
            )
        return self._samples(self.learner.X_training, "X_training")

    @cached_property
    def y_labelled(self) -> np.ndarray:
        """Labels of the labelled samples, as the learner holds them."""
        y = getattr(self.learner, "y_training", None)
        if y is None and isinstance(self.labelled.X, Dataset):
            y = [dataset_target(self.labelled.X[i]) for i in range(len(self.labelled))]
        if isinstance(y, torch.Tensor):
            y = y.cpu()
        y = np.asarray(y)
        if y.shape[:1] != (len(self.labelled),):
            raise NoLabelledDataError(
                f"The learner's y_training must hold one label for each of the {len(self.labelled)} rows of "
                f"X_training. Got {shorten(y)} instead. Pass labels for all of them."
            )
        return y

    @cached_property
    def class_labels(self) -> np.ndarray:
        """Labels of the network's outputs 0 … C−1, as ``int64`` targets for a loss: (n,) array."""
        y = self.y_labelled
        if isinstance(self.network.criterion, torch.nn.BCEWithLogitsLoss) and np.isin(y, (0.0, 1.0)).all():
            y = y.astype(np.int64)  # this criterion takes nothing but floating-point labels
        if y.dtype.kind not in "iub" or y.min() < 0 or y.max() >= self.n_classes:
            raise NoLabelledDataError(
                f"The labels that {self.owner} differentiates must be integers in 0 … {self.n_classes - 1}, one for "
                f"each output of the network. Got {shorten(np.unique(y))} instead. Encode them, for example with "
                "sklearn.preprocessing.LabelEncoder, and give the last layer an output for every class."
            )
        return y.astype(np.int64)

    def predict_proba(self, first: int | None = None) -> np.ndarray:
        """(N, C) class probabilities of the pool (or of its first rows), checked to be distributions."""
        pool = self.pool if first is None else self.pool.take(np.arange(first))
        if self.has_network:
            proba = self.network.forward(pool, self.batch_size, self.network.to_proba).double().cpu().numpy()
        else:
            if not hasattr(self.estimator, "predict_proba"):
                raise InvalidTypeError(
                    f"The estimator that {self.owner} works on must have predict_proba. "
                    f"Got {type(self.estimator).__name__} instead. Calibrate it with CalibratedClassifierCV."
                )
            # scikit-learn's classifiers bring no batch size of their own: bound the memory, spare the overhead
            estimator, size = self.estimator, max(self.batch_size, 4096)

            def shard(part: Samples) -> np.ndarray:
                return np.concatenate([np.asarray(estimator.predict_proba(x), dtype=float) for x in part.chunks(size)])

            proba = np.concatenate(list(self.sharding.map(shard, pool, size)))
        check_distributions(proba)
        return proba


def _check_fitted(estimator: Any, owner: str) -> None:
    inner, _ = unwrap_estimator(estimator)
    try:
        if isinstance(inner, NeuralNet):
            Network(inner)
        elif isinstance(estimator, Pipeline):
            check_is_fitted(estimator.steps[-1][1])
        elif hasattr(estimator, "fit"):
            check_is_fitted(estimator)
    except SklearnNotFittedError:
        raise NotFittedError(
            f"The estimator that {owner} works on must be fitted. Got an unfitted {type(estimator).__name__} instead. "
            "Give the learner X_training and y_training, or call fit or teach before query."
        ) from None


def _allows_nan(estimator: Any) -> bool:
    try:
        return bool(get_tags(estimator).input_tags.allow_nan)
    except (AttributeError, TypeError):  # an estimator that follows only a part of scikit-learn's conventions
        return False


def check_distributions(proba: np.ndarray) -> None:
    """Refuse probabilities that are not finite, or not one distribution per row.

    Parameters
    ----------
    proba : (N, C) array

    Raises
    ------
    NonFiniteError, OutputError

    Examples
    --------
    >>> import numpy as np
    >>> from skal.context import check_distributions
    >>> check_distributions(np.array([[0.3, 0.7], [1.0, 0.0]]))
    >>> check_distributions(np.array([[2.0, 3.0]]))
    Traceback (most recent call last):
        ...
    skal.exceptions.OutputError: The estimator's predict_proba must give one distribution per row. ...
    """
    if not np.isfinite(proba).all():
        raise NonFiniteError(
            "The estimator's probabilities must be finite. Got NaN or infinity instead. Training has probably "
            "diverged: lower the learning rate or scale the inputs, and fit again."
        )
    if proba.ndim != 2 or proba.min() < -1e-4 or np.abs(proba.sum(axis=1) - 1).max() > 1e-3:
        raise OutputError(
            "The estimator's predict_proba must give one distribution per row. "
            f"Got rows such as {shorten(np.asarray(proba)[0].tolist())} instead. For a net whose loss skorch does not "
            "know set predict_nonlinearity, for example to partial(torch.softmax, dim=-1)."
        )
