# SPDX-License-Identifier: BSD-3-Clause
"""Fitted estimators that speak in numbers, or in several labels for each sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from skal._core.containers import n_rows
from skal._core.tasks import MULTILABEL, REGRESSION, Task, find_label_probabilities, predict_numbers
from skal.models._predictor import make_readable


@dataclass(frozen=True)
class NumberPredictor:
    """A fitted regressor that speaks in the numbers that it was told, not in those that it was trained with.

    Attributes
    ----------
    estimator : fitted regressor
    mean, scale : (k,) arrays
        Of the targets that it was trained on.
    one : bool
        Whether a label is a number, not a row.
    """

    task: ClassVar[Task] = REGRESSION
    estimator: Any
    mean: np.ndarray
    scale: np.ndarray
    one: bool

    def predict(self, X: Any) -> np.ndarray:
        """(n,) or (n, k) numbers."""
        numbers: np.ndarray = predict_numbers(self.estimator, make_readable(X)) * self.scale + self.mean
        return numbers[:, 0] if self.one else numbers

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """Labels as the estimator was trained with them."""
        # there may be no labels any more: all were taken back
        scaled: np.ndarray = (labels.reshape(len(labels), len(self.mean)) - self.mean) / self.scale
        return scaled[:, 0] if self.one else scaled

    def describe(self, codes: np.ndarray) -> dict[str, Any]:
        """Describe the labels that the model was trained on."""
        if len(codes) == 0:
            return {}
        numbers = codes.reshape(len(codes), -1) * self.scale + self.mean
        return {"lowest": numbers.min(axis=0).tolist(), "highest": numbers.max(axis=0).tolist()}


@dataclass(frozen=True)
class LabelsPredictor:
    """A fitted classifier of several labels, some of which it was not trained on.

    Attributes
    ----------
    estimator : fitted classifier
    names : (L,) array
        Numbers of the labels.
    learnt : (L,) bool array
        Which of them the estimator knows.
    otherwise : (L,) array
        The value that each of the others had in all samples.
    """

    task: ClassVar[Task] = MULTILABEL
    estimator: Any
    names: np.ndarray
    learnt: np.ndarray
    otherwise: np.ndarray

    def predict(self, X: Any) -> np.ndarray:
        """(n, L) zeros and ones."""
        readable = make_readable(X)
        if self.learnt.any():
            found = self.estimator.predict(readable)
            found = np.asarray(found.toarray() if sp.issparse(found) else found).astype(np.int64)
            return self._fill(found.reshape(len(found), -1))
        return self._fill(np.empty((n_rows(X), 0), dtype=np.int64))

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, L) probabilities that samples have each label."""
        return self._fill(find_label_probabilities(self.estimator, "predict_proba")(make_readable(X))[..., 1])

    def encode(self, labels: np.ndarray) -> np.ndarray:
        """Labels as the estimator was trained with them."""
        known: np.ndarray = labels.reshape(len(labels), len(self.learnt))[:, self.learnt]
        return known

    def describe(self, codes: np.ndarray) -> dict[str, Any]:
        """Count the samples of each label that the model was trained on."""
        counts = np.where(self.otherwise == 1, len(codes), 0)
        counts[self.learnt] = (codes == 1).sum(axis=0)
        return {"by_label": {str(name): int(n) for name, n in zip(self.names, counts, strict=True)}}

    def _fill(self, found: np.ndarray) -> np.ndarray:
        rows: np.ndarray = np.tile(self.otherwise, (len(found), 1)).astype(found.dtype)
        rows[:, self.learnt] = found
        return rows
