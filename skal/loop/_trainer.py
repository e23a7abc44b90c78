# SPDX-License-Identifier: BSD-3-Clause
"""The estimator of a loop: trained on the labels of a state, or brought back from a checkpoint."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from types import FrameType
from typing import Any

import numpy as np
from sklearn.base import clone
from skorch import NeuralNet
from skorch.history import History

from skal._core.containers import take_rows
from skal._core.estimators import explain_training
from skal.exceptions import InvalidParameterError, shorten
from skal.loop._fitting import (
    Predictor,
    final_network,
    initialize_network,
    is_warm_started,
    prediction_input,
    training_data,
)
from skal.loop._labels import class_names, encode
from skal.loop._progress import LoopState
from skal.loop._rules import Rules


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
        self.predictor: Predictor | None = None
        self.labelled: tuple[Any, np.ndarray] | None = None
        self._n_outputs: int | None = None

    def start_blank(self, state: LoopState) -> None:
        """Let an untrained network choose the first samples, in a run without initial labels."""
        with state.use_seed("fit", round=0):
            self.estimator = self._unfitted_copy().initialize()

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
                    _load_network_state(net, network)
                elif not _load_weights(net, network):
                    self.estimator = estimator
                    return
            self._set_trained(estimator, names, state, state.fitted["n_labelled"])

    def copy(self) -> Trainer:
        """One that can train while this one's model is in use."""
        other = Trainer(self.rules)
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

    def make_blank(self, state: LoopState) -> Any:
        """A copy that has seen no label: a network with its initial weights, anything else unfitted."""
        with state.use_seed("fit", round=0):
            estimator = self._unfitted_copy()
            if final_network(estimator) is not None:
                initialize_network(estimator, prediction_input(self.rules.X), None)
        return estimator

    def check_labels(self, state: LoopState) -> None:
        """Refuse labels that the estimator could not be trained with."""
        names = self._class_names(state, None)
        n_outputs = self._count_outputs(state) if self.rules.network else None
        if n_outputs is not None and len(names) > n_outputs:
            raise _too_few_outputs(n_outputs, names, state.labels)

    def can_fit(self, state: LoopState) -> bool:
        """A network needs one label, other classifiers two classes."""
        n_classes = len(np.unique(state.labelled_set(heldout=False)[1]))
        return n_classes >= (1 if self.rules.network else 2)

    def fit(self, state: LoopState) -> None:
        """Train on the labels of a state, with the randomness of its round."""
        can_continue = final_network(self.rules.estimator) is not None or is_warm_started(self.rules.estimator)
        with state.use_seed("fit"):
            from_scratch = self.estimator is None or self.rules.reinitialize or not can_continue
            estimator = self._unfitted_copy() if from_scratch else self.estimator
            names, X, y = self._training_data(state, None)
            with explain_training(estimator, X, y):
                try:
                    with _restore_if_it_fails(estimator), _raise_interrupts(), warnings.catch_warnings():
                        # few labels of many classes are how a loop starts
                        warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")
                        estimator.fit(X, y)
                except IndexError as error:
                    if "out of bounds" not in str(error):
                        raise
                    raise _too_few_outputs("fewer", names, state.labels) from error
            self._set_trained(estimator, names, state, None)
        state.names = names.tolist() if self.rules.network else None
        state.fitted = {"round": state.round, "n_labelled": len(state.labelled), "n_changes": state.n_changes}

    def network_state(self) -> dict[str, Any] | None:
        """The state of a trained network to keep; None for an estimator that is fitted again on its labels.

        Modules and criteria with their buffers, optimizers, the net's history, and what ``net.get_state()`` adds.
        """
        net = final_network(self.estimator)
        if net is None or self.predictor is None:
            return None
        return _network_state(net)

    def _set_trained(self, estimator: Any, names: np.ndarray, state: LoopState, n_labelled: int | None) -> None:
        rows, labels = state.labelled_set(heldout=False, n_first=n_labelled)
        codes = encode(labels, names)
        if self.rules.network:
            n_outputs = self._outputs_of(estimator)
            if n_outputs < len(names):
                raise _too_few_outputs(n_outputs, names, names.tolist())
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
        """How many outputs the network has; before the first training those of a copy; None if it cannot be tried."""
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
        first = prediction_input(take_rows(self.rules.X, np.arange(1)))
        n_outputs: int = np.asarray(estimator.predict_proba(first)).shape[1]
        return n_outputs

    def _unfitted_copy(self) -> Any:
        copy = clone(self.rules.estimator)
        net = final_network(copy)
        if net is not None:  # a warm start trains the weights of the last fit further
            net.set_params(warm_start=not self.rules.reinitialize)
        return copy

    def _class_names(self, state: LoopState, n_labelled: int | None) -> np.ndarray:
        labels = np.array(state.labels[:n_labelled], dtype=state.label_dtype)
        return class_names(labels, self.rules.classes, network=self.rules.network, known=state.names)

    def _training_data(self, state: LoopState, n_labelled: int | None) -> tuple[np.ndarray, Any, np.ndarray]:
        """Names of the classes, X and y of a training that saw the first ``n_labelled`` labels, or all."""
        names = self._class_names(state, n_labelled)
        positions, labels = state.labelled_set(heldout=False, n_first=n_labelled)
        return names, *training_data(self.rules.estimator, self.rules.X, positions, encode(labels, names))


