# SPDX-License-Identifier: BSD-3-Clause
"""Who may open the page: a secret for each person, in a file that only the owner of the project can read."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skal._files.json_text import format_json, parse_json
from skal._files.whole import read_regular
from skal.exceptions import CheckpointError, InvalidParameterError

_FILE = "access.json"


class Access:
    """Links of one project. Kept between starts, so that an open page finds the next server.

    Parameters
    ----------
    folder : path
    people : list of str, default=()
        Who labels; nobody in particular if empty.

    Attributes
    ----------
    port : int
        The last one, 0 if there was none.
    tokens : dict from person to str
        Of this start's people.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     access = Access(Path(folder), ["ann", "ben"])
    ...     link = access.tokens["ben"]
    ...     before = access.person(link), Access(Path(folder), ["ben"]).person(link)
    ...     revoke(Path(folder), "ben")  # the running server sees it, too
    ...     before, access.person(link)
    (('ben', 'ben'), None)
    """

    def __init__(self, folder: Path, people: Sequence[str] = ()) -> None:
        self._path = folder / _FILE
        kept = _read(self._path)
        self.people = list(people) or [""]
        self.port: int = kept["port"]
        known = kept["people"]
        missing = [name for name in self.people if name not in known]
        known |= {name: secrets.token_urlsafe(24) for name in missing}
        self.tokens: dict[str, str] = {name: known[name] for name in self.people}
        _write(self._path, kept)
        self._stamp = self._look()

    def keep_port(self, port: int) -> None:
        """Let the next start use this port, if it is free."""
        self.port = port
        _write(self._path, _read(self._path) | {"port": port})
        self._stamp = self._look()

    def person(self, token: str) -> str | None:
        """The person with this secret, "" for nobody in particular; None if there is none, or it was revoked."""
        now = self._look()
        if now != self._stamp:
            known = _read(self._path)["people"]
            self.tokens = {name: known[name] for name in self.people if name in known}
            self._stamp = now
        found = None
        for name, own in self.tokens.items():  # all of them: time must not tell which one is near
            if hmac.compare_digest(own.encode(), token.encode()):
                found = name
        return found

    def _look(self) -> Any:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino


def revoke(folder: Path, person: str) -> None:
    """Make somebody's link invalid, at once; the next start with this person makes another one."""
    kept = _read(folder / _FILE)
    if person not in kept["people"]:
        names = sorted(name for name in kept["people"] if name)
        remedy = "Name somebody who has a link."
        raise InvalidParameterError.for_parameter("label", "revoke", f"one of {names}", person, remedy)
    del kept["people"][person]
    _write(folder / _FILE, kept)


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = parse_json(read_regular(path))
        people = {str(name): str(token) for name, token in kept["people"].items() if len(str(token)) >= 32}
        return {"port": int(kept["port"]), "people": people}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {"port": 0, "people": {}}  # new links are made


def _write(path: Path, kept: dict[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(f"{path.name}.new")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(format_json(kept))
        new.replace(path)
    except OSError as error:
        raise CheckpointError(
            f"The links must be written to {path}. Got an error of the disk: {error.strerror or error}. Make room, or "
            "choose another --out."
        ) from error
