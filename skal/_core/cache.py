# SPDX-License-Identifier: BSD-3-Clause
"""The one cache: features and outputs of samples, by what computes them and by the samples' content."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.identity import DIGEST_BYTES
from skal.exceptions import FeatureError
from skal.validation import parse_memory

Result = TypeVar("Result")


class Cache:
    """Keeps features and outputs from one query to the next.

    Hand it to a learner: ``learner.cache = Cache()``. Everything is kept under the content of what it was computed
    with and for, so that nothing outdated is ever returned. A loop has a cache of its own.

    Parameters
    ----------
    max_memory : int or str, default="1GB"
        For everything that is kept in memory; what was used longest ago goes first.
    folder : path or None, default=None
        Where features of samples are kept too, for another process. None keeps them in memory alone.

    Attributes
    ----------
    n_computed : int
        Samples whose features had to be computed.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.features import Cache
    >>> from skal.strategies import entropy, margin
    >>> learner, X_pool = make_learner()
    >>> learner.cache = Cache("100MB")
    >>> first, second = margin(learner, X_pool), entropy(learner, X_pool)  # one pass over the pool
    """

    def __init__(self, max_memory: int | str = "1GB", folder: Any = None) -> None:
        self.max_memory = parse_memory("Cache", "max_memory", max_memory) or 0
        self.folder = None if folder is None else Path(folder)
        self.n_computed = 0
        self._kept: OrderedDict[str, Any] = OrderedDict()  # rows by source, and whole results by key

    def rows(self, source: str, keys: Sequence[Any], compute: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Features of samples; only those of new samples are computed.

        Parameters
        ----------
        source : str
            What computes them, as a digest.
        keys : n hashables
            The samples, as digests.
        compute : callable
            From (r,) positions among the samples to their (r, d) features.

        Returns
        -------
        (n, d) array
            One row per key.
        """
        store = self._kept.get(source)
        if store is None:
            store = self._kept[source] = _Rows(source, self.folder)
        before = len(store.places)
        values = store.rows(keys, compute)
        self.n_computed += len(store.places) - before
        self._make_room(source)
        return values

    def result(self, key: str, compute: Callable[[], Result]) -> Result:
        """``compute()``, or what it gave for the same key.

        Parameters
        ----------
        key : str
            A digest of everything that the result depends on.
        compute : callable
            Returns tensors, or tuples of them.

        Returns
        -------
        tensor, or tuple of tensors
            A copy of what is kept.
        """
        if key not in self._kept:
            result = compute()
            if _size(result) > self.max_memory:
                return result
            self._kept[key] = tree_map(_copy, result)
            self._make_room(key)
            return result
        self._kept.move_to_end(key)
        known: Result = tree_map(_copy, self._kept[key])
        return known

    def _make_room(self, latest: str) -> None:
        self._kept.move_to_end(latest)
        while self._kept and sum(map(_size, self._kept.values())) > self.max_memory:
            self._kept.popitem(last=False)


class _Rows:
    """Features of one source by the keys of their samples, in memory or in a folder.

    In the folder ``keys.bin`` has one key per sample, ``features.bin`` the rows in the same order, and ``meta.json``
    their width and type and the source: a folder of another source is refused.
    """

    def __init__(self, source: str, folder: Path | None) -> None:
        self.source, self.folder = source, folder
        self.places: dict[Hashable, int] = {}
        self.values: Any = None  # with spare rows at the end, or mapped from a file
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self._open(folder)

    def rows(self, keys: Sequence[Any], compute: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """(n, d) features; ``compute`` gives those of new samples."""
        # copies share one row
        new = {key: i for i, key in reversed(list(enumerate(keys))) if key not in self.places}
        rows = np.array(sorted(new.values()), dtype=np.int64)
        if len(rows):
            self._add([keys[i] for i in rows], compute(rows))
        return np.asarray(self.values[[self.places[key] for key in keys]])

    def _add(self, keys: list[Any], values: np.ndarray) -> None:
        start, n = len(self.places), len(self.places) + len(keys)
        if self.values is not None:
            values = values.astype(self.values.dtype)
        if self.folder is not None:
            self._append(self.folder, keys, values)
        elif self.values is None:
            self.values = values
        else:
            if n > len(self.values):  # room for twice as many, so that many small additions cause few copies
                spare = np.empty((n, values.shape[1]), dtype=values.dtype)
                self.values = np.concatenate([self.values[:start], spare])
            self.values[start:n] = values
        self.places |= {key: start + i for i, key in enumerate(keys)}

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
        n = min(sizes[0] // DIGEST_BYTES, sizes[1] // row_bytes)
        for name, size in (("keys.bin", DIGEST_BYTES), ("features.bin", row_bytes)):
            with (folder / name).open("r+b") as file:
                file.truncate(n * size)
        keys = (folder / "keys.bin").read_bytes()
        self.places = {keys[DIGEST_BYTES * i : DIGEST_BYTES * (i + 1)]: i for i in range(n)}
        self.values = np.memmap(folder / "features.bin", dtype, "r", shape=(n, width)) if n else None

    def _append(self, folder: Path, keys: list[bytes], values: np.ndarray) -> None:
        width, n = values.shape[1], len(self.places)
        parts = {
            "features.bin": (values.tobytes(), width * values.itemsize),
            "keys.bin": (b"".join(keys), DIGEST_BYTES),
        }
        try:
            for name, (content, _) in parts.items():
                with (folder / name).open("ab" if n else "wb") as file:  # without a row, what is there is a remainder
                    file.write(content)
            if not n:  # last, and whole or not at all: a folder without it is empty
                meta = {"source": self.source, "width": width, "dtype": str(values.dtype)}
                (folder / "meta.new").write_text(json.dumps(meta), encoding="utf-8")
                os.replace(folder / "meta.new", folder / "meta.json")
        except OSError as error:
            for name, (_, size) in parts.items():
                with suppress(FileNotFoundError):  # half a row would shift all that follow, and takes room
                    os.truncate(folder / name, n * size)
            raise FeatureError(
                f"Features must be written to {folder}. Got an error: {error.strerror or error}. Make room, or choose "
                f"another folder. The features of {n} samples are kept there."
            ) from error
        self.values = np.memmap(folder / "features.bin", values.dtype, "r", shape=(len(self.places) + len(keys), width))


def _copy(value: Any) -> Any:
    """Copy a tensor, so that callers may write into theirs and not into the cache's."""
    return value.clone() if isinstance(value, Tensor) else value


def _size(value: Any) -> int:
    if isinstance(value, _Rows):
        return 0 if value.values is None or value.folder is not None else int(value.values.nbytes)
    return sum(x.numel() * x.element_size() for x in tree_leaves(value) if isinstance(x, Tensor))
