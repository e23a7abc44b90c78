# SPDX-License-Identifier: BSD-3-Clause
"""The IDX format of MNIST and Fashion-MNIST, plain or compressed.

A file is two zero bytes, a type code (8: uint8), the number of axes, each axis' length as big-endian uint32, and the
values.
"""

import gzip
import zlib
from collections.abc import Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skal.datasets._layout import Layout
from skal.datasets._splits import MAX_UNPACKED, Arrays, Split, scale_images, to_labels

FASHION_MNIST = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

# The two data sets use the same file names. Their first training labels tell which one a folder holds.
MNIST_START = (5, 0, 4, 1, 9, 2, 1, 3, 1, 4)
FASHION_MNIST_START = (9, 0, 0, 3, 0, 2, 7, 2, 5, 5)

_UINT8 = 8


def idx_layouts(
    folders: Sequence[str], target_names: tuple[str, ...], other_start: tuple[int, ...]
) -> tuple[Layout, ...]:
    """The four files in any of the folders; ``other_start`` begins the labels of the set it must not be."""
    stems = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = tuple(_spellings(stem) for stem in stems)
    check = partial(_check, other_start=other_start)
    read = partial(_read, target_names=target_names)
    return tuple(Layout(folder, files, read, check) for folder in folders)


def _spellings(stem: str) -> tuple[str, ...]:
    # Some unpackers write a dot before "idx".
    names = (f"{stem}-ubyte", f"{stem.replace('-idx', '.idx')}-ubyte")
    return tuple(name + suffix for name in names for suffix in ("", ".gz"))


def read_idx(path: Path, n_axes: int) -> NDArray[Any]:
    """Return the uint8 array of an IDX file with ``n_axes`` axes, refusing any other content."""
    content = _content(path)
    header = 4 + 4 * n_axes
    expected = bytes((0, 0, _UINT8, n_axes))
    if content[:4] != expected:
        raise ValueError(
            f"{path}: wrong magic number: expected {expected.hex()} (uint8 with {n_axes} axes), got "
            f"{content[:4].hex() or 'an empty file'}. This is not the file its name says: get it again."
        )
    if len(content) < header:
        raise ValueError(f"{path}: truncated within its header of {header} bytes. Get the file again.")
    shape = tuple(int(length) for length in np.frombuffer(content, dtype=">u4", count=n_axes, offset=4))
    if len(content) - header != prod(shape):
        raise ValueError(
            f"{path}: the header announces {prod(shape)} bytes (shape {shape}), but {len(content) - header} follow. "
            f"The file is truncated or damaged: get it again."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=header).reshape(shape)


def _content(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        with gzip.open(path) as file:
            content = file.read(MAX_UNPACKED + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged or truncated gzip file ({error}). Get the file again.") from error
    if len(content) > MAX_UNPACKED:
        raise ValueError(f"{path}: more than {MAX_UNPACKED:,} bytes unpacked. This is not the file its name says.")
    return content


def _check(paths: Sequence[Path], other_start: tuple[int, ...]) -> None:
    train_labels = paths[1]
    if tuple(read_idx(train_labels, 1)[: len(other_start)].tolist()) == other_start:
        raise ValueError(
            f"{train_labels}: MNIST and Fashion-MNIST have the same file names, and these are the labels of the other "
            f"one. Keep the files of each in a folder of its own, data_home/mnist and data_home/fashion_mnist."
        )


def _read(paths: Sequence[Path], target_names: tuple[str, ...]) -> Arrays:
    return Arrays(_read_split(*paths[:2]), _read_split(*paths[2:]), target_names)


def _read_split(images: Path, labels: Path) -> Split:
    X = scale_images(read_idx(images, 3)[:, np.newaxis], str(images))
    return Split(X, to_labels(read_idx(labels, 1), str(labels)), f"{images}, {labels.name}")
