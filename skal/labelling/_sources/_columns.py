# SPDX-License-Identifier: BSD-3-Clause
"""CSV, TSV and JSONL files, column by column, with every character as it stands there."""

from __future__ import annotations

import csv
import io
from collections import Counter
from pathlib import Path
from typing import Any

from skal._files.json_text import parse_json
from skal._files.spreadsheet import SAFE, remove_apostrophe
from skal._files.whole import read_regular
from skal.exceptions import SampleError, shorten
from skal.loop._journal import COLUMNS

ID = "id"
ID_COLUMNS = (ID, "file", "filename", "path", "image")
LABEL_COLUMNS = ("label", "class", "target", "y")
LONGEST_CELL = 2**31 - 1

Columns = dict[str, list[Any]]


def read_columns(path: Path) -> Columns:
    """The columns of a table: texts in CSV and TSV, anything in JSONL; SampleError if it is none.

    Cells that ``skal export --safe-csv`` has made harmless are as they were before.
    """
    try:
        data = read_regular(path)
        if path.suffix.lower() in (".jsonl", ".ndjson"):
            return _by_column([dict(parse_json(line)) for line in data.split(b"\n") if line.strip()])
        columns = _read_csv(data.decode("utf-8-sig", "surrogatepass"), "\t" if path.suffix.lower() == ".tsv" else ",")
    except OSError as error:
        raise SampleError(
            f"{path} must be a file that can be read. Got: {error.strerror or error}. Check the path."
        ) from error
    except (ValueError, TypeError, csv.Error) as error:
        raise SampleError(
            f"{path} must be a CSV or JSONL file in UTF-8. Got something else ({type(error).__name__}: "
            f"{shorten(str(error))}). Save it as such."
        ) from error
    if columns.pop(SAFE, None) is not None:
        columns = {name: [remove_apostrophe(cell) for cell in cells] for name, cells in columns.items()}
    return columns


def read_pairs(path: Path) -> list[tuple[Any, Any]]:
    """(id, label) of every line that has a label; as texts, unless the file is one of ours in JSONL."""
    columns = read_columns(path)
    ours = columns.keys() >= set(COLUMNS)  # then every line has a label, though it may be empty
    keys = next((columns[name] for name in ID_COLUMNS if name in columns), None)
    labels = next((columns[name] for name in LABEL_COLUMNS if name in columns), None)
    if not columns:
        return []
    if keys is None or labels is None:
        raise SampleError(
            f"{path} must have a column of ids ({', '.join(ID_COLUMNS)}) and one of labels "
            f"({', '.join(LABEL_COLUMNS)}). Got the columns {shorten(list(columns))}. Rename two of them."
        )
    pairs = zip(keys, labels, strict=True)
    if ours:  # what a model says of the rest is no label
        by_people = (source != "model" for source in columns["source"])
        return [pair for pair, given in zip(pairs, by_people, strict=True) if given and pair[1] is not None]
    return [(str(key), str(label)) for key, label in pairs if label not in (None, "")]


def distinct_ids(path: Path, columns: Columns) -> list[str] | None:
    """The column "id" as texts, None if there is none; SampleError if it names two rows alike."""
    if ID not in columns:
        return None
    keys = [str(key) for key in columns[ID]]
    twice = [key for key, n in Counter(keys).items() if n > 1]
    if twice:
        raise SampleError(
            f"The column 'id' of {path} must name every row once. Got {shorten(twice)} more than once. "
            "Make the ids distinct, or rename the column: rows are then known by their content."
        )
    return keys


def _read_csv(text: str, separator: str) -> Columns:
    before = csv.field_size_limit(LONGEST_CELL)  # a text may be long
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
        header = next(reader, [])
        rows = []
        for row in reader:
            if len(row) > len(header):
                raise ValueError(f"{len(row)} cells up to line {reader.line_num}, where the header has {len(header)}")
            if row:
                rows.append(row + [""] * (len(header) - len(row)))
    finally:
        csv.field_size_limit(before)
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _by_column(rows: list[dict[str, Any]]) -> Columns:
    if not all(rows):
        raise ValueError("an object without entries")
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}
