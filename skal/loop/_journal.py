# SPDX-License-Identifier: BSD-3-Clause
"""The labels of a project, one JSON object a line, on the disk before anything else happens.

Lines are only ever added. What holds is the last line of each sample: a label, or that it was declined, or (after an
undone decline) nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd

from skal.exceptions import CheckpointError
from skal.loop._folder import sync_folder

FILE = "labels.jsonl"
COLUMNS = ["id", "label", "round", "time", "annotator", "source"]


class Journal:
    """Every label that was ever told, and what holds now.

    Parameters
    ----------
    folder : path or None
        Where ``labels.jsonl`` lies; without one the labels are kept in memory.

    Attributes
    ----------
    n_entries : int
    known : dict from id to entry
        The last entry of every sample that is labelled or declined, in the order in which they came to be so.
    earlier : dict from id to list
        All labels that each sample has had.

    Examples
    --------
    >>> journal = Journal(None)
    >>> journal.append([entry(7, "cat", round=0, source="initial")])
    >>> journal.append([entry(7, "dog", round=2, source="initial", previous="cat")])
    >>> journal.frame()[["id", "label", "round"]].to_dict("records")
    [{'id': 7, 'label': 'dog', 'round': 0}]
    """

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / FILE
        self.n_entries = 0
        self.known: dict[Any, dict[str, Any]] = {}
        self.earlier: dict[Any, list[Any]] = {}
        self._whole = 0  # bytes of whole lines
        self._size = 0  # of the file when we last looked

    def read(self) -> None:
        """Take what is in the file; the end of a line that was never finished is left out."""
        if self.path is None or not self.path.exists():
            return
        data = self.path.read_bytes()
        self._size, self._whole = len(data), data.rfind(b"\n") + 1
        for number, line in enumerate(data[: self._whole].splitlines(), start=1):
            try:
                found = json.loads(line)
                found["id"], found["label"], found["round"]
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"Every line of {self.path} must be a JSON object with 'id', 'label' and 'round'. "
                    f"Got something else in line {number}. Correct or delete that line."
                ) from error
            self._take(found)

    def append(self, entries: Iterable[dict[str, Any]]) -> None:
        """Add entries; they are on the disk when this returns."""
        entries = list(entries)
        if self.path is not None and entries:
            self._write("".join(json.dumps(part, ensure_ascii=False) + "\n" for part in entries).encode())
        for part in entries:
            self._take(part)

    def frame(self) -> pd.DataFrame:
        """The labels that hold: ``id, label, round, time, annotator, source``."""
        rows = [known for known in self.known.values() if known["label"] is not None]
        return pd.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows], columns=COLUMNS)

    def _take(self, found: dict[str, Any]) -> None:
        key, label = found["id"], found["label"]
        self.n_entries += 1
        if label is not None:
            self.earlier.setdefault(key, []).append(label)
        if key in self.known and (self.known[key]["label"] is None or label is None):
            del self.known[key]  # it comes last if it is labelled now
        if label is not None or found.get("declined"):
            corrected = self.known.get(key, found)  # a corrected label is still one of its round
            self.known[key] = found | {"round": corrected["round"]}

    def _write(self, data: bytes) -> None:
        path = self.path
        assert path is not None
        size = path.stat().st_size if path.exists() else 0
        if size != self._size:
            raise CheckpointError(
                f"{path} must be as this session left it. Got {size} bytes instead of {self._size}: somebody else has "
                "written to it. Nothing was lost; start again to go on from there."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(self._whole)
            file.seek(self._whole)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if size == 0:
            sync_folder(path.parent)
        self._whole += len(data)
        self._size = self._whole


def entry(
    key: Any,
    label: Any,
    *,
    round: int,
    source: str | None,
    annotator: Any = None,
    previous: Any = None,
    declined: bool | None = None,
    content: str | None = None,
) -> dict[str, Any]:
    """One line of the journal, made now; without what there is not."""
    time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    line = {"id": key, "label": label, "round": round, "time": time, "source": source}
    extra = {"annotator": annotator, "previous": previous, "declined": declined, "content": content}
    return line | {name: value for name, value in extra.items() if value is not None}
