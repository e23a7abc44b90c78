# SPDX-License-Identifier: BSD-3-Clause
"""A Dataset must give the same samples whenever it is read: scores would otherwise belong to others.

Random augmentation that was left on, or rows that are put into another order, cannot be seen in what a pass returns.
So a query looks at a few rows of a Dataset by itself: twice before the first pass and once at its end. Passes compare
these rows as well when they come by them. Arrays, memory maps and the like are not looked at.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha1
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from skal._core.containers import dataset_input
from skal._core.generators import preserved_rng
from skal.exceptions import ChangedSamplesError

_WATCHED = 8  # rows of a Dataset
_ENTRIES = 2**12  # of a sample's floating-point numbers, spread over it
_ROUNDING = 1e-4  # of the largest entry: a sample may be computed in a batch of another size
_HALF_ROUNDING = 1e-2
_GOLDEN = (5**0.5 - 1) / 2  # multiples of it are spread evenly, and fall into no pattern of rows and columns


class Watch:
    """A few rows of a Dataset, first, last and between, which must stay as they are.

    Parameters
    ----------
    dataset : Dataset
    name : str
        What messages call it.
    rows : (n,) sequence of int
        The rows that may be read.
    numbers : (n,) sequence of int
        What messages call them.

    Examples
    --------
    >>> from torch.utils.data import TensorDataset
    >>> from skal._core.steadiness import Watch
    >>> X = torch.zeros(5, 2)
    >>> watch = Watch(TensorDataset(X), "X_pool", range(5), range(5))
    >>> watch.begin()
    >>> X[3] = 1
    >>> watch.end()
    Traceback (most recent call last):
        ...
    skal.exceptions.ChangedSamplesError: X_pool must hold the same samples whenever it is read. Got a TensorDataset ...
    """

    def __init__(self, dataset: Any, name: str, rows: Sequence[int] | Any, numbers: Sequence[int] | Any) -> None:
        positions = np.unique(np.linspace(0, len(rows) - 1, _WATCHED).round().astype(int)).tolist() if len(rows) else []
        self._dataset, self._name = dataset, name
        self._numbers = {int(rows[i]): int(numbers[i]) for i in positions}
        self._known: dict[int, list[Any]] | None = None

    def begin(self) -> None:
        """Read the rows, twice, the first time that this is called; what cannot be read is left to the passes."""
        if self._known is not None:
            return
        self._known = {}
        with preserved_rng():
            # the generators go on from one reading to the next, so that random changes show
            for _ in range(2):
                for row in self._numbers:
                    try:
                        item = self._read(row)
                    except Exception:
                        continue
                    self.compare(row, item)

    def compare(self, row: int, item: Any) -> None:
        """Refuse an item that is not what stood in this row before; rows that are not watched are not looked at."""
        if self._known is None or row not in self._numbers:
            return
        new = signature(dataset_input(item)) if not isinstance(item, (tuple, list)) or item else []
        known = self._known.setdefault(row, new)
        if len(known) != len(new) or not all(map(_alike, known, new)):
            raise self._changed(row)

    def end(self) -> None:
        """Read the rows again, if they have been read."""
        if not self._known:
            return
        with preserved_rng():
            # a pass gives the generators back as they were: from the same state the same changes would come again
            random.random(), np.random.random(), torch.rand(1, device="cpu")
            if torch.cuda.is_initialized():
                torch.rand(1, device="cuda")
            for row in self._known:
                try:
                    item = self._read(row)
                except Exception as error:
                    raise self._changed(row) from error
                self.compare(row, item)

    def _read(self, row: int) -> Any:
        many: Callable[[list[int]], Any] | None = getattr(self._dataset, "__getitems__", None)
        if not callable(many):
            return self._dataset[row]
        items = many([row])
        return items[0] if isinstance(items, list) and len(items) == 1 else items

    def _changed(self, row: int) -> ChangedSamplesError:
        dataset = self._dataset
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        return ChangedSamplesError(
            f"{self._name} must hold the same samples whenever it is read. Got a {type(dataset).__name__} whose row "
            f"{self._numbers[row]} was another one when it was read again. Switch off random augmentation and "
            "shuffling for it, and change nothing in it during a query: query on a Dataset without random transforms."
        )


def watch_of(X: Any, name: str, rows: Any, numbers: Any) -> Watch | None:
    """A watch over the rows of a Dataset; None for everything else."""
    return Watch(X, name, rows, numbers) if isinstance(X, Dataset) else None


def signature(sample: Any) -> list[Any]:
    """What a sample is recognised by, part after part: arrays, tensors, numbers and texts, in dicts, tuples and lists.

    Examples
    --------
    >>> len(signature({"image": np.zeros((2, 2)), "words": (1, "a")}))
    3
    """
    if isinstance(sample, Mapping):
        return [part for key in sample for part in signature(sample[key])]
    if isinstance(sample, (tuple, list)):
        return [part for value in sample for part in signature(value)]
    try:
        return [_leaf(sample)]
    except Exception:  # what cannot be looked at, such as a sparse tensor, is not compared
        return [None]


def _leaf(value: Any) -> tuple[tuple[int, ...], float, Any] | None:
    """Shape, tolerance, and numbers or a digest; None for what holds neither numbers nor text."""
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        rounding = _HALF_ROUNDING if value.dtype in (torch.float16, torch.bfloat16) else _ROUNDING
        array = (value.float() if value.dtype == torch.bfloat16 else value).numpy()
    else:
        array = np.asarray(value)
        rounding = _HALF_ROUNDING if array.dtype == np.float16 else _ROUNDING
    if array.dtype.hasobject:
        return None
    if array.dtype.kind != "f":
        return array.shape, 0.0, sha1(np.ascontiguousarray(array).tobytes(), usedforsecurity=False).digest()
    entries = array.reshape(-1)
    if len(entries) > _ENTRIES:
        entries = entries[(np.arange(_ENTRIES) * _GOLDEN % 1 * len(entries)).astype(np.int64)]
    return array.shape, rounding, entries.astype(np.float64)


def _alike(known: Any, new: Any) -> bool:
    if known is None or new is None or known[0] != new[0] or known[1] != new[1]:
        return known is None and new is None
    if not known[1]:
        same: bool = known[2] == new[2]
        return same
    size = np.abs(known[2][np.isfinite(known[2])]).max(initial=0.0)
    return bool(np.allclose(known[2], new[2], rtol=0, atol=known[1] * size, equal_nan=True))
