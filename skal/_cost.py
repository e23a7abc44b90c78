# SPDX-License-Identifier: BSD-3-Clause
"""Forecast the cost of a query: measure small queries and extrapolate their growth."""

from __future__ import annotations

import time
import tracemalloc
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any
from weakref import finalize

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch._C._functorch import get_unwrapped, maybe_get_level
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from skal._core.containers import n_rows, take_rows
from skal._core.guard import preserve_rng
from skal.config import config_context
from skal.validation import target_weights

_SMALLEST = 256  # samples of the smallest pool that is measured
_LONG = 0.5  # seconds of a query after which no larger pool is measured


@dataclass(frozen=True)
class Passes:
    """The number of samples that go through the network, each counted as often as it does.

    Parameters
    ----------
    forward, backward : int
        Samples of the pool, of the labelled set and of small trials together; backward once for each of several
        directions.

    Examples
    --------
    >>> from skal.base import Passes
    >>> Passes(forward=1050, backward=1050).backward
    1050
    """

    forward: int = 0
    backward: int = 0


@dataclass(frozen=True)
class QueryCost:
    """A forecast of one query.

    Attributes
    ----------
    passes : Passes
        Samples that go through the network.
    memory : int
        Bytes at the peak, in this process, beyond learner and pool.
    seconds : float
        With the workers that the setting ``n_jobs`` stands for, once they have been started.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.strategies import Margin
    >>> cost = Margin().cost(*make_learner(), n_instances=3)  # a QueryCost
    >>> cost.passes
    Passes(forward=44, backward=0)
    >>> print(cost)
    44 samples forward and 0 backward; ... MB; ... s
    """

    passes: Passes
    memory: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.passes.forward:,} samples forward and {self.passes.backward:,} backward; "
            f"{self.memory / 1e6:,.1f} MB; {self.seconds:,.2f} s"
        )


def measure_cost(strategy: Any, context: Any, X_pool: Any, n_instances: int) -> QueryCost:
    """The cost of a query, from queries on the first samples of the pool.

    Passes grow linearly with the pool; memory, up to the bound, and time may have a quadratic part.

    Parameters
    ----------
    strategy : QueryStrategy
        Left as it is.
    context : QueryContext
        Of the whole pool.
    X_pool, n_instances
        As in the query.
    """
    n = min(context.n_pool, getattr(strategy, "subset", None) or context.n_pool)
    module = context.network.module if context.has_network else None
    learner = copy(context.learner)
    learner.cache = None
    sizes: list[int] = []
    times: list[float] = []
    counts: list[tuple[int, int, int]] = []
    for size in sorted({min(n, max(_SMALLEST, 2 * n_instances) * factor) for factor in (1, 2, 4)}):
        if len(sizes) > 1 and times[-1] > _LONG:
            break
        probe = _Probe(strategy, learner, take_rows(X_pool, slice(0, size)), n_instances)
        sizes.append(size)
        times.append(probe.seconds())  # first, so that what is loaded on first use is not measured
        counts.append(probe.measure(module))
    forwards, backwards, memories = zip(*counts, strict=True)
    # similarities of all pairs may be kept, as far as there is room
    memory = max(_line(sizes, memories, n), min(_parabola(sizes, memories, n), context.memory))
    if context.memory_bound is not None:
        memory = min(memory, max(context.memory_bound, *memories))
    jobs = 1 if context.sharding is None else context.sharding.jobs()
    passes = Passes(round(_line(sizes, forwards, n)), round(_line(sizes, backwards, n)))
    return QueryCost(passes, round(memory), _parabola(sizes, times, n) / jobs)


def _line(sizes: Sequence[int], values: Sequence[float], n: int) -> float:
    """The value at n of the line through the last two points, or of the last point if that is n."""
    if sizes[-1] == n:
        return values[-1]
    slope = (values[-1] - values[-2]) / (sizes[-1] - sizes[-2])
    return values[-1] + max(0.0, slope) * (n - sizes[-1])


