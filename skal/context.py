# SPDX-License-Identifier: BSD-3-Clause
"""What a strategy sees of the learner that calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.exceptions import NotFittedError as SklearnNotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import check_is_fitted
from skorch import NeuralNet
from torch.utils.data import Dataset

from skal._core.containers import check_finite, dataset_target, is_lazy, n_rows
from skal._core.estimators import allows_nan, chained, is_committee, unwrap_estimator
from skal._core.last_layer import LastLayer, LastOutput, embeddings, find_last_layer
from skal._core.memory import DEFAULT_MEMORY
from skal._core.mistakes import check_classifier
from skal._core.network import Network
from skal._core.outputs import check_distributions, is_binary
from skal._core.samples import Samples
from skal._core.sharding import Sharding
from skal._core.steadiness import Watch
from skal.exceptions import (
    EmptyPoolError,
    InvalidParameterError,
    InvalidTypeError,
    NoLabelledDataError,
    NoNetworkError,
    NotFittedError,
    OutputError,
    shorten,
)
from skal.reuse import kept, reused
from skal.tangent._tangent_engine import TangentEngine
from skal.validation import parse_memory

__all__ = ["LastLayer", "Network", "QueryContext", "Samples", "TangentEngine"]

Result = TypeVar("Result")
_LABELS = (str, bytes, int, float, np.generic, tuple)


class QueryContext:
    """The estimator and its network, the labelled set and the pool, as one query needs them.

    Everything costly (number of classes, last layer) is found when first asked for, once.

    Parameters
    ----------
    learner : object with ``estimator``, ``X_training`` and ``y_training``, or a modAL ``Committee``
        Who asks.
    X_pool : array-like, tensor, memory map, Dataset, or dict of arrays
        The samples to choose from.
    batch_size : int
        Samples per network pass, at most.
    owner : str
        The strategy's name, for messages.
    sharding : Sharding, optional
        Who shares the passes over the pool; by default this process makes them alone.
    max_memory : int, str or None
        Bound on the working memory, such as ``"2GB"``.

    Attributes
    ----------
    pool : Samples
        The pool, transformed by the steps before the network.
    transformers : list
        Those steps.
    memory_bound : int or None
        ``max_memory`` in bytes; None if there is none.

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
        max_memory: int | str | None = None,
    ) -> None:
        if type(getattr(type(learner), "learner_", None)) is property:  # a fitted loop stands for its learner
            learner = learner.learner_
        if not hasattr(learner, "estimator") and not is_committee(learner):
            raise InvalidTypeError(
                f"The learner that calls {owner} must have the attributes estimator, X_training and y_training. "
                f"Got {type(learner).__name__} instead. Pass a modAL or skal ActiveLearner, or a modAL Committee."
            )
        self.learner = learner
        # a committee is a classifier itself: its probabilities are the mean over its learners
        self.estimator = learner if is_committee(learner) else learner.estimator
        if isinstance(self.estimator, type):
            raise NoNetworkError(
                f"The estimator that {owner} works on must be an object, not a class. Got the class "
                f"{self.estimator.__name__} instead. Make one of it, and fit it."
            )
        self._set(batch_size, owner, sharding, max_memory)
        self._results: dict[Any, Any] | None = None  # what the arms of one query share
        self._watches: list[Watch] = []  # over the Datasets of this query
        if n_rows(X_pool, "X_pool") == 0:
            raise EmptyPoolError(
                f"The X_pool given to {owner} must hold at least one sample. Got an empty pool instead. "
                "Stop the loop when everything is labelled, or pass more data."
            )
        self.inner_estimator, self.transformers = unwrap_estimator(self.estimator)
        self.pool = self._samples(X_pool, "X_pool")

    def _set(self, batch_size: int, owner: str, sharding: Sharding | None, max_memory: int | str | None = None) -> None:
        self.batch_size = batch_size
        self.owner = owner
        self.sharding = sharding or Sharding()
        self.max_memory = max_memory
        self.memory_bound = parse_memory(owner, "max_memory", max_memory)

    @cached_property
    def is_fitted(self) -> bool:
        """Whether the estimator can predict."""
        try:
            if self.has_network:
                _ = self.network
            elif isinstance(self.estimator, Pipeline):
                check_is_fitted(self.estimator.steps[-1][1])
            elif is_committee(self.estimator):
                # it always has classes_: None until all its learners are fitted; a committee of regressors has none
                if getattr(self.estimator, "classes_", ()) is None:
                    raise SklearnNotFittedError
            elif hasattr(self.estimator, "fit") and not _has_learned(self.estimator):
                check_is_fitted(self.estimator)
        except SklearnNotFittedError:
            return False
        except (AttributeError, TypeError):  # it follows only a part of scikit-learn's conventions: it will tell
            return True
        return True

    def require_fitted(self) -> None:
        """Raise :class:`~skal.exceptions.NotFittedError` unless the estimator can predict."""
        estimator = self.estimator
        can_predict = hasattr(estimator, "predict") or hasattr(estimator, "predict_proba")
        if not self.has_network and (isinstance(estimator, type) or not can_predict):
            got = f"the class {estimator.__name__}" if isinstance(estimator, type) else type(estimator).__name__
            raise NoNetworkError(
                f"The estimator that {self.owner} works on must be a classifier: a skorch net, or an object with "
                f"predict_proba. Got {got} instead. Wrap a torch module in skorch.NeuralNetClassifier, and fit it."
            )
        if not self.is_fitted:
            raise NotFittedError(
                f"The estimator that {self.owner} works on must be fitted. Got an unfitted "
                f"{type(self.estimator).__name__} instead. Give the learner X_training and y_training, or call fit or "
                "teach before query."
            )

    def _samples(self, X: Any, name: str) -> Samples:
        """Samples that are looked at for NaN once: here if they lie in memory, otherwise when they are read."""
        in_memory = not isinstance(X, (Dataset, np.memmap)) and not is_lazy(X)
        transform = chained(self.transformers) if self.has_network else None
        allow_nan = transform is None and (in_memory or self._takes_nan())
        samples = Samples(X, name=name, transform=transform, allow_nan=allow_nan)
        if in_memory:
            check_finite(samples.X, name, unless=self._takes_nan)
        return samples

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Around a query: Datasets that give other samples when they are read again are refused.

        Inside the query of another strategy, whose arm this one is, that one sees to it.

        Yields
        ------
        None
            For the query.
        """
        if self.pool.watch is not None:
            yield
            return
        self._watch(self.pool)
        yield
        for watch in self._watches:
            watch.end()

    def _watch(self, samples: Samples) -> Samples:
        watch = samples.start_watch()
        if watch is not None:
            self._watches.append(watch)
        return samples

    def _takes_nan(self) -> bool:
        """Whether whoever gets the raw samples says that it takes NaN."""
        first = self.transformers[0] if self.transformers else self.inner_estimator
        return not isinstance(first, NeuralNet) and allows_nan(first)

    def require_network(self) -> None:
        """Raise :class:`~skal.exceptions.NoNetworkError` unless the estimator ends in a skorch net."""
        _ = self.net

    def require_labels(self) -> None:
        """Raise :class:`~skal.exceptions.NoLabelledDataError` unless there are labelled samples, each with a label."""
        _ = self.y_labelled

    def restrict(self, rows: np.ndarray | range) -> QueryContext:
        """The same query on a part of the pool.

        Parameters
        ----------
        rows : int array or range
            Positions in the pool.

        Returns
        -------
        QueryContext
            Whose positions count within this part.
        """
        if isinstance(rows, range) and rows == range(self.n_pool):
            return self
        part = copy(self)
        part.pool, part._results = self.pool.take(rows), None
        return part

    def for_arms(self) -> QueryContext:
        """The same query for several strategies, which share what they compute on the whole pool.

        Returns
        -------
        QueryContext
            To be handed to each of them.
        """
        common = copy(self)
        common._results = {}
        return common

    def for_strategy(
        self, batch_size: int, owner: str, sharding: Sharding, max_memory: int | str | None
    ) -> QueryContext:
        """The same query with the settings of another strategy.

        Parameters
        ----------
        batch_size : int
            Samples per network pass, at most.
        owner : str
            The strategy's name, for messages.
        sharding : Sharding
            Who shares the passes over the pool.
        max_memory : int, str or None
            Bound on the working memory.

        Returns
        -------
        QueryContext
            On the same pool, sharing what has been found out about it.
        """
        other = copy(self)
        other._set(batch_size, owner, sharding, max_memory)
        for name in ("network", "logit_network"):  # they hold the sharding
            other.__dict__.pop(name, None)
        return other

    def remember(
        self, what: Any, compute: Callable[[], Result], *, also: Sequence[Any] = (), limit: int | None = None
    ) -> Result:
        """``compute()``, or what it gave for another arm of this query, or for an earlier query if reuse is on.

        Parameters
        ----------
        what : tuple
            What is computed from network and pool, with all parameters that it depends on.
        compute : callable
            Returns tensors, or tuples of them, which nobody may change.
        also : sequence of Samples and arrays
            What else the result depends on.
        limit : int, optional
            Bytes from which on a result is not kept for later queries.

        Returns
        -------
        tensor, or tuple of tensors
            What ``compute`` gave.
        """
        if self._results is not None and what in self._results:
            known: Result = self._results[what]
            return known
        if kept.get() is None:
            result = compute()
        else:
            result = reused(self.network, self.pool, what, compute, also=also, limit=limit)
        if self._results is not None:
            self._results[what] = result
        return result

    @property
    def memory(self) -> int:
        """Bytes to work with: the bound, or 1 GB if there is none."""
        return DEFAULT_MEMORY if self.memory_bound is None else self.memory_bound

    def engine(
        self,
        backend: str = "auto",
        *,
        network: Network | None = None,
        layers: str = "all",
        memory: int | None = None,
    ) -> TangentEngine:
        """Per-sample gradients of the network.

        Parameters
        ----------
        backend : {"auto", "structured", "func", "backpack"}, default="auto"
            How gradients are computed.
        network : Network, optional
            By default :attr:`logit_network`.
        layers : {"all", "last"}, default="all"
            All trainable parameters, or those of the last parameterised layer.
        memory : int, optional
            Bound in bytes; by default :attr:`memory`.

        Returns
        -------
        TangentEngine
            For the pool and for any other samples.
        """
        return TangentEngine(
            network or self.logit_network,
            self.pool,
            backend=backend,
            layers=layers,
            batch_size=self.batch_size,
            max_memory=max(1, self.memory if memory is None else memory),
            owner=self.owner,
        )

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
        if is_committee(self.inner_estimator):
            raise NoNetworkError(
                f"The estimator that {self.owner} works on must be one skorch net. "
                f"Got a {type(self.inner_estimator).__name__} of {len(self.inner_estimator)} learners instead. "
                "Use a strategy that needs only predict_proba (margin, entropy), or query with one of the learners."
            )
        if not self.has_network:
            raise NoNetworkError(
                f"The estimator that {self.owner} works on must be a skorch net, or a Pipeline or search object that "
                f"ends in one. Got {type(self.inner_estimator).__name__} instead. Wrap a torch module in "
                "skorch.NeuralNetClassifier, or use a strategy that needs only predict_proba (margin, entropy)."
            )
        check_classifier(self.inner_estimator, self.owner)
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
        if self.has_network:
            return self.network.n_classes(self.pool)
        return int(self.predict_proba(self.pool.take(range(1))).shape[1])

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

    def outputs(self) -> torch.Tensor:
        """Outputs of the network for the pool.

        Returns
        -------
        (N, ...) tensor
            On the network's device, checked.
        """
        what = ("outputs", self.batch_size)
        return self.remember(what, lambda: self.network.all_outputs(self.pool, self.batch_size))

    def embeddings(self, samples: Samples | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs of the last layer, and logits, of the pool or other samples.

        Parameters
        ----------
        samples : Samples, optional
            By default the pool.

        Returns
        -------
        embeddings : (n, d) tensor
            On the network's device.
        logits : (n, C) tensor
            Of the same pass.
        """
        if samples is not None:
            return embeddings(self.network, samples, self.batch_size, self.last_layer)
        what = ("embeddings", self.batch_size, self.last_layer.name)
        return self.remember(what, lambda: embeddings(self.network, self.pool, self.batch_size, self.last_layer))

    @property
    def n_labelled(self) -> int:
        """Number of labelled samples; 0 before the first."""
        if is_committee(self.learner):
            raise NoLabelledDataError(
                f"The learner that calls {self.owner} must have one set of labelled samples. "
                f"Got a {type(self.learner).__name__} instead, whose learners each have their own. "
                "Use a strategy that needs only predict_proba (margin, entropy), or query with one of the learners."
            )
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
        return self._watch(self._samples(self.learner.X_training, "X_training"))

    @cached_property
    def y_labelled(self) -> np.ndarray:
        """Labels of the labelled samples, as the learner holds them."""
        y = getattr(self.learner, "y_training", None)
        if y is None and isinstance(self.labelled.X, Dataset):
            y = [dataset_target(self.labelled.X[i]) for i in range(len(self.labelled))]
        try:
            y = np.asarray(y.cpu() if isinstance(y, torch.Tensor) else y)
        except (ValueError, NotImplementedError):  # ragged, or without values
            y = np.empty(())
        if y.shape[:1] != (len(self.labelled),):
            raise NoLabelledDataError(
                f"The learner's y_training must hold one label for each of the {len(self.labelled)} rows of "
                f"X_training. Got {shorten(getattr(self.learner, 'y_training', None))} instead. "
                "Pass labels for all of them."
            )
        if y.dtype.kind not in "iufbUOST" or (y.dtype.kind == "O" and not all(isinstance(v, _LABELS) for v in y.flat)):
            raise InvalidTypeError(
                "The learner's y_training must hold integers or strings. "
                f"Got {shorten(y)} instead. Teach the learner labels that name a class, one for each sample."
            )
        if y.ndim > 1:
            raise InvalidParameterError(
                f"The learner's y_training must hold one label per sample; several at once are not supported. Got "
                f"labels of shape {y.shape} instead. Pass integers: y.argmax(1) of one-hot rows, y.ravel() of a column."
            )
        return y

    @cached_property
    def class_labels(self) -> np.ndarray:
        """Labels of the network's outputs 0 … C−1, or the loss's ``ignore_index``, as ``int64`` targets: (n,) array."""
        y = self.y_labelled
        if is_binary(self.network.criterion) and np.isin(y, (0.0, 1.0)).all():
            y = y.astype(np.int64)  # this criterion takes nothing but floating-point labels
        counted = y[y != getattr(self.network.criterion, "ignore_index", None)] if y.dtype.kind in "iub" else y
        if y.dtype.kind not in "iub" or (counted.size and (counted.min() < 0 or counted.max() >= self.n_classes)):
            raise NoLabelledDataError(
                f"The labels that {self.owner} differentiates must be integers in 0 … {self.n_classes - 1}, one for "
                f"each output of the network. Got {shorten(np.unique(y))} instead. Encode them, for example with "
                "sklearn.preprocessing.LabelEncoder, and give the last layer an output for every class."
            )
        return y.astype(np.int64)

    def predict_proba(self, samples: Samples | None = None) -> np.ndarray:
        """Class probabilities of the pool, or of other samples.

        Parameters
        ----------
        samples : Samples, optional
            By default the pool.

        Returns
        -------
        (n, C) float64 array
            Checked to be distributions.
        """
        if self.has_network:
            network = self.network
            outputs = self.outputs() if samples is None else network.all_outputs(samples, self.batch_size)
            with torch.no_grad():
                proba = network.to_proba(outputs).double().cpu().numpy()
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

            parts = list(self.sharding.map(shard, samples or self.pool, size))
            proba = parts[0] if len(parts) == 1 else np.concatenate(parts)
            if len(proba) != len(samples or self.pool):
                raise OutputError(
                    f"The estimator's predict_proba must give one row for each of the {len(samples or self.pool)} "
                    f"samples. Got {len(proba)} instead. Use a classifier, and steps before it, that keep all rows."
                )
        check_distributions(proba)
        return proba


def _has_learned(estimator: Any) -> bool:
    """What scikit-learn's ``check_is_fitted`` looks at first where it is not told otherwise; the rest takes longer."""
    if hasattr(estimator, "__sklearn_is_fitted__"):
        return False
    for name in reversed(getattr(estimator, "__dict__", {})):  # what is learned comes after the parameters
        if name.endswith("_") and not name.startswith("__"):
            return True
    return False
