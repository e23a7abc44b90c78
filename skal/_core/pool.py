# SPDX-License-Identifier: BSD-3-Clause
"""A set of samples that can be fed, chunk by chunk, to an estimator or a network; and Datasets that must hold still."""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch.utils.data import Dataset, Subset

from skal._core.containers import (
    as_rows,
    check_finite,
    dataset_input,
    detach_rows,
    n_rows,
    open_reference,
    reference_to,
    take_rows,
)
from skal._core.guard import preserve_rng
from skal._core.identity import dataset_place, sample_digests
from skal.exceptions import ChangedSamplesError, InvalidTypeError, SampleError

_DIGESTED = 4096  # samples that are read at once for their digests


@dataclass(eq=False, repr=False)
class Samples:
    """Rows of X, transformed lazily: only the current chunk is ever in memory.

    Parameters
    ----------
    X : array-like, tensor, data frame, dict of these, or Dataset
        The container.
    name : str
        What error messages call it.
    transform : callable, optional
        The steps of a Pipeline before its last one. Applied to each chunk, as fitted.
    rows : (n,) int array or range, optional
        Only these rows of X, in this order.
    allow_nan : bool, default=False
        Leave the check of finiteness to the estimator.
    numbers : (n,) int array or range, optional
        What error messages call the rows, where X is itself a part of something larger.
    watch : Watch, optional
        Of a Dataset: refuses samples that change. Parts of these samples have the same.

    Examples
    --------
    >>> from skal.context import Samples
    >>> samples = Samples(np.arange(10).reshape(5, 2), rows=np.array([4, 0, 1]))
    >>> len(samples), next(samples.chunks(2)).tolist()
    (3, [[8, 9], [0, 1]])
    """

    X: Any
    _: KW_ONLY
    name: str = "X"
    transform: Callable[[Any], Any] | None = None
    rows: Any = None
    allow_nan: bool = False
    numbers: Sequence[int] | np.ndarray | None = None
    watch: Watch | None = None

    def __post_init__(self) -> None:
        if isinstance(self.X, list):
            self.X = as_rows(self.X, self.name)
        if self.transform is not None and isinstance(self.X, Dataset):
            raise InvalidTypeError(
                f"{self.name} must be an array or a data frame when the network stands at the end of a Pipeline. "
                f"Got a {type(self.X).__name__} instead. Move the preprocessing into the Dataset, or pass arrays."
            )
        if self.rows is None:
            self.rows = range(n_rows(self.X, self.name))

    def __len__(self) -> int:
        return len(self.rows)

    def __getstate__(self) -> dict[str, Any]:
        """For another process: where it finds the samples, or these rows and no others."""
        if self.watch is not None:
            self.watch.begin()  # so that what is read there is compared with what is read here
        state = dict(self.__dict__)
        reference = reference_to(self.X)
        if reference is not None:
            return state | {"X": reference}
        n = len(self)
        return state | {"X": detach_rows(self.read(0, n)), "rows": range(n), "numbers": self.row_numbers(0, n)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"X": open_reference(state["X"])})

    def take(self, rows: np.ndarray | range) -> Samples:
        """A part of the samples; nothing is read or transformed yet. A range is read in one piece.

        Parameters
        ----------
        rows : int array or range
            Positions among these samples.

        Returns
        -------
        Samples
            Views of the same container.
        """
        numbers = None if self.numbers is None else _part(self.numbers, rows)
        return replace(self, rows=_part(self.rows, rows), numbers=numbers)

    def row_numbers(self, start: int, stop: int) -> Sequence[int] | np.ndarray:
        """Where in X the samples ``start`` … ``stop - 1`` stand.

        Parameters
        ----------
        start, stop : int
            Positions among these samples.

        Returns
        -------
        sequence of int
            Positions in X.
        """
        return (self.rows if self.numbers is None else self.numbers)[start:stop]

    def start_watch(self) -> Watch:
        """From the next reading on, notice if the samples of a Dataset change.

        Returns
        -------
        Watch
            Whose ``end`` looks at them once more.
        """
        self.watch = Watch(self.X, self.name, self.rows, self.row_numbers(0, len(self)))
        return self.watch

    def read(self, start: int, stop: int) -> Any:
        """The samples ``start`` … ``stop - 1``, in the container's own type, not transformed.

        Parameters
        ----------
        start, stop : int
            Positions among these samples.

        Returns
        -------
        rows of X
            A view where the container allows it.
        """
        rows = self.rows[start:stop]
        if self.watch is not None:
            self.watch.begin()
        return take_rows(self.X, slice(rows.start, rows.stop) if isinstance(rows, range) else rows)

    def chunks(self, size: int) -> Iterator[Any]:
        """Transformed chunks, checked to be finite (a Dataset's items are not looked at).

        Parameters
        ----------
        size : int
            Rows of a chunk, at most.

        Yields
        ------
        rows of X
            One chunk after the other, in their order.
        """
        for start in range(0, len(self), size):
            stop = start + size
            chunk = self.read(start, stop)
            if self.transform is not None:
                chunk = self._transform(chunk, min(stop, len(self)) - start)
            if not self.allow_nan and not isinstance(chunk, Dataset):
                check_finite(chunk, self.name, self.row_numbers(start, stop))
            yield chunk

    def digests(self) -> list[bytes]:
        """A digest of the content of each sample: exact copies have the same.

        Returns
        -------
        list of bytes
            One per sample.
        """
        starts = range(0, len(self), _DIGESTED)
        return [digest for start in starts for digest in sample_digests(self.read(start, start + _DIGESTED))]

    def keys(self) -> list[Hashable]:
        """What each sample is recognised by in a later query: its content, or its place in a Dataset.

        Returns
        -------
        list
            One per sample.
        """
        if isinstance(self.X, Dataset):
            return [dataset_place(self.X, int(row)) for row in self.rows]
        return list(self.digests())

    def _transform(self, chunk: Any, n: int) -> Any:
        assert self.transform is not None
        chunk = self.transform(chunk)
        chunk = chunk.toarray() if sp.issparse(chunk) else chunk
        if n_rows(chunk, self.name) != n:
            raise SampleError(
                f"The steps before the classifier must give one row for each row of {self.name}. Got "
                f"{n_rows(chunk, self.name)} rows for {n} samples. Use steps that keep all rows."
            )
        return chunk


