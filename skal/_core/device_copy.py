# SPDX-License-Identifier: BSD-3-Clause
"""Samples that were moved to a device, kept there until a query ends: its later passes need not move them again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.memory import new_rows, rows_within


class DeviceCopy:
    """The first samples of a pool on a device, as many as there is room for, each from the pass that moved it there.

    Parameters
    ----------
    rows : (n,) sequence of int
        What tells the samples apart, each once.
    n_bytes : int
        Room for them. Those that do not fit are moved for every pass.

    Examples
    --------
    >>> X = torch.arange(6.0).reshape(3, 2)
    >>> there = DeviceCopy(range(3), n_bytes=100)
    >>> where = torch.device("cpu"), torch.float32
    >>> moved = there.batch(range(3), where, X.clone)
    >>> there.batch([2, 0], where, lambda: print("not called"))
    tensor([[4., 5.],
            [0., 1.]])
    """

    def __init__(self, rows: Sequence[int] | np.ndarray, n_bytes: int) -> None:
        self._rows, self._n_bytes = rows, n_bytes
        self._rooms: dict[tuple[torch.device, torch.dtype], _Room] = {}

    def batch(
        self, rows: Sequence[int] | np.ndarray, where: tuple[torch.device, torch.dtype], move: Callable[[], Any]
    ) -> Any:
        """A batch of the samples, in tensors of its own.

        Parameters
        ----------
        rows : (n,) sequence of int
            Which samples.
        where : device and dtype
            Where they are wanted, and the type of floats.
        move : callable
            Moves them there, in new tensors, if not all of them are there.

        Returns
        -------
        tensor, or dict or tuple of tensors
            What ``move`` gives.
        """
        room = self._rooms.get(where)
        places = None if room is None else room.find(rows)
        if room is not None and places is not None and room.is_full[places].all():
            return room.read(places)
        batch = move()
        if room is None:
            row_bytes = sum(part.nbytes for part in tree_leaves(batch)) // len(rows)
            size = rows_within(self._n_bytes, row_bytes, at_least=0)
            room = self._rooms[where] = _Room(self._rows[:size], batch)
            self._n_bytes -= len(room.is_full) * row_bytes
            places = room.find(rows)
        if places is not None:
            room.write(places, batch)
        return batch

    def clear(self) -> None:
        """Give the memory back."""
        self._rooms.clear()


class _Room:
    """Room for samples like those of a batch, in the order of their rows."""

    def __init__(self, rows: Sequence[int] | np.ndarray, batch: Any) -> None:
        self._order = np.argsort(rows, kind="stable")
        self._sorted = np.asarray(rows, dtype=np.int64)[self._order]
        self._parts = tree_map(lambda part: new_rows(len(rows), part), batch)
        self.is_full = np.zeros(len(rows), dtype=bool)

    def find(self, rows: Sequence[int] | np.ndarray) -> np.ndarray | None:
        """(n,) places of the samples; None if there is no room for some of them."""
        after = np.searchsorted(self._sorted, rows, side="right")
        if not after.all() or not np.array_equal(self._sorted[after - 1], rows):
            return None
        found: np.ndarray = self._order[after - 1]
        return found

    def read(self, places: np.ndarray) -> Any:
        """Copies of the samples: a module may write into its input."""
        return tree_map(lambda part: part[_index(places, part)].clone(), self._parts)

    def write(self, places: np.ndarray, batch: Any) -> None:
        """Keep the samples of a batch."""
        for part, values in zip(tree_leaves(self._parts), tree_leaves(batch), strict=True):
            part[_index(places, part)] = values
        self.is_full[places] = True


def _index(places: np.ndarray, part: Tensor) -> slice | Tensor:
    """Places as a slice where they are one after the other, so that no list of them crosses."""
    if (np.diff(places) == 1).all():
        return slice(int(places[0]), int(places[-1]) + 1)
    return torch.as_tensor(places, device=part.device)
