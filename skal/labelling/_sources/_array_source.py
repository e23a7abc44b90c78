# SPDX-License-Identifier: BSD-3-Clause
"""Arrays: images of any number of channels, or rows of numbers; from Python or from an npz file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from skal._core.identity import digest_bytes
from skal._files.whole import open_regular
from skal.datasets._npz import read_array, stored_arrays
from skal.exceptions import SampleError, SkalError, how_to_install, shorten
from skal.features._pixels import pixels_of
from skal.labelling._sources._source import Ids, Source, given_ids
from skal.loop._ids import make_distinct

_NAMES = ("X", "X_train", "images", "x")
_LABELS = ("y", "y_train", "labels")


class ArraySource(Source):
    """An array of samples.

    Parameters
    ----------
    X : (n, d), (n, h, w), (n, c, h, w) or (n, h, w, c) array
        Three or four dimensions are images, in [0, 1] or 0 … 255.
    ids : sequence or None, default=None
        By default a hash of each sample's content.
    labels : sequence or None, default=None
        Known labels, None where there is none.

    Examples
    --------
    >>> source = ArraySource(np.zeros((2, 8, 8)), ids=["a", "b"])
    >>> source.kind, source.samples().shape
    ('image', (2, 1, 8, 8))
    """

    def __init__(self, X: Any, ids: Sequence[Any] | None = None, labels: Sequence[Any] | None = None) -> None:
        try:
            array = np.asarray(X)
        except ValueError as error:
            raise SampleError(
                "The samples must be an array of numbers: all of one shape. Got rows of several. Pad or resize them."
            ) from error
        if array.ndim not in (2, 3, 4) or array.dtype.kind not in "biuf" or len(array) == 0:
            raise SampleError(
                "The samples must be an array of numbers with 2, 3 or 4 dimensions and at least one row. "
                f"Got {array.dtype} of shape {array.shape}. Pass (n, d) rows, or (n, c, h, w) images."
            )
        self.kind = "numbers" if array.ndim == 2 else "image"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise SampleError("The samples must be finite numbers. Got NaN or infinity. Fill or remove these rows.")
        self._array = _channels_first(array)
        n = len(array)
        keys = make_distinct(self._digest(position) for position in range(n)) if ids is None else given_ids(ids, n)
        self.ids = Ids(keys, self._digest)
        known = [] if labels is None else np.asarray(labels, dtype=object).tolist()
        self._labels = {
            key: str(label) for key, label in zip(self.ids, known, strict=False) if label is not None and label != -1
        }

    @property
    def folder_labels(self) -> dict[str, str]:
        """The labels that came with the samples."""
        return self._labels

    @classmethod
    def from_file(cls, path: Path) -> ArraySource:
        """An npz file with an array ``X``, and perhaps ``ids`` and ``y``."""
        try:
            open_regular(path).close()
            stored = stored_arrays(path)
            wanted = next((name for name in _NAMES if name in stored), stored[0] if len(stored) == 1 else None)
            labels = next((name for name in _LABELS if name in stored), None)
            arrays: dict[Any, Any] = {
                name: read_array(path, name) for name in (wanted, "ids", labels) if name in stored
            }
        except ValueError as error:
            raise SampleError(str(error)) from error
        except OSError as error:
            why = error.strerror or error
            raise SampleError(f"{path} must be a file that can be read. Got: {why}. Check the path.") from error
        if wanted is None:
            raise SampleError(
                f"{path} must have an array X with the samples. Got {shorten(sorted(stored))}. Rename one to X."
            )
        return cls(arrays[wanted], arrays.get("ids"), arrays.get(labels))

    def samples(self) -> np.ndarray:
        """(n, d) or (n, c, h, w) float32; bytes are scaled to [0, 1]."""
        if self._array.dtype == np.uint8:
            return self._array.astype(np.float32) / 255
        return self._array.astype(np.float32)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one sample, channels first."""
        return tuple(self._array.shape[1:])

    def originals(self, rows: Sequence[int]) -> np.ndarray:
        """The numbers as they were given."""
        found: np.ndarray = self._array[np.asarray(rows, dtype=np.int64)]
        return found

    def picture(self, position: int, size: int | None) -> tuple[bytes, str]:
        """An image as PNG."""
        if self.kind != "image":
            return super().picture(position, size)
        try:
            from PIL import Image
        except ImportError as error:
            raise SkalError(
                f"Pictures need pillow. Got an installation without it. {how_to_install('label')}"
            ) from error
        pixels = pixels_of(self._array[position])
        image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
        if size is not None:
            image.thumbnail((size, size))
        target = io.BytesIO()
        image.save(target, "PNG")
        return target.getvalue(), "image/png"

    def text(self, position: int) -> str:
        """The numbers of a row."""
        row = self._array[position].reshape(-1)
        return ", ".join(f"{value:.4g}" for value in row[:50]) + (", …" if len(row) > 50 else "")

    def _digest(self, position: int) -> str:
        return digest_bytes(np.ascontiguousarray(self._array[position]).tobytes()).hex()[:20]


def _channels_first(array: np.ndarray) -> np.ndarray:
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4 and array.shape[3] in (1, 3, 4) and array.shape[1] not in (1, 3, 4):
        return np.moveaxis(array, 3, 1)
    return array
