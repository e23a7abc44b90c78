# SPDX-License-Identifier: BSD-3-Clause
"""What a labelling folder remembers beside its labels: the classes in the order of their keys, and the source."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from skal._files.json_text import format_json, is_utf8, parse_json
from skal._files.whole import read_regular, replace_file
from skal._vocabulary import MULTILABEL
from skal.exceptions import CheckpointError, InvalidParameterError
from skal.validation import as_list

FILE = "project.json"
JOURNAL = "labels.jsonl"
_DOUBTS = "doubts.json"


def parse_names(text: str) -> list[str]:
    """Names from the command line, separated by commas; one that has a comma in it stands in double quotes.

    Examples
    --------
    >>> parse_names('cat, dog,"red, white"')
    ['cat', 'dog', 'red, white']
    """
    rows = list(csv.reader([text], skipinitialspace=True))
    return rows[0] if rows else []


def parse_classes(text: str) -> list[str]:
    """Classes from the command line."""
    return check_classes(parse_names(text))


def chosen_columns(settings: dict[str, Any]) -> dict[str, Any]:
    """The columns of a file that were labelled, for :func:`skal.labelling._sources.open_source`."""
    return {name: settings.get(name) for name in ("text", "columns")}


def check_classes(classes: Iterable[Any], *, strip: bool = True) -> list[str]:
    """Classes as text, distinct and not empty; without spaces around them, unless they are in use already."""
    expected, remedy = "a list of names", "Pass for example ['cat', 'dog']."
    given = [classes] if isinstance(classes, str) else classes
    names = [str(name) for name in as_list("label", "classes", given, expected=expected, remedy=remedy)]
    names = [name.strip() for name in names] if strip else names
    broken = [name for name in names if not is_utf8(name)]
    if broken:
        expected, remedy = "texts that UTF-8 can hold", "Write these characters anew: each is half of one."
        raise InvalidParameterError.for_parameter("label", "classes", expected, broken, remedy)
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or "" in names or twice:
        got = f"{twice} more than once" if twice else f"{names}"
        raise InvalidParameterError(
            f"The classes must be distinct names that are not empty. Got {got}. Separate them by commas, and put a "
            "class that has a comma in it into double quotes: --classes 'cat,dog,\"red, white\"'."
        )
    return names


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of a folder, empty if there are none yet.

    Where several classes may hold at once, the journal says which ones there are, and in which order.
    """
    path = folder / FILE
    if not path.exists():
        columns = _read_columns(folder)
        return {} if columns is None else {"task": MULTILABEL, "classes": columns}
    try:
        found = parse_json(read_regular(path))
        _check_types(found)
        if found.get("task") != "regression":
            check_classes(found["classes"], strip=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} must be as it was written. Got {type(error).__name__}: {error}. "
            f"Delete it and start again with the same source, classes and options; the labels are in {JOURNAL}."
        ) from error
    settings: dict[str, Any] = found
    columns = _read_columns(folder) if settings.get("task") == MULTILABEL else None
    if columns is not None and sorted(columns) != sorted(settings["classes"]):
        raise CheckpointError(
            f"The classes in {path} must be those of {JOURNAL}, {columns}. Got {settings['classes']}. Correct them, or "
            "delete the file and start again with the same source and options."
        )
    return settings if columns is None else settings | {"classes": columns}


def _read_columns(folder: Path) -> list[Any] | None:
    """The classes that the journal names, None if it names none."""
    if not (folder / JOURNAL).exists():
        return None
    from skal.loop._journal import read_columns  # with torch: not for a folder without labels

    return read_columns(folder)


def _check_types(found: dict[str, Any]) -> None:
    """Refuse settings of other types than those that are written."""
    if not isinstance(found["classes"], list) or not all(isinstance(name, str) for name in found["classes"]):
        raise TypeError("'classes' must be a list of texts")
    for name in ("kind", "source", "text", "target", "task", "unit"):
        if not isinstance(found.get(name), (str, type(None))):
            raise TypeError(f"{name!r} must be a text or null")
    for name in ("low", "high"):
        if not isinstance(found.get(name), (int, float, type(None))):
            raise TypeError(f"{name!r} must be a number or null")
    columns = found.get("columns")
    if columns is not None and not (isinstance(columns, list) and all(isinstance(name, str) for name in columns)):
        raise TypeError("'columns' must be a list of texts or null")


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Replace the settings in one step."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / FILE, format_json(settings, indent=1).encode())
    except OSError as error:
        raise CheckpointError(
            f"{folder} must be a folder that can be written to. Got an error: {error.strerror or error}. "
            "Make room, or choose another folder."
        ) from error


def write_doubts(folder: Path, doubts: dict[str, dict[str, Any]]) -> None:
    """Keep what models say of labels that were trained without them, by id."""
    try:
        replace_file(folder / _DOUBTS, format_json(doubts).encode("utf-8", "surrogatepass"), sync=False)
    except OSError as error:
        raise CheckpointError(f"Doubts must be written to {folder}. Got {error}. Make room on the disk.") from error


def read_doubts(folder: Path) -> dict[str, dict[str, Any]]:
    """Read the doubts that were kept; empty if there are none, or they cannot be read."""
    try:
        found = parse_json(read_regular(folder / _DOUBTS))
    except (OSError, ValueError):
        return {}
    found = found if isinstance(found, dict) else {}
    return {key: doubt for key, doubt in found.items() if _is_doubt(doubt)}


def _is_doubt(found: Any) -> bool:
    """Whether this is as it was written, as far as we read it."""
    return isinstance(found, dict) and isinstance(found.get("probability"), (int, float))
