# SPDX-License-Identifier: BSD-3-Clause
"""Samples sorted into a folder for each class, under names that any file system takes."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from skal._core.identity import digest_bytes
from skal._files.spreadsheet import format_table
from skal._files.whole import write_result
from skal.exceptions import InvalidParameterError, SampleError
from skal.labelling._sources import ImageFolder, Source

TABLE = "labels.csv"
# what some file system refuses, or gives a meaning: separators, wildcards, control characters, ends that Windows drops
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f/\\:*?"<>|%\u2028\u2029\ud800-\udfff]|^[.~ -]|[. ]$')
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
_LONGEST = 120  # bytes; most file systems take 255, some tools add to a name


def write_folders(
    source: Source, rows: Sequence[dict[str, Any]], out: Any, *, links: bool = False
) -> list[tuple[str, str]]:
    """Put a copy of each sample, or a link to it, into the folder of its class.

    Parameters
    ----------
    source : Source
        Of pictures or texts.
    rows : list of dict
        With ``id`` and ``label``, and ``source`` and ``probability`` if there are.
    out : path
        A folder that is new or empty. A table in it says which file is which sample, and who gave its label.
    links : bool, default=False
        Make symbolic links, which take no room, in the place of copies.

    Returns
    -------
    list of (id, reason)
        Samples that could not be read.
    """
    folder = Path(out)
    if source.kind in ("numbers", "table"):
        raise InvalidParameterError("Folders must be for pictures or texts. Got rows. Export them as csv or parquet.")
    if links and not isinstance(source, ImageFolder):
        raise InvalidParameterError("Links must lead to files. Got samples that are in one file. Leave --links out.")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidParameterError.for_parameter(
            "export", "out", "a folder that is new or empty", str(folder), "Choose another one."
        )
    folder.mkdir(parents=True, exist_ok=True)
    folders = safe_names((str(row["label"]) for row in rows), (TABLE,))
    positions = {key: position for position, key in enumerate(source.ids)}
    names = safe_names(str(row["id"]) for row in rows)
    lines, failed = [], []
    for row in rows:
        key, label = str(row["id"]), str(row["label"])
        if key not in positions:
            failed.append((key, "it is no longer in the source"))
            continue
        place = folder / folders[label]
        place.mkdir(exist_ok=True)
        try:
            path = _put(source, positions[key], place / names[key], links=links)
        except (OSError, SampleError) as error:
            failed.append((key, str(error)))
            continue
        lines.append([path.relative_to(folder).as_posix(), key, label, row.get("source"), row.get("probability")])
    text = format_table(["file", "id", "label", "source", "probability"], lines, safe=False)
    write_result(folder / TABLE, text)
    return failed


def safe_names(names: Iterable[str], others: Iterable[str] = ()) -> dict[str, str]:
    """Distinct file names for some texts, and none of the others: the text itself where that is one.

    Examples
    --------
    >>> safe_names(["cat", "../dog", "a/b.png", "con"])
    {'cat': 'cat', '../dog': '%2E.%2Fdog', 'a/b.png': 'a%2Fb.png', 'con': '%con'}
    """
    found: dict[str, str] = {}
    taken = set(others)
    for name in names:
        if name in found:
            continue
        safe = _UNSAFE.sub(lambda match: "".join(f"%{ord(c):02X}" for c in match[0]), name) or "%"
        safe = f"%{safe}" if _RESERVED.fullmatch(safe) else safe
        mark = digest_bytes(name.encode("utf-8", "surrogatepass")).hex()[:12]
        stem, dot, suffix = safe.rpartition(".") if "." in safe[-8:] else (safe, "", "")
        if len(safe.encode()) > _LONGEST:
            stem = stem.encode()[: _LONGEST - 30].decode(errors="ignore") + f"%{mark}"
        elif safe.casefold() in taken:  # many file systems do not tell a from A
            stem = f"{stem}%{mark}"
        safe = f"{stem}{dot}{suffix}"
        taken.add(safe.casefold())
        found[name] = safe
    return found


def _put(source: Source, position: int, path: Path, *, links: bool) -> Path:
    if isinstance(source, ImageFolder):
        original = source.path(position)
        if links:
            path.symlink_to(original)
        else:
            shutil.copyfile(original, path)
        return path
    if source.kind == "text":
        path = path.with_name(f"{path.name}.txt")
        path.write_bytes(source.text(position).encode("utf-8", "surrogatepass"))
        return path
    data, _ = source.picture(position, None)  # of an array, as PNG
    path = path.with_name(f"{path.name}.png")
    path.write_bytes(data)
    return path
