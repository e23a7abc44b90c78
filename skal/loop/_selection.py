# SPDX-License-Identifier: BSD-3-Clause
"""Which samples a round asks for: the initial ones, then the strategy's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from skal._core.cache import Cache
from skal._core.containers import take_rows
from skal.exceptions import InvalidParameterError, NoLabelledDataError
from skal.learners import ActiveLearner
from skal.loop._audit import draw, mixed, n_from_audit
from skal.loop._config import LoopConfig
from skal.loop._labels import encode, read_labels
from skal.loop._state import LoopState
from skal.loop._trainer import Trainer
from skal.strategies._default import Recommended


class Selector:
    """Selects the samples of one run.

    Parameters
    ----------
    config : LoopConfig

    Attributes
    ----------
    strategy : callable
        A copy of the user's, with what it learns from round to round.
    """

    def __init__(self, config: LoopConfig) -> None:
        self.config = config
        strategy = config.query_strategy
        self.strategy = clone(strategy) if hasattr(strategy, "get_params") else strategy
        self._cache = Cache()

    def select(self, state: LoopState, trainer: Trainer) -> tuple[np.ndarray, list[Any] | None]:
        """Positions in X of this round's samples, and the strategy's metrics."""
        draw(state, self.config)
        pool = self.config.pool(state)
        size = self.config.next_batch_size(state, len(pool))
        given = not isinstance(self.config.initial, str) and not callable(self.config.initial)
        if not state.audit or (state.round == 0 and given):
            return self._choose(state, trainer, pool, size)
        own = np.setdiff1d(pool, state.audit)  # what the strategy may choose from
        n_audit = max(n_from_audit(state, size, self.config.heldout_share), size - len(own))
        nothing = np.empty(0, dtype=np.int64), None
        chosen, metrics = self._choose(state, trainer, own, size - n_audit) if size > n_audit else nothing
        return mixed(state, chosen, metrics, n_audit)

    def _choose(
        self, state: LoopState, trainer: Trainer, pool: np.ndarray, size: int
    ) -> tuple[np.ndarray, list[Any] | None]:
        """By the strategy, or by the rule of the start."""
        if trainer.estimator is not None:
            return self._query(state, trainer, pool, size)
        seed, initial = state.seed_for("start"), self.config.initial
        if state.round == 0 and callable(initial):
            return self._start(state, trainer, pool, size)
        if state.round == 0:
            state.start = initial if isinstance(initial, str) else "positions"
        if state.round == 0 and not isinstance(initial, str):
            positions = np.asarray(initial, dtype=np.int64)
            return positions[np.isin(positions, state.pool(self.config.n_samples))], None
        if state.round == 0 and initial == "stratified":
            labels, free = self._read_all_labels(), set(pool.tolist())
            return draw_stratified([label if i in free else None for i, label in enumerate(labels)], size, seed), None
        return np.random.default_rng(seed).choice(pool, size=size, replace=False), None

    def _start(
        self, state: LoopState, trainer: Trainer, pool: np.ndarray, size: int
    ) -> tuple[np.ndarray, list[Any] | None]:
        """By a strategy, before anything is labelled."""
        initial = self.config.initial
        strategy = clone(initial) if hasattr(initial, "get_params") else initial
        learner = ActiveLearner(trainer.untrained(state), strategy)
        learner.cache = self._cache
        with state.seeded("start"):
            _seed_strategy(strategy, initial, state.seed_for("start"), state.round)
            chosen, _, metrics = learner.query(self.config.X, n_instances=size, return_metrics=True, candidates=pool)
        if isinstance(strategy, Recommended):  # what its numbers mean depends on its choice
            strategy, reason, metrics = strategy.strategy_, strategy.reason_, None
        else:
            reason = "as asked for"
        state.start = f"{getattr(strategy, '__name__', type(strategy).__name__)}: {reason}"
        return chosen, _as_numbers(metrics)

    def _query(
        self, state: LoopState, trainer: Trainer, pool: np.ndarray, size: int
    ) -> tuple[np.ndarray, list[Any] | None]:
        learner = ActiveLearner(trainer.estimator, self.strategy)
        if trainer.predictor is not None:
            # a strategy is part of the training: held-out labels are none of its
            rows, labels = state.labelled_set(heldout=False)
            codes = encode(labels, trainer.predictor.names)
            known = codes >= 0  # a class that came after the last training that succeeded has no output yet
            learner.X_training = take_rows(self.config.X, rows[known])
            learner.y_training = codes[known]  # type: ignore
        learner.cache = self._cache
        with state.seeded("query"):
            _seed_strategy(self.strategy, self.config.query_strategy, state.seed_for("query"), state.round)
            chosen, _, metrics = learner.query(self.config.X, n_instances=size, return_metrics=True, candidates=pool)
        return chosen, _as_numbers(metrics)

    def _read_all_labels(self) -> list[Any]:
        reader = self.config.reader
        if reader is None:
            raise InvalidParameterError(
                "A stratified start reads all labels, so y must be given. Got no y instead. Use initial='random', or "
                "give the positions of the first samples."
            )
        return read_labels(reader(np.arange(self.config.n_samples), None), self.config.no_label)[0]


def draw_stratified(labels: list[Any], size: int, seed: int) -> np.ndarray:
    """``size`` positions, every class at least once if there is room, otherwise in proportion to its frequency.

    Parameters
    ----------
    labels : list
        Of all samples, None where there is no label.
    size : int
    seed : int

    Examples
    --------
    >>> labels = ["a"] * 90 + ["b"] * 9 + ["c"]
    >>> [labels[i] for i in sorted(draw_stratified(labels, 10, seed=0))]
    ['a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'b', 'c']
    """
    known = np.array([i for i, label in enumerate(labels) if label is not None], dtype=np.int64)
    if len(known) == 0:
        raise NoLabelledDataError(
            "The y given to a stratified start must hold labels. Got none instead. Pass y, or use initial='random'."
        )
    generator = np.random.default_rng(seed)
    _, codes, counts = np.unique(np.array([labels[i] for i in known]), return_inverse=True, return_counts=True)
    size = min(size, len(known))
    taken = np.zeros(len(counts), dtype=int)
    for _ in range(size):
        # the class that lacks most; one that has none yet goes first, a rare one before a frequent one
        lacking = counts * size / counts.sum() - taken + np.where(taken == 0, size * (2 - counts / counts.sum()), 0)
        taken[np.argmax(np.where(taken < counts, lacking, -np.inf))] += 1
    rows = [generator.choice(np.flatnonzero(codes == k), size=n, replace=False) for k, n in enumerate(taken)]
    chosen: np.ndarray = known[generator.permutation(np.concatenate(rows))]
    return chosen


def _as_numbers(metrics: Any) -> list[Any] | None:
    """A strategy's metrics as a list, None if they are not numbers."""
    values = np.asarray(metrics.cpu() if isinstance(metrics, torch.Tensor) else metrics).reshape(-1)
    return values.tolist() if values.dtype.kind in "biuf" else None


def random_states(value: Any) -> Iterator[tuple[Any, Any]]:
    """(owner, value) of every ``random_state`` in an estimator, its parts, and lists of estimators.

    What computes a strategy's features is fixed, and draws nothing.
    """
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from random_states(part)
    elif hasattr(value, "get_params") and not isinstance(value, type):
        for name, part in sorted(value.get_params(deep=False).items()):
            if name == "random_state":
                yield value, part
            elif name != "features":
                yield from random_states(part)


def _seed_strategy(strategy: Any, original: Any, seed: int, round: int) -> None:
    """Give each part of a strategy a seed for this round: from the integer that ``original`` has, or from ``seed``.

    With the integer itself a strategy would make the same draws in every round. Generators are left alone.
    """
    pairs = zip(random_states(strategy), random_states(original), strict=True)
    parts = [(owner, own) for (owner, _), (_, own) in pairs if own is None or isinstance(own, (int, np.integer))]
    for place, (owner, own) in enumerate(parts):
        entropy = [seed, place] if own is None else [int(own), round]
        owner.set_params(random_state=int(np.random.SeedSequence(entropy).generate_state(1)[0]))
