# SPDX-License-Identifier: BSD-3-Clause
"""Forward passes that differ from one layer on: what comes before is computed once.

The first pass notes what every operation of torch returns, up to the layer. Later passes run the module's own code
again, and get these results instead of computing them: no matter how the module is written, and which of its tensors
are used where. Results that were overwritten in place afterwards are noticed by torch's version counters, and
operations that do not come in the same order by their names; the next pass is then a whole one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from skal.exceptions import SkalError


class _DivergedError(SkalError):
    """A pass did not repeat what the first one did."""


class Replay(TorchDispatchMode):
    """Runs a function several times, and what it does before :meth:`part` only once.

    Examples
    --------
    >>> import torch
    >>> from skal.strategies._replay import Replay
    >>> replay, x = Replay(), torch.ones(3)
    >>> def scaled(factor):
    ...     y = x.exp()  # computed in the first run alone
    ...     replay.part()
    ...     return factor * y.sum()
    >>> [round(float(replay.run(lambda: scaled(factor))), 3) for factor in (1, 2)]
    [8.155, 16.31]
    >>> replay.n_bytes
    12
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._known: list[tuple[Any, Any]] = []  # operations before the part, and their results
        self._versions: list[tuple[Tensor, int]] = []
        self._position: int | None = None  # the next operation, while results are taken from the list
        self._noting = False

    @property
    def n_bytes(self) -> int:
        """Bytes of the results that are kept."""
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t, _ in self._versions}
        return sum(storages.values())

    def run(self, function: Callable[[], Any]) -> Any:
        """Run the function from the start, or from the recorded point if it was reached before."""
        if self._known:
            self._position = 0
            try:
                with self:
                    return self._check(function())
            except _DivergedError:
                self._forget()
        self._noting, self._position = True, None
        with self:
            return self._check(function())

    def part(self) -> None:
        """Mark the point after which runs differ; call it each time the point is reached."""
        if self._noting:
            self._noting = False
        elif self._position is not None:
            if self._position != len(self._known):
                raise _DivergedError
            self._position = None
        else:
            return
        tensors = [t for _, result in self._known for t in tree_leaves(result) if isinstance(t, Tensor)]
        if any(t.is_inference() for t in tensors):  # nobody counts whether these are overwritten
            tensors, self._known = [], []
        # operations in place count even where their results are known
        self._versions = [(t, t._version) for t in tensors]

    def _check(self, result: Any) -> Any:
        if self._noting or self._position is not None or any(t._version != v for t, v in self._versions):
            self._forget()
        return result

    def _forget(self) -> None:
        self._known, self._versions, self._noting, self._position = [], [], False, None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """One operation of torch."""
        if func.is_view:  # costs nothing, and torch refuses to make the same view twice
            return func(*args, **(kwargs or {}))
        if self._position is not None:
            if self._position >= len(self._known) or self._known[self._position][0] is not func:
                raise _DivergedError
            self._position += 1
            return self._known[self._position - 1][1]
        result = func(*args, **(kwargs or {}))
        if self._noting:
            self._known.append((func, result))
        return result


def replay_bytes(run: Callable[[Replay | None, int], Tensor], n_runs: int) -> int | None:
    """Bytes that are kept, if runs that begin in the middle give exactly what whole ones give; otherwise None.

    Parameters
    ----------
    run : callable, (Replay or None, number of the run) -> tensor
        None is a whole run.
    n_runs : int
        How many runs to compare.
    """
    replay = Replay()
    if all(torch.equal(run(replay, number), run(None, number)) for number in range(n_runs)):
        return replay.n_bytes
    return None
