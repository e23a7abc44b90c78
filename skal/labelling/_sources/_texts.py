# SPDX-License-Identifier: BSD-3-Clause
"""Texts: a column of a CSV or JSONL file, or a list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skal._core.identity import digest_bytes
from skal.exceptions import SampleError, shorten
from skal.labelling._sources._source import Ids, Source, given_ids, read_table
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
        self.folder_labels = {}

    @classmethod
    def from_file(cls, path: Path, column: str | None) -> TextTable:
        """The texts of a CSV or JSONL file.

        Parameters
        ----------
        path : path
        column : str or None
            Which column has the text; may be None if it is named "text", or is the only one.
        """
        table = read_table(path)
        if column is None:
            column = "text" if "text" in table or len(table.columns) != 1 else str(table.columns[0])
        if column not in table:
            raise SampleError(
                f"{path} must have the column {column!r} with the texts. Got the columns {shorten(list(table))}. "
                "Name the right one with --text COLUMN."
            )
        if len(table) == 0:
            raise SampleError(f"{path} must have at least one row. Got none. Check the file.")
        keys = table["id"].astype(str).tolist() if "id" in table else None
        if keys is not None and len(set(keys)) < len(keys):
            twice = sorted({key for key in keys if keys.count(key) > 1})[:5] if len(keys) < 10**4 else "some"
            raise SampleError(
                f"The column 'id' of {path} must name every row once. Got {shorten(twice)} more than once. "
                "Make the ids distinct, or rename the column: rows are then known by their text."
            )
        return cls(["" if text is None else str(text) for text in table[column].tolist()], keys)

    def samples(self) -> np.ndarray:
        """(n,) array of texts."""
        return np.array(self.texts, dtype=object)

    def text(self, position: int) -> str:
        """The text."""
        return self.texts[position]


def _hash(text: str) -> str:
    return digest_bytes(text.encode()).hex()[:20]
