# SPDX-License-Identifier: BSD-3-Clause
"""By what a sample is known: an id that was given, or a hash of its content, wherever it stands in the pool."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch.utils.data import Dataset, Subset

from skal._core.containers import dataset_input, n_rows, take_rows
from skal._core.identity import object_digest
from skal.exceptions import InvalidParameterError, InvalidTypeError, shorten
from skal.validation import as_list

_CACHE = "ids.json"
_SPOT_CHECKS = 1000
_READ_TWICE = 16
_BLOCK = 1024


class SampleIds:
    """The ids of a pool.

    Given ones; else the index of a data frame, or the attribute or method ``ids`` of a Dataset; else, in a folder, a
    hash of each sample's content; else positions.

    Hashes are kept in the folder. The first time, every sample is read once. Afterwards at most 1,000 of them, spread
    evenly, and those that have been asked for, are read and compared; only if one differs are all read again.

    Parameters
    ----------
    X : all samples
    ids : array-like or None
        With a method ``digest(position)`` they say themselves what content they stand for.
    folder : path or None
    fingerprint : dict or None
        Of X; hashes that were kept with the same one, of all its content, need no comparing.
    asked : list of int
        Positions to be compared in any case.
    readonly : bool
        Keep nothing in the folder.

    Examples
    --------
    >>> ids = SampleIds(np.eye(2), ids=["a", "b"])
    >>> ids.of([1]), ids.position("b"), ids.position("c")
    (['b'], 1, None)
    """

    def __init__(
        self,
        X: Any,
        ids: Any = None,
        folder: Path | None = None,
        *,
        fingerprint: dict[str, Any] | None = None,
        asked: Iterable[int] = (),
        readonly: bool = False,
    ) -> None:
        self.X, self.folder, self.readonly, self.fingerprint = X, folder, readonly, fingerprint
        self._positions: dict[Any, int] | None = None
        self._array: np.ndarray | None = None
        self._unconfirmed = False
        self._confirmed: set[int] = set()
        self._random: bool | None = None
        self._digest_of = getattr(ids, "digest", None)  # by a file's bytes, say, rather than by what is made of them
        explicit = explicit_ids(X, ids)
        self.by_content = explicit is None and folder is not None
        if explicit is not None:
            self._ids = explicit
        elif folder is None:
            self._ids = list(range(n_rows(X)))
        else:
            self._ids = self._kept(asked) or self._hash_all()

    def __len__(self) -> int:
        return len(self._ids)

    def array(self) -> np.ndarray:
        """(n,) ids."""
        if self._array is None:
            kinds = {type(key) for key in self._ids}
            self._array = np.array(self._ids) if len(kinds) == 1 else np.array(self._ids, dtype=object)
        return self._array

    def of(self, positions: Iterable[int]) -> list[Any]:
        """The ids of samples; those that come from the folder are compared with the samples first."""
        positions = [int(position) for position in positions]
        new = [position for position in positions if position not in self._confirmed] if self._unconfirmed else []
        if new and self._differ(new):
            self._ids = self._hash_all()
        self._confirmed.update(new)
        return [self._ids[position] for position in positions]

    def position(self, key: Any) -> int | None:
        """Where the sample of this id stands, None if it is not in the pool."""
        if self._positions is None:
            self._positions = {own: position for position, own in enumerate(self._ids)}
        return self._positions.get(plain_id(key))

    def contents(self, positions: Iterable[int]) -> list[str | None]:
        """What to keep beside a given id, to see later that it still stands for the same content.

        None where the id is a hash already, and for a Dataset whose items change from one reading to the next.
        """
        positions = list(positions)
        if self._digest_of is not None and self.folder is not None:
            return [self._digest_of(position) for position in positions]
        if self.by_content or self.folder is None or self.is_random():
            return [None] * len(positions)
        return list(digests(self.X, positions))

    def is_random(self) -> bool:
        """Whether reading a sample twice gives two answers, as augmentation in a Dataset does."""
        if self._random is None:
            rows = np.unique(np.linspace(0, len(self) - 1, _READ_TWICE).astype(np.int64))
            self._random = isinstance(self.X, Dataset) and digests(self.X, rows) != digests(self.X, rows)
        return self._random

    def _kept(self, asked: Iterable[int]) -> list[str] | None:
        assert self.folder is not None
        try:
            kept = json.loads((self.folder / _CACHE).read_bytes())
            ids: list[str] = kept["ids"]
            digest, data = kept["digest"], kept["data"]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if len(ids) != n_rows(self.X) or digest != _digest_of(ids):
            return None
        self._ids = ids
        unchanged = says_everything(data) and data == self.fingerprint
        spots = np.unique(np.linspace(0, len(ids) - 1, _SPOT_CHECKS).astype(np.int64)).tolist()
        if not unchanged and self._differ([*spots, *asked]):
            return None
        self._unconfirmed = not unchanged
        return ids

    def _differ(self, positions: list[int]) -> bool:
        kept = [self._ids[position].split("#")[0] for position in positions]
        return kept != digests(self.X, positions)

    def _hash_all(self) -> list[str]:
        assert self.folder is not None
        self._ids, self._positions, self._array, self._unconfirmed = [""] * n_rows(self.X), None, None, False
        if self.is_random():
            raise InvalidParameterError(
                "With a checkpoint the samples must have ids, or be the same whenever they are read. Got a "
                f"{type(self.X).__name__} that gives another sample each time. Pass start(X, ids=...), or give the "
                "Dataset an attribute 'ids' with one id per sample, such as its file names."
            )
        ids = distinct(digests(self.X))
        if not self.readonly:
            self.folder.mkdir(parents=True, exist_ok=True)
            new = self.folder / f"{_CACHE}.new"
            new.unlink(missing_ok=True)  # left over, or a link that somebody has put there
            new.write_text(json.dumps({"digest": _digest_of(ids), "data": self.fingerprint, "ids": ids}))
            os.replace(new, self.folder / _CACHE)
        return ids


def says_everything(fingerprint: Any) -> bool:
    """Whether a fingerprint is of all the content."""
    if not isinstance(fingerprint, dict):
        return False
    if "sha256" in fingerprint:
        return not fingerprint["sampled"]
    return bool(fingerprint) and all(says_everything(part) for part in fingerprint.values())


def plain_id(key: Any) -> Any:
    """An id as JSON can hold it: an integer or a string."""
    key = key.item() if isinstance(key, (np.generic, torch.Tensor)) else key
    return key if isinstance(key, (int, str)) and not isinstance(key, bool) else str(key)


def explicit_ids(X: Any, ids: Any) -> list[Any] | None:
    """Ids that were given or that the samples bring with them, None if there are none."""
    given = ids is not None
    if not given and hasattr(X, "iloc"):
        ids = X.index
    if not given and isinstance(X, Dataset):
        ids = _of_dataset(X)
    if ids is None:
        return None
    ids = ids.tolist() if hasattr(ids, "tolist") else ids
    remedy = "Pass one integer or string per sample, such as its file name."
    listed = as_list("start", "ids", ids, expected=f"a list of {n_rows(X)} ids", remedy=remedy)
    plain = [plain_id(key) for key in listed]
    if len(plain) == n_rows(X) and len(set(plain)) == len(plain):
        return plain
    if hasattr(X, "iloc") and not given:
        return None  # an index with duplicates says nothing
    twice = [key for key, n in Counter(plain).items() if n > 1] if len(plain) == n_rows(X) else []
    got = f"{shorten(twice)} more than once" if twice else f"{len(plain)} ids"
    raise InvalidParameterError(
        f"The ids must be distinct, one for each of the {n_rows(X)} samples. Got {got} instead. "
        "Pass one integer or string per sample, such as its file name."
    )


def _of_dataset(X: Dataset[Any]) -> Any:
    ids = getattr(X, "ids", None)
    if ids is None and isinstance(X, Subset):
        inner = _of_dataset(X.dataset)
        inner = None if inner is None else list(inner)
        return None if inner is None else [inner[i] for i in X.indices]
    return ids() if callable(ids) else ids


def _digest_of(ids: list[str]) -> str:
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()


def distinct(found: Iterable[str]) -> list[str]:
    """Copies get a number: they hold the same content, so that it does not matter which is which."""
    seen: dict[str, int] = {}
    result = []
    for key in found:
        seen[key] = seen.get(key, 0) + 1
        result.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return result


def digests(X: Any, rows: Iterable[int] | None = None) -> list[str]:
    """A hash of the content of each of these samples.

    Examples
    --------
    >>> X = np.arange(6.0).reshape(3, 2)
    >>> digests(X, [2]) == digests(X[::-1], [0]), digests(X, [0]) == digests(X, [1])
    (True, False)
    """
    wanted = np.arange(n_rows(X)) if rows is None else np.asarray(list(rows), dtype=np.int64)
    if isinstance(X, Dataset):
        return [_digest(dataset_input(X[int(i)])) for i in wanted]
    found: list[str] = []
    for start in range(0, len(wanted), _BLOCK):  # as much as is in memory at once
        found += _digests_of_block(take_rows(X, wanted[start : start + _BLOCK]))
    return found


def _digests_of_block(block: Any) -> list[str]:
    if isinstance(block, Mapping) and not sp.issparse(block):
        parts = [_digests_of_block(value) for _, value in sorted(block.items(), key=lambda item: str(item[0]))]
        return [_digest("".join(row)) for row in zip(*parts, strict=True)]
    if hasattr(block, "iloc"):
        import pandas as pd

        return [f"{value:016x}" for value in pd.util.hash_pandas_object(block, index=False).tolist()]
    if sp.issparse(block):
        rows = block.tocsr()
        return [_digest([rows[i].indices, rows[i].data]) for i in range(rows.shape[0])]
    return [_digest(row) for row in block]


def _digest(sample: Any) -> str:
    if isinstance(sample, np.generic):  # a text of an array is that text in a list
        sample = sample.item()
    if isinstance(sample, torch.Tensor):
        sample = sample.detach().cpu().contiguous()
        if sample.dtype == torch.bfloat16:
            sample = sample.view(torch.int16)
        sample = sample.numpy()
    if isinstance(sample, np.ndarray) and not sample.dtype.hasobject:
        head = f"{sample.dtype} {sample.shape} ".encode()
        return hashlib.blake2b(head + np.ascontiguousarray(sample).tobytes(), digest_size=10).hexdigest()
    found = object_digest(sample)
    if found is None:
        raise InvalidTypeError(
            f"The samples must have ids, or content that can be read. Got a {type(sample).__name__} instead. "
            "Pass start(X, ids=...)."
        )
    return found[:20]
