# SPDX-License-Identifier: BSD-3-Clause
"""A fitted estimator that speaks in labels, and the samples that estimators take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp
import torch
from scipy.special import softmax
from sklearn.utils import check_array, get_tags
from sklearn.utils.validation import validate_data
from torch.utils.data import Dataset

from skal._core.containers import dataset_input, n_rows, refuse_hidden
from skal._core.estimators import unwrap_estimator
from skal._core.outputs import needs_softmax
from skal._core.tasks import CLASSIFICATION, Task
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.models._net_training import final_network


def check_samples(owner: Any, estimator: Any, X: Any, *, reset: bool) -> Any:
    """Samples as an estimator may take them; ``owner`` learns (``reset``) or knows the number and names of columns."""
    if isinstance(estimator, type) or not (hasattr(estimator, "fit") and hasattr(estimator, "get_params")):
        expected, remedy = "a classifier with fit and get_params", "Pass an object, such as LogisticRegression()."
        raise InvalidTypeError.for_parameter(type(owner).__name__, "estimator", expected, estimator, remedy)
    refuse_hidden(X, "X")
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

    task: ClassVar[Task] = CLASSIFICATION
    estimator: Any
    names: np.ndarray
    columns: np.ndarray

    def predict(self, X: Any) -> np.ndarray:
        """(n,) labels."""
        if (self.columns < len(self.names)).all():
            codes = np.asarray(self.estimator.predict(make_readable(X)))
            return self.names[codes.reshape(-1).astype(np.int64)]
        labels: np.ndarray = self.names[self.predict_proba(X).argmax(axis=1)]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, m) probabilities, in the order of ``names``."""
        proba = np.asarray(self.estimator.predict_proba(make_readable(X)))
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

    def describe(self, codes: np.ndarray) -> dict[str, Any]:
        """The number of labels of each class that it was trained on."""
        counts = Counter(str(self.names[int(code)]) for code in codes)
        return {"by_class": dict(sorted(counts.items()))}


class RelabelledDataset(Dataset[Any]):
    """Rows of a Dataset with other labels: skorch takes a Dataset's own and never looks at y."""

    def __init__(self, data: Dataset[Any], rows: np.ndarray, codes: np.ndarray) -> None:
        self.data = data
        self.rows = rows
        self.y = torch.as_tensor(codes, device="cpu")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return dataset_input(self.data[int(self.rows[i])]), self.y[i]


def make_readable(X: Any, y: np.ndarray | None = None) -> Any:
    """All samples in a form that estimators take: skorch wants pairs, and torch memory that it may write to."""
    if isinstance(X, Dataset):
        return RelabelledDataset(X, np.arange(n_rows(X)), np.zeros(n_rows(X), dtype=np.int64) if y is None else y)
    return np.array(X) if isinstance(X, np.memmap) and not X.flags.writeable else X
