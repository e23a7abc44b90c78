# SPDX-License-Identifier: BSD-3-Clause
"""Caltech101, a folder of JPEG images for each class."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skal.datasets._layout import Layout
from skal.datasets._splits import Arrays, Split, every_fifth, scale_images
from skal.exceptions import how_to_install

DEFAULT_SIZE = 64
_FOLDER = "101_ObjectCategories"
_BACKGROUND = "BACKGROUND_Google"
_SUFFIXES = (".jpg", ".jpeg", ".png")


def caltech101_layouts() -> tuple[Layout, ...]:
    """The unpacked folder, in data_home or where the archive's own folder was kept."""
    return tuple(Layout(parent, ((_FOLDER,),), _read, resizes=True) for parent in ("", "caltech101", "caltech-101"))


def _read(paths: Sequence[Path], image_size: int = DEFAULT_SIZE) -> Arrays:
    (folder,) = paths
    files, labels, target_names = _list_images(folder)
    chosen = every_fifth(labels)
    train, test = (
        Split(_read_images([files[i] for i in np.flatnonzero(mask)], image_size), labels[mask], str(folder))
        for mask in (~chosen, chosen)
    )
    return Arrays(train, test, target_names)


def _list_images(folder: Path) -> tuple[list[Path], NDArray[np.int64], tuple[str, ...]]:
    """Return the images, sorted by class and by name, their labels, and the class names."""
    classes = sorted(
        entry.name
        for entry in folder.iterdir()
        if entry.is_dir() and entry.name != _BACKGROUND and not entry.name.startswith(".")
    )
    files: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        # Names starting with a dot are leftovers of macOS archives, not images.
        images = sorted(
            file
            for file in (folder / name).iterdir()
            if file.suffix.lower() in _SUFFIXES and not file.name.startswith(".")
        )
        if not images:
            raise ValueError(
                f"{folder / name}: no images ({', '.join(_SUFFIXES)}) in this class folder. Unpack the archive again, "
                f"or remove the folder."
            )
        files += images
        labels += [label] * len(images)
    if not files:
        raise ValueError(f"{folder}: no class folders. Unpack 101_ObjectCategories.tar.gz again.")
    return files, np.array(labels, dtype=np.int64), tuple(classes)


def _read_images(files: Sequence[Path], image_size: int) -> NDArray[np.float32]:
    Image = _pillow()
    images = np.empty((len(files), image_size, image_size, 3), dtype=np.uint8)
    for row, file in zip(images, files, strict=True):
        try:
            with Image.open(file) as image:
                row[...] = image.convert("RGB").resize((image_size, image_size), Image.Resampling.BILINEAR)
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            raise ValueError(f"{file}: truncated, or not an image ({error}). Unpack the archive again.") from error
    return scale_images(images.transpose(0, 3, 1, 2), "caltech101")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f"Reading caltech101 needs Pillow. {how_to_install('images')}") from error
    return Image
