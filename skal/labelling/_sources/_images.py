# SPDX-License-Identifier: BSD-3-Clause
"""A folder of images: found recursively, known by their paths within it, kept small for the model."""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from skal._core.identity import digest_bytes
from skal._files.json_text import is_utf8
from skal._files.whole import open_regular
from skal.exceptions import CheckpointError, SampleError, shorten
from skal.features._image_files import open_header, open_image
from skal.labelling._sources._source import Ids, Source

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_SHOWN_AS_THEY_ARE = {"JPEG": "image/jpeg", "PNG": "image/png", "WEBP": "image/webp", "GIF": "image/gif"}
_UNKNOWN, _READ, _UNREADABLE = 0, 1, 2
_END = 2**16  # bytes of a file's beginning, and of its end
_PIECE = 2**20
_MOST_SHOWN = 8192  # a side, of what a browser gets


def find_files(folder: str, before: str = "") -> tuple[list[str], list[str]]:
    """The paths of all images in a folder and below it, and of all other files, with "/" between names.

    Names of images that are not UTF-8 are refused: neither the page nor a file of labels could name such a sample.
    """
    found: list[str] = []
    others: list[str] = []
    below = []
    with suppress(OSError), os.scandir(folder) as entries:  # a folder that may not be read has no images for us
        for entry in entries:
            name = entry.name
            if entry.is_dir(follow_symlinks=False):
                below.append(before + name)
            elif not name.startswith(".") and not entry.is_dir():
                (found if name.lower().endswith(SUFFIXES) else others).append(before + name)
    if not is_utf8("".join([*found, *below])):
        broken = [os.fsencode(name) for name in (*found, *below) if not is_utf8(name)]
        raise SampleError(
            f"The names of images and folders must be UTF-8. Got {shorten(broken)}. Rename them, for example with "
            "convmv."
        )
    for name in below:
        images, rest = find_files(os.path.join(folder, name.rsplit("/", 1)[-1]), f"{name}/")
        found += images
        others += rest
    return sorted(found), others


class ImageFolder(Source):
    """The images in a folder and the folders below it.

    Parameters
    ----------
    folder : path
    size : int, default=32
        Width and height, in pixels, of the pictures that the model sees.
    cache : path or None, default=None
        A folder in which the small pictures are kept.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Image.new("RGB", (50, 40), "red").save(Path(folder, "a.png"))
    ...     source = ImageFolder(folder)
    ...     source.ids, source.samples()[0].shape
    (['a.png'], torch.Size([3, 32, 32]))
    """

    kind = "image"

    def __init__(self, folder: Any, *, size: int = 32, cache: Path | None = None) -> None:
        self.folder, self.size = Path(folder).resolve(), size
        names, others = find_files(str(self.folder))
        own = None if cache is None else os.path.relpath(cache.resolve(), self.folder).replace(os.sep, "/") + "/"
        self.left_out = sorted(name for name in others if own is None or not name.startswith(own))
        if not names:
            raise SampleError(
                f"The folder {folder} must hold images ({', '.join(suffix[1:] for suffix in SUFFIXES)}). Got none, in "
                "it or below it. Check the path."
            )
        self.ids = Ids(names, self._digest)
        self._why: dict[int, str] = {}
        self._small = SmallPictures(self, cache)

    @property
    def folder_labels(self) -> dict[str, str]:
        """The first folder on the way to each image."""
        return {name: name.split("/", 1)[0] for name in self.ids if "/" in name}

    def n_bytes(self, position: int) -> int:
        """Bytes of the file, −1 if it is gone."""
        try:
            return os.stat(self.folder / self.ids[position]).st_size
        except OSError:
            return -1

    def check_readable(self) -> None:
        """Refuse a folder of which no image can be read; one that can be is enough, and is found soon."""
        for position in range(len(self)):
            self._small.read(position)
            if position not in self._why:
                return
        raise SampleError(
            f"The folder {self.folder} must hold images that can be read. Got {len(self)} "
            f"{'file' if len(self) == 1 else 'files'}, none of which can; the first error: {self._why[0]} "
            "Check that the files are complete, and that they are what their names say."
        )

    def path(self, position: int) -> Path:
        """The path of an image."""
        path: Path = self.folder / self.ids[position]
        return path

    def samples(self) -> SmallPictures:
        """A Dataset of (3, size, size) tensors in [0, 1]; unreadable images are black."""
        return self._small

    def originals(self, rows: Sequence[int]) -> list[Path]:
        """The paths."""
        return [self.path(position) for position in rows]

    def picture(self, position: int, size: int | None) -> tuple[bytes, str]:
        """The file itself if a browser can show it and it is not too large, or else a smaller copy."""
        path, largest = self.path(position), _MOST_SHOWN if size is None else size
        try:
            with open_header(path) as image:
                kind, fits = _SHOWN_AS_THEY_ARE.get(image.format), max(image.size) <= largest
            if kind is not None and fits:
                self._small.read(position)
                if position not in self._why:
                    with open_regular(path) as file:
                        return file.read(), kind
            image = open_image(path, largest)
        except (SampleError, OSError) as error:
            self.mark_unreadable(position, str(error))
            raise SampleError(str(error)) from error
        target = io.BytesIO()
        image.save(target, "PNG" if max(image.size) <= 256 else "JPEG", quality=90)
        return target.getvalue(), "image/png" if max(image.size) <= 256 else "image/jpeg"

    def unreadable(self) -> dict[int, str]:
        """Images that could not be read so far."""
        return dict(self._why)

    def mark_unreadable(self, position: int, why: str) -> None:
        """Note an image that cannot be read."""
        self._why[position] = why

    def copies(self) -> list[list[int]]:
        """Positions of files that are the same, byte for byte.

        Scans on an empty ground have the same length and the same ends: what is between is read as long as it is equal.
        """
        found = []
        for alike in super().copies():
            groups = [alike]
            for start in range(_END, self.n_bytes(alike[0]) - _END, _PIECE):
                groups = [same for group in groups for same in self._split(group, start)]
            found += groups
        return found

    def _split(self, group: Sequence[int], start: int) -> list[list[int]]:
        """Those of a group of files that have the same piece; none by themselves."""
        parts: dict[bytes, list[int]] = {}
        for position in group:
            with suppress(OSError), open_regular(self.path(position)) as file:
                file.seek(start)
                parts.setdefault(digest_bytes(file.read(_PIECE)), []).append(position)
        return [part for part in parts.values() if len(part) > 1]

    def small(self, position: int) -> np.ndarray:
        """(3, size, size) uint8; SampleError if it cannot be read."""
        image = open_image(self.path(position), self.size, square=True)
        return np.moveaxis(np.asarray(image, dtype=np.uint8), 2, 0)

    def _digest(self, position: int) -> str | None:
        """Of a file's length and its ends: thousands of labelled files are compared at every start."""
        try:
            with open_regular(self.path(position)) as file:
                length = file.seek(0, os.SEEK_END)
                file.seek(0)
                head = file.read(_END)
                file.seek(max(0, length - _END))
                data = b"%d " % length + head + file.read(_END)
        except OSError:
            return None
        return digest_bytes(data).hex()[:20]


