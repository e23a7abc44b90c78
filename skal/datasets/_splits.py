# SPDX-License-Identifier: BSD-3-Clause
"""The result of a reader, and the conversion of images and labels to one form.

Shapes: N images of C channels, H rows and W columns.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

DIGITS = tuple("0123456789")
MAX_UNPACKED = 2**33  # bytes of one array or file: archives may unpack to a thousand times their size


class Split(NamedTuple):
    """Images (N, C, H, W) in [0, 1] or features (N, D), float32; labels int64 (N,); the name of their file."""

    X: NDArray[np.float32]
    y: NDArray[np.int64]
    source: str


class Arrays(NamedTuple):
    """The two splits, the class names, and texts by ``texts_train`` and ``texts_test`` where there are any."""

    train: Split
    test: Split
    target_names: tuple[str, ...]
    texts: Mapping[str, list[str]] = MappingProxyType({})


def to_nchw(images: NDArray[Any], source: str) -> NDArray[Any]:
    """View images (N, H, W), (N, H, W, C) or (N, C, H, W), with C 1 or 3, as (N, C, H, W)."""
    shape = images.shape
    if images.ndim == 3:
        return images[:, np.newaxis]
    if images.ndim == 4:
        channels_first, channels_last = shape[1] in (1, 3), shape[3] in (1, 3)
        if channels_first != channels_last:
            return images if channels_first else images.transpose(0, 3, 1, 2)
    raise ValueError(
        f"{source}: images must have the shape (N, H, W), (N, H, W, C) or (N, C, H, W) with exactly one axis C of "
        f"length 1 or 3. Got {shape} instead. Reshape the array, for example to (N, H, W), or to (N, D) for features."
    )


def scale_images(images: NDArray[Any], source: str) -> NDArray[np.float32]:
    """Return uint8 images divided by 255, or float images in [0, 1], as contiguous float32."""
    if images.dtype == np.uint8:
        scaled = np.empty(images.shape, dtype=np.float32)
        # Writing into the result spares the float64 copy of the whole set that `images / 255` would make.
        divided: NDArray[np.float32] = np.divide(images, 255, out=scaled, dtype=np.float32)
        return divided
    if not np.issubdtype(images.dtype, np.floating):
        raise ValueError(
            f"{source}: images must be uint8 in 0..255 or floating point in [0, 1]. Got {images.dtype} instead. "
            f"Store them as uint8."
        )
    # Written so that NaN, which fails every comparison, is refused as well.
    if images.size and not (images.min() >= 0 and images.max() <= 1):
        raise ValueError(
            f"{source}: floating point images must lie in [0, 1]. Got values from {images.min()} to {images.max()} "
            f"instead. Scale them, or store them as uint8 in 0..255."
        )
    return np.ascontiguousarray(images, dtype=np.float32)


def to_features(features: NDArray[Any], source: str) -> NDArray[np.float32]:
    """Return a table of numbers (N, D) as contiguous float32, its values as they are."""
    if features.dtype.kind not in "fiu":
        raise ValueError(
            f"{source}: features must be numbers. Got {features.dtype} instead. Store them as float32 or float16."
        )
    table = np.ascontiguousarray(features, dtype=np.float32)
    if not np.isfinite(table).all():
        raise ValueError(
            f"{source}: features must be finite. Got NaN or infinity in {(~np.isfinite(table)).any(axis=1).sum()} "
            f"samples. Fill them in, or leave these samples out."
        )
    return table


def to_labels(labels: Any, source: str) -> NDArray[np.int64]:
    """Return integer labels, (N,) or (N, 1), as int64 (N,)."""
    array = np.asarray(labels)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1 or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(
            f"{source}: labels must be integers of shape (N,). Got {array.dtype} of shape {array.shape} instead. "
            f"Store class numbers 0..C-1."
        )
    return array.astype(np.int64)


def check_split(X: NDArray[Any], y: NDArray[np.int64], n_classes: int, source: str, split: str) -> None:
    """Refuse images and labels of different counts, and labels outside 0..C-1."""
    if len(X) != len(y):
        raise ValueError(
            f"{source}: the {split} has {len(X)} samples but {len(y)} labels. The files do not belong together, or one "
            f"is incomplete: get them again."
        )
    if len(y) and not 0 <= y.min() <= y.max() < n_classes:
        raise ValueError(
            f"{source}: the labels of the {split} must lie in 0..{n_classes - 1}. Got values from {y.min()} to "
            f"{y.max()} instead. Check that the file holds the data set that was asked for, or get it again."
        )


def check_arrays(arrays: Arrays) -> None:
    """Refuse splits that are empty or do not fit: counts, image shapes and the range of the labels."""
    for name in ("train", "test"):
        X, y, source = getattr(arrays, name)
        check_split(X, y, len(arrays.target_names), source, f"{name} split")
        if len(X) == 0:
            raise ValueError(f"{source}: the {name} split is empty. Get the file again.")
    shape, test_shape = arrays.train.X.shape[1:], arrays.test.X.shape[1:]
    if shape != test_shape:
        raise ValueError(
            f"{arrays.test.source}: train and test samples must have one shape. Got {shape} and {test_shape} instead. "
            f"Check that both files belong to one data set."
        )


def every_fifth(labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the 2nd, 7th, 12th... sample of each class: a stratified test fifth that no random generator decides.

    The count starts at the second, so that a class of two samples is in both splits.
    """
    test = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        test[np.flatnonzero(labels == label)[1::5]] = True
    return test
