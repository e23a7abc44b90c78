# SPDX-License-Identifier: BSD-3-Clause
"""Labels that are no class: numbers, or several labels for each sample, and how an estimator is trained on them.

A network is trained on numbers less their mean, over their deviation: it learns them as well in cents as in millions,
and what it predicts is scaled back. Any other regressor gets the numbers as they are: it may need them positive, or
between bounds. Of several labels a classifier that is no network learns those of which both values have been seen; it
predicts the others as they were. A sample may have labels that are known in part: a network learns from what is known,
and other classifiers, which cannot, from the samples that are known as a whole.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch.nn import BCEWithLogitsLoss
from torch.utils.data import Dataset

from skal._core.containers import take_rows
from skal._core.tasks import MULTILABEL, REGRESSION, UNKNOWN, Task, as_rows, check_targets, n_columns
from skal.exceptions import AdjustedInputWarning, InvalidParameterError, NoLabelledDataError, shorten
from skal.loop._fitting import Trainer
from skal.loop._progress import LoopState
from skal.loop._rules import Rules
from skal.models._net_training import final_network, fit_network, initialize_network
from skal.models._predictor import RelabelledDataset, make_readable
from skal.models._row_predictors import LabelsPredictor, NumberPredictor
from skal.nets import KnownLabelsLoss

_DTYPES = {REGRESSION: "<f8", MULTILABEL: "<i8"}


def read_rows(owner: str, labels: Any, task: Task) -> tuple[list[Any], str | None]:
    """Labels as plain numbers or lists of them, None where there is none, and numpy's name of their type.

    None, NaN and masked entries, or rows of them, stand for "no label". A row of several labels may have some of them
    (or −1): what is unknown is −1.

    Examples
    --------
    >>> read_rows("tell", [1, None, 2.5], "regression")
    ([1.0, None, 2.5], '<f8')
    >>> read_rows("tell", [[0, 1], [None, 1], [-1, -1]], "multilabel")
    ([[0, 1], [-1, 1], None], '<i8')
    """
    if isinstance(labels, torch.Tensor):
        labels = labels.detach().cpu().numpy()
    labels = labels.toarray() if sp.issparse(labels) else labels
    if hasattr(labels, "to_numpy"):
        labels = labels.to_numpy()
    # also the rows of a list, and what is alone masked
    values = [np.ma.filled(x.astype(float), np.nan) if isinstance(x, np.ma.MaskedArray) else x for x in labels]
    known = [i for i, value in enumerate(values) if not _is_missing(value, task)]
    if not known:
        return [None] * len(values), None
    rows = check_targets(owner, [values[i] for i in known], task).tolist()
    found = dict(zip(known, rows, strict=True))
    return [found.get(i) for i in range(len(values))], _DTYPES[task]


def _is_missing(value: Any, task: Task) -> bool:
    """True if a label is missing: None, NaN, a row of these, or a row of −1 for several labels."""
    if value is None:
        return True
    try:
        numbers = np.asarray(value, dtype=np.float64)
        unknown = np.isnan(numbers) | ((numbers == UNKNOWN) & (task == MULTILABEL))
        return bool(unknown.all())
    except (TypeError, ValueError):
        return False


@contextmanager
def _explain_one_label(rules: Rules, estimator: Any, y: np.ndarray) -> Iterator[None]:
    """Goes around a fit on rows: an estimator that learns one label for each sample says so in few words."""
    try:
        yield
    except ValueError as error:
        if "1d array" not in str(error) or y.ndim == 1:
            raise
        wrapper = "MultiOutputRegressor" if rules.task == REGRESSION else "MultiOutputClassifier"
        raise InvalidParameterError(
            f"The estimator of {rules.owner} must learn {y.shape[1]} labels for each sample. Got "
            f"{type(estimator).__name__}, which learns one. Wrap it in sklearn.multioutput.{wrapper}, or pass one "
            "label for each sample."
        ) from error


class RowTrainer(Trainer):
    """Trains the estimator of one run on labels that are numbers or rows of them."""

    _form: tuple[int | None, str] | None = None  # see _look_at_outputs

    def check_labels(self, state: LoopState) -> None:
        """Refuse labels that have more or fewer numbers than others."""
        as_rows(self.rules.owner, state.labels)

    def can_fit(self, state: LoopState) -> bool:
        """One label is enough."""
        return len(self._trained_rows(state, None)[0]) > 0

    def fit(self, state: LoopState) -> None:
        """Train on the labels of a state, with the randomness of its round."""
        with state.use_seed("fit"):
            goes_on = self.estimator is not None and self.rules.continues and not self.rules.reinitialize
            estimator = self.estimator if goes_on else self._unfitted_copy()
            names, X, y = self._training_data(state, None)
            if self.rules.network:
                fit_network(estimator, X, y, names, [])
            else:
                with _explain_one_label(self.rules, estimator, y):
                    estimator.fit(X, y)
            self._set_trained(estimator, names, state, None)
        state.fitted = {"round": state.round, "n_labelled": len(state.labelled), "n_changes": state.n_changes}

    def encode(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels as the last model was trained with them: all are known."""
        codes = self.predictor.encode(labels)
        return codes, np.ones(len(codes), dtype=bool)

    def raise_unfitted(self, state: LoopState) -> None:
        """Say why there was no training in a whole run."""
        raise NoLabelledDataError(
            f"{self.rules.owner} needs at least one label. Got none: every sample it asked for was declined. Check y, "
            "or the oracle."
        )

    def _training_data(self, state: LoopState, n_labelled: int | None) -> tuple[np.ndarray, Any, np.ndarray]:
        X, (rows, labels) = self.rules.X, self._trained_rows(state, n_labelled)
        y = self._predictor_of(None, labels).encode(labels)
        if self.rules.network:
            y = self._as_network_targets(state, rows, y)
        names = np.empty(0)
        return names, RelabelledDataset(X, rows, y) if isinstance(X, Dataset) else take_rows(X, rows), y

    def _trained_rows(self, state: LoopState, n_labelled: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Positions and labels of the samples that the estimator learns from, among the first ``n_labelled`` labels."""
        return state.training_set(n_labelled)

    @abstractmethod
    def _predictor_of(self, estimator: Any, labels: np.ndarray) -> Any:
        """A predictor that gives labels, for an estimator that was trained on these."""

    def _set_trained(self, estimator: Any, names: np.ndarray, state: LoopState, n_labelled: int | None) -> None:
        rows, labels = state.training_set(n_labelled)
        predictor = self._predictor_of(estimator, self._trained_rows(state, n_labelled)[1])
        self.estimator, self.predictor = estimator, predictor
        self.labelled = take_rows(self.rules.X, rows), predictor.encode(labels)

    def _as_network_targets(self, state: LoopState, rows: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Targets in the shape and type of the network's outputs: torch's losses broadcast others, without a word."""
        if self._form is None:
            self._form = self._look_at_outputs(state, rows)
        n_outputs, dtype = self._form
        told, found = n_columns(y), n_outputs or 1
        if n_outputs != -1 and found != told:
            raise InvalidParameterError(
                f"The estimator of {self.rules.owner} must predict {told} numbers for a sample, as many as its label "
                f"has. Got {found} outputs. Give the last layer one output per target, or correct y."
            )
        return (y.reshape(len(y)) if n_outputs is None else y.reshape(len(y), -1)).astype(dtype)

    def _look_at_outputs(self, state: LoopState, rows: np.ndarray) -> tuple[int | None, str]:
        """The number of a network's outputs; None if one comes without a dimension, −1 if a trial fails."""
        trial = self._unfitted_copy()
        net = final_network(trial)
        if net is None:  # inside a search object
            return -1, "float32"
        # sizes that are only known in training, too few samples for a transformer, …: the training will tell
        with suppress(Exception), state.use_seed("fit", round=0), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net.set_params(callbacks="disable")
            X = take_rows(self.rules.X, rows)
            initialize_network(trial, make_readable(X), np.zeros((len(rows), 1), dtype=np.float32))
            outputs = np.asarray(net.forward(make_readable(X)).cpu())
            return outputs.shape[1] if outputs.ndim > 1 else None, str(outputs.dtype)
        return -1, "float32"


class NumberTrainer(RowTrainer):
    """Trains the regressor of one run: a network on scaled numbers, anything else on the numbers as they are."""

    def _predictor_of(self, estimator: Any, labels: np.ndarray) -> NumberPredictor:
        numbers = labels.reshape(len(labels), -1)
        if not self.rules.network:
            k = numbers.shape[1]
            return NumberPredictor(estimator, np.zeros(k), np.ones(k), labels.ndim == 1)
        scale = numbers.std(axis=0)
        # what varies by less than its own rounding does not vary
        tiny = np.finfo(np.float64).eps * np.abs(numbers).max(axis=0, initial=0.0) * 8
        return NumberPredictor(estimator, numbers.mean(axis=0), np.where(scale > tiny, scale, 1.0), labels.ndim == 1)


class LabelsTrainer(RowTrainer):
    """Trains the classifier of one run on several labels for each sample."""

    def check_labels(self, state: LoopState) -> None:
        """Refuse rows that have not a number for each class, if the classes are named."""
        super().check_labels(state)
        names = self.rules.column_names
        if names is not None and any(len(row) != len(names) for row in state.labels):
            raise InvalidParameterError(
                f"The labels of {self.rules.owner} must have a column for each of its 'classes' ({shorten(names)}). "
                f"Got {len(state.labels[0])} columns. Name every column, in order, or leave classes out."
            )

    @property
    def _learns_parts(self) -> bool:
        """True if the estimator learns from samples that are known in part, by a loss that leaves the rest out."""
        net = final_network(self.rules.estimator)
        return net is not None and (net.criterion is BCEWithLogitsLoss or _is_loss(net.criterion, KnownLabelsLoss))

    def _unfitted_copy(self) -> Any:
        copy = super()._unfitted_copy()
        if self._learns_parts:
            net = final_network(copy)
            assert net is not None
            net.set_params(criterion=KnownLabelsLoss if net.criterion is BCEWithLogitsLoss else net.criterion)
        return copy

    def _trained_rows(self, state: LoopState, n_labelled: int | None) -> tuple[np.ndarray, np.ndarray]:
        rows, labels = state.training_set(n_labelled)
        if self._learns_parts or len(rows) == 0:
            return rows, labels
        whole = (labels != UNKNOWN).all(axis=1)
        return rows[whole], labels[whole]

    def fit(self, state: LoopState) -> None:
        """Train, and say so if samples cannot take part."""
        n, n_labelled = len(self._trained_rows(state, None)[0]), len(state.training_set()[0])
        if n < n_labelled:
            warnings.warn(
                f"{n_labelled - n} of {n_labelled} samples have labels that are known in part, from which "
                f"{type(self.rules.estimator).__name__} cannot learn; it is trained on the others. Complete them with "
                "relabel, or use a network with BCEWithLogitsLoss, which learns from what is known.",
                AdjustedInputWarning,
                stacklevel=2,
            )
        super().fit(state)

    def can_fit(self, state: LoopState) -> bool:
        """A network needs one sample, other classifiers two labels of which both values have been seen."""
        labels = self._trained_rows(state, None)[1]
        return len(labels) > 0 and (self.rules.network or int((labels != labels[:1]).any(axis=0).sum()) > 1)

    def raise_unfitted(self, state: LoopState) -> None:
        """Say why there was no training in a whole run."""
        if not state.labels:
            super().raise_unfitted(state)
        raise InvalidParameterError(
            f"The labels that {self.rules.owner} sees must have both values of at least two columns. Got "
            f"{len(self._trained_rows(state, None)[0])} rows without. Raise n_initial or the number of rounds."
        )

    def _predictor_of(self, estimator: Any, labels: np.ndarray) -> LabelsPredictor:
        learnt = np.ones(labels.shape[1], dtype=bool)
        if not self.rules.network:
            learnt = (labels != labels[:1]).any(axis=0)
        return LabelsPredictor(estimator, np.arange(labels.shape[1]), learnt, labels[0])


def _is_loss(criterion: Any, kind: type) -> bool:
    return isinstance(criterion, type) and issubclass(criterion, kind)


def make_trainer(rules: Rules) -> Trainer:
    """The trainer for what a run learns."""
    kinds = {REGRESSION: NumberTrainer, MULTILABEL: LabelsTrainer}
    return kinds.get(rules.task, Trainer)(rules)
