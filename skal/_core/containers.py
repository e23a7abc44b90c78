# SPDX-License-Identifier: BSD-3-Clause
"""Rows of whatever container the user keeps them in, how they become tensors, and how they reach another process.

numpy arrays and memory maps, torch tensors, lists, pandas objects, scipy sparse matrices, arrays that are read on
access (zarr, HDF5, Dask), dicts of these (the inputs of a multi-input net, as skorch takes them) and
``torch.utils.data.Dataset``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset

from skal._core.memory import rows_within
from skal.exceptions import InvalidParameterError, InvalidTypeError, NonFiniteError

_FLOATS = (np.float32, np.float64)  # what BLAS multiplies
_CHECK_BYTES = 2**26  # how much of an array is looked at at once


def _is_frame(X: Any) -> bool:
    return hasattr(X, "iloc")


def is_lazy(X: Any) -> bool:
    """True if X is an array that is read when it is indexed: one of zarr, HDF5 or Dask, for example."""
    if isinstance(X, (np.ndarray, Tensor, Dataset)) or _is_frame(X) or sp.issparse(X):
        return False
    return isinstance(getattr(X, "dtype", None), np.dtype) and hasattr(X, "shape") and hasattr(X, "__getitem__")


def n_rows(X: Any, name: str = "X") -> int:
    """The number of samples.

    Examples
    --------
    >>> n_rows({"image": np.zeros((3, 2)), "text": np.zeros((3, 7))})
    3
    """
    if isinstance(X, np.ndarray) and X.ndim:  # the usual case first: checks of abstract classes are slow
        return len(X)
    if isinstance(X, Mapping):
        lengths = {key: n_rows(value, name) for key, value in X.items()}
        if len(set(lengths.values())) != 1:
            raise InvalidTypeError(
                f"The inputs in {name} must be at least one and all of the same length. Got {lengths} instead. "
                "Pass one row per sample in every input."
            )
        return next(iter(lengths.values()))
    if isinstance(X, (type, str, bytes, Set, IterableDataset)):
        raise _no_rows(X, name)
    if hasattr(X, "shape"):
        if len(X.shape) == 0:
            raise InvalidTypeError(f"{name} must hold rows. Got a scalar ({X!r}) instead. Pass an array of samples.")
        return int(X.shape[0])
    try:
        return len(X)
    except (TypeError, ValueError):  # no length, or a negative one
        raise _no_rows(X, name) from None


def _no_rows(X: Any, name: str) -> InvalidTypeError:
    got = f"the class {X.__name__}" if isinstance(X, type) else type(X).__name__
    return InvalidTypeError(
        f"{name} must be an array, tensor, list, data frame, dict of these or a Dataset with a length. "
        f"Got {got} instead. Convert it to an array, or give the Dataset a __len__ and a __getitem__."
    )


def as_rows(X: Any, name: str = "X") -> Any:
    """Turn lists of samples, matrices and masked arrays into arrays; leave anything else, lists of texts too, as it is.

    Masked entries, and tensors without values of their own, are refused.

    Examples
    --------
    >>> as_rows([[1, 2], [3, 4]])
    array([[1, 2],
           [3, 4]])
    """
    if isinstance(X, Mapping):
        return {key: as_rows(value, name) for key, value in X.items()}
    refuse_hidden(X, name)
    if isinstance(X, (np.ma.MaskedArray, np.matrix)):
        return np.asarray(X)
    if not isinstance(X, list) or not X or isinstance(X[0], str):
        return X
    try:
        return np.asarray(X)
    except (ValueError, TypeError, RuntimeError) as error:  # shapes differ, or tensors that numpy cannot read
        raise InvalidTypeError(
            f"The rows of {name} must all have the same shape. Got a list in which they differ. Pad or resize the "
            "samples, or pass a Dataset whose net has a collate function for them."
        ) from error


def count_masked(X: Any) -> int:
    """Count the masked entries of an array, or of the arrays in a list.

    Examples
    --------
    >>> count_masked(np.ma.array([1, 2], mask=[False, True])), count_masked([3, np.ma.masked]), count_masked(["a"])
    (1, 1, 0)
    """
    parts = X if isinstance(X, list) else [X]
    return sum(int(np.ma.getmaskarray(part).sum()) for part in parts if isinstance(part, np.ma.MaskedArray))


def refuse_hidden(X: Any, name: str) -> None:
    """Refuse arrays without a value for each entry: masked arrays, lists of them, sparse tensors, tensors on "meta"."""
    if n_masked := count_masked(X):
        got, remedy = f"{n_masked} masked entries", "Fill or impute them, for example with X.filled(0)."
    elif isinstance(X, Tensor) and X.is_meta:
        got, remedy = "a tensor on the meta device", "Load the values first."
    elif isinstance(X, Tensor) and X.layout is not torch.strided:
        got, remedy = f"a tensor of layout {X.layout}", "Pass X.to_dense()."
    else:
        return
    raise InvalidTypeError(f"{name} must have a value for every entry. Got {got}. {remedy}")


def take_rows(X: Any, rows: Any) -> Any:
    """The given rows (a slice or an integer array), in the container's own type; numpy for what is read from elsewhere.

    Examples
    --------
    >>> take_rows(["a", "b", "c"], np.array([2, 0]))
    ['c', 'a']
    """
    if isinstance(X, np.ndarray):
        return X[rows]
    if isinstance(X, Mapping):
        return {key: take_rows(value, rows) for key, value in X.items()}
    if isinstance(X, Dataset):
        positions = range(*rows.indices(n_rows(X))) if isinstance(rows, slice) else np.asarray(rows).tolist()
        return Subset(X, positions)
    if _is_frame(X):
        return X.iloc[rows]
    if isinstance(X, Tensor):
        return X[rows] if isinstance(rows, slice) else X[torch.as_tensor(np.asarray(rows), device=X.device)]
    if sp.issparse(X):
        return X.tocsr()[rows]
    if is_lazy(X):
        return _read(X, rows)
    if hasattr(X, "shape") or isinstance(rows, slice):
        return X[rows]
    return [X[i] for i in np.asarray(rows).tolist()]


def _read(X: Any, rows: Any) -> np.ndarray:
    """Rows of an array that is not in memory, as a numpy array."""
    back = None
    if not isinstance(rows, slice):
        # HDF5 accepts only increasing, distinct rows; the others read those fastest
        rows, back = np.unique(np.asarray(rows), return_inverse=True)
    part = X.oindex[rows] if back is not None and hasattr(X, "oindex") else X[rows]
    if hasattr(part, "compute"):  # in this thread: a worker that waits for other workers may wait for ever
        part = part.compute(scheduler="synchronous")
    part = np.asarray(part)
    return part if back is None else part[back]


def concat_rows(first: Any, second: Any) -> Any:
    """Two sets of rows as one, in the type of the first."""
    if isinstance(first, Mapping):
        if not isinstance(second, Mapping) or set(first) != set(second):
            raise InvalidTypeError(
                f"The new samples must be a dict with the inputs {sorted(first)}. Got {type(second).__name__} "
                f"{sorted(second) if isinstance(second, Mapping) else ''} instead. Pass every input of the network."
            )
        return {key: concat_rows(first[key], second[key]) for key in first}
    if isinstance(first, Dataset):
        if not isinstance(second, Dataset):
            raise InvalidTypeError(
                f"The labelled set is a Dataset, so the new samples must be one too. Got {type(second).__name__} "
                "instead. Pass torch.utils.data.Subset(dataset, indices), as query returns it."
            )
        return ConcatDataset([first, second])
    if isinstance(second, (Dataset, Mapping)):  # numpy would read a Dataset without end
        raise InvalidTypeError(
            f"The labelled set is a {type(first).__name__}, so the new samples must be rows of one. Got a "
            f"{type(second).__name__} instead. Keep all labelled samples in one kind of container."
        )
    if _is_frame(first):
        import pandas as pd

        return pd.concat([first, second])
    if isinstance(first, Tensor):
        return torch.cat([first, torch.as_tensor(second, dtype=first.dtype, device=first.device)])
    if sp.issparse(first) or sp.issparse(second):
        return sp.vstack([first, second], format="csr")
    if isinstance(first, list):
        return first + list(second)
    return np.concatenate([np.asarray(first), np.asarray(second)])


def all_finite(X: Any, block_bytes: int = _CHECK_BYTES) -> bool:
    """True if all numbers in X (an array, tensor or container of them) are finite; entries that are no numbers pass."""
    if type(X) is np.ndarray and X.dtype in _FLOATS and X.nbytes <= block_bytes and X.flags.c_contiguous:
        # the usual case, in one go; a sum of squares may overflow though every entry is finite
        return isfinite(np.vdot(X, X)) or bool(np.isfinite(X).all())
    if isinstance(X, Mapping):
        return all(all_finite(value) for value in X.values())
    if isinstance(X, (tuple, list)):
        return all(all_finite(value) for value in X)
    if isinstance(X, Tensor):
        # a finite sum shows it in one pass; a sum may overflow though every entry is finite
        return not X.is_floating_point() or isfinite(X.sum().item()) or bool(torch.isfinite(X).all())
    if sp.issparse(X):
        return all_finite(X.data)
    if _is_frame(X):
        numbers = X.select_dtypes("number") if hasattr(X, "select_dtypes") else X
        return all_finite(numbers.to_numpy())
    X = np.asarray(X) if isinstance(X, (float, np.matrix)) else X
    dtype = getattr(X, "dtype", None)
    if not isinstance(dtype, np.dtype) or dtype.kind not in "fc":
        return True
    if X.ndim == 0:
        return bool(np.isfinite(X))
    step = rows_within(block_bytes, X[:1].nbytes)
    parts = (X[start : start + step] for start in range(0, len(X), step))
    with np.errstate(over="ignore", invalid="ignore"):
        return all(_sums_up(part) or bool(np.isfinite(part).all()) for part in parts)


def _sums_up(part: np.ndarray) -> bool:
    """True if a sum over all entries is finite, so that each of them is; of their squares where that is quicker."""
    plain = part.flags.c_contiguous and part.dtype in _FLOATS and not isinstance(part, np.ma.MaskedArray)
    flat = part.reshape(-1) if plain else None
    return bool(np.isfinite(part.sum() if flat is None else flat @ flat))


def check_finite(
    X: Any, name: str, rows: Sequence[int] | np.ndarray | None = None, unless: Callable[[], bool] = lambda: False
) -> None:
    """Refuse NaN and infinity, and say in which row the first one stands.

    ``rows`` are the numbers that the message gives the rows. ``unless`` is called only if something is not finite;
    where it returns True, nothing is raised.
    """
    if all_finite(X) or unless():
        return
    bad = next(row for row in range(n_rows(X, name)) if not all_finite(take_rows(X, slice(row, row + 1))))
    bad = bad if rows is None else int(rows[bad])
    raise NonFiniteError(
        f"{name} must be finite. Got NaN or infinity, first in row {bad}. "
        "Impute or drop such rows before querying, for example with sklearn.impute.SimpleImputer in a Pipeline."
    )


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

    Longer floats become float64. Read-only memory (memory maps), and arrays that run backwards or hold their bytes in
    another order, are copied.

    Examples
    --------
    >>> as_tensor(np.arange(3)[::-1])
    tensor([2, 1, 0])
    """
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    return torch.from_numpy(array)


