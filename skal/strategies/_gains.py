# SPDX-License-Identifier: BSD-3-Clause
"""How much a candidate would raise the coverage: ``Σ_x w(x) max(k(x, x') − c(x), 0)``, where c is what is covered.

c only grows. So a pair of samples with ``k ≤ c`` never counts again: with labelled samples around, few pairs do, and
those are kept rather than whole rows of similarities.

Index letters: N candidates, e evaluation samples, d features.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from skal.context import rows_within
from skal.strategies._similarity import Kernel, coverage_by, true_positions

_TILE = 1024  # columns of similarities that are made at once, near the processor
_TILE_ROWS = 512
_ROWS = 4096  # candidates that are looked at at once
_PAIR_BYTES = 48  # for each pair that counts, while pairs are collected and sorted
_MOST_PAIRS = 1 / 8  # share of all pairs: where more count, rows are quicker
_NOBODY = 2**31 - 1  # stands for the pick that covers a sample, where none does yet
_ROUNDING = 16  # a sum is off by at most this many units in the last place


class Gains:
    """Gains of candidates, with what they are made of kept as far as there is room.

    Where balls are counted, many gains are equal, and laziness spares little. There nothing is kept but the gains: one
    is brought up to date by the evaluation samples that were covered since, so that a pair is looked at twice at most.

    Parameters
    ----------
    read : callable
        Features of some candidates: (r,) rows -> (r, d) tensor.
    n : int
        N
    kernel : Kernel
        k
    evaluation : (e, d) tensor
    weights : (e,) tensor
        w ≥ 0, in the precision of the features.
    labelled : (m, d) tensor
        What covers at first.
    room, block_bytes : int
        Bytes for what is kept, and for what is worked on.
    """

    def __init__(
        self,
        read: Callable[[Tensor], Tensor],
        n: int,
        kernel: Kernel,
        evaluation: Tensor,
        weights: Tensor,
        labelled: Tensor,
        room: int,
        block_bytes: int,
    ) -> None:
        (e, width), size = evaluation.shape, weights.element_size()
        self._read, self._n, self._kernel, self._evaluation, self._weights = read, n, kernel, evaluation, weights
        self._room = room
        self._similarity = kernel.to(evaluation)
        self.covered = coverage_by(labelled, self._similarity, e, min(2**21, block_bytes), weights)
        self._error = 2 * kernel.error(weights.dtype)  # of a similarity less what is covered
        self._rounding = _ROUNDING * torch.finfo(weights.dtype).eps
        # similarities are worked on three times, near the processor
        self._step = rows_within(min(2**21, block_bytes // 3), size * e)
        self._reads = rows_within(block_bytes, 3 * size * width)  # as they come, and normalised
        self._pairs: Pairs | None = None
        self._counts: Tensor | None = None  # (N,), of evaluation samples
        self._store = weights.new_empty((0, e))
        self._place = torch.full((n,), -1, device=weights.device)
        self._n_stored = 0

    def of_all(self, symmetric: bool) -> tuple[Tensor, Tensor]:
        """Gains of all candidates, and by how much they may be wrong: (N,), (N,).

        ``symmetric`` says whether the candidates are the evaluation samples, in their order.
        """
        n, e = self._n, len(self._weights)
        share = self._share_that_counts()
        pairs = share <= _MOST_PAIRS and 1.25 * share * n * e * _PAIR_BYTES <= self._room
        gains = self._collect_pairs(symmetric) if pairs else None
        if gains is None and self._kernel.name == "tophat" and bool((self._weights == self._weights[0]).all()):
            return self._count_all()
        if gains is None:
            capacity = min(n, self._room // (self._weights.element_size() * e))
            self._store = self._weights.new_empty((capacity, e))
            if symmetric and capacity == n:
                self._fill_by_symmetry()
                gains = self.of(self._place)[0]
            else:
                # nothing is kept yet: those that are asked for after this look are likely to be asked for again
                gains = torch.empty(n, dtype=torch.float64, device=self._place.device)
                for some, values in self._parts(self._rows()):
                    gains[some] = self._of_values(values)[0]
        everything = float(self._weights.sum(dtype=torch.float64))
        return gains, self._error * everything + self._rounding * gains

    def of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Gains of some candidates, and by how much they may be wrong: (r,) -> (r,), (r,)."""
        if self._pairs is not None:
            parts = [self._pairs.gains(some, self.covered, self._weights) for some in rows.split(_ROWS)]
            gains, counting = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
            return gains, self._error * counting + self._rounding * gains
        if self._counts is not None:
            return self._recount(rows, self._counts)
        gains = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
        errors = torch.empty_like(gains)
        stored = self._place[rows] >= 0
        for positions in stored.nonzero()[:, 0].split(self._step):
            gains[positions], errors[positions] = self._of_values(self._store[self._place[rows[positions]]])
        start, missing = 0, (~stored).nonzero()[:, 0]
        for some, values in self._parts(rows[missing]):
            self._keep(some, values)
            positions = missing[start : start + len(some)]
            gains[positions], errors[positions] = self._of_values(values)
            start += len(some)
        return gains, errors

    def cover(self, row: Tensor) -> None:
        """Count a candidate, a tensor of one, among those that cover."""
        if self._pairs is not None:
            self.covered = self._pairs.cover_with(row, self.covered)
            return
        place = int(self._place[row])
        values = self._store[place] if place >= 0 else self._similarity(self._read(row))[0]
        if self._counts is not None:
            self._covered_by[values > self.covered] = self._n_picks
            self._n_picks += 1
        self.covered = torch.maximum(self.covered, values)

    def samples_for(self, features: Tensor) -> Tensor:
        """The evaluation samples that one of some candidates, (r, d), may cover better, rounding included."""
        some = torch.zeros_like(self.covered, dtype=torch.bool)
        for few in features.split(self._step):
            some |= self._similarity(few).amax(0) > self.covered - self._error
        return some.nonzero()[:, 0]

    def _rows(self) -> Tensor:
        return torch.arange(self._n, device=self._place.device)

    def _parts(self, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Similarities of candidates, part by part: there may be no room for the features of all of them."""
        for some in rows.split(self._reads):
            parts = zip(some.split(self._step), self._read(some).split(self._step), strict=True)
            yield from ((few, self._similarity(features)) for few, features in parts)

    def _of_values(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """Gains and their errors from similarities that may be overwritten."""
        excess = values.sub_(self.covered).clamp_min_(0)
        gains = (excess @ self._weights).double()
        counting = (excess.sign_() @ self._weights).double() if self._error else 0
        return gains, self._error * counting + self._rounding * gains

    def _count_all(self) -> tuple[Tensor, Tensor]:
        """Gains of all candidates where they are numbers of samples of one weight."""
        counts = torch.empty(self._n, dtype=torch.float64, device=self._place.device)
        uncovered = (self.covered == 0).to(self._weights)  # whole numbers, whose sums are exact
        for some, values in self._parts(self._rows()):
            counts[some] = (values @ uncovered).double()
        self._counts, self._n_picks = counts, 0
        self._counted = torch.zeros_like(self._place, dtype=torch.int32)  # how many picks a count knows of
        self._covered_by = torch.where(self.covered == 0, _NOBODY, -1).int()  # the number of a pick
        return counts * float(self._weights[0]), torch.zeros_like(counts)

    def _recount(self, rows: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Gains of some candidates, without the samples that were covered since they were counted."""
        for first in self._counted[rows].unique().tolist():
            new = ((self._covered_by >= first) & (self._covered_by < _NOBODY)).nonzero()[:, 0]
            inside, alike = self._kernel.to(self._evaluation[new]), rows[self._counted[rows] == first]
            for some in alike.split(self._reads) if len(new) else ():
                for few, features in zip(some.split(self._step), self._read(some).split(self._step), strict=True):
                    counts[few] -= inside(features).sum(1).double()
        self._counted[rows] = self._n_picks
        return counts[rows] * float(self._weights[0]), torch.zeros_like(counts[rows])

    def _share_that_counts(self) -> float:
        """The share of pairs that count, from a few candidates."""
        few = torch.linspace(0, self._n - 1, min(self._n, 32), device=self._place.device).round().long()
        counts = [int((values > self.covered).sum()) for _, values in self._parts(few)]
        return sum(counts) / (len(few) * len(self._weights))

    def _keep(self, rows: Tensor, values: Tensor) -> None:
        n_kept = min(len(rows), len(self._store) - self._n_stored)
        if n_kept:
            places = slice(self._n_stored, self._n_stored + n_kept)
            self._store[places] = values[:n_kept]
            self._place[rows[:n_kept]] = torch.arange(places.start, places.stop, device=rows.device)
            self._n_stored += n_kept

    def _halves(self) -> Iterator[tuple[int, int, Tensor]]:
        """Similarities of the candidates with those that come after them, in tiles, with where a tile begins."""
        n = self._n
        for top in range(0, n, _TILE_ROWS):
            features = self._read(torch.arange(top, min(top + _TILE_ROWS, n), device=self._place.device))
            for left in range(top, n, _TILE):
                yield top, left, self._similarity(features, left, min(left + _TILE, n))

    def _fill_by_symmetry(self) -> None:
        """Half of the similarities, each of which stands in two places."""
        for top, left, values in self._halves():
            bottom, right = top + values.shape[0], left + values.shape[1]
            self._store[top:bottom, left:right] = values
            if right > bottom:
                skipped = max(0, bottom - left)  # the tile on the diagonal has been stored on both sides of it
                self._store[left + skipped : right, top:bottom] = values[:, skipped:].T
        self._place, self._n_stored = self._rows(), self._n

    def _collect_pairs(self, symmetric: bool) -> Tensor | None:
        """Gains of all candidates, from the pairs that count, which are kept; None if there are too many of them."""
        pairs = Pairs(self._n, min(self._room // _PAIR_BYTES, self._n * len(self._weights)), self._weights)
        for part in self._halves_that_count() if symmetric else self._parts_that_count():
            if not pairs.add(*part):
                return None
        pairs.sort()
        self._pairs = pairs
        return self.of(self._rows())[0]

    def _parts_that_count(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for some, values in self._parts(self._rows()):
            yield pairs_above(values, self.covered, int(some[0]), 0)

    def _halves_that_count(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for top, left, values in self._halves():
            bottom, right = top + values.shape[0], left + values.shape[1]
            yield pairs_above(values, self.covered[left:right], top, left)
            skipped = max(0, bottom - left)  # the tile on the diagonal has both of its halves
            samples, candidates, similarities = pairs_above(values, self.covered[top:bottom, None], top, left, skipped)
            yield candidates, samples, similarities


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
        """Add pairs, and return True; return False, and add none, if there is no room."""
        start, stop = self._size, self._size + len(rows)
        if stop > len(self._rows):
            return False
        self._rows[start:stop], self._columns[start:stop], self._values[start:stop] = rows, columns, values
        self._size = stop
        return True

    def sort(self) -> None:
        """Sort the pairs by candidate; no more can be added."""
        rows = self._rows[: self._size]
        order = rows.sort(stable=True).indices
        self._columns, self._values = self._columns[order], self._values[order]
        self._counts = torch.bincount(rows, minlength=self._n)
        self._starts = self._counts.cumsum(0) - self._counts
        del self._rows

    def _of(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Pairs of some candidates: position among the candidates, evaluation sample and similarity of each."""
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

    def cover_with(self, row: Tensor, covered: Tensor) -> Tensor:
        """The coverage after a candidate has joined the covering samples."""
        _, columns, values = self._of(row)
        covered = covered.clone()
        covered[columns] = torch.maximum(covered[columns], values)
        return covered
