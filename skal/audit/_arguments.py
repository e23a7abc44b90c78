# SPDX-License-Identifier: BSD-3-Clause
"""What an audit is given: probabilities, positions, labels. All of it is checked here, and nowhere else."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skal.exceptions import InvalidParameterError
from skal.validation import Real, as_finite_array

Floats = NDArray[np.float64]
Positions = NDArray[np.int64]

_ROUNDING = 1e-2  # rows of float16 sum to 1 within this


def read_proba(owner: str, proba: Any) -> Floats:
    """Class probabilities as a float64 array of shape (N, C), whose rows are distributions."""
    remedy = "Pass predict_proba of the samples without a person's label, one row each."
    if np.ndim(proba) != 2:
        expected = "probabilities of shape (N, C)"
        raise InvalidParameterError.for_parameter(owner, "proba", expected, f"shape {np.shape(proba)}", remedy)
    array = as_finite_array(owner, "proba", proba, ("N", "C"), remedy=remedy)
    off = (array < 0).any(1) | (np.abs(array.sum(1) - 1) > _ROUNDING)
    if off.any():
        row = int(np.argmax(off))
        got = f"{array[row].tolist()} in row {row}"
        raise InvalidParameterError.for_parameter(owner, "proba", "rows that are >= 0 and sum to 1", got, remedy)
    return array


def read_confidences(owner: str, proba: Any, name: str = "proba") -> Floats:
    """Confidence in each sample's label, (N,), from class probabilities or from confidences themselves."""
    if np.ndim(proba) != 1:
        top: Floats = read_proba(owner, proba).max(1)
        return top
    confidences: Floats = as_finite_array(owner, name, proba, ("N",))
    if confidences.min() < 0 or confidences.max() > 1:
        got = f"values from {confidences.min():.4g} to {confidences.max():.4g}"
        remedy = "A confidence is the probability that the label is right."
        raise InvalidParameterError.for_parameter(owner, name, "confidences between 0 and 1", got, remedy)
    return confidences


def read_positions(owner: str, positions: Any, n: int) -> Positions:
    """Distinct positions among n samples, as an int64 array."""
    remedy = "Pass the positions that skal.audit.plan returned."
    array = np.asarray(positions)
    if array.ndim != 1 or array.size == 0 or array.dtype.kind not in "iu":
        got = f"{array.dtype} of shape {array.shape}"
        raise InvalidParameterError.for_parameter(owner, "positions", "at least one integer", got, remedy)
    outside = (array < 0) | (array >= n)
    if outside.any():
        first = int(array[outside][0])
        raise InvalidParameterError.for_parameter(owner, "positions", f"rows of {n} samples, from 0", first, remedy)
    values, counts = np.unique(array, return_counts=True)
    if counts.max() > 1:
        got = f"{int(values[np.argmax(counts)])} twice"
        remedy = "An audit draws without replacement: give each sample once, with one label."
        raise InvalidParameterError.for_parameter(owner, "positions", "distinct", got, remedy)
    return array.astype(np.int64)


def read_probabilities(owner: str, probabilities: Any, n_positions: int) -> Floats:
    """One probability in (0, 1] for each position, as a float64 array."""
    remedy = "Pass the probabilities that came with the positions."
    array = np.asarray(probabilities)
    if array.shape != (n_positions,):
        expected = f"one number for each of the {n_positions} positions"
        raise InvalidParameterError.for_parameter(owner, "probabilities", expected, f"shape {array.shape}", remedy)
    array = as_finite_array(owner, "probabilities", array, ("m",), remedy=remedy)
    outside = (array <= 0) | (array > 1 + 1e-9)
    if outside.any():
        got = float(array[outside][0])
        raise InvalidParameterError.for_parameter(owner, "probabilities", "above 0 and at most 1", got, remedy)
    capped: Floats = np.minimum(array, 1.0)
    return capped


def read_labels(owner: str, labels: Any, n_positions: int, n_classes: int) -> Positions:
    """One column of proba for each position, as an int64 array."""
    array = read_answers(owner, labels, n_positions)
    remedy = "Pass columns of proba, as integers from 0: class names are columns of classes_."
    whole = array.astype(np.int64) if array.dtype.kind in "iufb" and np.isfinite(array).all() else None
    if whole is None or (whole != array).any():
        raise InvalidParameterError.for_parameter(owner, "labels", "integers", f"{array.dtype} values", remedy)
    outside = (whole < 0) | (whole >= n_classes)
    if outside.any():
        expected = f"columns of proba, from 0 to {n_classes - 1}"
        raise InvalidParameterError.for_parameter(owner, "labels", expected, int(whole[outside][0]), remedy)
    return whole


def read_answers(owner: str, labels: Any, n_positions: int) -> NDArray[Any]:
    """One answer for each position: an audit from which samples were dropped is none."""
    array = np.asarray(labels)
    if array.shape != (n_positions,):
        expected = f"one for each of the {n_positions} positions"
        remedy = "Label the others too: samples that people leave out are seldom the easy ones."
        raise InvalidParameterError.for_parameter(owner, "labels", expected, f"shape {array.shape}", remedy)
    return array


def check_confidence(owner: str, confidence: Any) -> None:
    """Refuse a confidence that is not between 0.5 and 1."""
    Real(0.5, 1, below_maximum=True, remedy="Use 0.95, or 0.99 to be surer.").check(owner, "confidence", confidence)
