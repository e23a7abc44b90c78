"""Which samples a round asks for: the initial ones, then the strategy's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.base import clone

from skal._core.containers import n_rows, take_rows
from skal.exceptions import InvalidParameterError
from skal.learners import ActiveLearner
from skal.loop._labels import encode
from skal.loop._seeding import seed_for, seed_strategy, seedable, seeded
from skal.loop._start import given_start, random_start, stratified_start
from skal.loop._state import LoopState
from skal.loop._stopping import n_to_ask
from skal.loop._trainer import Trainer

if TYPE_CHECKING:
    from skal.loop._classifier import ActiveLearningClassifier

__all__ = ["Chooser"]


class Chooser:
    """Chooses with the classifier's parameters.

    Parameters
    ----------
    classifier : ActiveLearningClassifier
    X : all samples
    trainer : Trainer
    all_labels : callable or None
        Gives the labels of all samples, for a stratified start.

    Attributes
    ----------
    strategy : callable
        A copy of the user's, with what it learns from round to round.
    n_initial : int
    """

    def __init__(
        self,
        classifier: ActiveLearningClassifier,
        X: Any,
        trainer: Trainer,
        all_labels: Callable[[], list[Any]] | None,
    ) -> None:
        self.classifier = classifier
        self.X = X
        self.trainer = trainer
        self.all_labels = all_labels
        strategy = classifier.query_strategy
        self.strategy = clone(strategy) if hasattr(strategy, "get_params") else strategy
        self._seedable = seedable(self.strategy)
        self._given: np.ndarray | None = None
        if not isinstance(classifier.initial, str):
            self._given = given_start(classifier.initial, n_rows(X), type(classifier).__name__)
            if classifier.budget is not None and len(self._given) > classifier.budget:
                expected = f"at most {classifier.budget} positions, as many as the 'budget'"
                remedy = f"Raise the budget to {len(self._given)} or more, or give fewer positions."
                got = self._given.tolist()
                raise InvalidParameterError.for_parameter(type(classifier).__name__, "initial", expected, got, remedy)
        self.n_initial = classifier.n_initial if self._given is None else len(self._given)

    def choose(self, state: LoopState) -> tuple[np.ndarray, list[Any] | None]:
        """Positions in X of this round's samples, and the strategy's metrics."""
        params, pool = self.classifier, state.pool(n_rows(self.X))
        self.trainer.prepare(state)
        first = state.round == 0
        size = n_to_ask(state, self.n_initial if first else params.query_size, params.budget, len(pool))
        if self.trainer.estimator is not None:
            return self._query(state, pool, size)
        seed = seed_for(state.seed, state.round, "start")
        if first and self._given is not None:
            return self._given, None
        if first and params.initial == "stratified":
            return stratified_start(self._labels_of_all(), size, seed), None
        return random_start(pool, size, seed), None

    def _query(self, state: LoopState, pool: np.ndarray, size: int) -> tuple[np.ndarray, list[Any] | None]:
        learner = ActiveLearner(self.trainer.estimator, self.strategy)
        if self.trainer.fitted is not None:
            rows = state.rows(heldout=False)  # a strategy is part of the training: held-out labels are none of its
            codes = encode(state.label_array()[rows], self.classifier._names)
            trained = np.array(state.labelled)[rows]
            learner.X_training, learner.y_training = take_rows(self.X, trained), codes  # type: ignore
        with seeded(seed_for(state.seed, state.round, "query")):
            seed_strategy(self._seedable, state.seed, state.round)
            positions, _, metrics = learner.query(take_rows(self.X, pool), n_instances=size, return_metrics=True)
        return pool[positions], _numbers(metrics)

    def _labels_of_all(self) -> list[Any]:
        if self.all_labels is None:
            raise InvalidParameterError(
                "A stratified start reads all labels, so y must be given. Got no y instead. Use initial='random', or "
                "give the positions of the first samples."
            )
        return self.all_labels()


def _numbers(metrics: Any) -> list[Any] | None:
    """A strategy's metrics as a list, None if they are not numbers."""
    if metrics is None:
        return None
    values = np.asarray(metrics.cpu() if isinstance(metrics, torch.Tensor) else metrics).reshape(-1).tolist()
    try:
        json.dumps(values)
    except TypeError:
        return None
    return values
