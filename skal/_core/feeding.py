# SPDX-License-Identifier: BSD-3-Clause
"""Read samples through the user's own code: Datasets, and the loader of a net. Arrays do not pass through here.

A Dataset, and a net with a dataset class or a collate function of its own, go through the net's ``iterator_valid``.
That loader may be set to shuffle, or to drop the last batch; here all samples come, in order, and are counted. And a
Dataset may give other samples when it is read again: a few of its rows are watched during a query.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from skorch.dataset import Dataset as SkorchDataset
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, Subset

from skal._core.containers import dataset_input, n_rows, refuse_hidden
from skal._core.guard import preserve_rng
from skal.exceptions import ChangedSamplesError, InvalidTypeError, SampleError, SkalError

# settings of a loader that leave samples out or change their order
_REORDERING = ("shuffle", "drop_last", "sampler", "batch_sampler")
_END = object()


class NamedRows(Dataset[Any]):
    """A Dataset whose errors say which row could not be read, and which knows in what order it was asked for rows.

    Parameters
    ----------
    dataset : Dataset
    name : str
        What messages call it.
    numbers : (n,) sequence of int
        What messages call its rows.
    watched : (Watch, (n,) sequence of int), optional
        Compares some of the items with what they were before; and what it calls the rows.
    """

    def __init__(
        self, dataset: Any, name: str, numbers: Sequence[int] | Any, watched: tuple[Watch, Any] | None = None
    ) -> None:
        self._dataset, self._name, self._numbers, self._watched = dataset, name, numbers, watched
        self._last, self.in_order = -1, True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dataset" not in self.__dict__:  # not yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, row: int) -> Any:
        self.in_order = self.in_order and row >= self._last
        self._last = row
        try:
            item = self._dataset[row]
        except (SkalError, MemoryError, Warning):
            raise
        except Exception as error:
            raise SampleError(
                f"{self._name} must be readable row by row. Got {type(error).__name__} in row "
                f"{int(self._numbers[row])}: {error}. Repair that sample, or leave it out."
            ) from error
        self._compare(row, item)
        return item

    def _compare(self, row: int, item: Any) -> None:
        sample = dataset_input(item) if not isinstance(item, (tuple, list)) or item else None
        for part in sample.values() if isinstance(sample, Mapping) else [sample]:
            refuse_hidden(part, f"Row {int(self._numbers[row])} of {self._name}")
        if self._watched is not None:
            watch, rows = self._watched
            watch.compare(int(rows[row]), item)

    def __getitems__(self, rows: list[int]) -> list[Any]:
        """Several rows at once, if the Dataset can do that."""
        if callable(getattr(self._dataset, "__getitems__", None)):
            try:
                items: list[Any] = self._dataset.__getitems__(rows)
            except Exception:
                pass  # one by one, to find the row that cannot be read
            else:
                self.in_order = self.in_order and list(rows) == sorted(rows) and rows[0] >= self._last
                self._last = rows[-1]
                if isinstance(items, list) and len(items) == len(rows):
                    for row, item in zip(rows, items, strict=True):
                        self._compare(row, item)
                return items
        return [self[row] for row in rows]


def load_batches(
    net: Any,
    chunk: Any,
    batch_size: int,
    name: str,
    numbers: Sequence[int] | Any,
    watched: tuple[Watch, Any] | None = None,
) -> Iterator[Any]:
    """The batches that a loader makes of the rows, in order, ``batch_size`` rows at a time.

    Parameters
    ----------
    net : skorch net or None
        Its ``dataset`` and ``iterator_valid`` read the samples; the settings that reorder or drop them do not count.
    chunk : Dataset, or what the net's dataset class takes
    batch_size : int
    name : str
    numbers : (n,) sequence of int
        What messages call the samples and their rows.
    watched : (Watch, (n,) sequence of int), optional
        Of a Dataset: see :class:`NamedRows`.
    """
    n = len(numbers)
    if isinstance(chunk, list) and (net is None or net.dataset is SkorchDataset):
        raise InvalidTypeError(
            f"The samples of {name} must be numbers for a network. Got a list of {type(chunk[0]).__name__} instead. "
            "Read files in a torch Dataset, or turn texts into numbers in a Pipeline or in the net's own dataset class."
        )
    with _explain_batching(name):
        dataset = chunk if net is None else net.get_dataset(chunk)
    if n_rows(dataset, name) != n:
        raise _count_error(name, n, f"a {type(dataset).__name__} of {n_rows(dataset, name)}")
    rows = NamedRows(dataset, name, numbers, watched if dataset is chunk else None)
    with _explain_batching(name):
        loader = iter(_loader(net, rows, batch_size, name))
    count = 0
    while True:
        with _explain_batching(name):
            batch = next(loader, _END)
        if batch is _END:
            break
        expected = min(batch_size, n - count)
        if expected == 0 or not _has_rows(batch, expected):
            raise _count_error(name, n, f"a batch of another size than {expected} after {count} samples")
        if not rows.in_order:
            raise _out_of_order(type(loader).__name__, name)
        count += expected
        yield batch
    if count != n:
        raise _count_error(name, n, f"{count}")


@contextmanager
def _explain_batching(name: str) -> Iterator[None]:
    """Name the samples whose dataset class or collate function fails."""
    try:
        yield
    except (SkalError, MemoryError, Warning):
        raise
    except Exception as error:
        said = (str(error).splitlines() or [""])[0].rstrip(".")
        raise SampleError(
            f"The samples of {name} must be what the net's dataset and its collate function can put into batches. Got "
            f"{type(error).__name__}: {said}. Pass numbers of one shape for all samples, as an array, a tensor or a "
            "Dataset of these; or give the net a collate function (iterator_valid__collate_fn)."
        ) from error


def _loader(net: Any, rows: NamedRows, batch_size: int, name: str) -> Any:
    if net is None:
        return DataLoader(rows, batch_size=batch_size)
    settings = net.get_params_for("iterator_valid")
    settings = {key: value for key, value in settings.items() if key not in _REORDERING}
    loader = net.iterator_valid(rows, **(settings | {"batch_size": batch_size}))
    _check_loader(loader, name)
    return loader


def _check_loader(loader: Any, name: str) -> None:
    """Refuse a DataLoader that would read rows in an order of its own, or leave some out."""
    if not isinstance(loader, DataLoader):
        return  # the rows notice in which order they are read
    batches, rows = loader.batch_sampler, loader.sampler
    if type(batches) is not BatchSampler or type(rows) is not SequentialSampler or batches.drop_last:
        raise _out_of_order(type(loader).__name__, name)


def _has_rows(batch: Any, n: int) -> bool:
    """True if a batch seems to hold n samples; without tensors in it, the network's outputs are counted later."""
    if type(batch) in (tuple, list):
        batch = batch[0] if batch else None
    parts = batch.values() if isinstance(batch, Mapping) else [batch]
    lengths = [part.shape[0] for part in parts if isinstance(part, Tensor) and part.ndim]
    return not lengths or n in lengths


