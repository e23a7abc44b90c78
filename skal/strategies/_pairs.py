# SPDX-License-Identifier: BSD-3-Clause
"""The pairs of a candidate and an evaluation sample that can still raise a coverage."""

from __future__ import annotations

import torch
from torch import Tensor

from skal.strategies._similarity import true_positions


def pairs_above(
    values: Tensor, covered: Tensor, top: int, left: int, skipped: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values of a tile that are above what is covered; without its first columns, if so wanted."""
    above = values > covered
    above[:, :skipped] = False
    flat = true_positions(above)
    rows = flat.div(values.shape[1], rounding_mode="floor")
    return (rows + top).int(), (flat - rows * values.shape[1] + left).int(), values.flatten()[flat]


class Pairs:
    """Pairs of a candidate and an evaluation sample with their similarity, by candidate.

    There is one tensor for all from the start: many small ones, made one after the other, leave gaps in memory.
    """

    def __init__(self, n: int, capacity: int, like: Tensor) -> None:
        self._rows = torch.empty(capacity, dtype=torch.int32, device=like.device)
        self._columns = torch.empty_like(self._rows)
        self._values = like.new_empty(capacity)
        self._n, self._size = n, 0

    def add(self, rows: Tensor, columns: Tensor, values: Tensor) -> bool:
        """Whether there was room for more pairs."""
        start, stop = self._size, self._size + len(rows)
        if stop > len(self._rows):
            return False
        self._rows[start:stop], self._columns[start:stop], self._values[start:stop] = rows, columns, values
        self._size = stop
        return True

    def sort(self) -> None:
        """By candidate; no more pairs can be added."""
        rows = self._rows[: self._size]
        order = rows.sort(stable=True).indices
        self._columns, self._values = self._columns[order], self._values[order]
        self._counts = torch.bincount(rows, minlength=self._n)
        self._starts = self._counts.cumsum(0) - self._counts
        del self._rows

    def _of(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of some candidates: the position among them, the evaluation sample and the similarity of each pair."""
        counts = self._counts[rows]
        owner = torch.repeat_interleave(counts)
        shift = self._starts[rows] - (counts.cumsum(0) - counts)
        flat = torch.arange(len(owner), device=rows.device) + shift[owner]
        return owner, self._columns[flat].long(), self._values[flat]

    def gains(self, rows: Tensor, covered: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Gains of some candidates, and the weight of what they cover better: (r,) -> (r,), (r,)."""
        owner, columns, values = self._of(rows)
        excess = values.sub_(covered[columns]).clamp_min_(0)
        weights = weights[columns].double()
        sums = torch.zeros(2, len(rows), dtype=torch.float64, device=rows.device)
        sums[0].index_add_(0, owner, weights * excess)
        sums[1].index_add_(0, owner, weights.mul_(excess > 0))
        return sums[0], sums[1]

    def covered_with(self, row: Tensor, covered: Tensor) -> Tensor:
        """What is covered once a candidate is among those that cover."""
        _, columns, values = self._of(row)
        covered = covered.clone()
        covered[columns] = torch.maximum(covered[columns], values)
        return covered