def _part(whole: Any, rows: np.ndarray | range) -> Any:
    """Some entries of a sequence of numbers; a range of it stays a range, or a view."""
    if isinstance(rows, range):
        return whole[rows.start : rows.stop]
    return np.asarray(rows) + whole.start if isinstance(whole, range) else np.asarray(whole)[rows]


_WATCHED = 8  # rows of a Dataset
_ENTRIES = 2**12  # of a sample's numbers, spread over it
_GOLDEN = (5**0.5 - 1) / 2  # multiples of it are spread evenly, and fall into no pattern of rows and columns


class Watch:
    """A few rows of a Dataset, first, last and between, which must stay as they are during a query.

    Random augmentation that was left on, or rows that change places, cannot be seen in what a pass returns: scores
    would belong to other samples. So a query reads a few rows twice before the first pass and once at its end, and
    passes compare these rows when they come by them.

    Parameters
    ----------
    dataset : Dataset
    name : str
        What messages call it.
    rows : (n,) sequence of int
        The rows that may be read.
    numbers : (n,) sequence of int
        What messages call them.

    Examples
    --------
    >>> from torch.utils.data import TensorDataset
    >>> from skal._core.pool import Watch
    >>> X = torch.zeros(5, 2)
    >>> watch = Watch(TensorDataset(X), "X_pool", range(5), range(5))
    >>> watch.begin()
    >>> X[3] = 1
    >>> watch.end()
    Traceback (most recent call last):
        ...
    skal.exceptions.ChangedSamplesError: X_pool must hold the same samples whenever it is read. Got a TensorDataset ...
    """

    def __init__(self, dataset: Any, name: str, rows: Sequence[int] | Any, numbers: Sequence[int] | Any) -> None:
        positions = np.unique(np.linspace(0, len(rows) - 1, _WATCHED).round().astype(int)).tolist() if len(rows) else []
        self._dataset, self._name, self._size = dataset, name, n_rows(dataset, name)
        self._numbers = {int(rows[i]): int(numbers[i]) for i in positions}
        self._known: dict[int, list[Any]] | None = None

    def begin(self) -> None:
        """Read the rows twice, on the first call; rows that cannot be read are left to the passes."""
        if self._known is None:
            self._known = {}
            with preserve_rng():
                # the generators go on from one reading to the next, so that random changes show
                for row in [*self._numbers, *self._numbers]:
                    try:
                        item = self._read(row)
                    except Exception:
                        continue
                    self.compare(row, item)
        self.check_size()

    def compare(self, row: int, item: Any) -> None:
        """Refuse an item that is not what stood in this row before; rows that are not watched pass."""
        if self._known is None or row not in self._numbers:
            return
        new = _leaves(dataset_input(item)) if not isinstance(item, (tuple, list)) or item else []
        known = self._known.setdefault(row, new)
        if len(known) != len(new) or not all(map(_alike, known, new)):
            raise self._change_error(row)

    def end(self) -> None:
        """Read the rows again, if they have been read."""
        if not self._known:
            return
        self.check_size()
        with preserve_rng():
            # a pass gives the generators back as they were: from the same state the same changes would come again
            random.random(), np.random.random(), torch.rand(1, device="cpu")
            if torch.cuda.is_initialized():
                torch.rand(1, device="cuda")
            for row in self._known:
                try:
                    item = self._read(row)
                except Exception as error:
                    raise self._change_error(row) from error
                self.compare(row, item)

    def check_size(self) -> None:
        """Refuse a Dataset that has another length than at first: its rows may then be other samples."""
        if n_rows(self._dataset, self._name) != self._size:
            raise ChangedSamplesError(
                f"{self._name} must keep its samples during a query. Got a {type(self._dataset).__name__} of "
                f"{self._size} at first, and of {n_rows(self._dataset, self._name)} now. Query on a copy, or on a "
                "Subset that stays as it is."
            )

    def _read(self, row: int) -> Any:
        many: Callable[[list[int]], Any] | None = getattr(self._dataset, "__getitems__", None)
        if not callable(many):
            return self._dataset[row]
        items = many([row])
        return items[0] if isinstance(items, list) and len(items) == 1 else items

    def _change_error(self, row: int) -> ChangedSamplesError:
        dataset = self._dataset
        while isinstance(dataset, Subset):
            dataset = dataset.dataset
        return ChangedSamplesError(
            f"{self._name} must hold the same samples whenever it is read. Got a {type(dataset).__name__} whose row "
            f"{self._numbers[row]} was another one when it was read again. Switch off random augmentation and "
            "shuffling for it, and change nothing in it during a query: query on a Dataset without random transforms."
        )


