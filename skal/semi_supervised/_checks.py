"""Labels of which some are missing, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from skal.data import dataset_target, n_rows
from skal.exceptions import InvalidParameterError, InvalidTypeError, NoLabelledDataError, parameter_message

__all__ = ["check_classes", "check_some_labels", "checked_labels", "checked_truth"]


def checked_labels(owner: str, X: Any, y: Any, name: str = "y") -> np.ndarray:
    """(n,) int64 labels, −1 for unlabelled; those of a Dataset of pairs where y is None."""
    if y is None and isinstance(X, Dataset):
        y = [int(dataset_target(X[row])) for row in range(n_rows(X, "X"))]
    expected = "integers 0 … C−1, one for each sample, with −1 for unlabelled ones"
    remedy = "Encode labels with sklearn.preprocessing.LabelEncoder and put −1 where there is none."
    array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if array.dtype.kind not in "iu":
        raise InvalidTypeError(parameter_message(owner, name, expected, y, remedy))
    n_samples = n_rows(X, "X")
    if array.shape != (n_samples,):
        message = parameter_message(owner, name, f"{n_samples} {expected}", f"shape {array.shape}", remedy)
        raise InvalidParameterError(message)
    labels = array.astype(np.int64)
    if len(labels) and labels.min() < -1:
        raise InvalidParameterError(parameter_message(owner, name, expected, int(labels.min()), remedy))
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
        raise InvalidParameterError(parameter_message(owner, "y", expected, int(labels.max()), remedy))


def checked_truth(owner: str, y_true: Any, X: Any) -> Tensor | None:
    """(n,) true labels, −1 where unknown, or None."""
    return None if y_true is None else torch.as_tensor(checked_labels(owner, X, y_true, "y_true"))