def dataset_input(item: Any) -> Any:
    """The input of a Dataset's item: ``x`` of ``(x, y)`` or ``(x,)``, or the item itself."""
    if isinstance(item, (tuple, list)) and not item:
        raise InvalidTypeError("A Dataset must yield (x, y), (x,) or x. Got nothing in its place. Return the sample.")
    return item[0] if isinstance(item, (tuple, list)) else item


def dataset_target(item: Any) -> Any:
    """The label of a Dataset's item ``(x, y)``."""
    if isinstance(item, (tuple, list)) and len(item) >= 2:
        return item[1]
    raise InvalidTypeError(
        "The labelled Dataset must yield (x, y) pairs when no y_training is given. "
        f"Got an item of type {type(item).__name__}. Pass y_training, or a Dataset with labels."
    )


def _open_memmap(
    filename: str, dtype: np.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int
) -> np.ndarray:
    """A memory map, or a part of one, by its place in a file: read-only."""
    if not Path(filename).exists():
        raise FileNotFoundError(
            f"A worker must find the memory map's file. Got no {filename} there. "
            "Put it at the same path on every machine, on a shared file system for example."
        )
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    raw = np.memmap(filename, np.uint8, "r", offset, (last + dtype.itemsize,))
    return np.ndarray(shape, dtype, raw.data, strides=strides)


