# SPDX-License-Identifier: BSD-3-Clause
"""Tables as text that comes back as it was, in CSV and TSV, and harmless in a spreadsheet if that is wanted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

SAFE = "safe_csv"  # the column that says so
_QUOTED = re.compile(r'[",;\t]|[^ -~]|^ | $')  # more than must be: other readers take other characters for line ends
_FORMULA = re.compile(r"[\t\r\n']|\s*[=+\-@＝＋－＠]")


def format_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, separator: str = ",", safe: bool) -> str:
    """A table as text; in UTF-8, half of a surrogate pair needs ``errors="surrogatepass"``.

    Parameters
    ----------
    columns : list of str
    rows : iterable of list
        What is missing is empty.
    separator : str, default=","
    safe : bool
        Put an apostrophe before everything that a spreadsheet could take for a formula, and before apostrophes; a
        column of its own tells :func:`remove_apostrophe` that this was done.

    Examples
    --------
    >>> format_table(["id", "label"], [["a", "=1+1"], ["b", None]], safe=False)
    'id,label\\na,=1+1\\nb,\\n'
    >>> format_table(["id", "label"], [["a", "=1+1"]], safe=True)
    "id,label,safe_csv\\na,'=1+1,1\\n"
    """
    lines = [list(columns), *([_as_text(value) for value in row] for row in rows)]
    if safe:
        lines = [[_add_apostrophe(cell) for cell in line] for line in lines]
        lines = [[*line, "1" if number else SAFE] for number, line in enumerate(lines)]
    return "".join(separator.join(map(_quote, line)) + "\n" for line in lines)


def remove_apostrophe(cell: str) -> str:
    """A cell of a table that was made safe, as it was."""
    return cell.removeprefix("'")


def _add_apostrophe(cell: str) -> str:
    return f"'{cell}" if _FORMULA.match(cell) else cell


def _as_text(value: Any) -> str:
    return "" if value is None or (isinstance(value, float) and pd.isna(value)) else str(value)


def _quote(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if _QUOTED.search(cell) else cell
