# SPDX-License-Identifier: BSD-3-Clause
"""SVHN's cropped digits, MATLAB files with X (32, 32, 3, N) and y (N, 1)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skal.datasets._layout import Layout
from skal.datasets._splits import DIGITS, Arrays, Split, scale_images, to_labels


def svhn_layouts() -> tuple[Layout, ...]:
    """The train and the test file, in data_home or in a folder svhn or SVHN."""
    files = (("train_32x32.mat",), ("test_32x32.mat",))
    return tuple(Layout(folder, files, _read) for folder in ("svhn", "SVHN", ""))


def _read(paths: Sequence[Path]) -> Arrays:
    train, test = paths
    return Arrays(_read_mat(train), _read_mat(test), DIGITS)


def _read_mat(path: Path) -> Split:
    content = _load(path)
    missing = [key for key in ("X", "y") if key not in content]
    if missing:
        raise ValueError(
            f"{path}: an SVHN file must hold X and y. {', '.join(missing)} missing. Get the cropped digits (format 2)."
        )
    images, labels = content["X"], to_labels(content["y"], str(path))
    if images.ndim == 3:  # MATLAB drops the last axis of a single image.
        images = images[..., np.newaxis]
    if images.ndim != 4 or images.shape[2] != 3 or images.dtype != np.uint8:
        raise ValueError(
            f"{path}: X must be uint8 of shape (H, W, 3, N). Got {images.dtype} {images.shape} instead. "
            f"Get the cropped digits (format 2)."
        )
    if len(labels) and not 1 <= labels.min() <= labels.max() <= 10:
        raise ValueError(
            f"{path}: SVHN labels must lie in 1..10, where 10 stands for the digit 0. Got values from {labels.min()} "
            f"to {labels.max()} instead. Get the file again."
        )
    return Split(scale_images(images.transpose(3, 2, 0, 1), str(path)), labels % 10, str(path))


def _load(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat  # takes longer to import than all of skal.datasets

    try:
        arrays: dict[str, Any] = loadmat(path, variable_names=("X", "y"))
        return arrays
    except MemoryError:
        raise
    # A damaged file makes scipy fail in many ways (TypeError, zlib.error, IndexError...): none is of use to a reader.
    except Exception as error:
        raise ValueError(
            f"{path}: truncated, or not a MATLAB 5 file ({type(error).__name__}: {error}). Get the file again."
        ) from error
