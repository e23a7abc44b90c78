"""Datasets that users get wrong: streams, and Datasets of constant length whose samples change while they are read."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Subset


class Items(Dataset):
    """Samples that a function makes."""

    def __init__(self, n: int, item: Callable[[int], Any]) -> None:
        self.n, self.item = n, item

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, row: int) -> Any:
        return self.item(row)


class Turning(Items):
    """Samples that are turned round after as many readings as there are samples."""

    read = 0

    def __getitem__(self, row: int) -> Any:
        self.read += 1
        return self.item(self.n - 1 - row if self.read // self.n % 2 else row)


class Worn(Turning):
    """Samples that fade from reading to reading."""

    def __getitem__(self, row: int) -> Any:
        self.read += 1
        return self.item(row) * np.float32(0.999**self.read)


class Stream(IterableDataset):
    """Samples that come one after the other, but know how many they are."""

    def __init__(self, X: np.ndarray) -> None:
        self.X = X

    def __len__(self) -> int:
        return len(self.X)

    def __iter__(self) -> Any:
        return iter(self.X)


def changing_pools(X: np.ndarray) -> dict[str, Any]:
    """Datasets by name of which no query can be right."""
    own, n = np.random.default_rng(0), len(X)

    def noisy(row: int) -> Any:
        return torch.as_tensor(X[row]) + 0.1 * torch.rand(1)

    return {
        "random augmentation": Items(n, noisy),
        "random augmentation of (x, y)": Items(n, lambda row: (noisy(row), 0)),
        "random augmentation in a dict": Items(n, lambda row: {"x": noisy(row)}),
        "random augmentation in a Subset": Subset(Items(n, noisy), range(n)),
        "numpy's noise": Items(n, lambda row: X[row] + np.random.normal(size=(8, 8)).astype(X.dtype)),
        "random flips": Items(n, lambda row: np.ascontiguousarray(X[row][..., :: random.choice((1, -1))])),
        "a generator of its own": Items(n, lambda row: X[row] + np.float32(own.normal())),
        "a random order": Items(n, lambda row: X[own.permutation(n)[row]]),
        "an order that turns": Turning(n, lambda row: X[row]),
        "samples that fade": Worn(n, lambda row: X[row]),
    }
