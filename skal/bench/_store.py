# SPDX-License-Identifier: BSD-3-Clause
"""A benchmark's folder: settings, and one pair of files per finished run, each written in one step.

::

    settings.json     the protocol
    runs/*.json       scores, indices, settings and versions of a run; the same whenever it is repeated
    timings/*.json    its seconds and its warnings, which are not
    results.csv       all scores in one table, once all runs have finished
    timings.csv       all seconds
    checkpoints/      of runs that have not finished
"""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import fields
from pathlib import Path
from typing import Any
from zlib import crc32

import pandas as pd

from skal.bench._protocol import Protocol, StoreError, find_settings
from skal.bench._run import Run
from skal.exceptions import InvalidParameterError

# these may change in a folder: the runs that it has stay valid
_GROWING = {"strategies", "seeds", "name", "title", "notes", "reference"}
# these differ when a run is repeated; a run that was interrupted has no warnings from before
_ASIDE = ("seconds_fit", "seconds_query", "warnings")
_OUTCOME = tuple(entry.name for entry in fields(Run) if entry.name not in _ASIDE)


class Store:
    """The folder of one benchmark."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def open(self, protocol: Protocol, details: dict[str, Any]) -> None:
        """Write the settings, or refuse a folder with runs under others."""
        text = _dump({"protocol": protocol.as_dict(), "details": details})
        path = self.folder / "settings.json"
        if path.exists():
            self._refuse_other(_read(path), json.loads(text))
        write_text(path, text)

    def _refuse_other(self, before: dict[str, Any], now: dict[str, Any]) -> None:
        old = before["protocol"] | before["details"]
        new = now["protocol"] | now["details"]
        names = sorted((old.keys() | new.keys()) - _GROWING)
        changed = [f"{name}: {old.get(name)!r} → {new.get(name)!r}" for name in names if old.get(name) != new.get(name)]
        if changed:
            raise InvalidParameterError(
                f"The folder {self.folder} must hold runs of this benchmark, or none. Got one with other settings "
                f"({'; '.join(changed)}). Choose another folder, or remove this one."
            )

    def settings(self) -> tuple[Protocol, dict[str, Any]]:
        """The protocol, and the other records of the benchmark."""
        path = find_settings(self.folder)
        settings = _read(path)
        try:
            return Protocol.from_dict(settings["protocol"]), settings["details"]
        except (TypeError, KeyError) as error:
            raise StoreError(f"{path} does not hold a benchmark's settings. Pass skal bench's --out folder.") from error

    def write(self, run: Run) -> None:
        """Save a finished run. The outcome is written last: it marks the run as finished."""
        stem = _stem(run.strategy, run.seed)
        write_text(self.folder / "timings" / f"{stem}.json", _dump({name: getattr(run, name) for name in _ASIDE}))
        write_text(self.folder / "runs" / f"{stem}.json", _dump({name: getattr(run, name) for name in _OUTCOME}))
        shutil.rmtree(self.checkpoint(run.strategy, run.seed), ignore_errors=True)

    def read(self, strategy: str, seed: int) -> Run | None:
        """A finished run, or None."""
        stem = _stem(strategy, seed)
        path = self.folder / "runs" / f"{stem}.json"
        if not path.exists():
            return None
        outcome = _read(path)
        try:
            return Run(**outcome, **_read(self.folder / "timings" / f"{stem}.json"))
        except (TypeError, FileNotFoundError) as error:
            raise StoreError(f"{path} is not a run of a benchmark ({error}). Delete it, and run again.") from error

    def checkpoint(self, strategy: str, seed: int) -> Path:
        """The folder in which a run keeps its state; absolute, for workers that were started in another folder."""
        return (self.folder / "checkpoints" / _stem(strategy, seed)).absolute()

    def close(self) -> None:
        """Remove the state of unfinished runs, and drafts of files whose writer was killed."""
        shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)
        for draft in [*self.folder.glob("runs/.*"), *self.folder.glob("timings/.*")]:
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a file in one step: a reader finds the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # a name of its own for each process: two of them may write the same file
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)  # left over, or a link that somebody has put there
    with draft.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def csv_text(table: pd.DataFrame, index: bool = True) -> str:
    """A table as CSV in which no name is a formula: spreadsheets run cells that start with ``=``, ``+``, ``-``, ``@``.

    Examples
    --------
    >>> csv_text(pd.DataFrame({"strategy": ["=cmd()", "margin"], "gain": [-1, 2]}), index=False).split()
    ['strategy,gain', "'=cmd(),-1", 'margin,2']
    """

    def plain(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell

    table = table.map(plain)
    table.index, table.columns = table.index.map(plain), table.columns.map(plain)
    text: str = table.to_csv(index=index)
    return text


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise StoreError(f"{path} is damaged ({error}). Delete it, and run again: the rest is kept.") from error


def _dump(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _stem(strategy: str, seed: int) -> str:
    """A file name that any system takes, different for different strategies."""
    plain = re.sub(r"[^\w.-]+", "_", strategy)[:60].strip("_.")
    if plain != strategy:
        plain = f"{plain}-{crc32(strategy.encode()):08x}"
    return f"{plain}.seed{seed}"
