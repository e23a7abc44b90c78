# SPDX-License-Identifier: BSD-3-Clause
"""What is labelled: images, texts, rows of a table, or arrays; with ids, samples and something to look at."""

from skal.labelling._sources._array_source import ArraySource
from skal.labelling._sources._columns import read_columns, read_pairs
from skal.labelling._sources._images import ImageFolder
from skal.labelling._sources._open import open_source
from skal.labelling._sources._source import Source, known_labels, resolve
from skal.labelling._sources._table_rows import TableRows
from skal.labelling._sources._texts import TextTable

__all__ = [
    "ArraySource",
    "ImageFolder",
    "Source",
    "TableRows",
    "TextTable",
    "known_labels",
    "open_source",
    "read_columns",
    "read_pairs",
    "resolve",
]
