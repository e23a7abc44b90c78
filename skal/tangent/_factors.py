"""Per-sample gradients of one parameter, kept in the cheapest form that answers the question.

Index letters: n samples, t positions at which a weight is applied (pixels, tokens), o output and i input features of
the weight, γ groups of a grouped convolution, p the entries of the parameter.

The gradient of a weight that is applied at t positions is ``Σ_t g_t ⊗ a_t``: it is fully described by the layer's
inputs a and output gradients g, and is written out only where that is cheaper, a few samples at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Bands", "Dense", "Outer", "PerSampleGradient", "Rows", "Total"]

# bytes that a piece of work may take, so that what is written is read again while it is still in the cache
_PIECE_BYTES = 4 * 2**20
# multiply-adds that cost as much as writing and reading one entry of a per-sample gradient
_TRAFFIC = 32
# columns of a gradient matrix that are turned into float64 at once
_GRAM_COLUMNS = 2**16


class PerSampleGradient(ABC):
    """Gradients of one parameter for n samples.

    Attributes
    ----------
    n : int
        Number of samples.
    size : int
        Number of entries of the parameter.
    """

    n: int
    size: int

    @abstractmethod
    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The gradients of some samples, written out: (n, p)."""

    def scores(self, direction: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Squared norms (n,), and inner products with a direction (p,) of the parameter's shape."""
        norms, dots = [], []
        for rows in self.pieces(self.size):
            gradients = self.dense(rows)
            norms.append(_squared_norms(gradients))
            if direction is not None:
                dots.append(gradients @ direction.reshape(-1))
        return torch.cat(norms), torch.cat(dots) if direction is not None else None

    def gram(self, other: PerSampleGradient) -> Tensor:
        """Inner products of all pairs, in float64: (n, m)."""
        return _gram(self.dense(), other.dense())

    def kernel_form(self) -> PerSampleGradient:
        """The form in which to keep the gradients while inner products with many other samples are taken."""
        return Dense(self.dense())

    def pieces(self, entries_per_sample: int, element_size: int = 4) -> Iterator[slice]:
        """Slices of samples whose work stays in the cache."""
        step = max(1, _PIECE_BYTES // max(1, entries_per_sample * element_size))
        for start in range(0, self.n, step):
            yield slice(start, min(start + step, self.n))


class Dense(PerSampleGradient):
    """Written out: (n, ...) with one gradient per row."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients.flatten(1) if gradients.ndim > 1 else gradients[:, None]
        self.n, self.size = self.gradients.shape

    def dense(self, rows: slice = slice(None)) -> Tensor:
        return self.gradients[rows]

    def scores(self, direction: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        dots = None if direction is None else self.gradients @ direction.reshape(-1)
        return _squared_norms(self.gradients), dots

    def kernel_form(self) -> PerSampleGradient:
        return self


class Total(PerSampleGradient):
    """Sum of several contributions to the same parameter: tied weights, a layer called more than once."""

    def __init__(self, parts: list[PerSampleGradient]) -> None:
        self.parts = parts
        self.n, self.size = parts[0].n, parts[0].size

    def dense(self, rows: slice = slice(None)) -> Tensor:
        total = self.parts[0].dense(rows).clone()
        for part in self.parts[1:]:
            total += part.dense(rows)
        return total


class Bands(NamedTuple):
    """A convolution's unfolded inputs, cut by the first spatial offset of the kernel.

    Each band is a strided view of an input that is unfolded along the other dims alone, so that several times less is
    copied than for all columns.

    Attributes
    ----------
    make : callable, slice -> list of (n, γ, i / number, t) tensors
    number : int
        How many bands there are: the kernel's extent along the first spatial dim.
    width : int
        The kernel's extent along the dims after the first.
    """

    make: Callable[[slice], list[Tensor]]
    number: int
    width: int

    def split(self, direction: Tensor) -> list[Tensor]:
        """The entries of a direction that belong to each band, flat."""
        return [part.reshape(-1) for part in direction.reshape(-1, self.number, self.width).unbind(1)]


class Outer(PerSampleGradient):
    """``Σ_t g_t ⊗ a_t``, the gradient of a weight that is applied at t positions.

    Parameters
    ----------
    g : (n, γ, o, t) tensor
    columns : callable, slice -> (n, γ, i, t) tensor
        The layer's inputs for some samples, one column per position (unfolded, for a convolution).
    n_in : int
        i
    apply : callable, (direction, slice) -> (n, γ, o, t) tensor
        The layer with the direction as its weight: its inner product with g is the gradient's with the direction.
    bands : Bands, optional
        The same inputs in parts that are quicker to make than ``columns``.
    """

    def __init__(
        self,
        g: Tensor,
        columns: Callable[[slice], Tensor],
        n_in: int,
        apply: Callable[[Tensor, slice], Tensor],
        bands: Bands | None = None,
    ) -> None:
        self.g, self.columns, self.apply, self.n_in, self.bands = g, columns, apply, n_in, bands
        self.n, self.groups, self.n_out, self.positions = g.shape
        self.size = self.groups * self.n_out * n_in

    def dense(self, rows: slice = slice(None)) -> Tensor:
        if self.bands is None:
            return torch.matmul(self.g[rows], self.columns(rows).transpose(-1, -2)).flatten(1)
        g = self.g[rows]
        parts = [torch.matmul(g, band.transpose(-1, -2)) for band in self.bands.make(rows)]
        return torch.stack([part.unflatten(-1, (-1, self.bands.width)) for part in parts], dim=-2).flatten(1)

    def scores(self, direction: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        if self.positions == 1:
            product = self.columns(slice(None)).square().sum(2) * self.g.square().sum(2)
            return product.sum((1, 2)), None if direction is None else self._dots(direction, slice(None))
        if not self._gram_is_cheaper(direction is not None):
            return super().scores(direction) if self.bands is None else self._scores_by_bands(direction)
        norms: list[Tensor] = []
        dots: list[Tensor] = []
        per_sample = self.groups * max(self.positions**2, self.positions * (self.n_in + self.n_out))
        for rows in self.pieces(per_sample):
            g = self.g[rows]
            parts = [self.columns(rows)] if self.bands is None else self.bands.make(rows)
            gram = torch.matmul(parts[0].transpose(-1, -2), parts[0])
            for a in parts[1:]:
                gram += torch.matmul(a.transpose(-1, -2), a)
            gram *= torch.matmul(g.transpose(-1, -2), g)
            norms.append(gram.sum((1, 2, 3)))
            if direction is not None:
                dots.append(self._dots(direction, rows))
        return torch.cat(norms), torch.cat(dots) if direction is not None else None

    def pieces(self, entries_per_sample: int, element_size: int = 4) -> Iterator[slice]:
        unfolded = self.groups * self.positions * self.n_in // (1 if self.bands is None else self.bands.number)
        return super().pieces(max(entries_per_sample, unfolded), element_size)

    def _scores_by_bands(self, direction: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Written out band by band; the bands' order within the parameter does not matter to a sum."""
        assert self.bands is not None
        norms: list[Tensor] = []
        dots: list[Tensor] = []
        parts = [] if direction is None else self.bands.split(direction)
        for rows in self.pieces(self.size):
            g = self.g[rows]
            gradients = [torch.matmul(g, band.transpose(-1, -2)).flatten(1) for band in self.bands.make(rows)]
            norms.append(torch.stack([_squared_norms(gradient) for gradient in gradients]).sum(0))
            if direction is not None:
                products = [gradient @ part for gradient, part in zip(gradients, parts, strict=True)]
                dots.append(torch.stack(products).sum(0))
        return torch.cat(norms), torch.cat(dots) if direction is not None else None

    def _dots(self, direction: Tensor, rows: slice) -> Tensor:
        return (self.apply(direction, rows).reshape(self.g[rows].shape) * self.g[rows]).flatten(1).sum(1)

    def _gram_is_cheaper(self, with_direction: bool) -> bool:
        t, i, o = self.positions, self.n_in, self.n_out
        by_gram = t * t * (i + o) + (t * i * o if with_direction else 0)
        written_out = t * i * o + _TRAFFIC * i * o
        return by_gram < written_out

    def gram(self, other: PerSampleGradient) -> Tensor:
        if not isinstance(other, Outer) or max(self.positions, other.positions) > 1 or self.groups > 1:
            return super().gram(other)
        everything = slice(None)
        inputs = _gram(self.columns(everything).flatten(1), other.columns(everything).flatten(1))
        return inputs.mul_(_gram(self.g.flatten(1), other.g.flatten(1)))

    def kernel_form(self) -> PerSampleGradient:
        return self if self.positions == 1 and self.groups == 1 else Dense(self.dense())


class Rows(PerSampleGradient):
    """Gradient of an embedding table: ``g_t`` added to row ``index_t``.

    Parameters
    ----------
    index : (n, t) integer tensor
    g : (n, t, d) tensor
    n_rows : int
        Rows of the table.
    """

    def __init__(self, index: Tensor, g: Tensor, n_rows: int) -> None:
        self.index, self.g, self.n_rows = index, g, n_rows
        self.n, self.positions, self.width = g.shape
        self.size = n_rows * self.width

    def dense(self, rows: slice = slice(None)) -> Tensor:
        return _scatter_rows(self.index[rows], self.g[rows], self.n_rows)

    def scores(self, direction: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        norms = []
        for rows in self.pieces(self.positions * (self.positions + self.width)):
            index, g = self.index[rows], self.g[rows]
            same = index[:, :, None] == index[:, None, :]
            norms.append((torch.matmul(g, g.transpose(1, 2)) * same).sum((1, 2)))
        dots = None
        if direction is not None:
            dots = (direction.reshape(self.n_rows, self.width)[self.index] * self.g).sum((1, 2))
        return torch.cat(norms), dots

    def gram(self, other: PerSampleGradient) -> Tensor:
        if not isinstance(other, Rows):
            return super().gram(other)
        used = torch.unique(self.index)  # rows that these samples do not touch cannot contribute
        mine = _scatter_rows(torch.searchsorted(used, self.index), self.g, len(used))
        found = torch.searchsorted(used, other.index).clamp_(max=len(used) - 1)
        theirs = _scatter_rows(found, other.g * (used[found] == other.index)[..., None], len(used))
        return _gram(mine, theirs)

    def kernel_form(self) -> PerSampleGradient:
        return self


def _scatter_rows(index: Tensor, g: Tensor, n_rows: int) -> Tensor:
    table = g.new_zeros(g.shape[0], n_rows, g.shape[2])
    return table.scatter_add_(1, index[..., None].expand_as(g), g).flatten(1)


def _squared_norms(gradients: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradients, dim=1).square()


def _gram(first: Tensor, second: Tensor) -> Tensor:
    """(n, p), (m, p) -> (n, m) in float64, converting a part of the columns at a time."""
    total = first.new_zeros(first.shape[0], second.shape[0], dtype=torch.float64)
    for start in range(0, first.shape[1], _GRAM_COLUMNS):
        part = slice(start, start + _GRAM_COLUMNS)
        total.addmm_(first[:, part].double(), second[:, part].double().T)
    return total
