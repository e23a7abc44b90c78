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

from skal._core.memory import rows_within

# bytes that a piece of work may take, so that what is written is read again while it is still in the cache
PIECE_BYTES = 4 * 2**20
# multiply-adds that cost as much as writing and reading one entry of a per-sample gradient
_TRAFFIC = 32
# columns of a gradient matrix that are turned into float64 at once
GRAM_COLUMNS = 2**16


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

    @property
    def written_out_entries(self) -> int:
        """How many numbers it takes to write out the gradient of one sample."""
        return self.size

    @abstractmethod
    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The gradients of some samples, written out: (n, p)."""

    def scores(self, direction: Tensor | None = None, piece_bytes: int = PIECE_BYTES) -> tuple[Tensor, Tensor | None]:
        """Squared norms (n,), and inner products with a direction (p,) of the parameter's shape."""
        work = pieces(self.n, self._entries(direction is not None), piece_bytes)
        norms, dots = zip(*(self._scores(rows, direction) for rows in work), strict=True)
        return torch.cat(norms), None if direction is None else torch.cat(dots)

    def _entries(self, with_direction: bool) -> int:
        """How many numbers the scores of one sample take at a time."""
        return self.written_out_entries

    def _scores(self, rows: slice, direction: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The scores of some samples."""
        gradients = self.dense(rows)
        return _squared_norms(gradients), None if direction is None else gradients @ direction.reshape(-1)

    def lengths(self) -> Tensor:
        """(n,) norms, summed in float64 like :meth:`gram`: slower than :meth:`scores`, and as exact as kernels."""
        work = pieces(self.n, 3 * self.written_out_entries)  # in float64, too
        return torch.cat([torch.linalg.vector_norm(self.dense(rows), dim=1, dtype=torch.float64) for rows in work])

    def gram(self, other: PerSampleGradient) -> Tensor:
        """Inner products of all pairs, in float64: (n, m)."""
        return gram_matrix(self.dense(), other.dense())

    def kernel_form(self) -> PerSampleGradient:
        """The form in which to keep the gradients while inner products with many other samples are taken."""
        return Dense(self.dense())

    def kept_entries(self) -> int:
        """How many numbers this form of the gradients keeps for a sample."""
        return self.size


Gradients = dict[str, PerSampleGradient]
"""Per-sample gradients by the names of the parameters."""


class Dense(PerSampleGradient):
    """Written out: (n, ...) with one gradient per row."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients.flatten(1) if gradients.ndim > 1 else gradients[:, None]
        self.n, self.size = self.gradients.shape

    def dense(self, rows: slice = slice(None)) -> Tensor:
        return self.gradients[rows]

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
        The same inputs in parts that are quicker to make than ``columns``; by default these are the only part.
    """

    def __init__(
        self,
        g: Tensor,
        columns: Callable[[slice], Tensor],
        n_in: int,
        apply: Callable[[Tensor, slice], Tensor],
        bands: Bands | None = None,
    ) -> None:
        self.g, self.columns, self.apply, self.n_in = g, columns, apply, n_in
        self.bands = bands or Bands(lambda rows: [columns(rows)], 1, n_in)
        self.n, self.groups, self.n_out, self.positions = g.shape
        self.size = self.groups * self.n_out * n_in

    @property
    def is_plain(self) -> bool:
        """Whether it is one outer product, which its two factors describe in fewer numbers."""
        return self.positions == 1 and self.groups == 1

    def _products(self, rows: slice) -> list[Tensor]:
        """The gradients written out, band by band: (n, γ, o, i / number) each."""
        return [torch.matmul(self.g[rows], band.transpose(-1, -2)) for band in self.bands.make(rows)]

    def dense(self, rows: slice = slice(None)) -> Tensor:
        parts = self._products(rows)
        if len(parts) == 1:
            return parts[0].flatten(1)
        return torch.stack([part.unflatten(-1, (-1, self.bands.width)) for part in parts], dim=-2).flatten(1)

    @property
    def written_out_entries(self) -> int:
        return max(self.size, self.groups * self.positions * self.n_in // self.bands.number)

    def _entries(self, with_direction: bool) -> int:
        if not self._gram_is_cheaper(with_direction):
            return self.written_out_entries
        return self.groups * max(self.positions**2, self.positions * (self.n_in + self.n_out))

    def _scores(self, rows: slice, direction: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if not self._gram_is_cheaper(direction is not None):
            return self._written_out_scores(rows, direction)
        g = self.g[rows]
        if self.positions == 1:
            norms = (self.columns(rows).square().sum(2) * g.square().sum(2)).sum((1, 2))
        else:
            first, *others = self.bands.make(rows)
            products = torch.matmul(first.transpose(-1, -2), first)
            for band in others:
                products += torch.matmul(band.transpose(-1, -2), band)
            norms = products.mul_(torch.matmul(g.transpose(-1, -2), g)).sum((1, 2, 3))
        if direction is None:
            return norms, None
        return norms, (self.apply(direction, rows).reshape(g.shape) * g).flatten(1).sum(1)

    def _written_out_scores(self, rows: slice, direction: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Band by band: their order within the parameter does not matter to a sum."""
        gradients = [part.flatten(1) for part in self._products(rows)]
        norms = torch.stack([_squared_norms(gradient) for gradient in gradients]).sum(0)
        if direction is None:
            return norms, None
        parts = self.bands.split(direction)
        return norms, torch.stack([gradient @ part for gradient, part in zip(gradients, parts, strict=True)]).sum(0)

    def _gram_is_cheaper(self, with_direction: bool) -> bool:
        t, i, o = self.positions, self.n_in, self.n_out
        by_gram = t * t * (i + o) + (t * i * o if with_direction else 0)
        return by_gram < t * i * o + _TRAFFIC * i * o

    def lengths(self) -> Tensor:
        if not self.is_plain:
            return super().lengths()
        a, g = (torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) for x in self._plain_factors())
        return a * g

    def _plain_factors(self) -> tuple[Tensor, Tensor]:
        return self.columns(slice(None)).flatten(1), self.g.flatten(1)

    def gram(self, other: PerSampleGradient) -> Tensor:
        if not isinstance(other, Outer) or not (self.is_plain and other.is_plain):
            return super().gram(other)
        (a, g), (a2, g2) = self._plain_factors(), other._plain_factors()
        return gram_matrix(a, a2).mul_(gram_matrix(g, g2))

    def kernel_form(self) -> PerSampleGradient:
        return self if self.is_plain else super().kernel_form()

    def kept_entries(self) -> int:
        return self.groups * self.positions * (self.n_in + self.n_out)


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

    def _entries(self, with_direction: bool) -> int:
        return self.positions * (self.positions + self.width)

    def _scores(self, rows: slice, direction: Tensor | None) -> tuple[Tensor, Tensor | None]:
        index, g = self.index[rows], self.g[rows]
        same = index[:, :, None] == index[:, None, :]
        norms = (torch.matmul(g, g.transpose(1, 2)) * same).sum((1, 2))
        if direction is None:
            return norms, None
        return norms, (direction.reshape(self.n_rows, self.width)[index] * g).sum((1, 2))

    def gram(self, other: PerSampleGradient) -> Tensor:
        if not isinstance(other, Rows):
            return super().gram(other)
        used = torch.unique(self.index)  # rows that these samples do not touch cannot contribute
        mine = _scatter_rows(torch.searchsorted(used, self.index), self.g, len(used))
        found = torch.searchsorted(used, other.index).clamp_(max=len(used) - 1)
        theirs = _scatter_rows(found, other.g * (used[found] == other.index)[..., None], len(used))
        return gram_matrix(mine, theirs)

    def kernel_form(self) -> PerSampleGradient:
        return self

    def kept_entries(self) -> int:
        return self.positions * (self.width + 2)  # an index is as long as two numbers


def pieces(n: int, entries: int, piece_bytes: int = PIECE_BYTES) -> Iterator[slice]:
    """Slices of n samples, of this many numbers in float32 each, whose work stays in the cache."""
    step = rows_within(piece_bytes, 4 * entries)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def _scatter_rows(index: Tensor, g: Tensor, n_rows: int) -> Tensor:
    table = g.new_zeros(g.shape[0], n_rows, g.shape[2])
    return table.scatter_add_(1, index[..., None].expand_as(g), g).flatten(1)


def _squared_norms(gradients: Tensor) -> Tensor:
    return torch.linalg.vector_norm(gradients, dim=1).square()


def gram_matrix(first: Tensor, second: Tensor, columns: int = GRAM_COLUMNS) -> Tensor:
    """(n, p), (m, p) -> (n, m) in float64, converting this many of the columns at a time."""
    total = first.new_zeros(first.shape[0], second.shape[0], dtype=torch.float64)
    for start in range(0, first.shape[1], columns):
        part = slice(start, start + columns)
        total.addmm_(first[:, part].double(), second[:, part].double().T)
    return total