def _open_hdf5(filename: str, name: str) -> Any:
    """A dataset of an HDF5 file, read-only."""
    import h5py

    return h5py.File(filename, "r")[name]


def reference_to(X: Any) -> Any | None:
    """What another process can open X from, to be sent to it once; None if the rows themselves must be sent.

    Datasets, zarr and Dask arrays travel by their own pickling. A dict goes by reference if everything in it does.
    """
    if isinstance(X, Mapping):
        references = {key: reference_to(value) for key, value in X.items()}
        return references if all(value is not None for value in references.values()) else None
    if isinstance(X, np.memmap):
        return _memmap_reference(X)
    if isinstance(X, Dataset):
        return X
    if not is_lazy(X):
        return None
    file = getattr(X, "file", None)
    if file is None or not hasattr(file, "filename"):
        return X
    if file.mode != "r":
        raise InvalidParameterError(
            "An HDF5 file that several processes read must be open for reading only. "
            f"Got {file.filename} with mode {file.mode!r}. Open it with h5py.File(name, 'r'), or use n_jobs=1."
        )
    return partial(_open_hdf5, file.filename, X.name)


def _memmap_reference(X: np.memmap) -> Any | None:
    name = X.filename
    if name is None or not Path(str(name)).exists() or min((0, *X.strides)) < 0 or X.size == 0 or X.mode == "c":
        return None  # mode "c": changes in this process alone
    base: Any = X
    while isinstance(base.base, np.memmap):
        base = base.base
    # the offset that a view inherits is that of the map it was cut from
    start = X.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    if X.flags.writeable:
        base.flush()
    return partial(_open_memmap, str(Path(str(name)).resolve()), X.dtype, X.shape, X.strides, base.offset + start)


def open_reference(reference: Any) -> Any:
    """Open what :func:`reference_to` stood for."""
    if isinstance(reference, Mapping):
        return {key: open_reference(value) for key, value in reference.items()}
    return reference() if isinstance(reference, partial) else reference


def detach_rows(rows: Any) -> Any:
    """A copy of the rows: pickling a view of a tensor would send all of its memory."""
    if isinstance(rows, Mapping):
        return {key: detach_rows(value) for key, value in rows.items()}
    if isinstance(rows, Tensor):
        return rows.detach().cpu().clone()
    return np.array(rows) if isinstance(rows, np.ndarray) else rows


def row_bytes(X: Any) -> int | None:
    """Bytes of one row of arrays and tensors; None for containers that do not know."""
    if isinstance(X, Mapping):
        sizes = [row_bytes(value) for value in X.values()]
        return None if None in sizes else sum(size for size in sizes if size is not None)
    n_bytes = getattr(X, "nbytes", None)
    return None if n_bytes is None or isinstance(X, Dataset) else -(-int(n_bytes) // max(1, n_rows(X)))
