# SPDX-License-Identifier: BSD-3-Clause
"""A set of samples that can be fed, chunk by chunk, to an estimator or a network."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from torch import Tensor
from torch.utils.data import Dataset

from skal._core.containers import (
    as_rows,
    check_finite,
    concat_rows,
    dataset_input,
    detach_rows,
    n_rows,
    open_reference,
    reference_to,
    take_rows,
)
from skal._core.device_copy import DeviceCopy
from skal._core.feeding import NamedRows, Watch, load_batches
from skal._core.identity import dataset_place, sample_digests
from skal.exceptions import InvalidParameterError, InvalidTypeError, SampleError

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
    there : DeviceCopy, optional
        For the passes of a query on another device than the processor. Parts of these samples have the same.

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
    there: DeviceCopy | None = None

    def __post_init__(self) -> None:
        if type(self.X) is not np.ndarray:
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
        """State for another process: where it finds the samples, or the rows themselves."""
        if self.watch is not None:
            self.watch.begin()  # so that what is read there is compared with what is read here
        state = self.__dict__ | {"there": None}
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
            Views of the same container; all of them in their order are these samples themselves.
        """
        if len(rows) == len(self) and np.array_equal(rows, range(len(self))):
            return self
        numbers = None if self.numbers is None else _part(self.numbers, rows)
        return replace(self, rows=_part(self.rows, rows), numbers=numbers)

    def before(self, others: Samples) -> Samples:
        """These samples and others behind them, in one container: a copy, for sets that are small.

        Parameters
        ----------
        others : Samples
            Transformed alike.

        Returns
        -------
        Samples
            As many as both together.
        """
        X = concat_rows(self.read(0, len(self)), others.read(0, len(others)))
        numbers = [*self.row_numbers(0, len(self)), *others.row_numbers(0, len(others))]
        return replace(others, X=X, rows=None, numbers=numbers, watch=None, there=None)

    def row_numbers(self, start: int, stop: int) -> Sequence[int] | np.ndarray:
        """Positions in X of the samples ``start`` … ``stop - 1``.

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
        """Notice from now on if the samples of a Dataset change.

        Returns
        -------
        Watch
            Whose ``end`` looks at them once more.
        """
        self.watch = Watch(self.X, self.name, self.rows, self.row_numbers(0, len(self)))
        return self.watch

    @contextmanager
    def keep_there(self, n_bytes: int) -> Iterator[None]:
        """Let samples that passes move to a device stay there in this block, and no longer.

        Not behind a transform, whose chunks may be of several lengths, such as padded texts.

        Parameters
        ----------
        n_bytes : int
            Room for them on the device.

        Yields
        ------
        None
            For the passes.
        """
        there = DeviceCopy(self.rows, n_bytes)
        self.there = there if self.transform is None else None
        try:
            yield
        finally:
            self.there = None
            there.clear()  # parts of these samples may be held elsewhere

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

    def chunks(self, size: int, stacked: bool = False) -> Iterator[Any]:
        """Transformed chunks, checked to be finite (a Dataset's items are not looked at, unless they are stacked).

        Parameters
        ----------
        size : int
            Rows of a chunk, at most.
        stacked : bool, default=False
            Whether the samples of a Dataset are put together, for those who want an array.

        Yields
        ------
        rows of X
            One chunk after the other, in their order.
        """
        for start in range(0, len(self), size):
            stop = start + size
            chunk = self.read(start, stop)
            if stacked and isinstance(chunk, Dataset):
                chunk = self._stack(chunk, start, stop)
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
        digests: list[bytes] = []
        for start in range(0, len(self), _DIGESTED):
            chunk = self.read(start, start + _DIGESTED)
            if isinstance(chunk, Dataset):
                chunk = NamedRows(chunk, self.name, self.row_numbers(start, start + _DIGESTED))
            digests += sample_digests(chunk)
        return digests

    def keys(self) -> list[Hashable]:
        """Keys that recognise the samples in later queries: digests of their content, or places in a Dataset.

        Returns
        -------
        list
            One per sample.
        """
        if isinstance(self.X, Dataset):
            return [dataset_place(self.X, int(row)) for row in self.rows]
        return list(self.digests())

    def _stack(self, chunk: Any, start: int, stop: int) -> Any:
        """The samples of a Dataset as an array, or as whatever a loader makes of them."""
        watched = None if self.watch is None else (self.watch, self.rows[start:stop])
        numbers = self.row_numbers(start, stop)
        batch = dataset_input(next(load_batches(None, chunk, len(numbers), self.name, numbers, watched)))
        return batch.detach().cpu().numpy() if isinstance(batch, Tensor) else batch

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


def candidate_rows(owner: str, candidates: Any, n_pool: int) -> np.ndarray:
    """Positions in the pool, from positions or from one truth value per row.

    Parameters
    ----------
    owner : str
        Who was asked, for messages.
    candidates : array-like of int or of bool
    n_pool : int

    Returns
    -------
    (n,) int64 array
        At least one, each once, in the order given.

    Examples
    --------
    >>> candidate_rows("Margin", [False, True, True], 3)
    array([1, 2])
    """
    rows = np.asarray(candidates)
    remedy = "Pass positions in X_pool, each once, or a mask with one truth value per row."
    if rows.ndim != 1 or rows.dtype.kind not in "iub":
        expected = "a flat array of integers or of truth values"
        raise InvalidTypeError.for_parameter(owner, "candidates", expected, candidates, remedy)
    if rows.dtype.kind == "b":
        if len(rows) != n_pool:
            expected = f"a mask with one truth value for each of the {n_pool} rows of X_pool"
            raise InvalidParameterError.for_parameter(owner, "candidates", expected, len(rows), remedy)
        rows = np.flatnonzero(rows)
    rows = rows.astype(np.int64)
    if not len(rows) or rows.min() < 0 or rows.max() >= n_pool or len(np.unique(rows)) < len(rows):
        expected = f"distinct positions in 0 … {n_pool - 1}, at least one"
        raise InvalidParameterError.for_parameter(owner, "candidates", expected, rows.tolist(), remedy)
    return rows
