# SPDX-License-Identifier: BSD-3-Clause
"""Gradients that are read once and kept, for inner products among any of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from skal._core.memory import new_rows
from skal._core.pool import Samples
from skal.tangent._cotangents import Cotangent
from skal.tangent._factors import Dense, Gradients, PerSampleGradient
from skal.tangent._tangent_engine import TangentEngine


class KeptGradients:
    """Gradients of n samples, for each cotangent by parameter, in the form for inner products.

    Parameters
    ----------
    gradients : list of dict
    n : int
    device : torch.device
    """

    def __init__(self, gradients: list[Gradients], n: int, device: torch.device) -> None:
        self.gradients, self.n, self.device = gradients, n, device

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that are kept, with a row for each sample."""
        return tuple(x for by_name in self.gradients for g in by_name.values() for x in g.tensors())

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(x.numel() * x.element_size() for x in self.tensors())

    def take(self, rows: Any) -> KeptGradients:
        """The gradients of some samples; a slice copies nothing."""
        if isinstance(rows, slice):
            n = len(range(*rows.indices(self.n)))
        else:
            rows = torch.as_tensor(rows, device=self.device)
            n = len(rows)
        gradients = [
            {name: g.with_tensors(*(x[rows] for x in g.tensors())) for name, g in by_name.items()}
            for by_name in self.gradients
        ]
        return KeptGradients(gradients, n, self.device)

    def gram(self, other: KeptGradients) -> Tensor:
        """Inner products of all pairs, over all cotangents, in float64: (n, m)."""
        pairs = zip(self.gradients, other.gradients, strict=True)
        return sum((self._gram(first, second, other.n) for first, second in pairs), self._zeros(other.n))

    def all_grams(self, other: KeptGradients) -> Tensor:
        """Inner products for all pairs of C cotangents: (nC, mC), a sample's rows and columns together."""
        grams = [torch.stack([self._gram(a, b, other.n) for b in other.gradients]) for a in self.gradients]
        C = len(grams)
        return torch.stack(grams).permute(2, 0, 3, 1).reshape(self.n * C, other.n * C)

    def _gram(self, first: Gradients, second: Gradients, m: int) -> Tensor:
        # in the order of the first: a set's order, and with it the rounding, differs from process to process
        return sum((g.gram(second[name]) for name, g in first.items() if name in second), self._zeros(m))

    def _zeros(self, m: int) -> Tensor:
        return torch.zeros(self.n, m, dtype=torch.float64, device=self.device)

    def with_some(self, rows: list[int]) -> Tensor:
        """Inner products of all samples with some of them: (n, k), in the network's precision, added up in float64."""
        total = self._zeros(len(rows))
        for first, second in zip(self.gradients, self.take(rows).gradients, strict=True):
            for name, gradient in first.items():
                total += gradient.products(second[name])
        return total

    def squares(self) -> Tensor:
        """(n,) squared lengths, in float64."""
        total = torch.zeros(self.n, dtype=torch.float64, device=self.device)
        for by_name in self.gradients:
            for gradient in by_name.values():
                total += gradient.lengths().square()
        return total


def keep_gradients(engine: TangentEngine, samples: Samples, cotangents: list[Cotangent]) -> KeptGradients:
    """Read the gradients of all samples, in this process: from workers they would come slower than they are read."""
    size = engine.chunk_size(2 * engine.gradient_bytes * len(cotangents))

    def shard(part: Samples) -> list[KeptGradients]:
        store = _Store(len(part), engine)
        for _ in engine.run(part, cotangents, store.add, batch_size=size):
            pass
        return store.parts()

    parts = [kept for found in engine.network.map(shard, samples, size, alone=True) for kept in found]
    joined: list[Gradients] = []
    for position in range(len(cotangents)):
        names = dict.fromkeys(name for part in parts for name in part.gradients[position])
        # each parameter's parts are given up as soon as they are one
        joined.append({name: join([(p.n, p.gradients[position].pop(name, None)) for p in parts]) for name in names})
    return KeptGradients(joined, len(samples), engine.device)


