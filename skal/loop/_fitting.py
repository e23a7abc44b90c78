# SPDX-License-Identifier: BSD-3-Clause
"""The estimator of a loop: trained on the labels of a state, or brought back from a checkpoint; it speaks in labels."""

from __future__ import annotations

import warnings
from contextlib import suppress
from copy import deepcopy
from typing import Any

import numpy as np
from sklearn.base import clone
from skorch import NeuralNetBinaryClassifier
from torch.utils.data import Dataset

from skal._core.containers import take_rows
from skal._core.estimators import unwrap_estimator
from skal.exceptions import InvalidParameterError, NoLabelledDataError
from skal.loop._labels import class_names, encode
from skal.loop._progress import LoopState
from skal.loop._rules import Rules
from skal.models._net_training import (
    final_network,
    fit_network,
    initialize_network,
    load_network_state,
    load_weights,
    network_state,
    too_few_outputs,
)
from skal.models._predictor import Predictor, RelabelledDataset, make_readable


class Trainer:
    """Trains the estimator of one run.

    Parameters
    ----------
    rules : Rules

    Attributes
    ----------
    estimator : classifier or None
        None before the first training, unless an untrained network is needed.
    predictor : Predictor or None
        The estimator after its last training; None before the first.
    labelled : tuple of samples and (n,) numbers, or None
        Its training set.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.estimator: Any = None
        self.predictor: Any = None
        self.labelled: tuple[Any, np.ndarray] | None = None
        self._n_outputs: int | None = None

    def start_blank(self, state: LoopState) -> None:
        """Let an untrained network choose the first samples, in a run without initial labels."""
        with state.use_seed("fit", round=0):
            self.estimator = self._unfitted_copy().initialize()

    def make_blank(self, state: LoopState) -> Any:
        """A copy that has seen no label: a network with its initial weights, anything else unfitted."""
        with state.use_seed("fit", round=0):
            estimator = self._unfitted_copy()
            if self.rules.network and final_network(estimator) is not None:
                initialize_network(estimator, make_readable(self.rules.X), None)
        return estimator

    def resume(self, state: LoopState, network: Any, *, same: bool) -> None:
        """Bring the estimator to where a run stood: a network from its saved state, others by the same fit once more.

        An estimator that is not the ``same`` gets the weights that still fit it. Where that is not all of them, or it
        cannot be brought back at all, ``predictor`` stays None: it has to be trained.
        """
        if state.fitted is None or not state.labels:
            if self.rules.initial_size == 0:
                self.start_blank(state)
            return
        with suppress(Exception), state.use_seed("fit", round=state.fitted["round"]):
            estimator = self._unfitted_copy()
            names, X, y = self._training_data(state, state.fitted["n_labelled"])
            net = final_network(estimator)
            if net is None:
                estimator.fit(X, y)
            else:
                initialize_network(estimator, X, y)
                if same and network is not None:
                    load_network_state(net, network)
                elif not load_weights(net, network):
                    self.estimator = estimator
                    return
            self._set_trained(estimator, names, state, state.fitted["n_labelled"])

    def copy(self) -> Trainer:
        """Copy the trainer, so that one can train while the other's model is in use."""
        other = type(self)(self.rules)
        other.__dict__.update(self.__dict__)
        if not self.rules.reinitialize:  # it trains the same network further
            other.estimator = deepcopy(self.estimator)
        return other

    def reconfigure(self, rules: Rules) -> None:
        """Train with other parameters from now on; the last model stays until then."""
        if rules.estimator is not self.rules.estimator:
            self._n_outputs = None
            self.estimator = self.estimator if rules.reinitialize else None
        self.rules = rules

    def check_labels(self, state: LoopState) -> None:
        """Refuse labels that the estimator could not be trained with."""
        names = self._class_names(state, None)
        n_outputs = self._count_outputs(state) if self.rules.network else None
        if n_outputs is not None and len(names) > n_outputs:
            raise too_few_outputs(n_outputs, names, state.labels)

    def can_fit(self, state: LoopState) -> bool:
        """A network needs one label, other classifiers two classes."""
        n_classes = len(np.unique(state.training_set()[1]))
        return n_classes >= (1 if self.rules.network else 2)

    def fit(self, state: LoopState) -> None:
        """Train on the labels of a state, with the randomness of its round."""
        with state.use_seed("fit"):
            goes_on = self.estimator is not None and self.rules.continues and not self.rules.reinitialize
            estimator = self.estimator if goes_on else self._unfitted_copy()
            names, X, y = self._training_data(state, None)
            with warnings.catch_warnings():
                # few labels of many classes are how a loop starts
                warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
                if self.rules.network:
                    fit_network(estimator, X, y, names, state.labels)
                else:
                    estimator.fit(X, y)
            self._set_trained(estimator, names, state, None)
        state.names = names.tolist() if self.rules.network else None
        state.fitted = {"round": state.round, "n_labelled": len(state.labelled), "n_changes": state.n_changes}

    def encode(self, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Labels as the last model was trained with them, and which of them it knows."""
        assert self.predictor is not None
        codes = encode(labels, self.predictor.names)
        return codes, codes >= 0  # a class that came after the last training that succeeded has no output yet

    def raise_unfitted(self, state: LoopState) -> None:
        """Say why there was no training in a whole run."""
        seen = np.unique(state.labels).tolist()
        if not seen:
            raise NoLabelledDataError(
                f"{self.rules.owner} needs at least one label. Got none: every sample it asked for was "
                "declined. Check y, or the oracle."
            )
        raise InvalidParameterError(
            f"The labels that {self.rules.owner} sees must be of at least two classes. Got one class only "
            f"({seen[0]!r}, {len(state.labelled)} labels) instead. Raise n_initial or the number of rounds, "
            "or use initial='stratified'."
        )

    def network_state(self) -> dict[str, Any] | None:
        """The state of a trained network to keep; None for an estimator that is fitted again on its labels."""
        net = final_network(self.estimator)
        return None if net is None or self.predictor is None else network_state(net)

    def _set_trained(self, estimator: Any, names: np.ndarray, state: LoopState, n_labelled: int | None) -> None:
        rows, labels = state.training_set(n_labelled)
        codes = encode(labels, names)
        if self.rules.network:
            n_outputs = self._outputs_of(estimator)
            if n_outputs < len(names):
                raise too_few_outputs(n_outputs, names, names.tolist())
            numbered = names.dtype.kind in "iuf" and np.array_equal(names, np.arange(len(names)))
            if self.rules.classes is None and numbered:
                names = np.arange(n_outputs).astype(names.dtype)
            columns = np.arange(n_outputs)
        else:
            columns = np.asarray(estimator.classes_).astype(np.int64)
        # only now: an estimator whose first training failed is of no use
        self.estimator, self.predictor = estimator, Predictor(estimator, names, columns)
        self.labelled = take_rows(self.rules.X, rows), codes
        self._n_outputs = len(columns)

    def _count_outputs(self, state: LoopState) -> int | None:
        """The number of the network's outputs, before the first training those of a copy; None if that fails."""
        trial = self._unfitted_copy() if self._n_outputs is None else None
        net = final_network(trial)
        if net is None:
            return self._n_outputs
        # sizes that are only known in training, too few samples for a transformer, …: the training will tell
        with suppress(Exception), state.use_seed("fit", round=0), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the training will give them
            net.set_params(callbacks="disable")  # a logger or the like must see trainings alone
            initialize_network(trial, *self._training_data(state, None)[1:])
            self._n_outputs = self._outputs_of(trial)
        return self._n_outputs

    def _outputs_of(self, estimator: Any) -> int:
        first = make_readable(take_rows(self.rules.X, np.arange(1)))
        n_outputs: int = np.asarray(estimator.predict_proba(first)).shape[1]
        return n_outputs

    def _unfitted_copy(self) -> Any:
        copy = clone(self.rules.estimator)
        if self.rules.network and (net := final_network(copy)) is not None:
            net.set_params(warm_start=not self.rules.reinitialize)  # trains the weights of the last fit further
        return copy

    def _class_names(self, state: LoopState, n_labelled: int | None) -> np.ndarray:
        labels = np.array(state.labels[:n_labelled], dtype=state.label_dtype)
        return class_names(labels, self.rules.classes, network=self.rules.network, known=state.names)

    def _training_data(self, state: LoopState, n_labelled: int | None) -> tuple[np.ndarray, Any, np.ndarray]:
        """Names of the classes, X and y of a training that saw the first ``n_labelled`` labels, or all.

        X holds the labelled rows, or everything, with −1 where there is no label, if the estimator can use that.
        """
        X, names = self.rules.X, self._class_names(state, n_labelled)
        rows, labels = state.training_set(n_labelled)
        y = encode(labels, names)
        if self.rules.no_label is not None:
            everything = np.full(self.rules.n_samples, self.rules.no_label, dtype=np.int64)
            everything[rows] = y
            return names, make_readable(X, everything), everything
        if self.rules.network and isinstance(unwrap_estimator(self.rules.estimator)[0], NeuralNetBinaryClassifier):
            y = y.astype(np.float32)  # skorch leaves it to the user to give a binary cross-entropy its floats
        return names, RelabelledDataset(X, rows, y) if isinstance(X, Dataset) else take_rows(X, rows), y
