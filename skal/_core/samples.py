# SPDX-License-Identifier: BSD-3-Clause
"""A set of samples that can be fed, chunk by chunk, to an estimator or a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from torch.utils.data import Dataset

from skal._core.containers import as_rows, check_finite, n_rows, take_rows
from skal._core.shipping import opened, reference_to, shippable
from skal._core.steadiness import Watch, watch_of
from skal.exceptions import ChangedSamplesError, InvalidTypeError, SampleError


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
    size : int, optional
        Rows of X at first: a Dataset may not change its length.
    watch : Watch, optional
        Who notices that the samples of a Dataset change; parts of these samples have the same.

    Examples
    --------
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
    size: int | None = None
    watch: Watch | None = None

    def __post_init__(self) -> None:
        self.X = as_rows(self.X, self.name)
        if self.transform is not None and isinstance(self.X, Dataset):
            raise InvalidTypeError(
                f"{self.name} must be an array or a data frame when the network stands at the end of a Pipeline. "
                f"Got a {type(self.X).__name__} instead. Move the preprocessing into the Dataset, or pass arrays."
            )
        if self.size is None:
            self.size = n_rows(self.X, self.name)
        if self.rows is None:
            self.rows = range(self.size)

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
        return state | {"X": shippable(self.read(0, n)), "rows": range(n), "size": n, "numbers": self.row_numbers(0, n)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state | {"X": opened(state["X"])})

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

    def start_watch(self) -> Watch | None:
        """From the next reading on, notice if the samples of a Dataset change.

        Returns
        -------
        Watch or None
            None for everything that is no Dataset.
        """
        self.watch = watch_of(self.X, self.name, self.rows, self.row_numbers(0, len(self)))
        return self.watch

    def check_size(self) -> None:
        """Refuse a Dataset that has another length than at first: its rows may then be other samples."""
        if isinstance(self.X, Dataset) and n_rows(self.X, self.name) != self.size:
            raise ChangedSamplesError(
                f"{self.name} must keep its samples during a query. Got a {type(self.X).__name__} of {self.size} at "
                f"first, and of {n_rows(self.X, self.name)} now. Query on a copy, or on a Subset that stays as it is."
            )

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
        self.check_size()
        part = take_rows(self.X, slice(rows.start, rows.stop) if isinstance(rows, range) else rows)
        if self.watch is not None:
            self.watch.begin()
        return part

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
                chunk = self.transform(chunk)
                chunk = chunk.toarray() if sp.issparse(chunk) else chunk
            if n_rows(chunk, self.name) != min(stop, len(self)) - start:
                raise SampleError(
                    f"The steps before the classifier must give one row for each row of {self.name}. Got "
                    f"{n_rows(chunk, self.name)} rows for {min(stop, len(self)) - start} samples. "
                    "Use steps that keep all rows."
                )
            if not self.allow_nan and not isinstance(chunk, Dataset):
                check_finite(chunk, self.name, self.row_numbers(start, stop))
            yield chunk


def _part(whole: Any, rows: np.ndarray | range) -> Any:
    """Some entries of a sequence of numbers; a range of it stays a range, or a view."""
    if isinstance(rows, range):
        return whole[rows.start : rows.stop]
    return np.asarray(rows) + whole.start if isinstance(whole, range) else np.asarray(whole)[rows]
