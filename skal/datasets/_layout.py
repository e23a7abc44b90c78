# SPDX-License-Identifier: BSD-3-Clause
"""Where the files of a data set may lie, and the search for them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from skal.datasets._splits import Arrays

_ENVIRONMENT = "SKAL_DATA_HOME"


@dataclass(frozen=True)
class Layout:
    """One way in which a data set may lie on disk.

    Attributes
    ----------
    folder : str
        Folder of the files, relative to ``data_home``.
    files : tuple of tuple of str
        For each file needed, the names it may have, the usual one first.
    read : callable
        From the paths of those files, in that order, to `Arrays`.
    check : callable
        A look at the same paths, before they are read, that is quick and raises ValueError if they hold something else.
    resizes : bool
        Whether ``read`` takes the keyword ``image_size``.
    """

    folder: str
    files: tuple[tuple[str, ...], ...]
    read: Callable[..., Arrays]
    check: Callable[[Sequence[Path]], None] = lambda paths: None
    resizes: bool = False

    def find(self, home: Path) -> list[Path | None]:
        """The path of each file under ``home``, None for files that are not there."""
        folder = home / self.folder
        return [next((folder / name for name in names if (folder / name).exists()), None) for names in self.files]


@dataclass(frozen=True)
class DataSet:
    """A known data set: a line of description, its home page, and its layouts in the order of search."""

    description: str
    url: str
    layouts: tuple[Layout, ...]


def locate(layouts: Sequence[Layout], home: Path | None) -> tuple[Layout, list[Path]] | None:
    """The first layout of which all files are there, with their paths; None if there is none."""
    if home is None:
        return None
    for layout in layouts:
        paths = [path for path in layout.find(home) if path is not None]
        if len(paths) == len(layout.files):
            return layout, paths
    return None


def find_home(data_home: str | os.PathLike[str] | None) -> Path | None:
    """Return the data folder from the argument, else from the environment, else None."""
    chosen = data_home if data_home is not None else os.environ.get(_ENVIRONMENT)
    # An environment variable that is set but empty counts as unset, as shells have it.
    return Path(chosen).expanduser() if chosen else None


def missing_message(name: str, home: Path | None, layouts: Sequence[Layout], url: str | None) -> str:
    """Say which files were looked for, in which folder, and how to get them."""
    remedy = f"pass data_home=FOLDER or set the environment variable {_ENVIRONMENT} to the folder that holds them"
    get = f"Get the files from {url}, then {remedy}." if url else f"Put the file there, or {remedy}."
    lines = [f"The data set {name!r} was not found."]
    if home is None:
        lines.append(f"No folder was searched: data_home is not given and {_ENVIRONMENT} is not set.")
    elif not home.is_dir():
        lines.append(f"The folder {home} does not exist.")
    lines.append("Any one of these would do:")
    for layout in layouts:
        folder = (home if home is not None else Path("data_home")) / layout.folder
        wanted = ", ".join(map(_display_name, layout.files))
        found = layout.find(home) if home is not None else [None] * len(layout.files)
        absent = [_display_name(names) for names, path in zip(layout.files, found, strict=True) if path is None]
        partly = f" (there, except {', '.join(absent)})" if len(absent) < len(layout.files) else ""
        lines.append(f"  in {folder}: {wanted}{partly}")
    return "\n".join([*lines, get])


def _display_name(names: tuple[str, ...]) -> str:
    """A file's usual name, with the suffix that may follow."""
    return f"{names[0]}[.gz]" if f"{names[0]}.gz" in names else names[0]