def _network_state(net: NeuralNet) -> dict[str, Any]:
    return {
        "modules": {name: dict(getattr(net, f"{name}_").state_dict()) for name in net._modules + net._criteria},
        "optimizers": {name: getattr(net, f"{name}_").state_dict() for name in net._optimizers},
        "history": net.history.to_list() if hasattr(net.history, "to_list") else list(net.history),
        "classes": getattr(net, "classes_inferred_", None),
        "extra": net.get_state() if hasattr(net, "get_state") else None,
    }


@contextmanager
def _restore_if_it_fails(estimator: Any) -> Iterator[None]:
    """A training that raises leaves the network, and the steps before it, as they were."""
    net = final_network(estimator)
    if net is None or not net.initialized_:
        yield
        return
    state, steps = deepcopy(_network_state(net)), deepcopy(estimator.steps[:-1]) if net is not estimator else []
    try:
        yield
    except BaseException:
        _load_network_state(net, state)
        if net is not estimator:
            estimator.steps[:-1] = steps
        raise


def _load_weights(net: NeuralNet, state: dict[str, Any] | None) -> bool:
    """Put those weights into a net that fit it by name and shape, and say whether these were all."""
    complete = state is not None
    for name, values in (state or {"modules": {}})["modules"].items():
        module = getattr(net, f"{name}_", None)
        own = module.state_dict() if module is not None else {}
        fitting = {key: value for key, value in values.items() if key in own and own[key].shape == value.shape}
        complete &= set(fitting) == set(own) == set(values)
        if module is not None:
            module.load_state_dict(own | fitting)
    return complete


def _load_network_state(net: NeuralNet, state: dict[str, Any]) -> None:
    """Put the state into a net that has been initialised."""
    for name, values in (state["modules"] | state["optimizers"]).items():
        getattr(net, f"{name}_").load_state_dict(values)
    net.history = History(state["history"])
    if state["classes"] is not None:
        net.classes_inferred_ = state["classes"]
    if state["extra"] is not None:
        net.set_state(state["extra"])


def _too_few_outputs(n_outputs: int | str, names: np.ndarray, labels: list[Any]) -> InvalidParameterError:
    return InvalidParameterError(
        f"The network must have an output for each of the {len(names)} classes. Got {n_outputs} outputs and the labels "
        f"{shorten(sorted(set(labels)))}. Without 'classes', integers are the numbers of the outputs, from 0: correct "
        "the labels or 'classes', or give the last layer more outputs."
    )


@contextmanager
def _raise_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end if there was a SIGINT inside, even if somebody has caught the exception.

    skorch takes a KeyboardInterrupt as the wish to end this training and keep what has been learnt; callbacks that
    stop early use that. A loop would then continue with a network that nobody can train a second time.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # signals are no business of this thread, or are ignored, or handled outside Python
        return
    seen = []

    def handle(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        before(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if seen:
        raise KeyboardInterrupt
