# SPDX-License-Identifier: BSD-3-Clause
"""Which rows of a pool may be queried: the others stay where they are, and are not read."""

from __future__ import annotations

from typing import Any

import numpy as np

from skal.exceptions import InvalidParameterError, InvalidTypeError


def candidate_rows(owner: str, candidates: Any, n_pool: int) -> np.ndarray:
    """Positions in the pool, from positions or from one truth value per row.

    Parameters
    ----------
    owner : str
        Who was asked, for messages.
    candidates : array-like of int or of bool
    n_pool : int

    Returns
    -------
    (n,) int64 array
        At least one, each once, in the order given.

    Examples
    --------
    >>> candidate_rows("Margin", [False, True, True], 3)
    array([1, 2])
    """
    rows = np.asarray(candidates)
    remedy = "Pass positions in X_pool, each once, or a mask with one truth value per row."
    if rows.ndim != 1 or rows.dtype.kind not in "iub":
        expected = "a flat array of integers or of truth values"
        raise InvalidTypeError.for_parameter(owner, "candidates", expected, candidates, remedy)
    if rows.dtype.kind == "b":
        if len(rows) != n_pool:
            expected = f"a mask with one truth value for each of the {n_pool} rows of X_pool"
            raise InvalidParameterError.for_parameter(owner, "candidates", expected, len(rows), remedy)
        rows = np.flatnonzero(rows)
    rows = rows.astype(np.int64)
    if not len(rows) or rows.min() < 0 or rows.max() >= n_pool or len(np.unique(rows)) < len(rows):
        expected = f"distinct positions in 0 … {n_pool - 1}, at least one"
        raise InvalidParameterError.for_parameter(owner, "candidates", expected, rows.tolist(), remedy)
    return rows
