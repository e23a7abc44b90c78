# SPDX-License-Identifier: BSD-3-Clause
"""Features of samples: what computes them, and the memory that keeps them."""

from skal._core.cache import Cache
from skal.features._compute import compute_features
from skal.features._pixels import ArrayFeatures, ArrayPictures, PixelFeatures
from skal.features._pretrained import PretrainedFeatures, pretrained
from skal.features._remembered import RememberedFeatures
from skal.features._table import TableFeatures
from skal.features._text import SparseFeatures, TextFeatures

__all__ = [
    "ArrayFeatures",
    "ArrayPictures",
    "Cache",
    "PixelFeatures",
    "PretrainedFeatures",
    "RememberedFeatures",
    "SparseFeatures",
    "TableFeatures",
    "TextFeatures",
    "compute_features",
    "pretrained",
]
