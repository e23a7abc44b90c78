# SPDX-License-Identifier: BSD-3-Clause
"""Pictures as users have them: files, pillow's images, arrays in either order of their axes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skal.exceptions import SampleError
from skal.features._image_files import open_image

_CHANNELS = (1, 3, 4)
_LARGEST = 640  # pixels a side: more than any network sees, and far less to decode than a photograph has


def open_picture(path: Path) -> Any:
    """An image of pillow, upright, in RGB and not larger than a network needs; SampleError if it cannot be read."""
    return open_image(path, _LARGEST)


def read_picture(item: Any, position: int) -> np.ndarray:
    """One picture as (h, w, 3) bytes in RGB.

    Parameters
    ----------
    item : path, image of pillow, or (h, w), (c, h, w) or (h, w, c) array
        Floats in [0, 1], integers in 0 … 255; with 1, 3 or 4 channels, of which the fourth is left out.
    position : int
        Its number, for messages.

    Examples
    --------
    >>> read_picture(np.ones((3, 4, 5)), 0).shape
    (4, 5, 3)
    """
    if isinstance(item, (str, os.PathLike)):
        return np.asarray(open_picture(Path(item)))
    if hasattr(item, "convert"):
        return np.asarray(item.convert("RGB"))
    array = item.detach().cpu().numpy() if isinstance(item, torch.Tensor) else np.asarray(item)
    return _as_bytes(_as_rgb(array, position), position)


def _as_rgb(array: np.ndarray, position: int) -> np.ndarray:
    """(h, w, 3) of the same numbers."""
    if array.dtype.kind not in "biuf" or array.ndim not in (2, 3) or array.size == 0:
        raise _error("a path, an image of pillow, or an array of 2 or 3 dimensions", _describe(array), position)
    if array.ndim == 2:
        array = array[:, :, None]
    elif array.shape[0] in _CHANNELS:  # as torch has them; a picture of 1, 3 or 4 rows is none
        array = np.moveaxis(array, 0, 2)
    if array.shape[2] not in _CHANNELS:
        raise _error("a picture of 1, 3 or 4 channels, first or last", _describe(array), position)
    return np.repeat(array, 3, axis=2) if array.shape[2] == 1 else array[:, :, :3]


def _as_bytes(array: np.ndarray, position: int) -> np.ndarray:
    if array.dtype == np.uint8:
        return array
    low, high = array.min(), array.max()
    top = 255 if array.dtype.kind in "iu" else 1
    if not (low >= 0 and high <= top):  # NaN is not
        expected = f"{'integers' if top == 255 else 'floats'} in {'0 … 255' if top == 255 else '[0, 1]'}"
        raise _error(f"a picture of {expected}", f"numbers from {low:.4g} to {high:.4g}", position)
    pixels: np.ndarray = np.rint(array * (255 // top)).astype(np.uint8)
    return pixels


def _describe(array: np.ndarray) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _error(expected: str, got: str, position: int) -> SampleError:
    return SampleError(
        f"Sample {position} must be {expected}. Got {got}. Pass files, images, or an array (n, c, h, w) or "
        "(n, h, w, c) of bytes, or of floats in [0, 1]."
    )
