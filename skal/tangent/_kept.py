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
from skal.tangent._engine import TangentEngine
from skal.tangent._factors import Dense, Gradients, PerSampleGradient

# for each cotangent and parameter the form of a gradient, of one sample, and its tensors for a chunk of them
_Packed = list[dict[str, tuple[PerSampleGradient, tuple[Tensor, ...]]]]


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

    def take(self, rows: Any) -> KeptGradients:
        """Those of some samples; a slice of them copies nothing."""
        if isinstance(rows, slice):
            n = len(range(*rows.indices(self.n)))
        else:
            rows = torch.as_tensor(rows, device=self.device)
            n = len(rows)

        def taken(x: Tensor) -> Tensor:
            return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)

        gradients = [
            {name: g.remade(*(taken(x) for x in g.tensors())) for name, g in by_name.items()}
            for by_name in self.gradients
        ]
        return KeptGradients(gradients, n, self.device)

    def gram(self, other: KeptGradients) -> Tensor:
        """Inner products of all pairs, over all cotangents, in float64: (n, m)."""
        total = torch.zeros(self.n, other.n, dtype=torch.float64, device=self.device)
        for first, second in zip(self.gradients, other.gradients, strict=True):
            for name, gradient in first.items():
                if name in second:
                    total += gradient.gram(second[name])
        return total

    def with_some(self, rows: list[int]) -> Tensor:
        """Inner products of all samples with some of them: (n, k), in the network's precision, added up in float64."""
        some = self.take(rows)
        total = torch.zeros(self.n, len(rows), dtype=torch.float64, device=self.device)
        for first, second in zip(self.gradients, some.gradients, strict=True):
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
    """Read the gradients of all samples, shared among the network's workers."""
    size = engine.chunk_size(2 * engine.gradient_bytes * len(cotangents))

    def shard(part: Samples) -> list[tuple[int, _Packed]]:
        gathering = Gathering(len(part), torch.empty(0, dtype=engine.precision, device=engine.device))
        for _ in engine.run(part, cotangents, gathering.add, batch_size=size):
            pass
        return gathering.parts()

    network = engine.network
    chunks = [chunk for part in network.map(shard, samples, size) for chunk in part]
    joined = []
    for position in range(len(cotangents)):
        parts = [(n, packed[position]) for n, packed in chunks]
        names = dict.fromkeys(name for _, by_name in parts for name in by_name)
        # each parameter's parts are given up as soon as they are one
        joined.append({name: _joined([(n, by_name.pop(name, None)) for n, by_name in parts]) for name in names})
    return KeptGradients(joined, len(samples), engine.device)


def kept_bytes(engine: TangentEngine, samples: Samples, cotangents: list[Cotangent]) -> int:
    """Bytes that :func:`keep_gradients` takes for one sample, from the first of these."""
    kept = keep_gradients(engine, samples.take(range(1)), cotangents)
    tensors = [x for by_name in kept.gradients for g in by_name.values() for x in g.tensors()]
    n_bytes = sum(x.numel() * x.element_size() for x in tensors)
    # putting together what workers have read takes half as much again
    return n_bytes if engine.network.jobs == 1 else 3 * n_bytes // 2


class Gathering:
    """Gradients of n samples, which come chunk by chunk. Those of one form are written where they stay.

    One tensor for all samples leaves no gaps in memory, as many small ones would. Chunks of another form than the first
    have tensors of their own, and so have all that come after them.

    Parameters
    ----------
    n : int
    like : tensor
        Of the gradients' type and device.

    Attributes
    ----------
    n_gathered : int
        Samples that are in the tensors for all.
    """

    def __init__(self, n: int, like: Tensor) -> None:
        self._n, self._like = n, like
        self._whole: _Packed = []
        self._others: list[tuple[int, _Packed]] = []
        self.n_gathered = 0

    def add(self, gradients: Iterator[Gradients], n: int) -> tuple[int, _Packed]:
        """Keep a chunk, and return it. Nothing is kept if this raises, so that its samples may come again."""
        place = slice(self.n_gathered, self.n_gathered + n)
        packed: _Packed = []
        fits = not self._others
        for number, by_name in enumerate(gradients):
            found = {name: self._packed(gradient) for name, gradient in by_name.items()}
            if self.n_gathered == 0:
                del self._whole[number:]  # what a chunk that failed was given, before as much is asked for again
                room = {name: (form, tuple(new_rows(self._n, x) for x in own)) for name, (form, own) in found.items()}
                self._whole.append(room)
            fits = fits and _shapes(found) == _shapes(self._whole[number])
            for name, gradient in by_name.items():
                form, tensors = found[name]
                into = tuple(x[place] for x in self._whole[number][name][1]) if fits else tensors
                if gradient.is_kept_whole and not fits:
                    into = gradient.kernel_form().tensors()
                elif gradient.is_kept_whole:
                    gradient.write(*into)
                elif fits:
                    for x, part in zip(into, tensors, strict=True):
                        x.copy_(part)
                found[name] = form, into
            packed.append(found)
        if fits:
            self.n_gathered += n
        else:
            self._others.append((n, packed))
        return n, packed

    def _packed(self, gradient: PerSampleGradient) -> tuple[PerSampleGradient, tuple[Tensor, ...]]:
        """The form in which a gradient is kept, and its tensors, without rows where it has yet to be written out."""
        if gradient.is_kept_whole:
            nothing = self._like.new_empty(0, gradient.size)
            return Dense(nothing), (nothing,)
        form = gradient.kernel_form()
        return _empty(form), form.tensors()

    def parts(self) -> list[tuple[int, _Packed]]:
        """What was kept, with the number of samples."""
        begun = [
            {name: (form, tuple(x[: self.n_gathered] for x in own)) for name, (form, own) in found.items()}
            for found in self._whole
        ]
        return [(self.n_gathered, begun), *self._others]


def _shapes(found: dict[str, tuple[PerSampleGradient, tuple[Tensor, ...]]]) -> dict[str, Any]:
    return {name: (type(form), [x.shape[1:] for x in tensors]) for name, (form, tensors) in found.items()}


def _empty(gradient: PerSampleGradient) -> PerSampleGradient:
    """The form alone."""
    return gradient.remade(*(x[:0].clone() for x in gradient.tensors()))


def _joined(parts: list[tuple[int, Any]]) -> PerSampleGradient:
    """One gradient from those of the chunks; a parameter may be without influence on some of them."""
    found = [part for _, part in parts if part is not None]
    form = found[0][0]
    if len(found) == len(parts) and all(type(own) is type(form) for own, _ in found):
        whole: PerSampleGradient = form.remade(
            *(_concatenated([tensors[i] for _, tensors in found]) for i in range(len(found[0][1])))
        )
        return whole
    like = found[0][1][-1]
    dense = [like.new_zeros(n, form.size) if part is None else part[0].remade(*part[1]).dense() for n, part in parts]
    return Dense(torch.cat(dense))


def _concatenated(tensors: list[Tensor]) -> Tensor:
    """Sequences may be longer in one chunk than in another: zeros contribute nothing."""
    if len(tensors) == 1:
        return tensors[0]
    longest = max(x.shape[1] for x in tensors)
    if all(x.shape[1] == longest for x in tensors):
        return torch.cat(tensors)
    return torch.cat([pad(x, (0, 0) * (x.ndim - 2) + (0, longest - x.shape[1])) for x in tensors])
