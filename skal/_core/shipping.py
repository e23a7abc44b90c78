# SPDX-License-Identifier: BSD-3-Clause
"""How samples reach another process: by reference where it can open them itself, as rows where it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from skal._core.containers import is_lazy, n_rows
from skal.exceptions import InvalidParameterError


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

    Datasets, zarr and Dask arrays travel by their own pickling. A dict goes by reference if all that is in it does.
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


def opened(reference: Any) -> Any:
    """What :func:`reference_to` stood for."""
    if isinstance(reference, Mapping):
        return {key: opened(value) for key, value in reference.items()}
    return reference() if isinstance(reference, partial) else reference


def shippable(rows: Any) -> Any:
    """Rows without what they were cut from: a view of a tensor would take all of its memory along."""
    if isinstance(rows, Mapping):
        return {key: shippable(value) for key, value in rows.items()}
    if isinstance(rows, torch.Tensor):
        return rows.detach().cpu().clone()
    return np.array(rows) if isinstance(rows, np.ndarray) else rows


def row_bytes(X: Any) -> int | None:
    """Bytes of one row of arrays and tensors; None for what does not say."""
    if isinstance(X, Mapping):
        sizes = [row_bytes(value) for value in X.values()]
        return None if None in sizes else sum(size for size in sizes if size is not None)
    n_bytes = getattr(X, "nbytes", None)
    return None if n_bytes is None or isinstance(X, Dataset) else -(-int(n_bytes) // max(1, n_rows(X)))