def _parabola(sizes: Sequence[int], values: Sequence[float], n: int) -> float:
    """The value at n of ``a + b x + c x²`` with a, b, c ≥ 0, fitted to the points."""
    if sizes[-1] == n:
        return values[-1]
    x = np.array(sizes) / sizes[-1]
    terms, _ = nnls(np.stack([np.ones_like(x), x, x**2], axis=1), np.array(values))
    return float(terms @ [1.0, n / sizes[-1], (n / sizes[-1]) ** 2])


class _Probe:
    """A query on few samples that can be made again and again."""

    def __init__(self, strategy: Any, learner: Any, X: Any, n_instances: int) -> None:
        self._strategy, self._learner, self._X, self._n_instances = strategy, learner, X, n_instances
        self._target = getattr(strategy, "target", None)
        weights, n = target_weights(self._target), n_rows(X)
        if weights is not None:  # of the samples that take part
            self._target = weights[:n] if weights[:n].any() else np.ones(n)

    def _run(self) -> None:
        # a strategy may keep state, and its random_state may be a generator that queries advance
        target = getattr(self._strategy, "target", None)
        strategy = deepcopy(self._strategy, {id(target): self._target})  # no copy of the target's samples
        if "subset" in strategy.get_params(deep=False):
            strategy.set_params(subset=None)
        with config_context(n_jobs=1, progress=False), preserve_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            strategy.select(self._learner, self._X, self._n_instances)

    def seconds(self) -> float:
        """The shorter of two runs: the first one may pay for set-up."""
        times = []
        for _ in range(2):
            start = time.perf_counter()
            self._run()
            times.append(time.perf_counter() - start)
        return min(times)

    def measure(self, module: nn.Module | None) -> tuple[int, int, int]:
        """Samples forward and backward, and bytes at the peak."""
        with _count_samples(module) as counts, _Allocations() as torch_memory:
            self._run()
        # on its own: to watch tensors, torch may load modules, which would be counted too
        return counts[0], counts[1], min(self._peak(), self._peak()) + torch_memory.peak

    def _peak(self) -> int:
        """Bytes of Python and numpy at the peak; what other threads take meanwhile is counted too."""
        tracemalloc.start()
        try:
            self._run()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()


@contextmanager
def _count_samples(module: nn.Module | None) -> Iterator[list[int]]:
    """Count the samples that go forward and backward through a module."""
    counts = [0, 0]
    if module is None:
        yield counts
        return

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        first = next((x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)), None)
        n = 1 if first is None or not first.ndim else len(first)
        in_vmap = first is not None and maybe_get_level(first) > 0
        if first is not None and in_vmap:  # a pass stands for all samples of the chunk, and comes with its derivative
            while maybe_get_level(first) > 0:
                first = get_unwrapped(first)
            n = max(n, len(first))
            counts[1] += n
        counts[0] += n
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.requires_grad and not in_vmap:
                leaf.register_hook(lambda gradient, n=n: counts.__setitem__(1, counts[1] + n))
                break

    handle = module.register_forward_hook(look, with_kwargs=True)
    try:
        yield counts
    finally:
        handle.remove()


class _Allocations(TorchDispatchMode):
    """Bytes of the tensors that torch makes while it is on, at the peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak, self._now, self._seen = 0, 0, set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {storage._cdata for storage in _storages((*args, *(kwargs or {}).values()))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages([result]):
            if storage._cdata not in given:  # views, and what is written in place, take no room
                self._add(storage)
        return result

    def _add(self, storage: Any) -> None:
        address, size = storage._cdata, storage.nbytes()
        if address in self._seen or not size:
            return
        self._seen.add(address)
        self._now += size
        self.peak = max(self.peak, self._now)
        finalize(storage, self._remove, address, size)

    def _remove(self, address: int, size: int) -> None:
        self._seen.discard(address)
        self._now -= size


def _storages(values: Iterable[Any]) -> Iterator[Any]:
    """Of all tensors among arguments or results of an operation; a tree of torch's would take far longer."""
    for value in values:
        if isinstance(value, Tensor):
            if value.layout == torch.strided:
                yield value.untyped_storage()
        elif isinstance(value, (tuple, list)):
            yield from _storages(value)
