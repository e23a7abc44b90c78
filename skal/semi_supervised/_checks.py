"""Checks of the data: labels of which some are missing, tables of numbers, batches of a Dataset."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from skal._core.containers import all_finite, check_finite, dataset_input, dataset_target, n_rows
from skal.exceptions import (
    InvalidParameterError,
    InvalidTypeError,
    NoLabelledDataError,
    NonFiniteError,
    parameter_message,
)

__all__ = [
    "check_classes",
    "check_column_names",
    "check_labelled_batch",
    "check_some_labels",
    "checked_labels",
    "checked_truth",
    "real_numbers",
]


def checked_labels(owner: str, X: Any, y: Any, name: str = "y") -> np.ndarray:
    """(n,) int64 labels, −1 for unlabelled; those of a Dataset of pairs where y is None."""
    if y is None and isinstance(X, Dataset):
        y = [int(dataset_target(X[row])) for row in range(n_rows(X, "X"))]
    expected = "integers 0 … C−1, one for each sample, with −1 for unlabelled ones"
    remedy = "Encode labels with sklearn.preprocessing.LabelEncoder and put −1 where there is none."
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.dtype.kind not in "iu":
        raise InvalidTypeError.for_parameter(owner, name, expected, y, remedy)
    n_samples = n_rows(X, "X")
    if array.shape != (n_samples,):
        message = parameter_message(owner, name, f"{n_samples} {expected}", f"shape {array.shape}", remedy)
        raise InvalidParameterError(message)
    labels = array.astype(np.int64)
    if len(labels) and labels.min() < -1:
        raise InvalidParameterError.for_parameter(owner, name, expected, int(labels.min()), remedy)
    return labels


def check_some_labels(owner: str, labels: np.ndarray) -> None:
    """Refuse labels that are all −1."""
    if not (labels >= 0).any():
        raise NoLabelledDataError(
            f"The y of {owner} must hold labels for some samples. Got −1, for unlabelled, only. "
            "Label a few samples, best of every class."
        )


def check_classes(owner: str, labels: np.ndarray, n_classes: int) -> None:
    """Refuse labels that the network has no output for."""
    if len(labels) and labels.max() >= n_classes:
        expected = f"integers 0 … {n_classes - 1}, as the module has {n_classes} outputs"
        remedy = "Encode labels as 0 … C−1, or give the module more outputs."
        raise InvalidParameterError.for_parameter(owner, "y", expected, int(labels.max()), remedy)


def checked_truth(owner: str, y_true: Any, X: Any) -> Tensor | None:
    """(n,) true labels, −1 where unknown, or None."""
    return None if y_true is None else torch.as_tensor(checked_labels(owner, X, y_true, "y_true"))


def check_column_names(owner: str, X: Any) -> None:
    """Refuse a DataFrame whose columns cannot be passed to the module by name, as skorch does."""
    names = [name for name in getattr(X, "columns", ()) if not isinstance(name, str)]
    if names:
        expected = "an array, or a DataFrame whose column names are those of the module's inputs"
        remedy = "Pass X.to_numpy(), here and to predict, if the columns are the features of one input."
        raise InvalidTypeError.for_parameter(owner, "X", expected, f"columns {names}", remedy)


def check_labelled_batch(X: Any, dataset: Any, rows: Iterable[int]) -> None:
    """Refuse NaN and infinity in a batch drawn from these rows of a Dataset, and say which row has them."""
    if all_finite(X):
        return
    for row in rows:
        check_finite([dataset_input(dataset[row])], "X", [row])
    raise NonFiniteError(  # the items differ from one reading to the next, or are finite until they are collated
        "X must be finite. Got NaN or infinity in a batch of labelled samples. Check the Dataset and its collate_fn."
    )


def real_numbers(values: Any) -> Tensor | None:
    """Values as a float64 tensor, on the device of a tensor; None if they are no real numbers, or ragged."""
    if isinstance(values, Tensor):
        return None if values.is_complex() else values.detach().double()
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError):
        return None
    return torch.as_tensor(np.array(array, dtype=np.float64)) if array.dtype.kind in "fiub" else None
