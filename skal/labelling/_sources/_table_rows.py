# SPDX-License-Identifier: BSD-3-Clause
"""Rows of a table with columns of any kind: a data frame, or the columns of a CSV or JSONL file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from skal._core.identity import digest_bytes
from skal.exceptions import SampleError, shorten
from skal.labelling._sources._columns import ID, Columns, distinct_ids
from skal.labelling._sources._source import Ids, Source, given_ids
from skal.loop._ids import make_distinct

LABEL = "label"  # beside the ids, a column that is no part of a sample
# cells that pandas takes for missing ones, so that its readers and this one agree
_MISSING = {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A"}
_MISSING |= {"NA", "NULL", "NaN", "None", "n/a", "nan", "null"}


class TableRows(Source):
    """Rows of a table.

    Parameters
    ----------
    table : data frame
        Columns of numbers, strings, dates or truth values, with gaps.
    ids : sequence or None, default=None
        By default a hash of each row's content.
    labels : sequence or None, default=None
        Known labels, missing where there is none.
    shown : dict of lists or None, default=None
        The cells as people should see them; by default those of the table.

    Examples
    --------
    >>> source = TableRows(pd.DataFrame({"age": [31, None], "job": ["nurse", "smith"]}), ids=["a", "b"])
    >>> source.cells(1)
    [('age', ''), ('job', 'smith')]
    """

    kind = "table"

    def __init__(
        self,
        table: pd.DataFrame,
        ids: Sequence[Any] | None = None,
        labels: Sequence[Any] | None = None,
        shown: Columns | None = None,
    ) -> None:
        names = table.columns.tolist()
        if 0 in table.shape or len({name for name in names if isinstance(name, str)}) < len(names):
            raise SampleError(
                "A table must have at least one row, and columns whose names are texts, each another one. Got "
                f"{len(table)} rows and the columns {shorten(names)}. Check the file, or name the columns anew."
            )
        self._table = table.reset_index(drop=True)
        self._shown = {name: [_show(cell) for cell in (shown or table)[name]] for name in names}
        n = len(table)
        keys = make_distinct(self._digest(position) for position in range(n)) if ids is None else given_ids(ids, n)
        self.ids = Ids(keys, self._digest)
        known = zip(self.ids, [None] * n if labels is None else labels, strict=True)
        self._labels = {key: str(label) for key, label in known if not _is_missing(label)}

    @classmethod
    def from_columns(cls, path: Path, columns: Columns, wanted: Sequence[str] | None) -> TableRows:
        """The columns of a file.

        Parameters
        ----------
        path : path
            For messages.
        columns : dict of lists
            All columns of the file; "id" names the rows.
        wanted : list of str or None
            The columns that make a row. By default all but "id", and "label", which has labels that are known.
        """
        names = [name for name in columns if name not in (ID, LABEL)] if wanted is None else list(wanted)
        missing = [name for name in names if name not in columns]
        if missing or not names:
            raise SampleError(
                f"{path} must have the columns {shorten(missing or ['of a row'])}. Got the columns "
                f"{shorten(list(columns))}. Name others with --columns A,B, or the column of texts with --text COLUMN."
            )
        table = pd.DataFrame({name: _read_cells(columns[name]) for name in names})
        labels = None if LABEL in names else columns.get(LABEL)
        found = cls(table, distinct_ids(path, columns), labels, {name: columns[name] for name in names})
        found.chosen = {"columns": names}
        return found

    @classmethod
    def from_frame(cls, frame: pd.DataFrame, ids: Sequence[Any] | None) -> TableRows:
        """A data frame; its columns "id" and "label" are as in a file, and without ids its index names the rows."""
        if ids is None and ID in frame:
            ids = frame[ID].tolist()
        elif ids is None and frame.index.is_unique:
            ids = frame.index.tolist()
        labels = frame[LABEL].tolist() if LABEL in frame else None
        return cls(frame.drop(columns=[ID, LABEL], errors="ignore"), ids, labels)

    @property
    def folder_labels(self) -> dict[str, str]:
        """The labels that came with the rows."""
        return self._labels

    def samples(self) -> pd.DataFrame:
        """The table, with columns of numbers and of strings."""
        return self._table

    def originals(self, rows: Sequence[int]) -> pd.DataFrame:
        """Rows of the table."""
        return self._table.iloc[list(rows)]

    def cells(self, position: int) -> list[tuple[str, str]]:
        """Names of the columns and what is in them, as people should see it."""
        return [(name, cells[position]) for name, cells in self._shown.items()]

    def fields(self, position: int) -> dict[str, Any]:
        """The columns of a row, None where one is missing."""
        row = {name: self._table[name].iloc[position] for name in self._table}
        return {name: None if _is_missing(cell) else _plain(cell) for name, cell in row.items()}

    def text(self, position: int) -> str:
        """A row in words."""
        return ", ".join(f"{name}: {cell or 'missing'}" for name, cell in self.cells(position))

    def _digest(self, position: int) -> str:
        return digest_bytes(json.dumps(self.cells(position)).encode()).hex()[:20]


def _read_cells(cells: Sequence[Any]) -> pd.Series:
    """A column of numbers if all cells that are not missing are numbers, as when pandas reads a file."""
    there = [None if _is_missing(cell) else cell for cell in cells]
    texts = [json.dumps(cell) if isinstance(cell, (dict, list)) else cell for cell in there]
    column = pd.Series(texts, dtype=object)
    if any(isinstance(cell, bool) for cell in texts):
        return column
    numbers = pd.to_numeric(column, errors="coerce")
    return numbers if bool((numbers.notna() == column.notna()).all()) else column


def _is_missing(cell: Any) -> bool:
    return (
        cell in _MISSING
        if isinstance(cell, str)
        else cell is None or bool(pd.api.types.is_scalar(cell) and pd.isna(cell))
    )


def _plain(cell: Any) -> Any:
    """A cell as JSON can hold it."""
    cell = cell.item() if hasattr(cell, "item") else cell
    return cell if isinstance(cell, (bool, int, float, str)) else str(cell)


def _show(cell: Any) -> str:
    if _is_missing(cell):
        return ""
    return str(cell).removesuffix(".0" if isinstance(cell, float) else " 00:00:00")