_Leaf = tuple[float, tuple[int, ...], np.ndarray]


def _leaves(sample: Any) -> list[_Leaf | None]:
    """Rounding, shape and entries of the arrays, tensors, numbers and texts of a sample; None for anything else."""
    if isinstance(sample, (Mapping, tuple, list)):
        parts = sample.values() if isinstance(sample, Mapping) else sample
        return [leaf for part in parts for leaf in _leaves(part)]
    is_short = isinstance(sample, torch.Tensor) and sample.dtype == torch.bfloat16  # numpy has none
    try:
        if isinstance(sample, torch.Tensor):
            sample = (sample.float() if is_short else sample).detach().cpu().numpy()
        array = np.array(sample)  # a copy, of what may change
    except Exception:  # a sparse tensor, for example
        return [None]
    if array.dtype.hasobject:
        return [None]
    if array.dtype.kind != "f":
        return [(0.0, array.shape, array)]
    entries = array.reshape(-1)
    if len(entries) > _ENTRIES:
        entries = entries[(np.arange(_ENTRIES) * _GOLDEN % 1 * len(entries)).astype(np.int64)]
    return [(1e-2 if is_short or array.dtype == np.float16 else 1e-4, array.shape, entries.astype(np.float64))]


def _alike(known: _Leaf | None, new: _Leaf | None) -> bool:
    """Whether two leaves are the same; floats up to rounding, for a batch of another size may round otherwise."""
    if known is None or new is None or known[:2] != new[:2]:
        return known is None and new is None
    rounding, _, entries = known
    if not rounding:
        return entries.dtype == new[2].dtype and np.array_equal(entries, new[2])
    size = np.abs(entries[np.isfinite(entries)]).max(initial=0.0)
    return bool(np.allclose(entries, new[2], rtol=0, atol=rounding * size, equal_nan=True))
