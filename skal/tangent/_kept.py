# SPDX-License-Identifier: BSD-3-Clause
"""Gradients that are read once and kept, for inner products among any of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from skal._core.samples import Samples
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
        gradients = [
            {name: g.remade(*(x[rows] for x in g.tensors())) for name, g in by_name.items()}
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
        with closing(engine.run(part, cotangents, _packed, batch_size=size)) as chunks:
            return _gathered(chunks, len(part))

    network = engine.network
    chunks = [chunk for part in network.sharding.map(shard, samples, size, engine.device) for chunk in part]
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
    return n_bytes if engine.network.sharding.jobs() == 1 else 3 * n_bytes // 2


def _gathered(chunks: Iterator[tuple[int, _Packed]], n: int) -> list[tuple[int, _Packed]]:
    """Chunks of n samples in all, those of one form as one: many small tensors would leave gaps in memory."""
    whole: _Packed = []
    others: list[tuple[int, _Packed]] = []
    position = 0
    for size, packed in chunks:
        if not position:
            whole = [
                {name: (form, tuple(x.new_empty(n, *x.shape[1:]) for x in own)) for name, (form, own) in found.items()}
                for found in packed
            ]
        if others or _shapes(packed) != _shapes(whole):
            others.append((size, packed))
            continue
        for into, found in zip(whole, packed, strict=True):
            for name, (_, tensors) in found.items():
                for x, part in zip(into[name][1], tensors, strict=True):
                    x[position : position + size] = part
        position += size
    begun = [{name: (form, tuple(x[:position] for x in own)) for name, (form, own) in found.items()} for found in whole]
    return [(position, begun), *others]


def _shapes(packed: _Packed) -> list[dict[str, Any]]:
    return [
        {name: (type(form), [x.shape[1:] for x in tensors]) for name, (form, tensors) in found.items()}
        for found in packed
    ]


def _packed(gradients: Any, n: int) -> tuple[int, _Packed]:
    forms = [{name: g.kernel_form() for name, g in by_name.items()} for by_name in gradients]
    return n, [{name: (_empty(g), g.tensors()) for name, g in by_name.items()} for by_name in forms]


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
