# SPDX-License-Identifier: BSD-3-Clause
"""What a loop does with networks alone: initialise them, train them on, and keep and restore their state."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import FrameType
from typing import Any

import numpy as np
from sklearn.pipeline import Pipeline
from skorch import NeuralNet
from skorch.history import History

from skal._core.estimators import explain_training
from skal.exceptions import InvalidParameterError, shorten


def final_network(estimator: Any) -> NeuralNet | None:
    """The net that ``estimator.fit`` trains in place: the estimator itself, or the last step of a Pipeline."""
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
    return estimator if isinstance(estimator, NeuralNet) else None


def initialize_network(estimator: Any, X: Any, y: np.ndarray | None) -> None:
    """Initialise the net at the end of the estimator, and fit the steps of a Pipeline before it."""
    while isinstance(estimator, Pipeline):
        if len(estimator.steps) > 1:
            before = estimator[:-1]
            X = before.fit_transform(X, y)
            estimator.steps[:-1] = before.steps  # a Pipeline with a cache fits copies
        estimator = estimator.steps[-1][1]
    if hasattr(estimator, "initialize_for"):  # it must see samples to know how large it is
        estimator.initialize_for(X, y)
    else:
        estimator.initialize()


def fit_network(estimator: Any, X: Any, y: np.ndarray, names: np.ndarray, labels: list[Any]) -> None:
    """Train; a training that raises leaves the network, and the steps before it, as they were."""
    net = final_network(estimator)
    before = None
    if net is not None and net.initialized_:
        before = deepcopy(network_state(net)), deepcopy(estimator.steps[:-1]) if net is not estimator else []
    with explain_training(estimator, X, y):
        try:
            with _raise_interrupts():
                estimator.fit(X, y)
        except BaseException as error:
            if net is not None and before is not None:
                load_network_state(net, before[0])
                if net is not estimator:
                    estimator.steps[:-1] = before[1]
            if isinstance(error, IndexError) and "out of bounds" in str(error):
                raise too_few_outputs("fewer", names, labels) from error
            raise


def network_state(net: NeuralNet) -> dict[str, Any]:
    """Modules and criteria with their buffers, optimizers, the net's history, and what ``net.get_state()`` adds."""
    return {
        "modules": {name: dict(getattr(net, f"{name}_").state_dict()) for name in net._modules + net._criteria},
        "optimizers": {name: getattr(net, f"{name}_").state_dict() for name in net._optimizers},
        "history": net.history.to_list() if hasattr(net.history, "to_list") else list(net.history),
        "classes": getattr(net, "classes_inferred_", None),
        "extra": net.get_state() if hasattr(net, "get_state") else None,
    }


def load_network_state(net: NeuralNet, state: dict[str, Any]) -> None:
    """Put the state into a net that has been initialised."""
    for name, values in (state["modules"] | state["optimizers"]).items():
        getattr(net, f"{name}_").load_state_dict(values)
    net.history = History(state["history"])
    if state["classes"] is not None:
        net.classes_inferred_ = state["classes"]
    if state["extra"] is not None:
        net.set_state(state["extra"])


def load_weights(net: NeuralNet, state: dict[str, Any] | None) -> bool:
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


def too_few_outputs(n_outputs: int | str, names: np.ndarray, labels: list[Any]) -> InvalidParameterError:
    """The error for a network with fewer outputs than there are classes."""
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