def _count_error(name: str, n: int, got: str) -> SampleError:
    return SampleError(
        f"All {n} samples of {name} must arrive, each once. Got {got} instead. Look at the net's dataset, its "
        "iterator_valid and its collate function, and at the Dataset's __len__ and __getitem__."
    )


def _out_of_order(loader: str, name: str) -> SampleError:
    return SampleError(
        f"The samples of {name} must be read in their order, all of them. Got the iterator_valid {loader}, which reads "
        "them in an order of its own, or leaves some out. Use torch.utils.data.DataLoader."
    )


_WATCHED = 8  # rows of a Dataset
_ENTRIES = 2**12  # numbers of a sample that are compared, spread over it
_GOLDEN = (5**0.5 - 1) / 2  # multiples of it are spread evenly, and fall into no pattern of rows and columns


class Watch:
    """A few rows of a Dataset, first, last and between, which must stay as they are during a query.

    Random augmentation that was left on, or rows that change places, cannot be seen in what a pass returns: scores
    would belong to other samples. So a query reads a few rows twice before the first pass and once at its end, and
    passes compare these rows whenever they read them.

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
    >>> from skal._core.feeding import Watch
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
                # generators are not reset between the two readings, so that random changes show
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
            # passes restore the generators: from the same state, the same random changes would come again
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
    """True if two leaves are the same; floats up to rounding, for a batch of another size may round otherwise."""
    if known is None or new is None or known[:2] != new[:2]:
        return known is None and new is None
    rounding, _, entries = known
    if not rounding:
        return entries.dtype == new[2].dtype and np.array_equal(entries, new[2])
    size = np.abs(entries[np.isfinite(entries)]).max(initial=0.0)
    return bool(np.allclose(entries, new[2], rtol=0, atol=rounding * size, equal_nan=True))
