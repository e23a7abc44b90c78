# SPDX-License-Identifier: BSD-3-Clause
"""The journal of a project: everything that ever happened to its labels, and the only truth about them.

``labels.jsonl`` has one event a line, as a JSON object that ends with a checksum. Lines are only ever added, and they
are on the disk before anybody is told that a label was taken. A sample is labelled, declined or open, as the last event
of its id says:

========== ==========================================================
event      meaning
========== ==========================================================
label      the sample has this label
declined   nobody can label the sample, and it is not asked for again
open       the label, or that it was declined, is taken back
class      there is one more class (``id`` and ``label`` are null)
========== ==========================================================
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterable
from datetime import datetime, timezone
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pandas as pd

from skal.exceptions import CheckpointError, SkalWarning
from skal.loop._json import format_json

FILE = "labels.jsonl"
COLUMNS = ["id", "label", "round", "time", "annotator", "source"]
_SUM_LENGTH = len(b', "sum": "0123456789abcdef"}')
_END = re.compile(rb'"sum": "[0-9a-f]{16}"}')  # of a whole line; in a text the quotes are escaped


class Journal:
    """Every event, and what holds now.

    Parameters
    ----------
    folder : path or None, default=None
        Where ``labels.jsonl`` lies; without one the events are kept in memory.

    Attributes
    ----------
    n_events : int
    n_changes : int
        How often the label of a sample has changed, or came, or went.
    known : dict from id to event
        The last event of every sample that is labelled or declined, in the order in which they came to be so.
    earlier : dict from id to list
        All labels that each sample has had.
    classes : dict from class to None
        Classes that were added, and those of the labels, in the order in which they came.

    Examples
    --------
    >>> journal = Journal()
    >>> journal.append([make_event("label", 7, "cat", round=0, source="initial")])
    >>> journal.append([make_event("label", 7, "dog", round=2, source="initial")])
    >>> journal.frame()[["id", "label", "round"]].to_dict("records")
    [{'id': 7, 'label': 'dog', 'round': 0}]
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.path = None if folder is None else folder / FILE
        self.n_events = self.n_changes = 0
        self.known: dict[Any, dict[str, Any]] = {}
        self.earlier: dict[Any, list[Any]] = {}
        self.classes: dict[Any, None] = {}
        self._whole = 0  # bytes of whole lines: what we know to be written
        self._size = 0  # of the file when we last looked; -1 after a failed write

    def read(self) -> Journal:
        """Take what is in the file; a damaged last line is what a broken write leaves, and is left out."""
        if self.path is None or not self.path.exists():
            return self
        data = self.path.read_bytes()
        self._size, lines = len(data), _split(data)
        for number, line in enumerate(lines, start=1):
            event = _parse(line)
            if event is None and number == len(lines) and not _END.search(line[:-2]):
                warnings.warn(
                    f"The last line of {self.path} was never written to its end; it is left out. What it said was not "
                    "confirmed to anybody: look at your last answer.",
                    SkalWarning,
                    stacklevel=2,
                )
                break
            if event is None:
                raise CheckpointError(
                    f"Every line of {self.path} must be as it was written. Got a damaged line {number}: its checksum "
                    f"is not that of its content. Copy the file, delete line {number} (the other lines stay as they "
                    "are), start again, and label the sample of that line once more."
                )
            self._fold(event)
            self._whole += len(line)
        return self

    def append(self, events: Iterable[dict[str, Any]]) -> None:
        """Add events; they are on the disk when this returns, or else nothing has changed."""
        events = list(events)
        if self.path is not None and events:
            self._write(self.path, b"".join(map(_format, events)))
        for event in events:
            self._fold(event)

    def frame(self) -> pd.DataFrame:
        """The labels that hold: ``id, label, round, time, annotator, source``."""
        known = [row for row in self.known.values() if row["label"] is not None]
        rows = [{name: row.get(name) for name in COLUMNS} for row in known]
        try:
            return pd.DataFrame(rows, columns=COLUMNS)
        except UnicodeEncodeError:  # pandas' own type for texts holds no half of a surrogate pair
            return pd.DataFrame(rows, columns=COLUMNS, dtype=object)

    def _fold(self, event: dict[str, Any]) -> None:
        """Let one event change what holds."""
        self.n_events += 1
        kind, key, label = event["event"], event["id"], event["label"]
        if kind == "class":
            self.classes[event["class"]] = None
            return
        before = self.known.get(key)
        self.n_changes += label != (None if before is None else before["label"])
        if before is not None and (before["label"] is None or label is None):
            del self.known[key]  # it comes last if it is labelled now
        if kind == "label":
            self.earlier.setdefault(key, []).append(label)
            self.classes[label] = None
            if before is not None and before["label"] is not None:
                event = event | {"round": before["round"]}  # a corrected label is still one of its round
        if kind != "open":
            self.known[key] = event

    def _write(self, path: Path, data: bytes) -> None:
        """Write behind the last whole line and sync; after a failure the file is cut back to where it was."""
        try:
            new = not path.exists()
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            raise _failure(path, error) from error
        try:
            size = os.fstat(descriptor).st_size
            if size != self._size and (self._size >= 0 or size < self._whole):
                raise CheckpointError(
                    f"{path} must be as this session left it. Got {size} bytes instead of {self._whole}: somebody else "
                    "has written to it. Nothing was lost; start again to go on from there."
                )
            self._size = -1  # unknown, until all of this has worked
            os.ftruncate(descriptor, self._whole)
            os.lseek(descriptor, self._whole, os.SEEK_SET)
            left = memoryview(data)
            while left:
                left = left[os.write(descriptor, left) :]
            os.fsync(descriptor)
            if new:
                for folder in (path.parent, path.parent.parent):
                    sync_folder(folder)
            self._whole += len(data)
            self._size = self._whole
        except OSError as error:
            _cut(descriptor, self._whole)
            raise _failure(path, error) from error
        finally:
            os.close(descriptor)


