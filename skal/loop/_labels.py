"""Labels as people write them, and the numbers 0 … C−1 that an estimator is trained with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils import assert_all_finite, column_or_1d

from skal.exceptions import InvalidParameterError, InvalidTypeError, shorten

__all__ = ["class_names", "common_dtype", "encode", "expand_proba", "read_labels"]


def read_labels(labels: Any, no_label: int | None = None) -> tuple[list[Any], str | None]:
    """Labels as plain Python values, None where there is none, and numpy's name of their type.

    None, NaN, ``pandas.NA``, masked entries and the number ``no_label``, if given, stand for "no label".

    Examples
    --------
    >>> read_labels(np.array([1, 0], dtype="uint8"))
    ([1, 0], '|u1')
    >>> read_labels(["cat", None])
    (['cat', None], '<U0')
    """
    if isinstance(labels, torch.Tensor):
        labels = labels.detach().cpu().numpy()
    if isinstance(labels, np.ma.MaskedArray):
        dtype, array = labels.dtype, labels.data.astype(object)
        array[np.ma.getmaskarray(labels)] = None
    else:
        array = labels.to_numpy() if hasattr(labels, "to_numpy") else labels
        if not isinstance(array, np.ndarray):
            # a list may mix labels and None: numpy must not turn 1 into 1.0 or "1"
            values, array = list(array), np.empty(len(array), dtype=object)
            array[:] = values
        dtype = array.dtype
    array = column_or_1d(array, warn=True)
    values = [None if _is_missing(value) else value for value in array.tolist()]
    values = [value.item() if isinstance(value, (np.generic, torch.Tensor)) else value for value in values]
    values = [None if isinstance(value, (int, float)) and value == no_label else value for value in values]
    present = [value for value in values if value is not None]
    if not present:
        return values, None
    kinds = {float if type(value) is int else type(value) for value in present}
    if len(kinds) != 1 or not kinds <= {float, bool, str}:
        raise InvalidTypeError(
            "The labels must be integers, floats, booleans or strings, all of one kind. "
            f"Got {shorten(present)} instead. Convert them, for example with y.astype(str)."
        )
    if dtype.kind not in "iufbU":
        dtype = np.asarray(present).dtype
    if dtype.kind == "f":
        _check_whole_numbers(np.array(present, dtype=dtype))
    return values, "<U0" if dtype.kind == "U" else dtype.str


def _is_missing(value: Any) -> bool:
    return value is None or (not isinstance(value, (list, tuple, dict, np.ndarray)) and bool(pd.isna(value)))


def _check_whole_numbers(labels: np.ndarray) -> None:
    assert_all_finite(labels, input_name="y")
    if (labels != np.round(labels)).any():
        raise InvalidParameterError(
            f"Unknown label type: continuous. The labels must be classes. Got {shorten(labels.tolist())} instead. "
            "Pass integers or strings; for regression targets, bin them first."
        )


def common_dtype(first: str | None, second: str | None) -> str | None:
    """The type that holds the labels so far and the new ones; refused if they are of different kinds."""
    if first is None or second is None or first == second:
        return first or second
    a, b = np.dtype(first), np.dtype(second)
    kinds = {"string" if d.kind == "U" else "boolean" if d.kind == "b" else "number" for d in (a, b)}
    if len(kinds) != 1:
        raise InvalidTypeError(
            f"The labels of all rounds must be of one kind. Got type {b} after {a}. Convert the new ones."
        )
    if a.kind in "iu" and b.kind == "f":  # [1.0, nan] for an integer label and none
        return first
    return np.result_type(a, b).str


def class_names(labels: np.ndarray, classes: Any, *, network: bool, n_first: int | None = None) -> np.ndarray:
    """``names[k]`` is the label that the estimator knows as k.

    With ``classes``, these, sorted. Without, an estimator that is not a network gets the labels seen so far, sorted. A
    network's outputs must keep their meaning when a new class turns up: integers 0, 1, 2, … are outputs as they are,
    and other labels get the next output when they are first seen. Which of the two it is, is settled by the first
    ``n_first`` labels, those of the first training (None: all): a negative integer is no number of an output.

    Examples
    --------
    >>> class_names(np.array(["b", "a", "b"]), None, network=True).tolist()
    ['b', 'a']
    >>> class_names(np.array([2, 0]), None, network=True).tolist()
    [0, 1, 2]
    """
    if classes is not None:
        names = np.asarray(classes)
        names = np.unique(np.array(names.tolist()) if names.dtype.kind == "O" else names)
        strangers = np.setdiff1d(labels, names)
        if len(strangers):
            raise InvalidParameterError(
                f"The labels must be among the 'classes' of ActiveLearningClassifier ({shorten(names.tolist())}). "
                f"Got {shorten(strangers.tolist())} instead. List every class, in the labels' own type."
            )
        return names
    if not network:
        return np.unique(labels)
    if labels.dtype.kind == "b":
        return np.array([False, True])
    if labels.dtype.kind in "iuf" and labels[:n_first].min() >= 0:
        negative = np.unique(labels[labels < 0])
        if len(negative):
            raise InvalidParameterError(
                "The integer labels of a network must be >= 0 if those of the first training were: they are the "
                f"numbers of its outputs. Got {shorten(negative.tolist())} instead. List all labels in 'classes'."
            )
        return np.arange(int(labels.max()) + 1).astype(labels.dtype)
    _, first = np.unique(labels, return_index=True)
    return labels[np.sort(first)]


def encode(labels: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The numbers of the labels: (n,) int64."""
    order = np.argsort(names)
    return order[np.searchsorted(names, labels, sorter=order)].astype(np.int64)


def expand_proba(proba: np.ndarray, codes: np.ndarray, names: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """Probabilities with one column per class, from an estimator whose columns are ``codes``.

    Parameters
    ----------
    proba : (n, k) array
    codes : (k,) integer array
        Columns that are no class's (a network's spare outputs) are left out, and the rows scaled to sum to 1 again.
    names : (m,) array
        The label of every code.
    classes : (C,) sorted array

    Returns
    -------
    (n, C) array
    """
    named = codes < len(names)
    columns = np.searchsorted(classes, names[codes[named]])
    result = np.zeros((len(proba), len(classes)), dtype=proba.dtype)
    result[:, columns] = proba[:, named]
    if not named.all():
        total = result.sum(axis=1, keepdims=True)
        result = np.where(total > 0, result / np.where(total > 0, total, 1), 1 / len(classes))
    return result
