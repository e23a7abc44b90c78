# SPDX-License-Identifier: BSD-3-Clause
"""Pictures and arrays as a small network or a linear classifier sees them: float32, of one shape."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin

from skal.exceptions import InvalidTypeError, SampleError, SkalError, how_to_install
from skal.features._image_files import open_image
from skal.features._pictures import read_picture
from skal.validation import MOST_PIXELS, Integer


class FixedTransformer(TransformerMixin, BaseEstimator):
    """A transformer that learns nothing."""

    def fit(self, X: Any = None, y: Any = None) -> Any:
        """Do nothing: there is nothing to learn.

        Parameters
        ----------
        X, y : object, optional
            Not looked at.

        Returns
        -------
        transformer
            Itself.
        """
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit, tags.input_tags.two_d_array = False, False
        return tags


class PixelFeatures(FixedTransformer):
    """The pixels of pictures, at one size: files of any size become arrays.

    Parameters
    ----------
    size : int, default=32
        Pixels a side.
    flatten : bool, default=False
        Whether each picture is a row of numbers, for a linear classifier.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.features import PixelFeatures
    >>> PixelFeatures(8).transform([np.zeros((30, 40, 3), dtype=np.uint8)]).shape
    (1, 3, 8, 8)
    """

    takes = "a list of pictures: paths, images of pillow, or arrays"

    def __init__(self, size: int = 32, *, flatten: bool = False) -> None:
        self.size = size
        self.flatten = flatten

    def transform(self, X: Any) -> np.ndarray:
        """Red, green and blue in [0, 1].

        Parameters
        ----------
        X : sequence of paths, images of pillow, or arrays (h, w), (c, h, w) or (h, w, c), n pictures
            Turned upright, and resized whatever their shape.

        Returns
        -------
        (n, 3, size, size) float32 array
            Or (n, 3 · size²) if they are to be flat.
        """
        Integer(1, MOST_PIXELS).check("PixelFeatures", "size", self.size)
        try:
            from PIL import Image
        except ImportError as error:
            raise SkalError(
                f"Pictures need pillow. Got an installation without it. {how_to_install('images')}"
            ) from error
        if isinstance(X, (str, bytes)) or not hasattr(X, "__len__"):
            expected, remedy = "a sequence with an entry for each picture", "Put a single picture into a list."
            raise InvalidTypeError.for_parameter("transform", "X", expected, X, remedy)
        result = np.zeros((len(X), 3, self.size, self.size), dtype=np.float32)
        for position, item in enumerate(X):
            if isinstance(item, (str, os.PathLike)):
                small = open_image(Path(item), self.size, square=True)
            else:
                small = Image.fromarray(read_picture(item, position)).resize((self.size, self.size))
            result[position] = np.moveaxis(np.asarray(small, dtype=np.float32) / 255, 2, 0)
        return result.reshape(len(result), -1) if self.flatten else result


class ArrayPictures(FixedTransformer):
    """Arrays as pictures of bytes, as the labelling page shows them: for a network that was trained on pictures.

    Parameters
    ----------
    shape : tuple of int
        (c, h, w) of one picture.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.features import ArrayPictures
    >>> ArrayPictures((1, 8, 8)).transform(np.full((5, 8, 8), 0.5))[0, 0, 0]
    array([128], dtype=uint8)
    """

    def __init__(self, shape: Sequence[int]) -> None:
        self.shape = shape

    @property
    def takes(self) -> str:
        """The input of ``transform``, in words."""
        return ArrayFeatures(self.shape).takes

    def transform(self, X: Any) -> np.ndarray:
        """Pictures of bytes, with the channels last.

        Parameters
        ----------
        X : array or tensor of n pictures
            Of the shape, with the channels first, last or none.

        Returns
        -------
        (n, h, w, c) uint8 array
            Bytes as they were, numbers in [0, 1] times 255, and others between their smallest and their largest.
        """
        return np.stack([pixels_of(sample) for sample in ArrayFeatures(self.shape).arrange(X)])


def pixels_of(sample: np.ndarray) -> np.ndarray:
    """A picture (c, h, w) of any numbers as (h, w, c) bytes; of two channels, or more than four, the first alone."""
    pixels = np.moveaxis(sample, 0, 2)
    pixels = pixels if pixels.shape[2] in (1, 3, 4) else pixels[:, :, :1]
    if pixels.dtype == np.uint8:
        return pixels
    values = pixels.astype(np.float64)
    low, high = (0.0, 1.0) if values.min() >= 0 and values.max() <= 1 else (values.min(), values.max())
    return np.asarray((255 * (values - low) / ((high - low) or 1.0)).round(), dtype=np.uint8)


class ArrayFeatures(FixedTransformer):
    """Arrays in the form that a model was trained on: channels first, bytes scaled to [0, 1].

    Parameters
    ----------
    shape : tuple of int
        Of one sample: (c, h, w) of a picture, or (d,).
    flatten : bool, default=False
        Whether each sample is a row of numbers, for a linear classifier.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.features import ArrayFeatures
    >>> ArrayFeatures((1, 8, 8)).transform(np.zeros((5, 8, 8))).shape
    (5, 1, 8, 8)
    """

    def __init__(self, shape: Sequence[int], *, flatten: bool = False) -> None:
        self.shape = shape
        self.flatten = flatten

    @property
    def takes(self) -> str:
        """The input of ``transform``, in words."""
        return f"an array of shape ({', '.join(['n', *map(str, self.shape)])})"

    def transform(self, X: Any) -> np.ndarray:
        """The same numbers as float32.

        Parameters
        ----------
        X : array, tensor or data frame of n samples
            Of the shape; pictures may have their channels last, or none.

        Returns
        -------
        (n, ...) float32 array
            Or a row for each sample if they are to be flat.
        """
        array = self.arrange(X)
        scale = np.float32(255 if array.dtype == np.uint8 else 1)
        result: np.ndarray = array.astype(np.float32) / scale
        return result.reshape(len(result), -1) if self.flatten else result

    def arrange(self, X: Any) -> np.ndarray:
        """The same numbers with the channels first; SampleError if they are not of the shape.

        Parameters
        ----------
        X : array, tensor or data frame of n samples
            As for ``transform``.

        Returns
        -------
        (n, ...) array
            Of the type that it was.
        """
        array = X.detach().cpu().numpy() if isinstance(X, torch.Tensor) else np.asarray(X)
        shape = tuple(self.shape)
        if array.ndim == len(shape) and len(shape) == 3 and shape[0] == 1:
            array = array[:, None]
        if array.ndim == 4 and array.shape[1:] != shape and (array.shape[3], *array.shape[1:3]) == shape:
            array = np.moveaxis(array, 3, 1)
        if array.dtype.kind not in "biuf" or array.shape[1:] != shape or len(array) == 0:
            raise SampleError(
                f"The samples must be {self.takes}. Got {array.dtype} of shape {array.shape}. Pass samples of the kind "
                "that the model was trained on."
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise SampleError("The samples must be finite numbers. Got NaN or infinity. Fill or remove these rows.")
        return array
