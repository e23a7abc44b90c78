# SPDX-License-Identifier: BSD-3-Clause
"""A choice among more samples than fit into memory: a shortlist of every part first, then a choice among those."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from skal.base import ANY_TASK, QueryStrategy
from skal.context import QueryContext, rows_within
from skal.exceptions import InvalidParameterError, TwoLevelWarning
from skal.strategies._pool_features import PoolFeatures
from skal.validation import Constraint, Features

# how many times the batch a part's shortlist holds, if there is room
_SHORTLIST = 4

Chosen = tuple[np.ndarray, np.ndarray, "np.ndarray | None"]
Choose = Callable[["np.ndarray | range", int, "np.ndarray | None"], Chosen]


class TwoLevelStrategy(QueryStrategy):
    """A strategy that keeps something of every sample: all of them at once, or in two stages if memory is short."""

    def __init__(self, *, features: Any = "auto", subset: int | None = None, random_state: Any = None) -> None:
        self.features = features
        self.subset = subset
        self.random_state = random_state

    constraints: ClassVar[dict[str, Constraint]] = {"features": Features()}
    tasks = ANY_TASK
    needs_network = False

    @abstractmethod
    def _sample_bytes(self, context: QueryContext) -> int:
        """Bytes that one sample takes."""

    def _reserved_bytes(self, context: QueryContext) -> int:
        """Bytes of the bound that are not for samples."""
        return 0

    @abstractmethod
    def _chooser(self, context: QueryContext) -> Choose:
        """The methods that :func:`select_in_levels` calls."""

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        if not self._uses_network(context):
            PoolFeatures(context, self.features, normalize=False, room=0)  # refuses those that say nothing
        choose, room = self._chooser(context), self._room(context)
        return select_in_levels(context.n_pool, n_instances, room, choose, context.owner, context.max_memory)

    def _room(self, context: QueryContext) -> int | None:
        if context.memory_bound is None:
            return None
        left = context.memory_bound - self._reserved_bytes(context)
        return rows_within(left, self._sample_bytes(context), at_least=0)

    def _uses_network(self, context: QueryContext) -> bool:
        return context.has_network and isinstance(self.features, str) and self.features != "input"


def select_in_levels(
    n_pool: int, n_instances: int, room: int | None, choose: Choose, owner: str, max_memory: object
) -> tuple[np.ndarray, np.ndarray]:
    """Indices and metrics of a batch, chosen among all samples at once if there is room.

    Otherwise the pool is cut into consecutive parts that fit. Each part's own batch, four times as large as the one
    that is asked for if there is room, is its shortlist; the answer is chosen among the shortlists. If those do not
    fit either, they are cut in the same way.

    Parameters
    ----------
    n_pool, n_instances : int
    room : int or None
        How many samples' embeddings fit; None for any number.
    choose : callable
        ``choose(rows, n, masses)``: positions among the rows, best first, their metrics, and how many samples of the
        pool each of them stands for. The masses say so of the rows; they are None if the pool is not cut, and what is
        returned may be None if the strategy does not ask.
    owner : str
        The strategy's name, for messages.
    max_memory : object
        The bound, for messages.

    Warns
    -----
    TwoLevelWarning
        If the pool is cut.

    Examples
    --------
    >>> values = np.array([3.0, 9.0, 4.0, 7.0])
    >>> def largest(rows, n, masses):
    ...     best = np.argsort(-values[np.asarray(rows)])[:n]
    ...     return best, values[np.asarray(rows)][best], None
    >>> select_in_levels(4, 2, None, largest, "Largest", None)
    (array([1, 3]), array([9., 7.]))
    """
    if room is None or n_pool <= room:
        return choose(range(n_pool), n_instances, None)[:2]
    if room < 2 * n_instances:
        expected = f"enough for the embeddings of {2 * n_instances} samples, two batches (there is room for {room})"
        remedy = "Raise it, or query fewer samples at a time."
        raise InvalidParameterError.for_parameter(owner, "max_memory", expected, max_memory, remedy)
    warnings.warn(
        f"max_memory={max_memory!r} holds only {room} of {n_pool} embeddings, so {owner} selects in two stages and the "
        "batch may differ. Raise max_memory, or set subset.",
        TwoLevelWarning,
        stacklevel=3,
    )
    candidates: np.ndarray | range = range(n_pool)
    masses = np.ones(n_pool)
    while len(candidates) > room:
        n_parts = -(-len(candidates) // room)
        size = max(n_instances, min(_SHORTLIST * n_instances, room // n_parts))
        bounds = np.linspace(0, len(candidates), n_parts + 1).astype(int)
        shortlists = []
        for part in (slice(*pair) for pair in pairwise(bounds)):
            some = candidates[part]
            picked, _, stands_for = choose(some, min(size, len(some)), masses[part])
            shortlists.append((np.asarray(some)[picked], np.ones(len(picked)) if stands_for is None else stands_for))
        candidates, masses = (np.concatenate(column) for column in zip(*shortlists, strict=True))
    order = np.argsort(candidates)
    rows = np.asarray(candidates)[order]
    picked, metrics, _ = choose(rows, n_instances, masses[order])
    return rows[picked], metrics
