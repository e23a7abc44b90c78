"""Label after label without training: the learner of NTK look-ahead's sequential mode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
import torch
from sklearn.metrics import accuracy_score
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset

from skal._core.containers import n_rows, take_rows
from skal._core.copies import fingerprints
from skal._core.network import Network, preserved_rng
from skal._core.samples import Samples
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError, InvalidTypeError, parameter_message
from skal.learners._active import ActiveLearner
from skal.strategies import NTKLookahead
from skal.validation import check_integer

__all__ = ["LinearizedLearner"]


class LinearizedLearner(ActiveLearner):
    """A learner that adds labels to the tangent kernel instead of training the network.

    ``teach`` appends a row and a column to the kernel of the labelled samples. Queries, predictions and scores are
    those of the linearised network, trained to convergence on all labels. Only the first query on a pool passes it
    through the network; the pool may shrink between queries. :meth:`retrain` trains the network itself.

    Parameters
    ----------
    estimator : skorch net, or a Pipeline or search object that ends in one
    query_strategy : NTKLookahead or ntk_lookahead, optional
        With ``retraining="linearized"``. None is ``NTKLookahead()``.
    X_training, y_training : optional
        Labelled samples to train the network on at once.
    retrain_every : int or None, default=None
        Train the network by itself after this many new labels; None never does.
    bootstrap_init, on_transformed, force_all_finite : bool
        As in :class:`skal.ActiveLearner`.
    **fit_kwargs
        Passed to the estimator's ``fit``.

    Attributes
    ----------
    X_training, y_training
        What has been labelled so far, in order.

    Notes
    -----
    After the first query on a pool, a further ``teach`` and ``query`` take three passes over the matrix of candidates ×
    evaluation samples, and none through the network. They equal a query from scratch with all labels, up to
    rounding; where the strategy sketches gradients, up to the sketch's error for labels since the first query.

    Teaching samples that were not in the pool, or querying a pool with samples that were not in the first one, starts
    again: the next query reads its pool anew.

    Examples
    --------
    >>> import numpy as np
    >>> from skorch import NeuralNetClassifier
    >>> from skal import LinearizedLearner
    >>> from skal.datasets import load
    >>> from skal.nets import MLP, SquaredLoss
    >>> digits = load("digits")
    >>> net = NeuralNetClassifier(MLP(64, 10), criterion=SquaredLoss, train_split=None, verbose=0)
    >>> learner = LinearizedLearner(net, X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool, y_pool = digits.X_train[50:250], digits.y_train[50:250]
    >>> for _ in range(3):
    ...     indices, samples = learner.query(X_pool)
    ...     learner.teach(samples, y_pool[indices])
    ...     X_pool, y_pool = np.delete(X_pool, indices, axis=0), np.delete(y_pool, indices)
    >>> len(learner.y_training), learner.predict(digits.X_test[:5]).shape
    (53, (5,))
    """

    query_strategy: NTKLookahead

    def __init__(
        self,
        estimator: Any,
        query_strategy: NTKLookahead | Callable[..., Any] | None = None,
        X_training: Any = None,
        y_training: Any = None,
        retrain_every: int | None = None,
        bootstrap_init: bool = False,
        on_transformed: bool = False,
        force_all_finite: bool = True,
        **fit_kwargs: Any,
    ) -> None:
        check_integer("LinearizedLearner", "retrain_every", retrain_every, 1, optional=True)
        self.retrain_every = retrain_every
        self._known_pool: _KnownPool | None = None
        # what predictions come from, and for which labels and parameters
        self._source: tuple[_Labels, dict, Any] | None = None
        self._n_untrained = 0
        super().__init__(
            estimator,
            _checked_strategy(query_strategy),
            X_training,
            y_training,
            bootstrap_init,
            on_transformed,
            force_all_finite,
            **fit_kwargs,
        )

    def query(self, X_pool: Any, n_instances: int = 1, return_metrics: bool = False) -> tuple:  # type: ignore[override]
        """Ask which samples of the pool to label.

        Parameters
        ----------
        X_pool : array-like, tensor, memory map, Dataset, data frame, or dict of arrays
        n_instances : int, default=1
        return_metrics : bool, default=False
            Whether to return the scores of the chosen samples too.

        Returns
        -------
        indices : (n_instances,) int64 array
        samples : the chosen rows, in the type of X_pool
        metrics : only with ``return_metrics=True``
        """
        strategy = self.query_strategy
        context = strategy.prepare(self, X_pool)
        strategy.check_n_instances(n_instances, context.n_pool)
        with preserved_rng():
            pool, positions = self._recognised(context, n_instances)
            lookahead = pool.sequence.lookahead()
            rows = np.flatnonzero(positions >= 0)
            candidates = positions[rows]
            lookahead.free[:] = False
            lookahead.free[torch.as_tensor(candidates, device=lookahead.free.device)] = True
            chosen, metrics = strategy._choose(context, lookahead, int(n_instances))
        order = np.argsort(candidates)
        indices = rows[order[np.searchsorted(candidates, chosen, sorter=order)]].astype(np.int64)
        samples = take_rows(X_pool, indices)
        return (indices, samples, metrics) if return_metrics else (indices, samples)

    def _recognised(self, context: QueryContext, n_instances: int) -> tuple[_KnownPool, np.ndarray]:
        """The pool's rows as candidates that are known already; all of it is read where that is not possible."""
        labels = _Labels(context)
        keys = _row_keys(context.network, context.pool, context.batch_size)
        known = self._known_pool
        if known is not None and known.follow(labels, self.query_strategy):
            positions = known.positions(keys)
            if positions is not None and (positions >= 0).sum() >= n_instances:
                return known, positions
        self._known_pool = None  # before there are two of them
        self._known_pool = known = _KnownPool(context, labels, self.query_strategy, keys)
        positions = known.positions(keys)
        assert positions is not None
        return known, positions

    def _fit(self, X: Any, y: Any, bootstrap: bool, fit_kwargs: dict) -> ActiveLearner:
        self._known_pool = self._source = None
        self._n_untrained = 0
        return super()._fit(X, y, bootstrap, fit_kwargs)

    def teach(
        self, X: Any, y: Any, bootstrap: bool = False, only_new: bool = False, fit: bool = True, **fit_kwargs: Any
    ) -> None:
        """Add labelled samples to the kernel; the network is trained only where ``retrain_every`` says so.

        The first labels of a learner that has none are trained on.

        Parameters
        ----------
        X, y : the new samples and their labels
        bootstrap, only_new : bool, default=False
            Must be False: the linearised network is trained on all labels.
        fit : bool, default=True
            With False the network is not trained, whatever ``retrain_every`` says.
        **fit_kwargs
            Passed to the estimator's ``fit``, if it is called.
        """
        for name, value in (("bootstrap", bootstrap), ("only_new", only_new)):
            if value:
                remedy = "Use ActiveLearner to train on a part of the samples."
                raise InvalidParameterError.for_parameter("LinearizedLearner", name, "False", value, remedy)
        first = self.X_training is None
        self._add_training_data(X, y)
        self._n_untrained += n_rows(X, "X")
        due = self.retrain_every is not None and self._n_untrained >= self.retrain_every
        if fit and (first or due):
            self.retrain(**fit_kwargs)

    def retrain(self, **fit_kwargs: Any) -> LinearizedLearner:
        """Train the network on all labels, and start again from there."""
        self._fit_to_known(**fit_kwargs)
        return self

    def _outputs(self, X: Any) -> tuple[Any, Tensor]:
        """(n, C) outputs of the linearised network, and how they are to be read."""
        strategy = self.query_strategy
        context = strategy._sample_context(self, X)
        reading = strategy._reading(context)
        with preserved_rng():
            if context.n_labelled == 0:
                return reading, context.logit_network.all_logits(context.pool, context.batch_size).double()
            labels = _Labels(context)
            params = strategy.get_params()
            if self._source is None or not self._source[0].same_as(labels) or self._source[1] != params:
                self._source = labels, params, strategy._source(context, np.random.default_rng(0), 1)
            return reading, self._source[2].linearized(context.pool)

    def predict_proba(self, X: Any, **predict_kwargs: Any) -> np.ndarray:
        """(n, C) class probabilities of the linearised network."""
        reading, outputs = self._outputs(X)
        return reading.read(outputs).proba.cpu().numpy()

    def predict(self, X: Any, **predict_kwargs: Any) -> np.ndarray:
        """(n,) labels with the largest output of the linearised network."""
        return self._outputs(X)[1].argmax(1).cpu().numpy()

    def score(self, X: Any, y: Any, **score_kwargs: Any) -> float:
        """Accuracy of :meth:`predict`."""
        return float(accuracy_score(y, self.predict(X), **score_kwargs))


class _Labels:
    """The labelled set and the network's weights, to see what has changed since.

    Parameters
    ----------
    context : QueryContext
    """

    def __init__(self, context: QueryContext) -> None:
        parameters = [*context.network.module.parameters(), *context.network.module.buffers()]
        self.weights = [(parameter, parameter._version) for parameter in parameters]
        self.y = context.class_labels
        self.keys = _row_keys(context.network, context.labelled, context.batch_size)

    def starts_with(self, other: _Labels) -> bool:
        """Whether these are the other's labels, with or without more, for the same network."""
        n = len(other.keys)
        same_weights = len(self.weights) == len(other.weights) and all(
            mine is theirs and version == old
            for (mine, version), (theirs, old) in zip(self.weights, other.weights, strict=True)
        )
        return same_weights and self.keys[:n] == other.keys and np.array_equal(self.y[:n], other.y)

    def same_as(self, other: _Labels) -> bool:
        """Whether nothing has changed."""
        return len(self.keys) == len(other.keys) and self.starts_with(other)


class _KnownPool:
    """A pool that has been read: which rows it had, and the kernels between them and all labels so far.

    Parameters
    ----------
    context : QueryContext
    labels : _Labels
    strategy : NTKLookahead
    keys : list
        What the pool's rows are recognised by.
    """

    def __init__(self, context: QueryContext, labels: _Labels, strategy: NTKLookahead, keys: list[Hashable]) -> None:
        self.labels, self.params, self.X = labels, strategy.get_params(deep=False), context.pool.X
        rows = strategy.subset_rows(context.n_pool)
        rows = np.arange(context.n_pool) if rows is None else rows
        self.sequence = strategy._sequence(context.restrict(rows))
        self._places: dict[Hashable, list[int]] = defaultdict(list)  # copies have several; −1 is outside the subset
        place = np.full(context.n_pool, -1)
        place[rows] = np.arange(len(rows))
        for row in np.argsort(place < 0, kind="stable"):
            self._places[keys[row]].append(int(place[row]))

    def positions(self, keys: list[Hashable]) -> np.ndarray | None:
        """Which candidates these rows are, −1 for those outside the subset; None if there are rows that are new."""
        used: dict[Hashable, int] = defaultdict(int)
        positions = np.empty(len(keys), dtype=np.int64)
        for row, key in enumerate(keys):
            places = self._places.get(key, ())
            if used[key] >= len(places):
                return None
            positions[row] = places[used[key]]
            used[key] += 1
        return positions

    def follow(self, labels: _Labels, strategy: NTKLookahead) -> bool:
        """Add the labels that are new; False if that cannot be done without reading anything."""
        if strategy.get_params(deep=False) != self.params or not labels.starts_with(self.labels):
            return False
        new = range(len(self.labels.keys), len(labels.keys))
        places = [max(self._places.get(labels.keys[i], [-1])) for i in new]
        if -1 in places:
            return False
        for i, place in zip(new, places, strict=True):
            self.sequence.append(place, int(labels.y[i]))
        self.labels = labels
        return True


def _row_keys(network: Network, samples: Samples, batch_size: int) -> list[Hashable]:
    """By what rows are recognised: their content, or where they stand in a Dataset."""
    if isinstance(samples.X, Dataset):
        return [_origin(samples.X, int(row)) for row in samples.row_numbers(0, len(samples))]
    return list(fingerprints(network, samples, batch_size))


def _origin(dataset: Any, row: int) -> tuple[int, int]:
    """The Dataset that a row of a Subset or ConcatDataset is taken from, and its place there."""
    while True:
        if isinstance(dataset, Subset):
            dataset, row = dataset.dataset, int(dataset.indices[row])
        elif isinstance(dataset, ConcatDataset):
            number = int(np.searchsorted(dataset.cumulative_sizes, row, side="right"))
            row -= dataset.cumulative_sizes[number - 1] if number else 0
            dataset = dataset.datasets[number]
        else:
            return id(dataset), row


def _checked_strategy(query_strategy: Any) -> NTKLookahead:
    """A strategy of its own, refused if it is another one."""
    if query_strategy is None:
        return NTKLookahead()
    if getattr(query_strategy, "strategy", None) is NTKLookahead:  # the function
        return NTKLookahead()
    if not isinstance(query_strategy, NTKLookahead):
        remedy = "Other strategies work with skal.ActiveLearner."
        message = parameter_message("LinearizedLearner", "query_strategy", "an NTKLookahead", query_strategy, remedy)
        raise InvalidTypeError(message)
    if query_strategy.retraining != "linearized":
        expected = "an NTKLookahead with retraining='linearized'"
        remedy = "The others have no linearised network to predict with; use skal.ActiveLearner."
        raise InvalidParameterError.for_parameter(
            "LinearizedLearner", "query_strategy", expected, query_strategy, remedy
        )
    return query_strategy
