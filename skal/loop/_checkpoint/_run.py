"""What is kept of a run, and whether what is found in a folder is of the same run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from skorch import NeuralNet
from skorch.history import History

from skal.exceptions import CheckpointError, shorten
from skal.loop._checkpoint._fingerprint import describe_params, fingerprint_data, without_own_paths
from skal.loop._checkpoint._folder import CheckpointFolder
from skal.loop._estimators import final_network
from skal.loop._seeding import generator_states, restore_generators
from skal.loop._state import LoopState

if TYPE_CHECKING:
    from skal.loop._trainer import Trainer

__all__ = ["RunCheckpoint", "load_network_state", "network_state"]


class RunCheckpoint:
    """The checkpoint of one run.

    Make it before anything is drawn from a ``random_state`` that is a generator: its state is a part of the
    configuration.

    Parameters
    ----------
    folder : path
    params : dict
        Every parameter of the run, at every depth: ``classifier.get_params()``.
    X : all samples
    eval_set : tuple of X and y, or None
    """

    def __init__(
        self, folder: str | os.PathLike[str], params: dict[str, Any], X: Any, eval_set: Sequence[Any] | None
    ) -> None:
        self.folder = CheckpointFolder(folder)
        self.fingerprint = {
            "data": fingerprint_data(X),
            "eval_set": {} if eval_set is None else fingerprint_data(dict(zip("Xy", eval_set, strict=True))),
            "parameters": describe_params(params),
        }

    def save(self, state: LoopState, trainer: Trainer, strategy: Any, *, trained: bool) -> None:
        """Write everything; the network only if it has been trained since."""
        content = {
            "fingerprint": self.fingerprint,
            "state": state.to_dict(),
            "fitted": trainer.last_training,
            "strategy": strategy.get_state() if hasattr(strategy, "get_state") else None,
            "generators": generator_states(strategy, trainer.estimator),
        }
        # an estimator other than a network is fitted again on its labels
        net = final_network(trainer.estimator) if trained and trainer.last_training is not None else None
        self.folder.save(content, None if net is None else network_state(net))

    def restore(self, trainer: Trainer, strategy: Any) -> LoopState | None:
        """Put trainer and strategy back to where they were, and give the state; None if nothing was saved yet."""
        loaded = self.folder.load()
        if loaded is None:
            return None
        content, network = loaded
        self._check_same_run(content["fingerprint"])
        state = LoopState(**content["state"])
        trainer.restore(state, content["fitted"], network)
        if content["strategy"] is not None:
            strategy.set_state(content["strategy"])
        restore_generators(content["generators"], strategy, trainer.estimator)
        return state

    def _check_same_run(self, found: dict[str, Any]) -> None:
        for what, ours in self.fingerprint.items():
            theirs = without_own_paths(found[what]) if what == "parameters" else found[what]
            if theirs != ours:
                differing = {name for name in ours | theirs if ours.get(name) != theirs.get(name)}
                names = sorted("contents" if name == "sha256" else name for name in differing)
                raise CheckpointError(
                    f"The checkpoint in {self.folder.folder} must be of the same {what}. Got one that differs in "
                    f"{shorten(names)}. Pass what the run was started with, or another folder."
                )


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
