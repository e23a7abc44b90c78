# SPDX-License-Identifier: BSD-3-Clause
"""Labels as people write them, and the numbers 0 … C−1 that an estimator is trained with."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils import assert_all_finite, column_or_1d
from torch.utils.data import Dataset

from skal._core.containers import dataset_target, n_rows, take_rows
from skal.exceptions import AdjustedInputWarning, InvalidParameterError, InvalidTypeError, shorten

MOST_OUTPUTS = 2**20  # no network has more, and a mistyped label must not cost memory


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
        if labels.is_meta:
            remedy = "Pass labels that have been computed."
            raise InvalidTypeError(
                f"The labels must be values. Got a tensor of the device 'meta', without any. {remedy}"
            )
        labels = labels.detach().cpu().numpy()
    array = labels.to_numpy() if hasattr(labels, "to_numpy") else labels
    if not isinstance(array, np.ndarray):
        # a list may mix labels and None: numpy must not turn 1 into 1.0 or "1"
        array = np.empty(len(labels), dtype=object)
        array[:] = list(labels)
    dtype = array.dtype
    if array.ndim > 1 and array.shape[1:] != (1,):
        raise InvalidParameterError(
            f"The labels must be one class for each sample. Got labels of shape {array.shape} instead. For several "
            "labels at once wrap the estimator in sklearn.multioutput.MultiOutputClassifier; of one-hot rows pass "
            "y.argmax(1)."
        )
    unmasked = np.where(np.ma.getmaskarray(array), None, array)
    values = [_plain(value, no_label) for value in column_or_1d(unmasked, warn=True).tolist()]
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


def _plain(value: Any, no_label: int | None) -> Any:
    """One label as a Python value, None if it stands for "no label"."""
    value = None if value is np.ma.masked else value
    value = value.item() if isinstance(value, (np.generic, torch.Tensor)) else value
    missing = pd.api.types.is_scalar(value) and (bool(pd.isna(value)) or value == no_label)
    return None if missing else value


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


def resume_dtype(values: list[Any], kept: str | None) -> str | None:
    """The type of labels that were read from a file: the one that was kept, if it can hold them."""
    own = read_labels(values)[1]
    if kept is not None and own is not None:
        try:
            return kept if np.array(values, dtype=kept).tolist() == values else own
        except (OverflowError, ValueError):
            return own
    return own or kept


def class_names(labels: np.ndarray, classes: Any, *, network: bool, known: list[Any] | None = None) -> np.ndarray:
    """``names[k]`` is the label that the estimator knows as k: the one order of classes.

    Without a network, ``classes`` or the labels seen so far, sorted. A network's outputs must keep their meaning when
    a new class turns up: those of the last training (``known``) come first, then new ones, sorted. So they are sorted
    as long as no class turns up later than the first training. Without ``classes``, integers 0, 1, 2, … are outputs as
    they are. Which of the two integers are is settled by the first training: a negative one is no number of an output.

    Examples
    --------
    >>> class_names(np.array(["b", "a", "b"]), None, network=True).tolist()
    ['a', 'b']
    >>> class_names(np.array(["b", "c", "a"]), None, network=True, known=["b", "c"]).tolist()
    ['b', 'c', 'a']
    >>> class_names(np.array([2, 0]), None, network=True).tolist()
    [0, 1, 2]
    """
    names = np.unique(labels)
    if classes is not None:
        listed = np.asarray(classes)
        names = np.unique(np.array(listed.tolist()) if listed.dtype.kind == "O" else listed)
        strangers = np.setdiff1d(labels, names)
        if len(strangers):
            raise InvalidParameterError(
                f"The labels must be among the 'classes' of ActiveLearningClassifier ({shorten(names.tolist())}). "
                f"Got {shorten(strangers.tolist())} instead. List every class, in the labels' own type."
            )
    elif network and labels.dtype.kind == "b":
        return np.array([False, True])
    elif network and labels.dtype.kind in "iuf" and _are_outputs(labels, known):
        return np.arange(max(int(labels.max()) + 1, len(known or ()))).astype(labels.dtype)
    if not network or not known:
        return names
    before = np.array(known)
    before = before if before.dtype.kind == "U" else before.astype(names.dtype)
    return np.concatenate([before, names[~np.isin(names, before)]])


def _are_outputs(labels: np.ndarray, known: list[Any] | None) -> bool:
    """True if integer labels are the numbers of a network's outputs; refused if some cannot be."""
    if known and known != list(range(len(known))):
        return False
    negative = np.unique(labels[labels < 0])
    if len(negative) and not known:
        return False
    if len(negative):
        raise InvalidParameterError(
            "The integer labels of a network must be >= 0 if those of the first training were: they are the "
            f"numbers of its outputs. Got {shorten(negative.tolist())} instead. List all labels in 'classes'."
        )
    if labels.max() >= MOST_OUTPUTS:
        raise InvalidParameterError(
            f"The integer labels of a network must be numbers of its outputs, below {MOST_OUTPUTS}. "
            f"Got {int(labels.max())} instead. Correct the label, or list all labels in 'classes'."
        )
    return True


def encode(labels: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The numbers of the labels: (n,) int64."""
    codes: np.ndarray = pd.Index(names).get_indexer(labels).astype(np.int64)
    return codes


def label_reader(owner: str, X: Any, y: Any) -> Callable[[np.ndarray, Any], Any]:
    """An oracle that reads the labels of given samples, and no others."""
    if y is None:
        if not isinstance(X, Dataset):
            raise InvalidParameterError(
                f"{owner} requires y to be passed, but the target y is None. "
                "Pass labels, an oracle, or a Dataset of (x, y) pairs; use start() to label by hand."
            )
        return lambda indices, _: [dataset_target(X[int(i)]) for i in indices]
    y = y if hasattr(y, "__getitem__") else np.asarray(y)  # some containers convert only as a whole
    check_one_label_each(X, y, "fit")
    return lambda indices, _: take_rows(y, indices)


def check_one_label_each(X: Any, y: Any, owner: str) -> None:
    """Refuse labels that are more or fewer than the samples."""
    if n_rows(y, "y") != n_rows(X):
        raise InvalidParameterError(
            f"The y given to {owner} must have one label for each of the {n_rows(X)} samples. "
            f"Got {n_rows(y, 'y')} labels instead. Pass the labels of exactly these samples."
        )


def find_labels(y: Any, *, unlabelled: bool) -> np.ndarray | None:
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