def kept_bytes(engine: TangentEngine, samples: Samples, cotangents: list[Cotangent]) -> int:
    """Bytes that :func:`keep_gradients` takes for one sample, from the first of these."""
    return keep_gradients(engine, samples.take(range(1)), cotangents).n_bytes


class _Store:
    """Gradients of n samples, which come chunk by chunk. Those of the first one's form are written where they stay.

    One tensor for all samples leaves no gaps in memory, as many small ones would. Once a chunk has another form, it and
    all that come after it have tensors of their own.
    """

    def __init__(self, n: int, engine: TangentEngine) -> None:
        self._n, self._engine = n, engine
        self._whole: list[Gradients] = []
        self._n_whole = 0
        self._others: list[KeptGradients] = []

    def add(self, gradients: Iterator[Gradients], n: int) -> tuple[Tensor, ...]:
        """Keep a chunk, and return its tensors. Nothing is kept if this raises, so that its samples may come again."""
        place, chunk = slice(self._n_whole, self._n_whole + n), []
        if self._n_whole == 0:
            self._whole = []  # free the room of a chunk that failed, before asking for as much again
        fits = not self._others
        for number, by_name in enumerate(gradients):
            if self._n_whole == 0 and fits:
                self._whole.append({name: self._room_for(gradient) for name, gradient in by_name.items()})
            room = self._whole[number]
            fits = fits and by_name.keys() == room.keys() and all(_fits(g, room[name]) for name, g in by_name.items())
            found = {}
            for name, gradient in by_name.items():
                if not fits:
                    found[name] = gradient.kernel_form()
                    continue
                found[name] = room[name].with_tensors(*(x[place] for x in room[name].tensors()))
                if gradient.is_written_out:
                    gradient.write(*found[name].tensors())
                else:
                    for x, part in zip(found[name].tensors(), gradient.kernel_form().tensors(), strict=True):
                        x.copy_(part)
            chunk.append(found)
        kept = KeptGradients(chunk, n, self._engine.device)
        if fits:
            self._n_whole += n
        else:
            self._others.append(kept)
        return kept.tensors()

    def _room_for(self, gradient: PerSampleGradient) -> PerSampleGradient:
        """The form in which a gradient is kept, with uninitialised rows for all samples."""
        if gradient.is_written_out:
            like = torch.empty(0, gradient.size, dtype=self._engine.precision, device=self._engine.device)
            return Dense(new_rows(self._n, like))
        form = gradient.kernel_form()
        return form.with_tensors(*(new_rows(self._n, x) for x in form.tensors()))

    def parts(self) -> list[KeptGradients]:
        """The kept gradients, in the order in which they came."""
        whole = KeptGradients(self._whole, self._n, self._engine.device).take(slice(0, self._n_whole))
        return [whole, *self._others]


def _fits(gradient: PerSampleGradient, room: PerSampleGradient) -> bool:
    if gradient.is_written_out:
        return isinstance(room, Dense) and gradient.size == room.size
    form = gradient.kernel_form()
    shapes = [[x.shape[1:] for x in one.tensors()] for one in (form, room)]
    return type(form) is type(room) and shapes[0] == shapes[1]


def join(parts: list[tuple[int, PerSampleGradient | None]]) -> PerSampleGradient:
    """One gradient from those of the chunks; a parameter may be without influence on some of them (None)."""
    found = [part for _, part in parts if part is not None]
    first = found[0]
    if len(found) == len(parts) and all(type(part) is type(first) for part in found):
        columns = zip(*(part.tensors() for part in found), strict=True)
        return first.with_tensors(*(_concatenate(tensors) for tensors in columns))
    like = first.tensors()[-1]
    dense = [like.new_zeros(n, first.size) if part is None else part.dense() for n, part in parts]
    return Dense(torch.cat(dense))


def _concatenate(tensors: tuple[Tensor, ...]) -> Tensor:
    """Sequences may be longer in one chunk than in another: zeros contribute nothing."""
    if len(tensors) == 1:
        return tensors[0]
    longest = max(x.shape[1] for x in tensors)
    return torch.cat([pad(x, (0, 0) * (x.ndim - 2) + (0, longest - x.shape[1])) for x in tensors])
