# SPDX-License-Identifier: BSD-3-Clause
"""How a loop deals with an estimator: its inner network, the data that it is fitted on, and predictions in labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.special import softmax
from sklearn.pipeline import Pipeline
from sklearn.semi_supervised import LabelPropagation, LabelSpreading, SelfTrainingClassifier
from sklearn.utils import check_array, get_tags
from sklearn.utils.validation import validate_data
from skorch import NeuralNet, NeuralNetBinaryClassifier
from torch.utils.data import Dataset

from skal._core.containers import dataset_input, n_rows, take_rows
from skal._core.estimators import unwrap_estimator
from skal._core.outputs import needs_softmax
from skal.exceptions import InvalidParameterError, InvalidTypeError


def check_estimator(owner: str, estimator: Any) -> None:
    """Refuse what scikit-learn cannot fit and copy."""
    if isinstance(estimator, type) or not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        expected, remedy = "a classifier with fit and get_params", "Pass an object, such as LogisticRegression()."
        raise InvalidTypeError.for_parameter(owner, "estimator", expected, estimator, remedy)


def check_samples(owner: Any, estimator: Any, X: Any, *, reset: bool) -> Any:
    """Samples as an estimator may take them; ``owner`` learns (``reset``) or knows the number and names of columns."""
    check_estimator(type(owner).__name__, estimator)
    inner, transformers = unwrap_estimator(estimator)
    # a Pipeline says nothing about text or NaN: its first step does
    tags = get_tags(transformers[0] if transformers else inner).input_tags
    opaque = isinstance(X, (Mapping, Dataset, torch.Tensor, np.memmap)) or tags.string or not tags.two_d_array
    opaque = opaque and not sp.issparse(X)  # one of scipy's formats is a dict
    if not opaque and not hasattr(X, "iloc"):
        X = check_array(X, accept_sparse="csr", dtype=None, allow_nd=True, ensure_all_finite=not tags.allow_nan)
    elif n_rows(X) == 0:
        raise InvalidParameterError(
            "X must hold at least one sample. Got 0 sample(s) instead. Pass the samples to choose from."
        )
    if hasattr(X, "iloc") or sp.issparse(X) or (isinstance(X, np.ndarray) and X.ndim == 2):
        validate_data(owner, X, reset=reset, skip_check_array=True)
    return X


def uses_unlabelled(estimator: Any) -> bool:
    """Whether the estimator learns from samples with the label −1.

    One of your own says so with the attribute ``uses_unlabelled = True``; scikit-learn's are known.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> uses_unlabelled(SelfTrainingClassifier(LogisticRegression())), uses_unlabelled(LogisticRegression())
    (True, False)
    """
    known = (LabelPropagation, LabelSpreading, SelfTrainingClassifier)
    while estimator is not None and not (isinstance(estimator, known) or getattr(estimator, "uses_unlabelled", False)):
        estimator = estimator.steps[-1][1] if isinstance(estimator, Pipeline) else getattr(estimator, "estimator", None)
    return estimator is not None


def final_network(estimator: Any) -> NeuralNet | None:
    """The net that ``estimator.fit`` trains in place: the estimator itself, or the last step of a Pipeline."""
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
    return estimator if isinstance(estimator, NeuralNet) else None


def is_warm_started(estimator: Any) -> bool:
    """Whether an estimator other than a network has a ``warm_start=True`` somewhere, so that fits depend on history."""
    params = estimator.get_params(deep=True) if hasattr(estimator, "get_params") else {}
    return final_network(estimator) is None and any(
        bool(value) for name, value in params.items() if name.split("__")[-1] == "warm_start"
    )


class _RelabelledDataset(Dataset[Any]):
    """Rows of a Dataset with other labels: skorch takes a Dataset's own and never looks at y."""

    def __init__(self, data: Dataset[Any], rows: np.ndarray, codes: np.ndarray) -> None:
        self.data = data
        self.rows = rows
        self.y = torch.as_tensor(codes, device="cpu")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return dataset_input(self.data[int(self.rows[i])]), self.y[i]


def prediction_input(X: Any) -> Any:
    """Samples in a form that an estimator can predict on: skorch wants pairs, and torch memory that it may write to."""
    if isinstance(X, Dataset):
        return _RelabelledDataset(X, np.arange(n_rows(X)), np.zeros(n_rows(X), dtype=np.int64))
    return np.array(X) if isinstance(X, np.memmap) and not X.flags.writeable else X


def training_data(estimator: Any, X: Any, rows: np.ndarray, codes: np.ndarray) -> tuple[Any, np.ndarray]:
    """What to fit on: the labelled rows, or everything with −1 where there is no label if the estimator can use that.

    Parameters
    ----------
    estimator : classifier
    X : all samples
    rows : (n,) positions of the labelled samples
    codes : (n,) their labels as numbers
    """
    if uses_unlabelled(estimator):
        y = np.full(n_rows(X), -1, dtype=np.int64)
        y[rows] = codes
        return (_RelabelledDataset(X, np.arange(len(y)), y) if isinstance(X, Dataset) else prediction_input(X)), y
    # skorch leaves it to the user to give a binary cross-entropy the floats that it needs
    binary = isinstance(unwrap_estimator(estimator)[0], NeuralNetBinaryClassifier)
    y = codes.astype(np.float32) if binary else codes
    return (_RelabelledDataset(X, rows, y) if isinstance(X, Dataset) else take_rows(X, rows)), y


def initialize_network(estimator: Any, X: Any, y: np.ndarray | None) -> None:
    """Initialise the net at the end of the estimator, and fit the steps of a Pipeline before it."""
    while isinstance(estimator, Pipeline):
        if len(estimator.steps) > 1:
            before = estimator[:-1]
            X = before.fit_transform(X, y)
            estimator.steps[:-1] = before.steps  # a Pipeline with a cache fits copies
        estimator = estimator.steps[-1][1]
    if hasattr(estimator, "initialize_for"):  # it must see samples to know how large it is
        estimator.initialize_for(X, y)
    else:
        estimator.initialize()


@dataclass(frozen=True)
class Predictor:
    """A fitted estimator that speaks in labels, not in the numbers that it was trained with.

    Attributes
    ----------
    estimator : fitted classifier
    names : (m,) array
        ``names[k]`` is the label that the estimator knows as k.
    columns : (k,) int64 array
        The number of each column of ``estimator.predict_proba``; one that is not below m is a spare output, which is
        never predicted.
    """

    estimator: Any
    names: np.ndarray
    columns: np.ndarray

    def predict(self, X: Any) -> np.ndarray:
        """(n,) labels."""
        if (self.columns < len(self.names)).all():
            codes = np.asarray(self.estimator.predict(prediction_input(X)))
            return self.names[codes.reshape(-1).astype(np.int64)]
        labels: np.ndarray = self.names[self.predict_proba(X).argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, m) probabilities, in the order of ``names``."""
        proba = np.asarray(self.estimator.predict_proba(prediction_input(X)))
        net = final_network(self.estimator)
        if net is not None and needs_softmax(net):
            proba = softmax(proba, axis=1)
        n_names = len(self.names)
        by_number = np.zeros((len(proba), max(n_names, self.columns.max() + 1)), dtype=proba.dtype)
        by_number[:, self.columns] = proba
        result = by_number[:, :n_names]
        if by_number.shape[1] > n_names:  # without the spare outputs the rows must sum to 1 again
            total = result.sum(axis=1, keepdims=True)
            result = np.divide(result, total, out=np.full_like(result, 1 / n_names), where=total > 0)
        return result
