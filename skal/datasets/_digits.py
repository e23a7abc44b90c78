"""scikit-learn's digits, the data set that needs no files."""

import numpy as np
from sklearn.datasets import load_digits

from ._arrays import Arrays, every_fifth
from ._names import DIGITS

__all__ = ["DESCRIPTION", "read_digits"]

DESCRIPTION = "8x8 handwritten digits of scikit-learn; the 2nd, 7th, 12th... image of each class is for testing"


def read_digits() -> Arrays:
    """Return the 1,797 digits (N, 1, 8, 8), split as `every_fifth` has it."""
    bunch = load_digits()
    # Pixels count the dark points of a 4x4 cell, so that the largest value is 16.
    images = (bunch.images[:, np.newaxis] / 16).astype(np.float32)
    labels = bunch.target.astype(np.int64)
    test = every_fifth(labels)
    return Arrays(images[~test], labels[~test], images[test], labels[test], DIGITS)
