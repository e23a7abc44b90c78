# SPDX-License-Identifier: BSD-3-Clause
"""Files that are read from their beginning to their end, and replaced whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """A regular file; OSError for others, since a pipe or a device would keep us waiting."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    file = open(path, "rb", opener=opener)  # noqa: SIM115
    try:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError("it is no regular file")
    except OSError:
        file.close()
        raise
    return file


def read_regular(path: Path) -> bytes:
    """All of a regular file.

    Examples
    --------
    >>> read_regular(Path(os.devnull))
    Traceback (most recent call last):
    ...
    OSError: it is no regular file
    """
    with open_regular(path) as file:
        return file.read()


def replace_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Put a file in the place of another in one step.

    Parameters
    ----------
    path : path
        Until the end the file that was there stays as it is. A link in the place of the next one is not followed.
    data : bytes
        The content.
    sync : bool, default=True
        Wait until it is on the disk; not for what may be lost.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a")
    ...     replace_file(path, b"1")
    ...     replace_file(path, b"2")
    ...     path.read_bytes(), os.listdir(folder)
    (b'2', ['a'])
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)  # left over from a write that broke off, or a link that somebody has put there
    _replace_by(new, path, data, sync=sync)


def _replace_by(new: Path, path: Path, data: bytes, *, sync: bool = True, mode: int | None = None) -> None:
    """By way of a new file, which gets the mode if there is one."""
    try:
        with open(new, "xb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if mode is not None:
            new.chmod(mode)
        os.replace(new, path)
    except OSError:
        with suppress(OSError):
            new.unlink()  # half a model on a full disk would take the room of labels
        raise
    if sync:
        sync_folder(path.parent)


def write_result(path: Path, content: str | bytes) -> None:
    """Write a file that a user has named: whole or not at all, so that a full disk leaves the one that was there.

    A link leads to the file that it names, a file keeps its mode, and a pipe or a device is written to as it is.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_result(Path(folder, "labels.csv"), "id,label\\n")
    ...     Path(folder, "labels.csv").read_bytes()
    b'id,label\\n'
    """
    # bytes, since no system may change the ends of lines; names of files need not be UTF-8
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    path = path.resolve()
    mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
    # a name that nobody else has: the folder is the user's, where labels.csv.new may be a file of theirs
    try:
        _replace_by(path.with_name(f".{secrets.token_hex(8)}.new"), path, data, mode=mode)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def sync_folder(folder: Path) -> None:
    """Let the names of new files in a folder survive a power cut."""
    if os.name != "posix":
        return  # a folder cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