def make_event(
    kind: str,
    key: Any,
    label: Any = None,
    *,
    round: int,
    source: str | None,
    annotator: Any = None,
    content: str | None = None,
    **more: Any,
) -> dict[str, Any]:
    """One event, of now; the last entries are left out where there is nothing to say."""
    time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    event = {"event": kind, "id": key, "label": label, "round": round, "time": time, "source": source}
    extra = {"annotator": annotator, "content": content} | more
    return event | {name: value for name, value in extra.items() if value is not None}


def sync_folder(folder: Path) -> None:
    """Let the names of new files in a folder survive a power cut."""
    if os.name != "posix":
        return  # a folder cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(body: bytes) -> bytes:
    return blake2b(body, digest_size=8).hexdigest().encode()


def _format(event: dict[str, Any]) -> bytes:
    body = format_json(event).encode()
    return body[:-1] + b', "sum": "' + _checksum(body) + b'"}\n'


def _parse(line: bytes) -> dict[str, Any] | None:
    """The event of a line, None if it is not as it was written."""
    text = line.removesuffix(b"\n")
    if text == line or len(text) <= _SUM_LENGTH:
        return None
    body, tail = text[:-_SUM_LENGTH] + b"}", text[-_SUM_LENGTH:]
    if tail != b', "sum": "' + _checksum(body) + b'"}':
        return None
    event: dict[str, Any] = json.loads(body)
    return event if event.keys() >= {"event", "id", "label", "round", "time", "source"} else None


def _split(data: bytes) -> list[bytes]:
    """Lines that end with a line feed alone."""
    return [part + b"\n" for part in data.split(b"\n")[:-1]] + [part for part in data.split(b"\n")[-1:] if part]


def _cut(descriptor: int, size: int) -> None:
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    except OSError:
        pass  # the next write cuts it first


def _failure(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"A label must be written to {path} before it counts. Got an error of the disk: {error.strerror or error}. "
        "Nothing was changed. Make room or look at the disk, and say it again."
    )
