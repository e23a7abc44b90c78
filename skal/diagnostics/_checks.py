"""Checks of the arrays that diagnostics take."""

from __future__ import annotations

from typing import Any

import numpy as np

from skal.exceptions import InvalidParameterError, shorten

__all__ = ["checked_kernel", "checked_matrix", "checked_targets"]


def checked_kernel(owner: str, K: Any, name: str = "K") -> np.ndarray:
    """A square, finite float64 matrix."""
    remedy = "Take it from skal.tangent.tangent_kernel."
    array = _numbers(owner, name, "a square, finite kernel matrix", K, remedy)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.shape[0] == 0:
        got = f"shape {array.shape}"
        raise InvalidParameterError.for_parameter(owner, name, "a square, finite kernel matrix", got, remedy)
    return array


def checked_targets(owner: str, name: str, Y: Any, n: int) -> np.ndarray:
    """A finite (n, C) float64 matrix; a vector is one column."""
    expected, remedy = f"a finite array of shape ({n}, C)", "One row per sample."
    array = _numbers(owner, name, expected, Y, remedy)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or array.shape[0] != n:
        raise InvalidParameterError.for_parameter(owner, name, expected, f"shape {array.shape}", remedy)
    return array


def checked_matrix(owner: str, name: str, array: Any, shape: tuple[int | None, int], remedy: str) -> np.ndarray:
    """A finite float64 matrix of this shape, None where any number of rows will do."""
    rows = "any number of rows" if shape[0] is None else f"{shape[0]} rows"
    expected = f"a finite matrix of {rows} and {shape[1]} columns"
    checked = _numbers(owner, name, expected, array, remedy)
    if checked.ndim != 2 or checked.shape[1] != shape[1] or checked.shape[0] != (shape[0] or checked.shape[0]):
        raise InvalidParameterError.for_parameter(owner, name, expected, f"shape {checked.shape}", remedy)
    return checked


def _numbers(owner: str, name: str, expected: str, value: Any, remedy: str) -> np.ndarray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidParameterError.for_parameter(owner, name, expected, shorten(value), remedy) from None
    if not np.isfinite(array).all():
        raise InvalidParameterError.for_parameter(owner, name, expected, "NaN or infinity", remedy)
    return array
