# SPDX-License-Identifier: BSD-3-Clause
"""The learner that a loop talks to: modAL's ``ActiveLearner``, repaired and extended."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from modAL.models import ActiveLearner as _ModalActiveLearner
from modAL.uncertainty import uncertainty_sampling
from skorch import NeuralNet, NeuralNetClassifier
from torch.utils.data import Dataset

from skal._core.cache import Cache
from skal._core.containers import as_rows, check_finite, concat_rows, count_masked, n_rows, refuse_hidden, take_rows
from skal._core.estimators import check_net_takes_weights, explain_training, unwrap_estimator
from skal._core.pool import candidate_rows
from skal.base import as_strategy
from skal.compat.modal import ask, insists_on_n_instances, strategy_name, takes_n_instances
from skal.exceptions import InvalidParameterError, InvalidQueryError, InvalidTypeError, shorten
from skal.strategies._names import named_strategy


class ActiveLearner(_ModalActiveLearner):
    """An estimator, the labels it has been taught, and a strategy to ask for more.

    A subclass of modAL's ``ActiveLearner`` with its signature and attributes. It calls a strategy exactly once per
    query, whatever convention the strategy answers in, takes samples as arrays, tensors, memory maps, Datasets, data
    frames or dicts of arrays, and can add labels without training.

    Parameters
    ----------
    estimator : classifier
        A skorch net, a Pipeline that ends in one, or any scikit-learn classifier.
    query_strategy : callable, str or None, default=modAL's uncertainty_sampling
        A strategy of :mod:`skal.strategies`, of modAL, or a function ``f(learner, X_pool, n_instances)`` that returns
        indices or ``(indices, metrics)``. A function without ``n_instances`` can be asked for one sample at a time.
        A string is the name of a strategy's function, such as ``"margin"``; ``"auto"`` and None are the recommended
        strategy, which is ``query_strategy.strategy_`` after a query.
    X_training, y_training : optional
        Labelled samples to fit the estimator on at once. For a Dataset of ``(x, y)`` pairs ``y_training`` may be None.
    bootstrap_init, on_transformed, force_all_finite : bool
        As in modAL.
    **fit_kwargs
        Passed to the estimator's ``fit``.

    Attributes
    ----------
    X_training, y_training
        What has been labelled so far, in order.
    cache : skal.features.Cache or None
        Keeps features and outputs from one query to the next; None, as at first, keeps nothing.
    task : {"classification", "regression", "multilabel"} or None
        The kind of labels, for strategies that are asked before there are any; None, as at first, goes by the estimator
        and the labels.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.strategies import margin
    >>> X, y = np.array([[0.0], [1.0], [3.0], [4.0]]), np.array([0, 0, 1, 1])
    >>> learner = ActiveLearner(LogisticRegression(), margin, X_training=X, y_training=y)
    >>> pool = np.array([[0.5], [2.1], [3.5]])
    >>> indices, samples = learner.query(pool)
    >>> learner.teach(samples, np.array([1]))
    >>> indices, len(learner.y_training)
    (array([1]), 5)
    """

    cache: Cache | None = None
    task: str | None = None

    def __init__(
        self,
        estimator: Any,
        query_strategy: Callable[..., Any] | str | None = uncertainty_sampling,
        X_training: Any = None,
        y_training: Any = None,
        bootstrap_init: bool = False,
        on_transformed: bool = False,
        force_all_finite: bool = True,
        **fit_kwargs: Any,
    ) -> None:
        self.estimator = estimator
        self.query_strategy = named_strategy("ActiveLearner", "query_strategy", query_strategy)
        self.X_training = None
        self.y_training = None
        self.bootstrap_init = bootstrap_init
        self.on_transformed = on_transformed
        self.force_all_finite = force_all_finite
        if X_training is not None:
            self.fit(X_training, y_training, bootstrap=bootstrap_init, **fit_kwargs)

    def query(
        self,
        X_pool: Any,
        n_instances: int | None = None,
        return_metrics: bool = False,
        candidates: Any = None,
        **query_kwargs: Any,
    ) -> tuple[Any, ...]:
        """Ask the strategy, once, which samples of the pool to label.

        Parameters
        ----------
        X_pool : array-like, tensor, memory map, Dataset, data frame, or dict of arrays
            The samples to choose from.
        n_instances : int, default=1
            If it is not given, a function that is not skal's is called without it, as modAL does: the function's own
            default, or that of a ``partial``, counts.
        return_metrics : bool, default=False
            Whether to return the strategy's metrics too (None if it has none).
        candidates : array-like of int or bool, optional
            Positions in the pool, or a mask of its rows, that may be asked for, such as the unlabelled ones. A
            strategy of skal reads no others and copies nothing; any other function gets a copy of these rows.
        **query_kwargs
            Passed to the strategy.

        Returns
        -------
        indices : (n_instances,) int64 array
            One number if a function without ``n_instances`` returned one number.
        samples : rows of X_pool, in its type
            Of a Dataset a ``Subset``; the row alone if ``indices`` is one number.
        metrics : object
            With ``return_metrics=True`` only: what the strategy says of the chosen samples, mostly their scores.
        """
        strategy = as_strategy(self.query_strategy, **query_kwargs)
        if strategy is None:
            indices, samples, metrics = self._ask_function(X_pool, n_instances, candidates, query_kwargs)
        else:
            if n_instances is None:
                n_instances = getattr(self.query_strategy, "keywords", {}).get("n_instances", 1)  # a partial has them
            chosen_among = {} if candidates is None else {"candidates": candidates}
            answer, metrics = strategy.select(self, X_pool, n_instances, **chosen_among)
            indices = _check_indices(answer, n_rows(X_pool, "X_pool"), self.query_strategy, True, n_instances)
            samples = take_rows(X_pool, indices)
        return (indices, samples, metrics) if return_metrics else (indices, samples)

    def _ask_function(
        self, X_pool: Any, n_instances: int | None, candidates: Any, query_kwargs: dict[str, Any]
    ) -> tuple[Any, Any, Any]:
        """Indices, samples and metrics from a query function that is not skal's, in any of modAL's forms."""
        function, told = self.query_strategy, takes_n_instances(self.query_strategy)
        if n_instances is None and insists_on_n_instances(function):
            n_instances = 1
        pool, rows = X_pool, None
        if candidates is not None:
            rows = candidate_rows(type(self).__name__, candidates, n_rows(X_pool, "X_pool"))
            pool = take_rows(X_pool, rows)
        answer, metrics = ask(function, self, pool, n_instances, **query_kwargs)
        indices = _check_indices(answer, n_rows(pool, "X_pool"), function, told, n_instances if told else None)
        indices = indices if rows is None else rows[indices]
        samples = take_rows(X_pool, indices)
        if not told and n_instances is None and np.ndim(answer) == 0:  # as modAL hands it on
            return indices[0], _only_row(samples), metrics
        return indices, samples, metrics

    def fit(self, X: Any, y: Any, bootstrap: bool = False, **fit_kwargs: Any) -> ActiveLearner:
        """Forget all labels and fit the estimator on these.

        Parameters
        ----------
        X, y : array-like
            Labelled samples, which replace all earlier ones.
        bootstrap : bool, default=False
            Train on a bootstrap sample of them.
        **fit_kwargs
            Passed to the estimator's ``fit``.

        Returns
        -------
        ActiveLearner
            Itself.
        """
        self._check_labelled(X, y)
        with self._as_before_if_it_fails():
            self.X_training, self.y_training = X, y
            return self._fit_to_known(bootstrap=bootstrap, **fit_kwargs)

    def teach(
        self, X: Any, y: Any, bootstrap: bool = False, only_new: bool = False, fit: bool = True, **fit_kwargs: Any
    ) -> None:
        """Add labelled samples and train on all of them.

        Labels that the network has no output for are refused, and samples on which the training raises are taken back.

        Parameters
        ----------
        X, y : array-like
            The new samples and their labels.
        bootstrap : bool, default=False
            Train on a bootstrap sample.
        only_new : bool, default=False
            Train on the new samples alone (they are remembered all the same).
        fit : bool, default=True
            With False the labels are added and nothing is trained.
        **fit_kwargs
            Passed to the estimator's ``fit``.
        """
        with self._as_before_if_it_fails():
            self._add_training_data(X, y)
            if not fit:
                return
            if only_new:
                self._fit_on_new(X, y, bootstrap=bootstrap, **fit_kwargs)
            else:
                self._fit_to_known(bootstrap=bootstrap, **fit_kwargs)

    @contextmanager
    def _as_before_if_it_fails(self) -> Iterator[None]:
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__ = before
            raise

    def _add_training_data(self, X: Any, y: Any) -> None:
        self._check_labelled(X, y)
        if self.X_training is None:
            self.X_training, self.y_training = X, y
            return
        if (self.y_training is None) != (y is None):
            raise InvalidTypeError(
                f"The y given to teach must be {'None' if self.y_training is None else 'labels'}, as for the samples "
                f"taught so far. Got {shorten(y)} instead. Keep the labels either in y or in the Dataset."
            )
        try:
            X_all = concat_rows(self.X_training, X)
            y_all = None if y is None else concat_rows(self.y_training, y)
        except (ValueError, RuntimeError) as error:
            raise InvalidParameterError(
                f"The samples given to teach must have the shape of those taught so far ({_shape(self.X_training)}). "
                f"Got {_shape(X)} instead. Reshape them; a single sample needs a leading dimension of 1. ({error})"
            ) from error
        self.X_training, self.y_training = X_all, y_all

    def _fit_to_known(self, bootstrap: bool = False, **fit_kwargs: Any) -> ActiveLearner:
        return self._fit(self.X_training, self.y_training, bootstrap, fit_kwargs)

    def _fit_on_new(self, X: Any, y: Any, bootstrap: bool = False, **fit_kwargs: Any) -> ActiveLearner:
        return self._fit(X, y, bootstrap, fit_kwargs)

    def _fit(self, X: Any, y: Any, bootstrap: bool, fit_kwargs: dict[str, Any]) -> ActiveLearner:
        check_net_takes_weights(self.estimator, fit_kwargs)
        if bootstrap:
            rows = np.random.choice(n_rows(X), n_rows(X), replace=True)
            X, y = take_rows(X, rows), None if y is None else take_rows(y, rows)
            if fit_kwargs.get("sample_weight") is not None:
                fit_kwargs = fit_kwargs | {"sample_weight": take_rows(fit_kwargs["sample_weight"], rows)}
        with explain_training(self.estimator, X, y):
            # a skorch net would take a list for several inputs
            if not isinstance(X, list) or isinstance(self.estimator, NeuralNet):
                X = as_rows(X)
            self.estimator.fit(_in_memory(X), y, **fit_kwargs)
        return self

    def _check_labelled(self, X: Any, y: Any) -> None:
        for part in X.values() if isinstance(X, Mapping) else [X]:
            refuse_hidden(part, "X")
        n_samples = n_rows(X, "X")
        if y is None and not isinstance(X, Dataset):
            raise InvalidTypeError(
                "The y of the labelled samples must be given. Got None instead. "
                "Pass one label per sample; only a Dataset of (x, y) pairs brings its own."
            )
        if n_samples == 0:
            raise InvalidParameterError(
                "The X of the labelled samples must hold at least one sample. Got none. Skip teach when nothing is new."
            )
        if n_masked := count_masked(y):
            raise InvalidTypeError(
                f"The y of the labelled samples must have a label for each of them. Got {n_masked} masked labels. "
                "Leave these samples out, or pass all to ActiveLearningClassifier.start."
            )
        if y is not None and n_rows(y, "y") != n_samples:
            raise InvalidParameterError(
                f"The y of the labelled samples must have one label for each of the {n_samples} samples. "
                f"Got {n_rows(y, 'y')} labels instead. Pass the labels of exactly these samples."
            )
        if self.force_all_finite and not isinstance(X, Dataset):
            check_finite(X, "X")
        if y is not None:
            self._check_outputs(X, y)

    def _check_outputs(self, X: Any, y: Any) -> None:
        """Refuse integer labels that a trained network has no output for, before anything is stored."""
        net = unwrap_estimator(self.estimator)[0]
        if not isinstance(net, NeuralNetClassifier) or not getattr(net, "initialized_", False):
            return  # the training will tell, and what it raises on is taken back
        labels, known = _as_array(y), _as_array(self.y_training)
        if labels.ndim != 1 or labels.dtype.kind not in "iu":
            return
        lowest = -1 if getattr(net, "uses_unlabelled", False) else 0
        if known.dtype.kind in "iu" and known.size and labels.min() >= lowest and labels.max() <= known.max():
            return  # they have been trained on: no need to ask the network
        try:
            first = _in_memory(take_rows(X, slice(0, 1)))
            n_outputs = np.asarray(self.estimator.predict_proba(first)).shape[1]
        except Exception:  # samples of another shape, …: not a matter of the labels
            return
        wrong = np.unique(labels[(labels < lowest) | (labels >= n_outputs)])
        if len(wrong):
            raise InvalidParameterError(
                f"The labels of the samples must be numbers of the network's outputs, 0 … {n_outputs - 1}. "
                f"Got {shorten(wrong.tolist())} instead. Correct the labels, or give the last layer more outputs."
            )


def _as_array(y: Any) -> np.ndarray:
    return np.asarray(y.detach().cpu() if isinstance(y, torch.Tensor) else y)


def _in_memory(X: Any) -> Any:
    """A copy of a read-only memory map, which torch cannot share; anything else as it is."""
    if isinstance(X, Mapping):
        return {key: _in_memory(value) for key, value in X.items()}
    return np.array(X) if isinstance(X, np.memmap) and not X.flags.writeable else X


def _shape(X: Any) -> str:
    if isinstance(X, Mapping):
        return str({key: _shape(value) for key, value in X.items()})
    return str(tuple(X.shape)) if hasattr(X, "shape") else type(X).__name__


def _check_indices(
    indices: Any, n_pool: int, strategy: Any, distinct: bool = False, n_instances: int | None = None
) -> np.ndarray:
    """Indices as a flat int64 array, refused if they cannot be used; distinct and as many as were asked for if told."""
    given = indices.cpu().numpy() if isinstance(indices, torch.Tensor) else indices
    array = np.atleast_1d(np.asarray(given))
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise InvalidQueryError(
            f"The query strategy {strategy_name(strategy)} must return a flat array of integer indices, at least one. "
            f"Got {shorten(given)} instead. Return positions in X_pool."
        )
    array = array.astype(np.int64)
    if array.min() < 0 or array.max() >= n_pool:
        raise InvalidQueryError(
            f"The query strategy {strategy_name(strategy)} must return indices in 0 … {n_pool - 1}. Got "
            f"{shorten(array.tolist())} instead. Return positions in X_pool, not in another set."
        )
    wanted = len(array) if n_instances is None else n_instances
    if distinct and (len(array) != wanted or len(set(array.tolist())) != wanted):
        raise InvalidQueryError(
            f"The query strategy {strategy_name(strategy)} must return n_instances={wanted} distinct indices. "
            f"Got {shorten(array.tolist())} instead. Remove the duplicates and return as many as were asked for."
        )
    return array


def _only_row(samples: Any) -> Any:
    """A row of an array, an item of a list, a Series of a frame; anything else stays a set of one row."""
    if isinstance(samples, (np.ndarray, torch.Tensor, list)):
        return samples[0]
    return samples.iloc[0] if hasattr(samples, "iloc") else samples
