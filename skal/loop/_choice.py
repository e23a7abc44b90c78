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
from skal.loop._final import draw_audit
from skal.loop._fitting import Trainer
from skal.loop._heldout import draw, mix, n_from_audit
from skal.loop._labels import read_labels
from skal.loop._progress import LoopState
from skal.loop._rules import Rules
from skal.strategies._default import Recommended

Choice = tuple[np.ndarray, list[Any] | None]  # positions in X, and the strategy's metrics


class Selector:
    """Selects the samples of one run.

    Parameters
    ----------
    rules : Rules

    Attributes
    ----------
    strategy : callable
        A copy of the user's, with what it learns from round to round.
    cache : Cache
        Features that are kept from round to round.
    """

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.strategy = _copy(rules.query_strategy)
        self.cache = Cache()

    def select(self, state: LoopState, trainer: Trainer) -> Choice:
        """Positions in X of this round's samples, and the strategy's metrics."""
        if state.look:
            state.reason = "an audit, which chance draws"
            return draw_audit(state, self.rules), None
        if self.rules.watches or self.rules.heldout_share or state.audit:
            return self._select_beside_audit(state, trainer)
        pool = self.rules.pool(state)
        return self._choose(state, trainer, pool, self.rules.next_size(state, len(pool)))

    def _select_beside_audit(self, state: LoopState, trainer: Trainer) -> Choice:
        """A part of the batch is drawn at random, from samples that no strategy chooses."""
        draw(state, self.rules)
        pool = self.rules.pool(state)
        size = self.rules.next_size(state, len(pool))
        given = not isinstance(self.rules.initial, str) and not callable(self.rules.initial)
        if not state.audit or (state.round == 0 and given):
            return self._choose(state, trainer, pool, size)
        own = np.setdiff1d(pool, state.audit)  # the strategy may choose from these
        n_audit = max(n_from_audit(state, size, self.rules.heldout_share), size - len(own))
        chosen, metrics = np.empty(0, dtype=np.int64), None
        if size > n_audit:
            chosen, metrics = self._choose(state, trainer, own, size - n_audit)
        return mix(state, chosen, metrics, n_audit)

    def _choose(self, state: LoopState, trainer: Trainer, pool: np.ndarray, size: int) -> Choice:
        """Choose by the strategy, or by the rule for the initial samples."""
        if trainer.estimator is not None:
            labelled = None
            if trainer.predictor is not None:
                # a strategy is part of the training: it does not see held-out labels
                rows, labels = state.training_set()
                codes, known = trainer.encode(labels)
                labelled = take_rows(self.rules.X, rows[known]), codes[known]
            original = self.rules.query_strategy
            found = self._query(trainer.estimator, labelled, self.strategy, original, state, "query", pool, size)
            state.reason = _explain(self.strategy)
            return found
        seed, initial = state.seed_for("start"), self.rules.initial
        if state.round == 0 and callable(initial):
            strategy = _copy(initial)
            found = self._query(trainer.make_blank(state), None, strategy, initial, state, "start", pool, size)
            state.start = state.reason = _explain(strategy)
            # the meaning of the numbers depends on what was recommended
            return (found[0], None) if isinstance(strategy, Recommended) else found
        state.reason = "random: the labels are too few to train on"
        if state.round == 0:
            state.start = state.reason = initial if isinstance(initial, str) else "positions"
        if state.round == 0 and not isinstance(initial, str):
            positions = np.asarray(initial, dtype=np.int64)
            return positions[np.isin(positions, state.pool(self.rules.n_samples))], None
        if state.round == 0 and initial == "stratified":
            free = set(pool.tolist())
            all_labels = [label if i in free else None for i, label in enumerate(self._read_all_labels())]
            return draw_stratified(all_labels, size, seed), None
        return np.random.default_rng(seed).choice(pool, size=size, replace=False), None

    def _query(
        self,
        estimator: Any,
        labelled: tuple[Any, np.ndarray] | None,
        strategy: Any,
        original: Any,
        state: LoopState,
        purpose: str,
        pool: np.ndarray,
        size: int,
    ) -> Choice:
        """Ask a strategy: the one place where a learner is made for a query."""
        learner = ActiveLearner(estimator, strategy)
        if labelled is not None:
            learner.X_training, learner.y_training = labelled  # type: ignore[assignment]
        seed = state.seed_for(purpose)
        learner.cache, learner.task = self.cache, self.rules.task
        with state.use_seed(purpose):
            _seed_strategy(strategy, original, seed, state.round)
            chosen, _, metrics = learner.query(self.rules.X, n_instances=size, return_metrics=True, candidates=pool)
        values = np.asarray(metrics.cpu() if isinstance(metrics, torch.Tensor) else metrics).reshape(-1)
        return chosen, values.tolist() if values.dtype.kind in "biuf" else None

    def _read_all_labels(self) -> list[Any]:
        reader = self.rules.reader
        if reader is None:
            raise InvalidParameterError(
                "A stratified start reads all labels, so y must be given. Got no y instead. Use initial='random', or "
                "give the positions of the first samples."
            )
        return read_labels(reader(np.arange(self.rules.n_samples), None), self.rules.no_label)[0]


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


def _explain(strategy: Any) -> str:
    """Say which strategy answered a query, and why it was chosen."""
    reason = "as asked for"
    if isinstance(strategy, Recommended):
        strategy, reason = strategy.strategy_, strategy.reason_
    return f"{getattr(strategy, '__name__', type(strategy).__name__)}: {reason}"


def _copy(strategy: Any) -> Any:
    return clone(strategy) if hasattr(strategy, "get_params") else strategy


def random_states(value: Any) -> Iterator[tuple[Any, Any]]:
    """(owner, value) of every ``random_state`` in an estimator, its parts, and lists of estimators.

    The transformer of a strategy's features is fixed, and draws nothing; nor does a target.
    """
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from random_states(part)
    elif hasattr(value, "get_params") and not isinstance(value, type):
        for name, part in sorted(value.get_params(deep=False).items()):
            if name == "random_state":
                yield value, part
            elif name not in ("features", "target"):
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
