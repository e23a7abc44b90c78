# SPDX-License-Identifier: BSD-3-Clause
"""How samples reach a network, batch by batch: slices of arrays, or what the net's own loader makes of a Dataset.

A Dataset, and a net with a dataset class or a collate function of its own, go through the net's ``iterator_valid``. It
may have been told to shuffle, or to drop the last batch: here all samples come, in their order, counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from skorch.dataset import Dataset as SkorchDataset
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler

from skal._core.containers import n_rows
from skal._core.pool import Watch
from skal.exceptions import InvalidTypeError, SampleError, SkalError


def place(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Numbers as new tensors on a device, floating-point ones of this type."""
    if isinstance(value, (tuple, list)) and not all(isinstance(part, (int, float)) for part in value):
        return type(value)(place(part, device, dtype) for part in value)
    if not isinstance(value, (Tensor, np.ndarray)) and isinstance(value, Mapping):
        return {key: place(part, device, dtype) for key, part in value.items()}
    if not isinstance(value, Tensor):
        array = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise InvalidTypeError(
                "The network's input must be numbers. "
                f"Got an array of dtype {array.dtype} instead. Encode it first, for example in a Pipeline."
            )
        value = as_tensor(array)
    return value.to(device, dtype if value.is_floating_point() else value.dtype, copy=True)


def as_tensor(array: np.ndarray) -> Tensor:
    """Numbers as a tensor on the host, without a copy where torch can share them.

    It has no longer floats than float64, and shares neither read-only memory (memory maps) nor arrays that run
    backwards.

    Examples
    --------
    >>> as_tensor(np.arange(3)[::-1])
    tensor([2, 1, 0])
    """
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    return torch.from_numpy(array)


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
        Who compares some of the items with what they were before, and what it calls the rows.
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
    """What a loader makes of the rows, in their order, ``batch_size`` at a time.

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
    """Whether a batch holds n samples, as far as can be told: what is no tensor is counted by the network's outputs."""
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
