# SPDX-License-Identifier: BSD-3-Clause
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
from torch.nn.functional import embedding

from skal._core.memory import PRODUCT_BYTES, rows_within

# bytes that a piece of work may take, so that what is written is read again while it is still in the cache
PIECE_BYTES = 4 * 2**20
# multiply-adds that cost as much as writing and reading one entry of a per-sample gradient; with a direction, which is
# read again for every sample, three times as many where it is longer than this
_TRAFFIC = 8
_LONG = 2**15
# columns of a gradient matrix that are turned into float64 at once: on a processor few, so that a hundred rows of them
# stay in the cache; elsewhere, where calls cost more, this many times as many, and rows too
_GRAM_COLUMNS = 2**11
_ELSEWHERE = 16


class PerSampleGradient(ABC):
    """Gradients of one parameter for n samples.

    Attributes
    ----------
    n : int
        Number of samples.
    size : int
        Number of entries of the parameter.
    inputs : tensor or None
        The layer's input, where gradients for several cotangents share it.
    is_written_out : bool
        Whether :meth:`kernel_form` has to write the gradients out.
    """

    n: int
    size: int
    inputs: Tensor | None = None
    is_written_out: bool = True

    @property
    def written_out_entries(self) -> int:
        """The size of one sample's gradient when it is written out."""
        return self.size

    @abstractmethod
    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The gradients of some samples, written out: (n, p)."""

    def write(self, out: Tensor) -> None:
        """Write the gradients of all samples into (n, p) rows."""
        for rows in pieces(self.n, self.written_out_entries):
            out[rows] = self.dense(rows)

    def blocks(self) -> list[Tensor]:
        """The gradients in parts that are quick to write, (n, p_j) each; the columns may come in any order."""
        return [self.dense()]

    def scores(self, direction: Tensor | None = None, piece_bytes: int = PIECE_BYTES) -> tuple[Tensor, Tensor | None]:
        """Squared norms (n,), and inner products with a direction (p,) of the parameter's shape."""
        work = list(pieces(self.n, self._entries(direction is not None), piece_bytes))
        if len(work) == 1:
            return self._scores(work[0], direction)
        norms, dots = zip(*(self._scores(rows, direction) for rows in work), strict=True)
        return torch.cat(norms), None if direction is None else torch.cat(dots)

    def _entries(self, with_direction: bool) -> int:
        """The size of the largest array for the scores of one sample."""
        return self.written_out_entries

    def _scores(self, rows: slice, direction: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """The scores of some samples."""
        gradients = self.dense(rows)
        return _squared_norms(gradients), None if direction is None else gradients @ direction.reshape(-1)

    def from_inputs(self, k: int) -> Tensor | None:
        """The part of the layer's input that norms for k cotangents need, with a row for each sample.

        It takes no more room than k output gradients. None where norms are quicker to compute in another way.
        """
        return None

    def norms_with(self, from_inputs: Tensor) -> Tensor:
        """Squared norms (n,), with what :meth:`from_inputs` of a gradient with the same inputs gave."""
        raise NotImplementedError

    def lengths(self) -> Tensor:
        """(n,) norms, summed in float64 like :meth:`gram`: slower than :meth:`scores`, and as exact as kernels."""
        work = pieces(self.n, 3 * self.written_out_entries)  # in float64, too
        return torch.cat([torch.linalg.vector_norm(self.dense(rows), dim=1, dtype=torch.float64) for rows in work])

    def gram(self, other: PerSampleGradient) -> Tensor:
        """Inner products of all pairs, in float64: (n, m)."""
        return gram_matrix(self.dense(), other.dense())

    def products(self, other: PerSampleGradient) -> Tensor:
        """Inner products in the precision of the gradients, where no differences of them are taken: (n, m)."""
        return self.gram(other)

    def kernel_form(self) -> PerSampleGradient:
        """The form in which to keep the gradients while inner products with many other samples are taken."""
        return Dense(self.dense())

    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of a :meth:`kernel_form`, a row for each sample; :meth:`with_tensors` takes them."""
        raise NotImplementedError

    def with_tensors(self, *tensors: Tensor) -> PerSampleGradient:
        """The same form with the rows of other samples."""
        return type(self)(*tensors)


Gradients = dict[str, PerSampleGradient]
"""Per-sample gradients by the names of the parameters."""


class Dense(PerSampleGradient):
    """Written out: (n, ...) with one gradient per row."""

    is_written_out = False

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients.flatten(1) if gradients.ndim > 1 else gradients[:, None]
        self.n, self.size = self.gradients.shape

    def dense(self, rows: slice = slice(None)) -> Tensor:
        return self.gradients[rows]

    def kernel_form(self) -> PerSampleGradient:
        return self

    def products(self, other: PerSampleGradient) -> Tensor:
        return self.gradients @ other.dense().T

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.gradients,)


class Product(PerSampleGradient):
    """``g ⊗ a``, one outer product for each sample: (n, i) and (n, o). ``inputs`` is the layer's input itself."""

    is_written_out = False

    def __init__(self, a: Tensor, g: Tensor, inputs: Tensor | None = None) -> None:
        self.a, self.g, self.inputs = a, g, inputs
        self.n, self.size = len(a), a.shape[1] * g.shape[1]

    def dense(self, rows: slice = slice(None)) -> Tensor:
        return (self.g[rows][:, :, None] * self.a[rows][:, None, :]).flatten(1)

    def _entries(self, with_direction: bool) -> int:
        return self.a.shape[1] + 2 * self.g.shape[1]

    def _scores(self, rows: slice, direction: Tensor | None) -> tuple[Tensor, Tensor | None]:
        a, g = self.a[rows], self.g[rows]
        norms = _squared_norms(a) * _squared_norms(g)
        if direction is None:
            return norms, None
        return norms, (a @ direction.reshape(g.shape[1], a.shape[1]).T).mul_(g).sum(1)

    def from_inputs(self, k: int) -> Tensor | None:
        return _squared_norms(self.a)

    def norms_with(self, from_inputs: Tensor) -> Tensor:
        return _squared_norms(self.g).mul_(from_inputs)

    def lengths(self) -> Tensor:
        total = self.a.new_ones(self.n, dtype=torch.float64)
        for rows in pieces(self.n, 3 * (self.a.shape[1] + self.g.shape[1])):
            for x in (self.a, self.g):
                total[rows] *= torch.linalg.vector_norm(x[rows], dim=1, dtype=torch.float64)
        return total

    def gram(self, other: PerSampleGradient) -> Tensor:
        if not isinstance(other, Product):
            return super().gram(other)
        return gram_matrix(self.a, other.a).mul_(gram_matrix(self.g, other.g))

    def products(self, other: PerSampleGradient) -> Tensor:
        return (self.a @ other.a.T) * (self.g @ other.g.T) if isinstance(other, Product) else self.gram(other)

    def kernel_form(self) -> PerSampleGradient:
        return self

    def tensors(self) -> tuple[Tensor, ...]:
        return self.a, self.g


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
    """``Σ_t g_t ⊗ a_t``, the gradient of a weight that is applied at t positions; of one position see Product.

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
    inputs : tensor, optional
        The layer's input itself: gradients for several cotangents have the same one.
    """

    def __init__(
        self,
        g: Tensor,
        columns: Callable[[slice], Tensor],
        n_in: int,
        apply: Callable[[Tensor, slice], Tensor],
        bands: Bands | None = None,
        inputs: Tensor | None = None,
    ) -> None:
        self.g, self.columns, self.apply, self.n_in, self.inputs = g, columns, apply, n_in, inputs
        self.bands = bands or Bands(lambda rows: [columns(rows)], 1, n_in)
        self.n, self.groups, self.n_out, self.positions = g.shape
        self.size = self.groups * self.n_out * n_in

    def _products(self, rows: slice) -> list[Tensor]:
        """The gradients written out, band by band: (n, γ, o, i / number) each."""
        return [torch.matmul(self.g[rows], band.transpose(-1, -2)) for band in self.bands.make(rows)]

    def dense(self, rows: slice = slice(None)) -> Tensor:
        parts = self._products(rows)
        if len(parts) == 1:
            return parts[0].flatten(1)
        return torch.stack([part.unflatten(-1, (-1, self.bands.width)) for part in parts], dim=-2).flatten(1)

    def blocks(self) -> list[Tensor]:
        return [part.flatten(1) for part in self._products(slice(None))]

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
        first, *others = self.bands.make(rows)
        products = torch.matmul(first.transpose(-1, -2), first)
        for band in others:
            products += torch.matmul(band.transpose(-1, -2), band)
        norms = products.mul_(torch.matmul(g.transpose(-1, -2), g)).sum((1, 2, 3))
        if direction is None:
            return norms, None
        # not flattened: both may have their last two dims the other way round in memory
        return norms, self.apply(direction, rows).reshape(g.shape).mul_(g).sum((1, 2, 3))

    def _written_out_scores(self, rows: slice, direction: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Band by band: their order within the parameter does not matter to a sum."""
        gradients = [part.flatten(1) for part in self._products(rows)]
        norms = torch.stack([_squared_norms(gradient) for gradient in gradients]).sum(0)
        if direction is None:
            return norms, None
        parts = self.bands.split(direction)
        return norms, torch.stack([gradient @ part for gradient, part in zip(gradients, parts, strict=True)]).sum(0)

    def from_inputs(self, k: int) -> Tensor | None:
        if self.positions > k * self.n_out or not self._by_gram(k):
            return None
        work = pieces(self.n, self.groups * max(self.positions**2, self.positions * self.n_in))
        columns_of = (self.columns(rows) for rows in work)
        return torch.cat([torch.matmul(columns.transpose(-1, -2), columns) for columns in columns_of])

    def norms_with(self, from_inputs: Tensor) -> Tensor:
        return _gram_norms(self.g.transpose(-1, -2), from_inputs)

    def _by_gram(self, k: int) -> bool:
        """True if norms for k cotangents are quicker by Gram matrices than from gradients that are written out."""
        t, i, o = self.positions, self.n_in, self.n_out
        return t * t * (i / k + o) < t * i * o + _TRAFFIC * i * o

    def all_norms(self, others: list[Tensor]) -> Tensor:
        """Squared norms for k output gradients like g at the same inputs, which are unfolded once: (k, n)."""
        k, o = len(others), self.n_out
        found = []
        for rows in pieces(self.n, self.groups * self.n_in * max(k * o, self.positions)):
            g = torch.cat([g[rows] for g in others], dim=2)  # (n, γ, k·o, t)
            gradients = torch.matmul(g, self.columns(rows).transpose(-1, -2)).unflatten(2, (k, o))
            found.append(torch.linalg.vector_norm(gradients, dim=(1, 3, 4)).square().T)
        return torch.cat(found, dim=1)

    def _gram_is_cheaper(self, with_direction: bool) -> bool:
        t, i, o = self.positions, self.n_in, self.n_out
        by_gram = t * t * (i + o) + (t * i * o if with_direction else 0)
        traffic = 3 * _TRAFFIC if with_direction and i * o > _LONG else _TRAFFIC
        return by_gram < t * i * o + traffic * i * o


class Scale(PerSampleGradient):
    """``Σ_t x_t ∘ g_t``, the gradient of a weight that scales what a normalisation makes of a layer's input.

    Parameters
    ----------
    g : (n, ...) tensor
    normalised : callable, slice -> (n, ...) tensor
        x for some samples.
    sum_positions : callable, (n, ...) tensor -> (n, *shape of the weight) tensor
        The sum over the positions.
    inputs : tensor
        The layer's input itself.
    """

    def __init__(
        self,
        g: Tensor,
        normalised: Callable[[slice], Tensor],
        sum_positions: Callable[[Tensor], Tensor],
        inputs: Tensor,
    ) -> None:
        self.g, self.normalised, self.sum_positions, self.inputs = g, normalised, sum_positions, inputs
        self.n, self.size = len(g), sum_positions(g[:1]).numel()

    def dense(self, rows: slice = slice(None)) -> Tensor:
        parts = [self._sum(self.normalised(some), self.g[some]) for some in self._pieces(rows)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _pieces(self, rows: slice = slice(None)) -> Iterator[slice]:
        """Parts of some samples whose products stay in the cache."""
        start, stop, _ = rows.indices(self.n)
        for part in pieces(stop - start, self.g[0].numel()):
            yield slice(start + part.start, start + part.stop)

    def _sum(self, x: Tensor, g: Tensor) -> Tensor:
        return self.sum_positions(x * g).flatten(1)

    def _entries(self, with_direction: bool) -> int:
        return self.g[0].numel()

    def from_inputs(self, k: int) -> Tensor | None:
        return self.normalised(slice(None))

    def norms_with(self, from_inputs: Tensor) -> Tensor:
        return torch.cat([_squared_norms(self._sum(from_inputs[rows], self.g[rows])) for rows in self._pieces()])


class Rows(PerSampleGradient):
    """Gradient of an embedding table: ``g_t`` added to row ``index_t``.

    Parameters
    ----------
    index : (n, t) integer tensor
    g : (n, t, d) tensor
    n_rows : int
        Rows of the table.
    inputs : tensor, optional
        The layer's input itself: gradients for several cotangents have the same one.
    """

    is_written_out = False

    def __init__(self, index: Tensor, g: Tensor, n_rows: int, inputs: Tensor | None = None) -> None:
        self.index, self.g, self.n_rows, self.inputs = index, g, n_rows, inputs
        self.n, self.positions, self.width = g.shape
        self.size = n_rows * self.width

    def dense(self, rows: slice = slice(None)) -> Tensor:
        return _scatter_rows(self.index[rows], self.g[rows], self.n_rows)

    def _entries(self, with_direction: bool) -> int:
        return self.positions * (self.positions + self.width)

    def _scores(self, rows: slice, direction: Tensor | None) -> tuple[Tensor, Tensor | None]:
        index, g = self.index[rows], self.g[rows]
        same = index[:, :, None] == index[:, None, :]
        norms = torch.matmul(g, g.transpose(1, 2)).mul_(same).sum((1, 2))
        if direction is None:
            return norms, None
        along = embedding(index, direction.reshape(self.n_rows, self.width))  # like indexing, but several times faster
        return norms, along.mul_(g).sum((1, 2))

    def from_inputs(self, k: int) -> Tensor | None:
        if self.positions > k * self.width:
            return None
        return (self.index[:, :, None] == self.index[:, None, :]).to(self.g.dtype)

    def norms_with(self, from_inputs: Tensor) -> Tensor:
        return _gram_norms(self.g, from_inputs)

    def gram(self, other: PerSampleGradient) -> Tensor:
        if not isinstance(other, Rows):
            return super().gram(other)
        used = torch.unique(self.index)  # rows that these samples do not touch cannot contribute
        mine = _scatter_rows(torch.searchsorted(used, self.index), self.g, len(used))
        found = torch.searchsorted(used, other.index).clamp_(max=len(used) - 1)
        theirs = _scatter_rows(found, other.g * (used[found] == other.index)[..., None], len(used))
        return gram_matrix(mine, theirs)

    def products(self, other: PerSampleGradient) -> Tensor:
        if not isinstance(other, Rows):
            return super().products(other)
        # the rows that each of the others uses, and its gradient there
        own = other.index + self.n_rows * torch.arange(other.n, device=self.g.device)[:, None]
        used, place = torch.unique(own, return_inverse=True)
        tables = self.g.new_zeros(len(used), self.width).index_add_(0, place.flatten(), other.g.flatten(0, 1))
        sample, row = used // self.n_rows, used % self.n_rows
        parts = (self._with_tables(tables, sample, row, other.n, some) for some in pieces(self.n, 8 * self.positions))
        return torch.cat(list(parts))

    def _with_tables(self, tables: Tensor, sample: Tensor, row: Tensor, n_others: int, some: slice) -> Tensor:
        """(s, m) products of some samples with m others, of whose gradients there are single (u, d) rows of a table."""
        index, g = self.index[some], self.g[some].flatten(0, 1)
        # the positions here that use the same row stand side by side once they are sorted
        rows, positions = index.flatten().sort()
        first, last = torch.searchsorted(rows, row), torch.searchsorted(rows, row, right=True)
        ends = (last - first).cumsum(0)
        skipped = last - ends
        found = g.new_zeros(len(index) * n_others)
        # a word that is everywhere meets every position: all meetings at once would take too much memory
        for meetings in pieces(int((last - first).sum()), 3 * self.width):
            number = torch.arange(meetings.start, meetings.stop, device=row.device)
            table = torch.searchsorted(ends, number, right=True)
            here = positions[skipped[table] + number]
            products = tables.index_select(0, table).mul_(g.index_select(0, here)).sum(1)
            found.index_add_(0, here // self.positions * n_others + sample[table], products)
        return found.reshape(len(index), n_others)

    def kernel_form(self) -> PerSampleGradient:
        return self

    def tensors(self) -> tuple[Tensor, ...]:
        return self.index, self.g

    def with_tensors(self, *tensors: Tensor) -> PerSampleGradient:
        index, g = tensors
        return Rows(index, g, self.n_rows)


def all_squared_norms(gradients: list[PerSampleGradient]) -> Tensor:
    """Squared norms of the gradients of one parameter for k cotangents: (k, n)."""
    dense = [g.gradients for g in gradients if isinstance(g, Dense)]
    if len(dense) == len(gradients):
        squares: Tensor = torch.linalg.vector_norm(torch.stack(dense), dim=2).square()
        return squares
    outer = [g for g in gradients if isinstance(g, Outer)]
    first = outer[0] if outer else None
    shared = first is not None and first.inputs is not None and len(outer) == len(gradients)
    if first is None or not shared or any(g.inputs is not first.inputs for g in outer):
        return torch.stack([g.scores()[0] for g in gradients])
    return first.all_norms([g.g for g in outer])


class AllNorms:
    """Squared norms of one parameter's gradients for k cotangents, which come one after the other.

    Where the layer's input contributes something that can be kept, each gradient is used as it comes, near the cache,
    and given up; the others wait for :func:`all_squared_norms`.

    Parameters
    ----------
    k : int
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._found: dict[int, Tensor] = {}
        self._waiting: dict[int, PerSampleGradient] = {}
        self._inputs: Tensor | None = None
        self._from_inputs: Tensor | None = None

    def add(self, number: int, gradient: PerSampleGradient) -> None:
        """The gradient for one of the cotangents."""
        if gradient.inputs is not None and self._inputs is None:
            self._inputs, self._from_inputs = gradient.inputs, gradient.from_inputs(self._k)
        if self._from_inputs is not None and gradient.inputs is self._inputs:
            self._found[number] = gradient.norms_with(self._from_inputs)
        else:
            self._waiting[number] = gradient

    def add_to(self, norms: Tensor) -> None:
        """Add what was found to (k, n) norms."""
        for number, own in self._found.items():
            norms[number] += own
        if self._waiting:
            norms[list(self._waiting)] += all_squared_norms(list(self._waiting.values()))


def pieces(n: int, entries: int, piece_bytes: int = PIECE_BYTES) -> Iterator[slice]:
    """Slices of n samples, of this many numbers in float32 each, whose work stays in the cache."""
    step = rows_within(piece_bytes, 4 * entries)
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def _scatter_rows(index: Tensor, g: Tensor, n_rows: int) -> Tensor:
    table = g.new_zeros(g.shape[0], n_rows, g.shape[2])
    return table.scatter_add_(1, index[..., None].expand_as(g), g).flatten(1)


def _gram_norms(g: Tensor, products: Tensor) -> Tensor:
    """``Σ_{t,s} (g_t·g_s) products_{ts}``: (n, ..., t, o) and (n, ..., t, t) -> (n,)."""
    found = []
    for rows in pieces(len(g), g[0].numel() + 2 * products[0].numel()):
        gram = torch.matmul(g[rows], g[rows].transpose(-1, -2))
        found.append(gram.mul_(products[rows]).flatten(1).sum(1))
    return torch.cat(found)


def _squared_norms(gradients: Tensor) -> Tensor:
    squares: Tensor = torch.linalg.vector_norm(gradients, dim=1).square()
    return squares


def gram_matrix(first: Tensor, second: Tensor, columns: int | None = None) -> Tensor:
    """(n, p), (m, p) -> (n, m) in float64, converting a few columns at a time, and some rows of the second."""
    larger = 1 if first.is_cpu else _ELSEWHERE
    columns = columns or larger * _GRAM_COLUMNS
    total = first.new_zeros(first.shape[0], second.shape[0], dtype=torch.float64)
    for start in range(0, first.shape[1], columns):
        part = slice(start, start + columns)
        left = first[:, part].double()
        for rows in pieces(len(second), 2 * left.shape[1], larger**2 * PRODUCT_BYTES):
            total[:, rows].addmm_(left, second[rows, part].double().T)
    return total
