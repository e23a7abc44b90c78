# SPDX-License-Identifier: BSD-3-Clause
"""From what a user names to a source."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skal.labelling._options import LIMITS, TABLES, find_source
from skal.labelling._sources._array_source import ArraySource
from skal.labelling._sources._columns import ID, read_columns
from skal.labelling._sources._images import ImageFolder
from skal.labelling._sources._source import Source
from skal.labelling._sources._table_rows import TableRows
from skal.labelling._sources._texts import TextTable


def open_source(
    path: Any,
    *,
    text: str | None = None,
    columns: Sequence[str] | None = None,
    size: int = 32,
    cache: Path | None = None,
) -> Source:
    """The samples in a folder or a file.

    Parameters
    ----------
    path : path
        A folder of images, a CSV or JSONL file of texts or of rows, or an npz file.
    text : str or None, default=None
        The column of the texts. If it is None, and so is ``columns``, a column named "text" has them, or the only one
        beside "id"; a file with several other columns has rows.
    columns : list of str or None, default=None
        The columns that make a row.
    size : int, default=32
        Pixels a side of the images that the model sees.
    cache : path or None, default=None
        A folder in which small images are kept.

    Returns
    -------
    Source
    """
    LIMITS["size"].check("label", "size", size)
    place = find_source(path)
    if place.is_dir():
        return ImageFolder(place, size=size, cache=cache)
    if place.suffix.lower() in TABLES:
        return _open_table(place, text, columns)
    return ArraySource.from_file(place)


def _open_table(path: Path, text: str | None, wanted: Sequence[str] | None) -> Source:
    columns = read_columns(path)
    others = [name for name in columns if name != ID]
    if text is None and wanted is None:
        text = "text" if "text" in columns or not others else others[0] if len(others) == 1 else None
    if text is None:
        return TableRows.from_columns(path, columns, wanted)
    return TextTable.from_columns(path, columns, text)
