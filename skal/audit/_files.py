# SPDX-License-Identifier: BSD-3-Clause
"""The audit of a file of labels on the command line: ``skal audit labels.csv --truth audited.csv``."""

from __future__ import annotations

import csv
from typing import Any

import numpy as np

from skal._files.spreadsheet import format_table
from skal._files.whole import write_result
from skal.audit._design import plan
from skal.audit._given_labels import errors
from skal.exceptions import InvalidParameterError
from skal.validation import as_path

_SHOWN = 10  # doubtful labels on the screen


def audit_command(labels: Any, truth: Any, *, confidence: float = 0.95, doubtful: Any = None) -> None:
    """Print how many labels of a file are wrong, and which are doubtful.

    Parameters
    ----------
    labels : str or path
        A CSV file with the columns ``id`` and ``label``, and ``confidence`` if there is one: how sure it is that the
        label is right, from 0 to 1. A file of ``skal predict`` will do, too.
    truth : str or path
        A CSV file with the columns ``id``, ``label`` by people, and ``probability``: what :func:`draw_command` wrote,
        with the labels filled in. Without ``probability`` all are taken to have been equally probable, with a
        warning, because nothing shows that chance drew them.
    confidence : float, default=0.95
        How sure the interval should be.
    doubtful : str, path or None, default=None
        A CSV file to write the doubtful labels to, the most doubtful first: as many as errors are expected. The labels
        need a confidence for that.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skal.audit import audit_command, draw_command
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     labels, truth = Path(folder, "labels.csv"), Path(folder, "audited.csv")
    ...     _ = labels.write_text("id,label\\n" + "".join(f"{i},cat\\n" for i in range(1000)))
    ...     draw_command(labels, truth, 100)
    ...     _ = truth.write_text(truth.read_text().replace(",,", ",cat,"))  # people fill in the column
    ...     audit_command(labels, truth)  # doctest: +ELLIPSIS
    Drew 100 of 1,000 labels. Fill in the column label of ...audited.csv, then run the command without --draw.
    0.0 to 3.4 % of 1,000 labels are wrong, 95 % sure: 0 of 100 audited ones are.
    """
    given, audited = read_rows(labels, "labels"), read_rows(truth, "truth")
    place = {row["id"]: i for i, row in enumerate(given)}
    unknown = [row["id"] for row in audited if row["id"] not in place]
    if unknown:
        remedy = "Audit samples whose labels are in the first file."
        raise InvalidParameterError.for_parameter("audit_command", "truth", "ids of the labels", unknown[0], remedy)
    positions = np.array([place[row["id"]] for row in audited])
    names, true = np.array([row["label"] for row in given]), np.array([row["label"] for row in audited])
    chance = read_column(audited, "probability", "truth")
    if chance is None:
        chance = np.full(len(audited), len(audited) / len(given))
    scores = read_column(given, "confidence", "labels")
    if doubtful is not None and scores is None:
        remedy = "Add the column, or leave the file out."
        raise InvalidParameterError.for_parameter(
            "audit_command", "doubtful", "None without a column confidence", doubtful, remedy
        )
    found = errors(names, positions, true, chance, confidence, scores=scores)
    wrong = int((names[positions] != true).sum())
    print(
        f"{100 * found.low:.1f} to {100 * found.high:.1f} % of {len(given):,} labels are wrong, "
        f"{100 * confidence:g} % sure: {wrong} of {len(audited):,} audited ones are."
    )
    if len(found.doubtful):
        shown = ", ".join(given[i]["id"] for i in found.doubtful[:_SHOWN])
        print(f"The {len(found.doubtful):,} most doubtful of the others begin with {shown}.")
    if doubtful is not None:
        columns = ["id", "label", "confidence"]
        rows = ([given[i][column] for column in columns] for i in found.doubtful)
        text = format_table(columns, rows, safe=False)
        write_result(as_path("audit_command", "doubtful", doubtful), text)


