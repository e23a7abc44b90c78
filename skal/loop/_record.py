"""A run in its checkpoint: what is saved, and whether what is found there is of the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from skal.exceptions import CheckpointError, shorten
from skal.loop._checkpoint import Checkpoint
from skal.loop._fingerprint import describe_params, fingerprint_data
from skal.loop._seeding import generator_states, restore_generators
from skal.loop._state import LoopState
from skal.loop._trainer import Trainer

if TYPE_CHECKING:
    from skal.loop._classifier import ActiveLearningClassifier

__all__ = ["RunRecord"]

_WORDS = {"sha256": "contents"}


class RunRecord:
    """The checkpoint of one run.

    Make it before anything is drawn from a ``random_state`` that is a generator: its state is a part of the
    configuration.

    Parameters
    ----------
    classifier : ActiveLearningClassifier
    X : all samples
    eval_set : tuple of X and y, or None
    """

    def __init__(self, classifier: ActiveLearningClassifier, X: Any, eval_set: tuple[Any, Any] | None) -> None:
        self.checkpoint = Checkpoint(classifier.checkpoint)
        self.fingerprint = {
            "data": fingerprint_data(X),
            "eval_set": {} if eval_set is None else fingerprint_data(dict(zip("Xy", eval_set, strict=True))),
            "parameters": describe_params(classifier),
        }

    def save(self, state: LoopState, trainer: Trainer, strategy: Any, *, trained: bool) -> None:
        """Write everything; the network only if it has been trained since."""
        content = {
            "fingerprint": self.fingerprint,
            "state": state.to_dict(),
            "fitted": trainer.fitted,
            "strategy": strategy.get_state() if hasattr(strategy, "get_state") else None,
            "generators": generator_states(strategy, trainer.estimator),
        }
        self.checkpoint.save(content, trainer.stored() if trained else None)

    def restore(self, trainer: Trainer, strategy: Any) -> LoopState | None:
        """Put trainer and strategy back to where they were, and give the state; None if nothing was saved yet."""
        loaded = self.checkpoint.load()
        if loaded is None:
            return None
        content, network = loaded
        self._check(content["fingerprint"])
        state = LoopState(**content["state"])
        trainer.restore(state, content["fitted"], network)
        if content["strategy"] is not None:
            strategy.set_state(content["strategy"])
        restore_generators(content["generators"], strategy, trainer.estimator)
        return state

    def _check(self, found: dict[str, Any]) -> None:
        for what, ours in self.fingerprint.items():
            theirs = found[what]
            if theirs != ours:
                names = sorted(_WORDS.get(name, name) for name in ours | theirs if ours.get(name) != theirs.get(name))
                raise CheckpointError(
                    f"The checkpoint in {self.checkpoint.folder} must be of the same {what}. Got one that differs in "
                    f"{shorten(names)}. Pass what the run was started with, or another folder."
                )
