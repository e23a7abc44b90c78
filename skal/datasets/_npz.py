# SPDX-License-Identifier: BSD-3-Clause
"""``NAME.npz`` files with the arrays X_train, y_train, X_test and y_test: images, or features of anything else."""

import zipfile
import zlib
from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skal.datasets._layout import Layout
from skal.datasets._splits import MAX_UNPACKED, Arrays, Split, scale_images, to_features, to_labels, to_nchw

_KEYS = ("X_train", "y_train", "X_test", "y_test")

# What zipfile and numpy raise for damaged files. RuntimeError: flags that falsely say encrypted or unsupported.
_DAMAGE = (ValueError, OSError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def npz_layouts(name: str, target_names: tuple[str, ...] | None = None) -> tuple[Layout, ...]:
    """``NAME.npz``, in data_home or in a folder of that name, with the known class names if there are any."""
    read = partial(read_npz, target_names=target_names)
    return tuple(Layout(folder, ((f"{name}.npz",),), read, check_npz) for folder in ("", name))


def check_npz(paths: Sequence[Path]) -> None:
    """Refuse a file that is no npz archive, or lacks one of the four arrays."""
    (path,) = paths
    stored = stored_arrays(path)
    missing = [key for key in _KEYS if key not in stored]
    if missing:
        raise ValueError(
            f"{path}: an npz data set must hold the arrays {', '.join(_KEYS)}. {', '.join(missing)} missing; it "
            f"holds {', '.join(stored) or 'nothing'}. Save it with numpy.savez(path, X_train=..., y_train=..., "
            f"X_test=..., y_test=...)."
        )


def read_npz(paths: Sequence[Path], target_names: tuple[str, ...] | None = None) -> Arrays:
    """Read the four arrays and the optional ones.

    ``class_names`` or ``target_names`` are strings, one per class; ``texts_train`` and ``texts_test`` are strings, one
    per sample: what the features were made of.
    """
    (path,) = paths
    stored = stored_arrays(path)
    train, test = _split(path, "train"), _split(path, "test")
    for key in ("target_names", "class_names"):
        if target_names is None and key in stored:
            target_names = tuple(str(entry) for entry in read_array(path, key).ravel())
    if target_names is None:
        target_names = _number_classes(np.union1d(train.y, test.y), path)
    texts = {
        key: _texts(path, key, len(split.y))
        for key, split in (("texts_train", train), ("texts_test", test))
        if key in stored
    }
    return Arrays(train, test, target_names, texts)


def _texts(path: Path, key: str, length: int) -> list[str]:
    array = read_array(path, key)
    if array.shape != (length,) or array.dtype.kind != "U":
        raise ValueError(
            f"{path}, {key}: texts must be an array of {length} strings, one per sample. Got {array.dtype} of shape "
            f"{array.shape} instead. Save numpy.array(list_of_texts)."
        )
    names: list[str] = array.tolist()
    return names


def stored_arrays(path: Path) -> list[str]:
    """Names of the arrays in the file."""
    # Opened apart from reading, so that a file without read permission is not called damaged.
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return [member.removesuffix(".npy") for member in archive.namelist()]
        except _DAMAGE as error:
            raise ValueError(f"{path}: truncated, or not an npz archive ({error}). Get the file again.") from error


def _split(path: Path, name: str) -> Split:
    X, y = f"{path}, X_{name}", f"{path}, y_{name}"
    array = read_array(path, f"X_{name}")
    samples = to_features(array, X) if array.ndim == 2 else scale_images(to_nchw(array, X), X)
    return Split(samples, to_labels(read_array(path, f"y_{name}"), y), str(path))


def read_array(path: Path, key: str) -> NDArray[Any]:
    """One array, if it is no larger unpacked than it may be; a ValueError that says why not."""
    try:
        _check_size(path, key)
        with np.load(path, allow_pickle=False) as archive:
            array: NDArray[Any] = archive[key]
            return array
    except _DAMAGE as error:
        raise ValueError(
            f"{path}: the array {key} cannot be read ({error}). Get the file again; arrays of Python objects are "
            f"refused, since reading them could run code."
        ) from error


def _check_size(path: Path, key: str) -> None:
    """Refuse an array that is larger unpacked than any data set here, or than the file has data for."""
    with zipfile.ZipFile(path) as archive:
        entry = archive.getinfo(f"{key}.npy")
        with archive.open(entry) as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(file)
    size = prod(shape) * dtype.itemsize
    if size > min(MAX_UNPACKED, entry.file_size):
        raise ValueError(f"{size:,} bytes unpacked; at most {min(MAX_UNPACKED, entry.file_size):,} are read")


def _number_classes(labels: NDArray[np.int64], path: Path) -> tuple[str, ...]:
    # A gap more often means labels that start at 1, or a filtered set, than a class without any sample.
    if not np.array_equal(labels, np.arange(len(labels))):
        shown = ", ".join(map(str, labels[:12])) + (", ..." if len(labels) > 12 else "")
        raise ValueError(
            f"{path}: labels must be 0..C-1 with every class present. Got {shown} instead. Renumber them, or add "
            f"an array target_names with one string for each class."
        )
    return tuple(str(label) for label in labels)
