"""Batches of some rows of a data set, without end or in epochs of a given length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler, Subset

from skal._core.containers import dataset_input, take_rows

__all__ = ["Paired", "Permutations", "Rows", "as_it_is", "is_sliceable", "rows_of"]


class Permutations(Sampler):
    """Positions 0 … n−1 in random order, again and again, every time in another: ``total`` of them, or without end.

    Fewer samples than a batch holds are thereby repeated until it is full.
    """

    def __init__(self, n: int, total: int | None = None) -> None:
        self.n = n
        self.total = total

    def __iter__(self) -> Iterator[int]:
        count = 0
        while True:
            for position in torch.randperm(self.n).tolist():
                if self.total is not None and count >= self.total:
                    return
                count += 1
                yield position

    def __len__(self) -> int:
        if self.total is None:
            raise TypeError("an endless sampler has no length")
        return self.total


class Paired(Dataset):
    """The inputs of a Dataset, each with a value of its own (a label, a row number) instead of the Dataset's."""

    def __init__(self, dataset: Any, values: Tensor) -> None:
        self.dataset = dataset
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, row: int) -> tuple[Any, Tensor]:
        return dataset_input(self.dataset[row]), self.values[row]


class Rows(Dataset):
    """Rows of arrays or tensors, read a whole batch at a time: a loader must leave the batches :func:`as_it_is`."""

    def __init__(self, X: Any, values: Tensor, rows: Tensor) -> None:
        self.X = X
        self.values = values
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> tuple[Any, Tensor]:
        row = int(self.rows[position])
        return _first(take_rows(self.X, np.array([row]))), self.values[row]

    def __getitems__(self, positions: list[int]) -> tuple[Any, Tensor]:
        rows = self.rows[positions]
        return take_rows(self.X, rows.numpy()), self.values[rows]


def _first(X: Any) -> Any:
    return {key: value[0] for key, value in X.items()} if isinstance(X, Mapping) else X[0]


def as_it_is(batch: Any) -> Any:
    """The collate function of batches that are batches already."""
    return batch


def is_sliceable(X: Any) -> bool:
    """Whether rows can be taken many at a time: arrays, tensors, dicts of them."""
    parts = X.values() if isinstance(X, Mapping) else [X]
    return all(isinstance(part, (np.ndarray, Tensor)) for part in parts)


def rows_of(dataset: Any) -> Tensor | None:
    """The rows of a :class:`Paired` that a Subset (of a Subset …) of it holds, or None for another Dataset."""
    if isinstance(dataset, Paired):
        return torch.arange(len(dataset))
    if isinstance(dataset, Subset):
        inner = rows_of(dataset.dataset)
        return None if inner is None else inner[torch.as_tensor(np.asarray(dataset.indices), dtype=torch.long)]
    return None
