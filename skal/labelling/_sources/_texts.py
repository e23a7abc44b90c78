# SPDX-License-Identifier: BSD-3-Clause
"""Texts: a column of a CSV or JSONL file, or a list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skal._core.identity import digest_bytes
from skal.exceptions import SampleError, shorten
from skal.labelling._sources._columns import Columns, distinct_ids
from skal.labelling._sources._source import Ids, Source, given_ids
from skal.loop._ids import make_distinct


class TextTable(Source):
    """Texts and their ids.

    Parameters
    ----------
    texts : sequence of str
    ids : sequence or None, default=None
        By default a hash of each text: rows may be added, removed and reordered.

    Examples
    --------
    >>> source = TextTable(["good", "bad", "good"])
    >>> source.text(1), len(set(source.ids))
    ('bad', 3)
    """

    kind = "text"

    def __init__(self, texts: Sequence[str], ids: Sequence[Any] | None = None) -> None:
        self.texts = [str(text) for text in texts]
        if not self.texts:
            raise SampleError("There must be at least one text. Got none. Check the file.")
        keys = make_distinct(map(_hash, self.texts)) if ids is None else given_ids(ids, len(self.texts))
        self.ids = Ids(keys, lambda position: _hash(self.texts[position]))

    @classmethod
    def from_columns(cls, path: Path, columns: Columns, column: str) -> TextTable:
        """The texts of a file.

        Parameters
        ----------
        path : path
            For messages.
        columns : dict of lists
            All columns of the file.
        column : str
            Which one has the text.
        """
        if column not in columns:
            raise SampleError(
                f"{path} must have the column {column!r} with the texts. Got the columns {shorten(list(columns))}. "
                "Name the right one with --text COLUMN."
            )
        if not columns[column]:
            raise SampleError(f"{path} must have at least one row. Got none. Check the file.")
        found = cls(["" if text is None else str(text) for text in columns[column]], distinct_ids(path, columns))
        found.chosen = {"text": column}
        return found

    def samples(self) -> np.ndarray:
        """(n,) array of texts."""
        return np.array(self.texts, dtype=object)

    def originals(self, rows: Sequence[int]) -> np.ndarray:
        """The texts."""
        return np.array([self.texts[position] for position in rows], dtype=object)

    def fields(self, position: int) -> dict[str, Any]:
        """The text."""
        return {"text": self.texts[position]}

    def text(self, position: int) -> str:
        """The text."""
        return self.texts[position]


def _hash(text: str) -> str:
    return digest_bytes(text.encode("utf-8", "surrogatepass")).hex()[:20]
