# SPDX-License-Identifier: BSD-3-Clause
"""Labels that are there already: read one by one as the loop asks for them, and never all at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from torch.utils.data import Dataset

from skal._core.containers import dataset_target, n_rows, take_rows
from skal.exceptions import AdjustedInputWarning, InvalidParameterError


def label_reader(owner: str, X: Any, y: Any) -> Callable[[np.ndarray, Any], Any]:
    """An oracle that reads the labels of given samples, and no others."""
    if y is None:
        if not isinstance(X, Dataset):
            raise InvalidParameterError(
                f"{owner} requires y to be passed, but the target y is None. "
                "Pass labels, an oracle, or a Dataset of (x, y) pairs; use start() to label by hand."
            )
        return lambda indices, _: [dataset_target(X[int(i)]) for i in indices]
    y = y if hasattr(y, "__getitem__") else np.asarray(y)  # what can only be converted as a whole
    check_one_label_each(X, y, "fit")
    return lambda indices, _: take_rows(y, indices)


def check_one_label_each(X: Any, y: Any, owner: str) -> None:
    """Refuse labels that are more or fewer than the samples."""
    if n_rows(y, "y") != n_rows(X):
        raise InvalidParameterError(
            f"The y given to {owner} must have one label for each of the {n_rows(X)} samples. "
            f"Got {n_rows(y, 'y')} labels instead. Pass the labels of exactly these samples."
        )


def which_have_labels(y: Any, *, unlabelled: bool) -> np.ndarray | None:
    """(n,) which samples have a label; None if that cannot be seen without reading labels, or all have one.

    Only whether there is a label is looked at, not which. With ``unlabelled``, −1 means that there is none.
    """
    plain = isinstance(y, np.ndarray) and not isinstance(y, np.ma.MaskedArray) and y.dtype.kind in "iubU"
    if plain and not unlabelled:  # such an array has no room for "unknown"
        return None
    if not isinstance(y, (np.ndarray, list, pd.Series)) or getattr(y, "ndim", 1) != 1:
        return None
    known = ~np.asarray(pd.isna(y if isinstance(y, pd.Series) else np.array(y, dtype=object)))
    if isinstance(y, np.ma.MaskedArray):
        known &= ~np.ma.getmaskarray(y)
    if unlabelled:
        known &= np.asarray(y, dtype=object) != -1
    if not known.any():  # the loop will say so
        return None
    if known.mean() < 0.5:
        warnings.warn(
            f"y has a label for only {known.sum()} of {len(known)} samples; the others are never asked for. "
            "To label them by hand, use start(X, y).",
            AdjustedInputWarning,
            stacklevel=3,
        )
    return None if known.all() else known
