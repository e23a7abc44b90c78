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
answer     one of several people, ``annotator``, says this label (null: cannot say)
withdrawn  this person takes the answer back
class      there is one more class (``id`` and ``label`` are null)
columns    a row of numbers has one for each of these ``columns``, in this order
========== ==========================================================

Answers of several people stand beside one another, the last of each person. A sample that has any is labelled as they
agree; where they differ, the majority holds, each weighed by how reliable they have been (:mod:`skal.loop._consensus`).
A ``label`` or ``declined`` decides, whatever the answers say; ``open`` takes the decision back, and they hold again.

Whoever writes holds the lock of the folder: there is one writer at a time.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import warnings
import weakref
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pandas as pd

from skal._files.json_text import format_json, parse_json
from skal._files.whole import open_regular, read_regular, sync_folder
from skal.exceptions import CheckpointError, SkalWarning
from skal.loop._consensus import weigh_answers

FILE = "labels.jsonl"
_LOCK = "lock"
_SILENCE = 3600.0  # seconds after which a holder on another machine counts as gone
COLUMNS = ["id", "label", "round", "time", "annotator", "source"]
_SUM_LENGTH = len(b', "sum": "0123456789abcdef"}')
_END = re.compile(rb'"sum": "[0-9a-f]{16}"}')  # the end of a whole line; inside texts, quotes are escaped
_open_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class Journal:
    """Every event, and what holds now.

    Parameters
    ----------
    folder : path or None, default=None
        Where ``labels.jsonl`` lies; without one the events are kept in memory.
    readonly : bool, default=False
        Never write.

    Attributes
    ----------
    n_events : int
    n_changes : int
        How often the label of a sample has changed, or came, or went.
    known : dict from id to event
        The last event of every sample that is labelled or declined, in the order in which they came to be so.
    earlier : dict from id to list
        All labels that each sample has had.
    answers : dict from id to dict from annotator to event
        The last answer of each of several people.
    decided : dict from id to event
        What was decided about samples that have answers.
    classes : dict from class to None
        Classes that were added, and those of the labels, in the order in which they came.
    columns : list or None
        The classes that the numbers of a row stand for; None if nobody has named them.

    Examples
    --------
    >>> journal = Journal()
    >>> journal.append([make_event("label", 7, "cat", round=0, source="initial")])
    >>> journal.append([make_event("label", 7, "dog", round=2, source="initial")])
    >>> journal.frame()[["id", "label", "round"]].to_dict("records")
    [{'id': 7, 'label': 'dog', 'round': 0}]
    """

    def __init__(self, folder: Path | None = None, *, readonly: bool = False) -> None:
        self.path = None if folder is None else folder / FILE
        self._lock = None if folder is None or readonly else FolderLock(folder)
        self.n_events = self.n_changes = 0
        self.known: dict[Any, dict[str, Any]] = {}
        self.earlier: dict[Any, list[Any]] = {}
        self.answers: dict[Any, dict[Any, dict[str, Any]]] = {}
        self.decided: dict[Any, dict[str, Any]] = {}
        self.classes: dict[Any, None] = {}
        self.columns: list[Any] | None = None
        self._unwritten: list[Any] | None = None  # columns that go with the next events
        self._whole = 0  # bytes of whole lines: what we know to be written
        self._size = 0  # bytes of the file at the last look; -1 after a failed write

    def hold(self) -> None:
        """Keep others from writing, until ``release``."""
        if self._lock is not None:
            self._lock.acquire()

    def release(self) -> None:
        """Let others write."""
        if self._lock is not None:
            self._lock.release()

    def read(self) -> Journal:
        """Read the file. A damaged last line is the trace of an interrupted write, and is left out."""
        if self.path is None or not self.path.exists():
            return self
        try:
            data = read_regular(self.path)
        except OSError as error:
            raise CheckpointError(
                f"{self.path} must be a file that can be read. Got an error: {error.strerror or error}. Restore it "
                "from a copy, or choose another folder."
            ) from error
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
        if self.answers:
            self.weigh()
        return self

    def name_columns(self, names: Iterable[Any]) -> None:
        """Say which classes the numbers of a row stand for; refused if the journal says otherwise.

        It is written with the next events, so that no row is without its names.
        """
        names = list(names)
        widths = {len(label) for each in self.earlier.values() for label in each if isinstance(label, list)}
        if self.columns not in (None, names) or widths - {len(names)}:
            said = f"rows of {sorted(widths)} numbers" if self.columns is None else f"{self.columns}"
            raise CheckpointError(
                f"The classes must be those of {self.path}, in its order. Got {names} for {said}. Name its classes, or "
                "choose another folder."
            )
        self._unwritten = names if self.columns is None else None

    def append(self, events: Iterable[dict[str, Any]]) -> None:
        """Add events; they are on the disk when this returns, or else nothing has changed."""
        events = list(events)
        if events and self._unwritten is not None:
            events.insert(0, make_event("columns", None, round=0, source=None, columns=self._unwritten))
        if self.path is not None and events:
            self.hold()
            self._write(self.path, b"".join(map(_format, events)))
        for event in events:
            self._fold(event)

    def frame(self) -> pd.DataFrame:
        """The labels that hold: ``id, label, round, time, annotator, source``."""
        return _frame(self.rows(), COLUMNS)

    def answer_frame(self) -> pd.DataFrame:
        """Every answer that was not taken back, also of samples on which somebody has decided."""
        rows = [
            {name: event.get(name) for name in COLUMNS} | {"decided": key in self.decided}
            for key, each in self.answers.items()
            for event in each.values()
        ]
        return _frame(rows, [*COLUMNS, "decided"])

    def disputes(self) -> list[Any]:
        """Ids of samples that people have labelled differently, and on which nobody has decided."""
        given = {key: {str(x) for x in said.values() if x is not None} for key, said in self._open_answers().items()}
        return [key for key, labels in given.items() if len(labels) > 1]

    def weigh(self) -> dict[Any, Any]:
        """Weigh the answers of all people anew; gives the labels that now hold for samples on which they differ."""
        found = weigh_answers(self._open_answers())
        for key, label in found.items():
            events = self.answers[key].values()
            n_changes = self.n_changes
            self._hold(key, next(event for event in events if event["label"] == label))
            self.n_changes = n_changes  # the answers were counted
        return found

    def _open_answers(self) -> dict[Any, dict[Any, Any]]:
        """The answers to samples on which nobody has decided."""
        open_keys = (key for key in self.answers if key not in self.decided)
        return {key: {who: event["label"] for who, event in self.answers[key].items()} for key in open_keys}

    def rows(self) -> list[dict[str, Any]]:
        """The labels that hold, as a list of dicts."""
        known = [event for event in self.known.values() if event["label"] is not None]
        return [{name: event.get(name) for name in COLUMNS} for event in known]

    def _fold(self, event: dict[str, Any]) -> None:
        """Let one event change what holds."""
        self.n_events += 1
        kind, key = event["event"], event["id"]
        if kind == "columns":
            self.columns, self._unwritten = event["columns"], None
            return
        if kind == "class":
            self.classes[event["class"]] = None
            return
        if kind in ("answer", "withdrawn"):
            self._fold_answer(event)
            return
        answers = self.answers.get(key)
        if answers:
            if kind == "open":
                self.decided.pop(key, None)
                self.n_changes += 1
                self._agree(key)
                return
            self.decided[key] = event
        self._hold(key, None if kind == "open" else event)

    def _fold_answer(self, event: dict[str, Any]) -> None:
        """Take, or take back, the answer of one of several people."""
        key = event["id"]
        # who spoke before there were several people is one of them, not one who decides
        said = self.answers.setdefault(key, {})
        before = self.known.get(key)
        who = event.get("annotator")
        if not said and before is not None and before.get("annotator") != who:
            said[before.get("annotator")] = before
        said.pop(who, None)
        if event["event"] == "answer":
            said[who] = event
        if not said:
            del self.answers[key]
        self.n_changes += 1  # one may make another sample's majority
        if key not in self.decided:
            self._agree(key)
        if event["label"] is not None and not isinstance(event["label"], list):
            self.classes[event["label"]] = None

    def _agree(self, key: Any) -> None:
        """Let the most frequent answer hold, of equals the first; ``weigh`` looks at who said it."""
        said = list(self.answers.get(key, {}).values())
        given = [event["label"] for event in said if event["label"] is not None]
        most = max(given, key=given.count) if given else None
        held = next((event for event in said if event["label"] == most), None)
        n_changes = self.n_changes
        self._hold(key, held)
        self.n_changes = n_changes  # counted already

    def _hold(self, key: Any, event: dict[str, Any] | None) -> None:
        """Let a sample be labelled or declined as an event says, or open."""
        before = self.known.get(key)
        label = None if event is None else event["label"]
        self.n_changes += label != (None if before is None else before["label"])
        if before is not None and (before["label"] is None or label is None):
            del self.known[key]  # it comes last if it is labelled now
        if event is None:
            return
        if label is not None:
            self.earlier.setdefault(key, []).append(label)
            if not isinstance(label, list):  # rows of numbers are no class
                self.classes[label] = None
            if before is not None and before["label"] is not None:
                event = event | {"round": before["round"]}  # a corrected label is still one of its round
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