def draw_command(labels: Any, truth: Any, n_labels: int, *, random_state: Any = None) -> None:
    """Draw the labels of a file that people should look at again, and write them to a file without the labels.

    Doubtful labels are drawn more often if the file has a confidence, and all equally often if not. The probabilities
    carry a checksum of the draw: samples that are left out, added or exchanged afterwards are noticed. They are written
    as hexadecimal numbers, which spreadsheet programs take for text: of others they keep only some digits.

    Parameters
    ----------
    labels : str or path
        As in :func:`audit_command`.
    truth : str or path
        The CSV file to write, with the columns ``id``, ``label``, which people fill in, and ``probability``.
    n_labels : int
        How many to draw.
    random_state : None, int, Generator or RandomState, default=None
        Where the draws come from.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skal.audit import draw_command
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "labels.csv").write_text("id,label\\na,cat\\nb,dog\\n")
    ...     draw_command(Path(folder, "labels.csv"), Path(folder, "audited.csv"), 2)  # doctest: +ELLIPSIS
    Drew 2 of 2 labels. Fill in the column label of ...audited.csv, then run the command without --draw.
    """
    given, path = read_rows(labels, "labels"), as_path("draw_command", "truth", truth)
    if path.exists():
        remedy = "Name another file, so that no labels are lost."
        raise InvalidParameterError.for_parameter("draw_command", "truth", "a new file", str(path), remedy)
    scores = read_column(given, "confidence", "labels")
    positions, chance = plan(
        len(given) if scores is None else scores, n_labels, uniform=scores is None, random_state=random_state
    )
    rows = [[given[i]["id"], "", p.hex()] for i, p in zip(positions, chance.tolist(), strict=True)]
    text = format_table(["id", "label", "probability"], rows, safe=False)
    write_result(path, text)
    words = f"Fill in the column label of {path}, then run the command without --draw."
    print(f"Drew {n_labels:,} of {len(given):,} labels. {words}")


def read_rows(path: Any, name: str) -> list[dict[str, str]]:
    """Rows of a CSV file with the columns id and label, and each id once."""
    try:
        with as_path("audit_command", name, path).open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        got = f"{str(path)!r}, which cannot be read: {getattr(error, 'strerror', None) or error}"
        first = " The option --draw N writes the first one." if name == "truth" else ""
        remedy = f"Name a CSV file in UTF-8 that is there.{first}"
        raise InvalidParameterError.for_parameter("audit_command", name, "a CSV file", got, remedy) from None
    if rows and "second_class" in rows[0]:  # of skal predict
        rows = [{"id": row["id"], "label": row["class"], "confidence": row["probability"]} for row in rows]
    columns = sorted(rows[0]) if rows else []
    if not {"id", "label"} <= set(columns):
        remedy = "The file's first line must name its columns: id,label."
        raise InvalidParameterError.for_parameter(
            "audit_command", name, "a CSV file with the columns id and label", columns, remedy
        )
    seen: set[str] = set()
    for row in rows:
        if row["id"] in seen or not row["label"]:
            got = f"{row['id']!r} twice" if row["label"] else f"no label for {row['id']!r}"
            remedy = "Give one label for each id: samples that people leave out are seldom the easy ones."
            raise InvalidParameterError.for_parameter("audit_command", name, "one label for each id", got, remedy)
        seen.add(row["id"])
    return rows


def read_column(rows: list[dict[str, str]], column: str, name: str) -> Any:
    """A column of numbers as an array, None if the file has no such column."""
    if column not in rows[0]:
        return None
    try:
        return np.array([read_number(row[column]) for row in rows])
    except (TypeError, ValueError):
        bad = next(row for row in rows if not is_number(row[column]))
        got = f"{bad[column]!r} for {bad['id']!r}"
        expected = f"a file whose column {column} has numbers"
        remedy = "Fill the column, or leave it out."
        raise InvalidParameterError.for_parameter("audit_command", name, expected, got, remedy) from None


def read_number(text: Any) -> float:
    """The number in a cell of a CSV file, decimal or hexadecimal."""
    return float.fromhex(text) if str(text).lower().startswith("0x") else float(text)


def is_number(text: Any) -> bool:
    """Whether a cell of a CSV file can be read as a number."""
    try:
        read_number(text)
    except (TypeError, ValueError):
        return False
    return True
