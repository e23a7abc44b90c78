# SPDX-License-Identifier: BSD-3-Clause
"""One writer per folder: a lock that dies with its process, and says who holds it.

The operating system gives the lock back when a process ends, however it ends. File systems that do not share locks
between machines are why the holder also leaves its name and a sign of life: the time at which it last wrote.
"""

from __future__ import annotations

import json
import os
import socket
import time
import weakref
from pathlib import Path
from typing import Any

from skal.exceptions import CheckpointError

_FILE = "lock"
_SILENCE = 3600.0  # seconds after which a holder on another machine counts as gone
_open_locks: weakref.WeakSet[FolderLock] = weakref.WeakSet()


class FolderLock:
    """The lock of a folder.

    Parameters
    ----------
    folder : path

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     first, second = FolderLock(Path(folder)), FolderLock(Path(folder))
    ...     first.acquire()
    ...     try:
    ...         second.acquire()
    ...     except CheckpointError as error:
    ...         print(str(error).replace(folder, "FOLDER").split(" Got")[0])
    ...     first.release()
    ...     second.acquire()
    ...     second.release()
    Only one session at a time may write to FOLDER.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock, if it is not ours already; refused with the holder's name."""
        if self._descriptor is not None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / _FILE, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _failure(self.folder, error) from error
        try:
            held = not _try_lock(descriptor)
            holder = _read(descriptor)
            silent = time.time() - os.fstat(descriptor).st_mtime
            elsewhere = holder.get("host") not in (None, socket.gethostname())
            if held or (elsewhere and silent < _SILENCE):
                raise _refusal(self.folder, holder, held)
            _write(descriptor, {"host": socket.gethostname(), "pid": os.getpid(), "since": _now()})
        except OSError as error:
            os.close(descriptor)
            raise _failure(self.folder, error) from error
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _open_locks.add(self)

    def touch(self) -> None:
        """Give a sign of life."""
        if self._descriptor is not None:
            os.utime(self.folder / _FILE)

    def release(self) -> None:
        """Give the lock back, if it is ours."""
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            try:
                os.ftruncate(descriptor, 0)  # nobody is named any more
            except OSError:
                pass  # the next one asks the system, not the file
            finally:
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


def _read(descriptor: int) -> dict[str, Any]:
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        return dict(json.loads(os.read(descriptor, 4096)))
    except ValueError:  # empty: nobody's
        return {}


def _write(descriptor: int, record: dict[str, Any]) -> None:
    os.ftruncate(descriptor, 0)
    os.lseek(descriptor, 0, os.SEEK_SET)
    os.write(descriptor, json.dumps(record).encode())


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")


def _failure(folder: Path, error: OSError) -> CheckpointError:
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
        remedy = f"If that process is gone, delete {folder / _FILE}, or wait an hour after its last sign of life."
    return CheckpointError(
        f"Only one session at a time may write to {folder}. Got a second one; it is held by {who}. {remedy}"
    )


def _after_fork() -> None:
    for lock in list(_open_locks):
        lock.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