def read_columns(folder: Path) -> list[Any] | None:
    """The classes that the numbers of a row stand for, from the journal of a folder; None if it does not say."""
    path = folder / FILE
    with suppress(OSError), open_regular(path) as file:  # whoever reads the labels says what is wrong with it
        for line in file:
            event = _parse(line) if b'"event": "columns"' in line else None
            if event is not None:
                columns: list[Any] = event["columns"]
                return columns
    return None


def _frame(rows: list[dict[str, Any]], columns: list[str]) -> pd.DataFrame:
    try:
        return pd.DataFrame(rows, columns=columns)
    except UnicodeEncodeError:  # pandas' own type for texts holds no half of a surrogate pair
        return pd.DataFrame(rows, columns=columns, dtype=object)


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
    with suppress(OSError):  # the next write cuts it first
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)


def _failure(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"A label must be written to {path} before it counts. Got an error of the disk: {error.strerror or error}. "
        "Nothing was changed. Make room or look at the disk, and say it again."
    )


class FolderLock:
    """One writer per folder: a lock that dies with its process, and says who holds it.

    The operating system gives the lock back when a process ends, however it ends. File systems that do not share locks
    between machines are why the holder also leaves its name and a sign of life: the time at which it last wrote.

    Parameters
    ----------
    folder : path
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, or give a sign of life if it is ours already; refused with the holder's name."""
        if self._descriptor is not None:
            with suppress(OSError):
                os.utime(self.folder / _LOCK)
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _no_folder(self.folder, error) from error
        try:
            held = not _try_lock(descriptor)
            holder = _read_holder(descriptor)
            silent = time.time() - os.fstat(descriptor).st_mtime
            elsewhere = holder.get("host") not in (None, socket.gethostname())
            if held or (elsewhere and silent < _SILENCE):
                raise _refusal(self.folder, holder, held)
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(
                descriptor, json.dumps({"host": socket.gethostname(), "pid": os.getpid(), "since": since}).encode()
            )
        except OSError as error:
            os.close(descriptor)
            raise _no_folder(self.folder, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _open_locks.add(self)

    def release(self) -> None:
        """Give the lock back, if it is ours."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            with suppress(OSError):  # the next one asks the system, not the file
                os.ftruncate(descriptor, 0)  # nobody is named any more
            os.close(descriptor)

    def forget(self) -> None:
        """In a forked process: the lock stays with the parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _try_lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            os.lseek(descriptor, 2**20, os.SEEK_SET)  # beyond what is written, so that others can read it
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_holder(descriptor: int) -> dict[str, Any]:
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        found = parse_json(os.read(descriptor, 4096))
    except ValueError:  # empty: nobody's
        return {}
    return found if isinstance(found, dict) else {}


def _no_folder(folder: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{folder} must be a folder that can be written to. Got an error: {error.strerror or error}. Make room, or "
        "choose another folder; start(X, readonly=True) opens it to look."
    )


def _refusal(folder: Path, holder: dict[str, Any], held: bool) -> CheckpointError:
    ours = holder.get("pid") == os.getpid() and holder.get("host") == socket.gethostname()
    who = f"process {holder.get('pid')} on {holder.get('host')}, since {holder.get('since')}"
    if ours:
        who, remedy = f"this process ({who})", "Close the other session (session.close()), or delete it."
    elif held:
        remedy = "End that process, or open the folder with start(X, readonly=True) to look."
    else:
        remedy = f"If that process is gone, delete {folder / _LOCK}, or wait an hour after its last sign of life."
    return CheckpointError(
        f"Only one session at a time may write to {folder}. Got a second one; it is held by {who}. {remedy}"
    )


def _after_fork() -> None:
    for lock in list(_open_locks):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