class SmallPictures(Dataset[Any]):
    """Every image at the size that the model sees; each file is decoded once, and again if it changes.

    Parameters
    ----------
    source : ImageFolder
    cache : path or None
    """

    def __init__(self, source: ImageFolder, cache: Path | None) -> None:
        self.source, self._lock = source, threading.Lock()
        n, size = len(source.ids), source.size
        self._stamps = np.zeros(n, dtype=np.int64)
        self._state = np.zeros(n, dtype=np.uint8)
        if cache is None:
            self._pixels: Any = np.zeros((n, 3, size, size), dtype=np.uint8)
            return
        key = digest_bytes("\n".join([str(size), *source.ids]).encode()).hex()[:16]
        path, self._notes = cache / f"pixels-{key}.npy", cache / f"pixels-{key}-read.npy"
        cache.mkdir(parents=True, exist_ok=True)
        for old in cache.glob("pixels-*.npy"):
            if key not in old.name:
                old.unlink()
        is_there = path.exists() and self._notes.exists()
        self._pixels = _map_pixels(path, (n, 3, size, size), is_there)
        if is_there:
            self._stamps = np.load(self._notes)
            self._state = np.where(self._stamps > 0, _READ, _UNKNOWN).astype(np.uint8)

    def __len__(self) -> int:
        return len(self._stamps)

    def __getitem__(self, i: int) -> torch.Tensor:
        self.read(int(i))
        return torch.from_numpy(self._pixels[int(i)].astype(np.float32) / 255)

    def read(self, i: int) -> None:
        """Decode an image, unless its file is as it was the last time."""
        try:
            stamp = os.stat(self.source.path(i)).st_mtime_ns
        except OSError as error:
            self.source.mark_unreadable(i, f"{self.source.ids[i]}: {error.strerror}")
            return
        if self._state[i] and self._stamps[i] == stamp:
            return
        with self._lock:
            try:
                self._pixels[i] = self.source.small(i)
                self._state[i], self._stamps[i] = _READ, stamp
            except SampleError as error:
                self.source.mark_unreadable(i, str(error))
                self._pixels[i], self._state[i], self._stamps[i] = 0, _UNREADABLE, stamp

    def flush(self) -> None:
        """Keep what has been decoded for the next start."""
        if isinstance(self._pixels, np.memmap):
            self._pixels.flush()
            new = self._notes.with_suffix(".new.npy")
            new.unlink(missing_ok=True)  # left over, or a link that somebody has put there
            np.save(new, np.where(self._state == _READ, self._stamps, 0))
            new.replace(self._notes)  # a process that is killed here leaves the last one


def _map_pixels(path: Path, shape: tuple[int, ...], is_there: bool) -> np.memmap[Any, Any]:
    """Pixels in a file with all of its room taken: a disk that is full later would end the process."""
    try:
        pixels = np.lib.format.open_memmap(path, "r+" if is_there else "w+", np.uint8, shape)
        if hasattr(os, "posix_fallocate"):  # not everywhere
            with open(path, "r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise CheckpointError(
            f"Small copies of all pictures must be kept in {path.parent}, which takes {math.prod(shape) / 1e6:,.0f} MB."
            f" Got an error of the disk: {error.strerror or error}. Make room, or choose another folder."
        ) from error
    return pixels
