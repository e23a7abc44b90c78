# SPDX-License-Identifier: BSD-3-Clause
"""What a labelling folder remembers beside its labels: the classes in the order of their keys, and the source."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from skal.exceptions import CheckpointError, InvalidParameterError
from skal.validation import as_list

FILE = "project.json"


def parse_classes(text: str) -> list[str]:
    """Classes from the command line, separated by commas; one that has a comma in it stands in double quotes.

    Examples
    --------
    >>> parse_classes('cat, dog,"red, white"')
    ['cat', 'dog', 'red, white']
    """
    rows = list(csv.reader([text], skipinitialspace=True))
    return check_classes(rows[0] if rows else [])


def check_classes(classes: Iterable[Any]) -> list[str]:
    """Classes as text, distinct and not empty."""
    expected, remedy = "a list of names", "Pass for example ['cat', 'dog']."
    given = [classes] if isinstance(classes, str) else classes
    names = [str(name).strip() for name in as_list("label", "classes", given, expected=expected, remedy=remedy)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if not names or "" in names or twice:
        got = f"{twice} more than once" if twice else f"{names}"
        raise InvalidParameterError(
            f"The classes must be distinct names that are not empty. Got {got}. Separate them by commas, and put a "
            "class that has a comma in it into double quotes: --classes 'cat,dog,\"red, white\"'."
        )
    return names


def read_settings(folder: Path) -> dict[str, Any]:
    """The settings of a folder, empty if there are none yet."""
    path = folder / FILE
    if not path.exists():
        return {}
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        check_classes(found["classes"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} must be as it was written. Got {type(error).__name__}: {error}. "
            "Delete it and name the classes again; the labels are not in it."
        ) from error
    return found


def write_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Replace the settings in one step."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f"{FILE}.new"
        new.unlink(missing_ok=True)  # left over, or a link that somebody has put there
        with open(new, "x", encoding="utf-8") as file:
            json.dump(settings, file, indent=1, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, folder / FILE)
    except OSError as error:
        raise CheckpointError(
            f"{folder} must be a folder that can be written to. Got an error: {error.strerror or error}. "
            "Make room, or choose another folder."
        ) from error
