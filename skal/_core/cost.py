# SPDX-License-Identifier: BSD-3-Clause
"""What a query will take, before it is made: passes by counting, seconds by timing small ones."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from skal._core.containers import n_rows, take_rows
from skal._core.generators import preserved_rng
from skal.reuse import feature_reuse


@dataclass(frozen=True)
class Passes:
    """How many samples go through the network.

    Parameters
    ----------
    forward, backward : int
        Samples of the pool, counted once for each time that they go through; backward once for each of several
        directions.
    labelled_forward, labelled_backward : int
        The same for labelled samples.

    Examples
    --------
    >>> from skal.base import Passes
    >>> Passes(forward=1000, backward=1000) + Passes(labelled_forward=50)
    Passes(forward=1000, backward=1000, labelled_forward=50, labelled_backward=0)
    """

    forward: int = 0
    backward: int = 0
    labelled_forward: int = 0
    labelled_backward: int = 0

    def __add__(self, other: Passes) -> Passes:
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Passes(*(mine + theirs for mine, theirs in pairs))


@dataclass(frozen=True)
class QueryCost:
    """A forecast of one query.

    Attributes
    ----------
    passes : Passes
    memory : int
        Bytes at the peak, in this process, beyond learner and pool.
    seconds : float
        With the workers that the strategy's ``n_jobs`` stands for, once they have been started.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.strategies import DynamicAL
    >>> cost = DynamicAL().cost(*make_learner(), n_instances=3)  # a QueryCost
    >>> cost.passes
    Passes(forward=40, backward=40, labelled_forward=16, labelled_backward=16)
    >>> print(cost)
    40 samples forward and 40 backward, 16 and 16 labelled ones; ... MB; ... s
    """

    passes: Passes
    memory: int
    seconds: float

    def __str__(self) -> str:
        p = self.passes
        return (
            f"{p.forward:,} samples forward and {p.backward:,} backward, {p.labelled_forward:,} and "
            f"{p.labelled_backward:,} labelled ones; {self.memory / 1e6:,.0f} MB; {self.seconds:,.1f} s"
        )


def forecast_seconds(
    strategy: Any, learner: Any, X_pool: Any, n_instances: int, sizes: tuple[int, int], work: Callable[[int], float]
) -> float:
    """Seconds of a query, from two queries on the first samples of the pool, which are made.

    Parameters
    ----------
    strategy : QueryStrategy
        Left as it is.
    learner, X_pool, n_instances
        As in the query.
    sizes : (int, int)
        Of the small pools.
    work : callable
        How the time grows, but for a constant: a function of the pool's size.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal._core.cost import forecast_seconds
    >>> from skal.strategies import Margin
    >>> seconds = forecast_seconds(Margin(), *make_learner(), n_instances=3, sizes=(10, 20), work=float)
    >>> seconds > 0
    True
    """
    n = n_rows(X_pool, "X_pool")
    small, large = (min(size, n) for size in sizes)
    if large == n:
        return timed(strategy, learner, X_pool, n_instances, large)
    first, second = (timed(strategy, learner, X_pool, n_instances, size) for size in (small, large))
    slope = max(0.0, second - first) / (work(large) - work(small))
    return second + slope * (work(n) - work(large))


def timed(strategy: Any, learner: Any, X_pool: Any, n_instances: int, size: int) -> float:
    """Seconds of a query on the first samples of a pool.

    The shorter of two runs: the first one may pay for what is set up once.
    """
    part = take_rows(X_pool, slice(0, size))
    best = float("inf")
    for _ in range(2):
        # a strategy may keep state, and its random_state may be a generator that queries advance
        probe = deepcopy(strategy)
        probe.set_params(**{name: value for name, value in _ALONE.items() if name in probe.get_params(deep=False)})
        with feature_reuse(None), preserved_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            start = time.perf_counter()
            probe.select(learner, part, n_instances)
            best = min(best, time.perf_counter() - start)
    return best


_ALONE = {"n_jobs": 1, "progress": False, "subset": None}
