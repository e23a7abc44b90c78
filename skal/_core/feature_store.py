# SPDX-License-Identifier: BSD-3-Clause
"""Features by the content of their samples: in memory, in a folder, and from round to round of a loop."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch.utils.data import Dataset

from skal.exceptions import FeatureError, InvalidTypeError

_KEY_BYTES = 16


class FeatureStore:
    """Features by the keys of their samples, in memory or in a folder.

    Parameters
    ----------
    source : str
        What computes them.
    folder : path or None
        In it ``keys.bin`` has one 16-byte key per sample, ``features.bin`` the rows in the same order, and
        ``meta.json`` their width and type and the source: a folder of another source is refused.

    Attributes
    ----------
    n_computed : int
        Samples whose features had to be computed.

    Examples
    --------
    >>> store = FeatureStore("squares")
    >>> store.rows("abc", lambda rows: np.array([[1.0], [4.0], [9.0]])[rows]).tolist()
    [[1.0], [4.0], [9.0]]
    >>> store.rows("ca", lambda rows: 1 / 0).tolist()  # nothing is new
    [[9.0], [1.0]]
    """

    def __init__(self, source: str, folder: Any = None) -> None:
        self.source = source
        self.folder = None if folder is None else Path(folder)
        self.device = torch.device("cpu")
        self.n_computed = 0
        self._places: dict[Hashable, int] = {}
        self._values: Any = None  # more rows than there are keys, or those of a file
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._open(self.folder)

    @property
    def width(self) -> int | None:
        """Number of features; None as long as there are none."""
        return None if self._values is None else self._values.shape[1]

    def rows(self, keys: Sequence[Any], compute: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """(n, d) features of samples; ``compute(rows)`` gives those of samples that are new, an (r, d) array."""
        # of copies one is enough
        new = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self._places}
        rows = np.array(sorted(new.values()), dtype=np.int64)
        if len(rows):
            self._add([keys[i] for i in rows], compute(rows))
        return np.asarray(self._values[[self._places[key] for key in keys]])

    def _add(self, keys: list[Any], values: np.ndarray) -> None:
        start, n = len(self._places), len(self._places) + len(keys)
        if self._values is not None:
            values = values.astype(self._values.dtype)
        if self.folder is not None:
            self._append(self.folder, keys, values)
        elif self._values is None:
            self._values = values
        else:
            if n > len(self._values):  # twice as many, so that many small additions are not copied many times
                spare = np.empty((n, values.shape[1]), dtype=values.dtype)
                self._values = np.concatenate([self._values[:start], spare])
            self._values[start:n] = values
        self._places |= {key: start + i for i, key in enumerate(keys)}
        self.n_computed += len(keys)

    def _open(self, folder: Path) -> None:
        if not (folder / "meta.json").exists():
            return
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        if meta["source"] != self.source:
            raise FeatureError(
                f"The features in {folder} must have been computed by {self.source}. Got those of "
                f"{meta['source']} instead. Choose another folder, or delete this one."
            )
        width, dtype = meta["width"], np.dtype(meta["dtype"])
        row_bytes = width * dtype.itemsize
        sizes = [(folder / name).stat().st_size for name in ("keys.bin", "features.bin")]
        # a run that was stopped while it wrote leaves half a row
        n = min(sizes[0] // _KEY_BYTES, sizes[1] // row_bytes)
        for name, size in (("keys.bin", _KEY_BYTES), ("features.bin", row_bytes)):
            with (folder / name).open("r+b") as file:
                file.truncate(n * size)
        keys = (folder / "keys.bin").read_bytes()
        self._places = {keys[_KEY_BYTES * i : _KEY_BYTES * (i + 1)]: i for i in range(n)}
        self._values = np.memmap(folder / "features.bin", dtype, "r", shape=(n, width)) if n else None

    def _append(self, folder: Path, keys: list[bytes], values: np.ndarray) -> None:
        width = values.shape[1]
        if self._values is None:
            meta = {"source": self.source, "width": width, "dtype": str(values.dtype)}
            (folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
        for name, content in (("features.bin", values.tobytes()), ("keys.bin", b"".join(keys))):
            with (folder / name).open("ab") as file:
                file.write(content)
        self._values = np.memmap(
            folder / "features.bin", values.dtype, "r", shape=(len(self._places) + len(keys), width)
        )


class FeatureMemory:
    """What a loop remembers of features from round to round, by what computes them.

    Parameters
    ----------
    n_sources : int
        The source that was used longest ago is forgotten when there are more. A loop's start and its strategy may have
        features of their own.

    Examples
    --------
    >>> memory = FeatureMemory()
    >>> memory.store("a backbone") is memory.store("a backbone")
    True
    """

    def __init__(self, n_sources: int = 2) -> None:
        self._n_sources = n_sources
        self._stores: OrderedDict[str, FeatureStore] = OrderedDict()

    def store(self, source: str) -> FeatureStore:
        """The features of a source."""
        store = self._stores.setdefault(source, FeatureStore(source))
        self._stores.move_to_end(source)
        while len(self._stores) > self._n_sources:
            self._stores.popitem(last=False)
        return store

    @contextmanager
    def used(self) -> Iterator[None]:
        """Strategies remember their features here, inside this block."""
        token = current_memory.set(self)
        try:
            yield
        finally:
            current_memory.reset(token)


# of the loop that asks at present: None outside a loop
current_memory: ContextVar[FeatureMemory | None] = ContextVar("skal_features", default=None)


def sample_keys(X: Any) -> list[bytes]:
    """A hash of every sample, the same in another process.

    Examples
    --------
    >>> keys = sample_keys(np.array([[1, 2], [3, 4], [1, 2]]))
    >>> keys[0] == keys[2], keys[0] == keys[1]
    (True, False)
    """
    if sp.issparse(X):
        X = X.tocsr()
        X.sort_indices()
        parts = zip(np.split(X.indices, X.indptr[1:-1]), np.split(X.data, X.indptr[1:-1]), strict=True)
        return [_key(indices.tobytes() + data.tobytes()) for indices, data in parts]
    if isinstance(X, Mapping):
        rows: Any = zip(*(sample_keys(value) for value in X.values()), strict=True)
        return [_key(b"".join(row)) for row in rows]
    if isinstance(X, Dataset):
        expected, remedy = "an array, a tensor, a data frame, a list, or a dict of these", "Pass samples as an array."
        raise InvalidTypeError.for_parameter("RememberedFeatures", "X", expected, X, remedy)
    array = np.asarray(X.cpu() if isinstance(X, torch.Tensor) else X)
    if array.dtype.kind in "OU":
        return [_key(str(row if array.ndim == 1 else row.tolist()).encode()) for row in array]
    return [_key(row.tobytes()) for row in np.ascontiguousarray(array)]


def _key(content: bytes) -> bytes:
    return blake2b(content, digest_size=_KEY_BYTES).digest()
