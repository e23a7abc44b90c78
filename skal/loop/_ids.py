# SPDX-License-Identifier: BSD-3-Clause
"""Ids of samples: given ones, or digests of their content, wherever they stand in the pool."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, Subset

from skal._core.containers import n_rows, take_rows
from skal._core.identity import digest_bytes, sample_digests
from skal._files.json_text import parse_json
from skal._files.whole import replace_file
from skal.exceptions import CheckpointError, InvalidParameterError, shorten
from skal.validation import as_list

_FILE = "ids.json"
_SPOT_CHECKS = 1000
_READ_TWICE = 16
_BLOCK = 1024


class SampleIds:
    """The ids of a pool.

    Given ones; else the index of a data frame, or the attribute or method ``ids`` of a Dataset; else, in a folder, a
    digest of each sample's content; else positions.

    Samples in memory are read at every start. Digests of a Dataset or a memory map are kept in the folder: at the next
    start at most 1,000 of them, spread evenly, and those that are in use are compared; only if one differs are all read
    again.

    Parameters
    ----------
    X : all samples
    ids : array-like or None
        With a method ``digest(position)`` they say themselves what content they stand for.
    folder : path or None
        Where digests are kept. None if samples need not be known in another process.
    readonly : bool
        Keep nothing in the folder.

    Examples
    --------
    >>> ids = SampleIds(np.eye(2), ids=["a", "b"])
    >>> ids.of([1]), ids.position("b"), ids.position("c")
    (['b'], 1, None)
    """

    def __init__(self, X: Any, ids: Any = None, folder: Path | None = None, *, readonly: bool = False) -> None:
        self.X, self.folder, self.readonly = X, folder, readonly
        self._positions: dict[Any, int] | None = None
        self._unconfirmed: set[int] = set()  # samples that have not been compared with a kept digest
        self._random: bool | None = None
        self._digest_of = getattr(ids, "digest", None)  # ids may know better, a file's bytes for example
        explicit = _explicit_ids(X, ids)
        self.by_content = explicit is None and folder is not None
        self._ids: Any = range(n_rows(X)) if explicit is None else explicit
        if self.by_content:
            self._ids = self._kept_digests() or self._digest_all()

    def __len__(self) -> int:
        return len(self._ids)

    def array(self) -> np.ndarray:
        """(n,) ids."""
        kinds = {type(key) for key in self._ids}
        return np.array(self._ids) if len(kinds) == 1 else np.array(self._ids, dtype=object)

    def of(self, positions: Iterable[int]) -> list[Any]:
        """The ids of samples; kept digests are compared with the samples first."""
        positions = [int(position) for position in positions]
        if new := [position for position in positions if position in self._unconfirmed]:
            self._unconfirmed.difference_update(new)
            if self._differ(new):
                self._ids = self._digest_all()
        return [self._ids[position] for position in positions]

    def position(self, key: Any) -> int | None:
        """The position of the sample with this id; None if it is not in the pool."""
        if self._positions is None:
            self._positions = {own: position for position, own in enumerate(self._ids)}
        return self._positions.get(plain_id(key))

    def contents(self, positions: Iterable[int]) -> list[str | None]:
        """The digest to keep beside a given id, to see later that its content is still the same.

        None where the id is a digest already, and for a Dataset whose items change from one reading to the next.
        """
        positions = list(positions)
        if self._digest_of is not None:
            return [self._digest_of(position) for position in positions]
        if self.by_content or not positions or self._is_random():
            return [None] * len(positions)
        return list(_digests(self.X, positions))

    def check_contents(self, kept: dict[Any, str]) -> None:
        """Refuse content that differs from what was kept beside a given id."""
        places = {key: self.position(key) for key in kept}
        there = {key: position for key, position in places.items() if position is not None}
        found = zip(there, self.contents(there.values()), strict=True)
        other = [key for key, content in found if content not in (None, kept[key])]
        if other:
            raise CheckpointError(
                f"The samples must be the same under the same id. Got other content for {len(other)} labelled samples: "
                f"{shorten(other)}. Pass the samples that were labelled, or give changed ones an id of their own."
            )

    def _is_random(self) -> bool:
        """True if reading a sample twice gives two results, as with augmentation in a Dataset."""
        if self._random is None:
            rows = np.unique(np.linspace(0, len(self) - 1, _READ_TWICE).astype(np.int64))
            self._random = isinstance(self.X, Dataset) and _digests(self.X, rows) != _digests(self.X, rows)
        return self._random

    def _kept_digests(self) -> list[str] | None:
        """The digests of the last start, if the pool seems to be the same."""
        if self.folder is None or not isinstance(self.X, (Dataset, np.memmap)):
            return None
        try:
            kept = parse_json((self.folder / _FILE).read_bytes())
            ids: list[str] = kept["ids"]
            whole = len(ids) == n_rows(self.X) and kept["sum"] == _sum_of(ids)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        if not whole:
            return None
        self._ids = ids
        spots = np.unique(np.linspace(0, len(ids) - 1, _SPOT_CHECKS).astype(np.int64)).tolist()
        if self._differ(spots):
            return None
        self._unconfirmed = set(range(len(ids))).difference(spots)
        return ids

    def _differ(self, positions: list[int]) -> bool:
        return [self._ids[position].split("#")[0] for position in positions] != _digests(self.X, positions)

    def _digest_all(self) -> list[str]:
        self._positions, self._unconfirmed = None, set()
        if self._is_random():
            raise InvalidParameterError(
                "With a checkpoint the samples must have ids, or be the same whenever they are read. Got a "
                f"{type(self.X).__name__} that gives another sample each time. Pass start(X, ids=...), or give the "
                "Dataset an attribute 'ids' with one id per sample, such as its file names."
            )
        ids = make_distinct(_digests(self.X, np.arange(n_rows(self.X))))
        if self.folder is not None and not self.readonly and isinstance(self.X, (Dataset, np.memmap)):
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                replace_file(self.folder / _FILE, json.dumps({"sum": _sum_of(ids), "ids": ids}).encode(), sync=False)
            except OSError:
                pass  # the next start reads all samples again
        return ids


def plain_id(key: Any) -> Any:
    """An id as JSON can hold it: an integer or a string."""
    if type(key) is str or type(key) is int:  # nearly always, and there may be many
        return key
    key = key.item() if isinstance(key, (np.generic, torch.Tensor)) else key
    return key if isinstance(key, (int, str)) and not isinstance(key, bool) else str(key)


def make_distinct(found: Iterable[str]) -> list[str]:
    """Give copies a number: they hold the same content, so that it does not matter which is which.

    Examples
    --------
    >>> make_distinct(["a", "b", "a"])
    ['a', 'b', 'a#2']
    """
    seen: Counter[str] = Counter()
    result = []
    for key in found:
        seen[key] += 1
        result.append(key if seen[key] == 1 else f"{key}#{seen[key]}")
    return result


def _explicit_ids(X: Any, ids: Any) -> list[Any] | None:
    """Ids that were given or that the samples bring with them, None if there are none."""
    given = ids is not None
    if not given and hasattr(X, "iloc"):
        ids = X.index
    if not given and isinstance(X, Dataset):
        ids = _ids_of_dataset(X)
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
        f"The ids must be distinct, one for each of the {n_rows(X)} samples. Got {got} instead. {remedy}"
    )


def _ids_of_dataset(X: Dataset[Any]) -> Any:
    ids = getattr(X, "ids", None)
    if ids is None and isinstance(X, Subset):
        inner = _ids_of_dataset(X.dataset)
        inner = None if inner is None else list(inner)
        return None if inner is None else [inner[i] for i in X.indices]
    return ids() if callable(ids) else ids


def _digests(X: Any, rows: Iterable[int]) -> list[str]:
    """The digests of these samples, as text; no more than a block of them is in memory at once."""
    wanted = np.asarray(list(rows), dtype=np.int64)
    blocks = (wanted[start : start + _BLOCK] for start in range(0, len(wanted), _BLOCK))
    return [digest.hex()[:20] for block in blocks for digest in sample_digests(take_rows(X, block))]


def _sum_of(ids: list[str]) -> str:
    return digest_bytes("\n".join(ids).encode()).hex()
