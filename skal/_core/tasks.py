# SPDX-License-Identifier: BSD-3-Clause
"""What is learnt: one class for each sample, numbers, or several labels at once.

The task is decided here, from the estimator and its labels, and so is what labels may be. What follows from it for
strategies is decided in :mod:`skal._core.meaning`, and what the outputs of a network are in :mod:`skal._core.outputs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.special import expit
from sklearn.base import is_regressor
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.pipeline import Pipeline
from sklearn.utils.multiclass import type_of_target
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import Tensor
from torch.nn import BCEWithLogitsLoss

from skal._core.containers import count_masked
from skal._vocabulary import CLASSIFICATION as CLASSIFICATION
from skal._vocabulary import MULTILABEL as MULTILABEL
from skal._vocabulary import REGRESSION as REGRESSION
from skal._vocabulary import Task as Task
from skal.exceptions import InvalidParameterError, InvalidTypeError, NoLabelledDataError, NonFiniteError, shorten

UNKNOWN = -1  # one of several labels of which nobody has said whether a sample has it
_LARGEST = 1e150  # the square of a larger number may not be finite
_CLASS = (str, bytes, int, float, np.generic, tuple)  # what may name a class

_INSTEAD = {
    REGRESSION: "For numbers use LCMD, NTKLookahead(criterion='variance'), UHerding, PredictiveStd or MaxDet.",
    MULTILABEL: "For several labels at once use Margin, Entropy, UHerding, BADGE or NTKLookahead.",
    CLASSIFICATION: "For classes use Margin, UHerding, BADGE or NTKLookahead.",
}
_IN_WORDS = {REGRESSION: "numbers", MULTILABEL: "several labels for each sample", CLASSIFICATION: "one class each"}


def find_task(estimator: Any, y: Any = None) -> Task:
    """Find what an estimator learns, from itself and from labels y if there are some.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression, Ridge
    >>> find_task(Ridge(), [0.5, 1.5]), find_task(LogisticRegression(), [0, 1])
    ('regression', 'classification')
    """
    while hasattr(estimator, "learner_list"):  # all learners of a modAL committee have the same task
        estimator = estimator.learner_list[0].estimator
    try:
        if is_regressor(estimator):
            return REGRESSION
    except (AttributeError, TypeError):  # it follows scikit-learn's conventions in part
        pass
    if y is not None:
        return MULTILABEL if n_columns(y) > 1 else CLASSIFICATION
    knows_several = getattr(_last_step(estimator), "multilabel_", False)
    return MULTILABEL if knows_several or needs_rows(estimator) else CLASSIFICATION


def needs_rows(estimator: Any) -> bool:
    """True if a classifier can only be trained on several labels for each sample.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> needs_rows(MultiOutputClassifier(LogisticRegression())), needs_rows(LogisticRegression())
    (True, False)
    """
    estimator = _last_step(estimator)
    if isinstance(estimator, NeuralNetClassifier) and not isinstance(estimator, NeuralNetBinaryClassifier):
        criterion = estimator.criterion
        return isinstance(criterion, type) and issubclass(criterion, BCEWithLogitsLoss)
    return isinstance(estimator, (MultiOutputClassifier, ClassifierChain))


def _last_step(estimator: Any) -> Any:
    while isinstance(estimator, Pipeline):
        estimator = estimator.steps[-1][1]
    return estimator


def n_columns(y: Any) -> int:
    """Count the numbers in a sample's label, by the first label that is known.

    Examples
    --------
    >>> n_columns([3, 4]), n_columns(np.zeros((5, 2)))
    (1, 2)
    """
    if hasattr(y, "shape"):
        return int(y.shape[1]) if len(y.shape) == 2 else 1
    first = next((label for label in y if label is not None), 0) if isinstance(y, (list, tuple)) else 0
    if isinstance(first, np.ndarray) and first.ndim == 0:  # such as a masked entry
        return 1
    return len(first) if isinstance(first, (list, tuple, np.ndarray)) else 1


def check_targets(owner: str, y: Any, task: Task) -> np.ndarray:
    """Labels of a regression as (n,) or (n, k) float64, of several labels at once as (n, L) int64, −1 where unknown.

    Raises
    ------
    InvalidParameterError, NonFiniteError
        If they are something else: the message says what, and what to do.

    Examples
    --------
    >>> check_targets("Mine", [1, 2.5], "regression")
    array([1. , 2.5])
    >>> check_targets("Mine", [[0, 1], [2, 0]], "multilabel")
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The y of Mine must be an indicator matrix, 1 where a sample has a label ...
    """
    if task == MULTILABEL:
        return _read_indicators(owner, y)
    rows = as_rows(owner, y.toarray() if sp.issparse(y) else y)
    numbers: np.ndarray | None
    try:
        numbers = rows.astype(np.float64) if rows.dtype.kind in "biufO" else None
    except (TypeError, ValueError):
        numbers = None
    if numbers is None or numbers.ndim not in (1, 2):
        got = f"shape {rows.shape}" if numbers is not None else shorten(y)
        raise InvalidParameterError(
            f"The y of {owner} must be numbers, one for each sample, or a row of them. Got {got} instead. Pass an "
            "array of shape (n_samples,) or (n_samples, n_targets); for classes use a classifier."
        )
    if not np.isfinite(numbers).all():
        n_bad = int((~np.isfinite(numbers)).sum())
        # in the words that scikit-learn's own checks look for
        what = "NaN" if np.isnan(numbers).any() else "infinity or a value too large for dtype('float64')"
        raise NonFiniteError(
            f"The y of {owner} must be finite. Input y contains {what}. Got {n_bad} such values. Remove those samples, "
            "or correct them."
        )
    if (np.abs(numbers) > _LARGEST).any():
        raise InvalidParameterError(
            f"The y of {owner} must be numbers of which squares can be taken, up to {_LARGEST:g}. Got "
            f"{float(np.abs(numbers).max()):g}. Pass y in a larger unit: divide it by a power of ten."
        )
    return numbers


def as_rows(owner: str, y: Any) -> np.ndarray:
    """Labels as an array; refused if some are longer than others.

    Examples
    --------
    >>> as_rows("Mine", [[1.0, 2.0], [3.0]])
    Traceback (most recent call last):
        ...
    skal.exceptions.InvalidParameterError: The y of Mine must have as many numbers for one sample as for another. ...
    """
    try:
        return np.asarray(y)
    except ValueError as error:
        shapes = sorted({np.shape(np.asarray(label, dtype=object)) for label in y})
        raise InvalidParameterError(
            f"The y of {owner} must have as many numbers for one sample as for another. Got the shapes {shapes}. Give "
            "every sample all of its numbers."
        ) from error


def _read_indicators(owner: str, y: Any) -> np.ndarray:
    """(n, L) zeros and ones, −1 for what is None, NaN, masked or −1."""
    y = y.toarray() if sp.issparse(y) else y
    rows = as_rows(owner, np.ma.filled(y.astype(np.float64), np.nan) if isinstance(y, np.ma.MaskedArray) else y)
    if rows.dtype.kind == "O":
        with suppress(TypeError, ValueError):
            rows = rows.astype(np.float64)
    are_numbers = rows.dtype.kind in "biuf" and rows.ndim == 2
    if are_numbers and rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), UNKNOWN, rows)
    if not are_numbers or not np.isin(rows, (UNKNOWN, 0, 1)).all():
        got = shorten(np.setdiff1d(rows, (UNKNOWN, 0, 1)).tolist()) if are_numbers else f"{type_of_target_of(rows)}"
        raise InvalidParameterError(
            f"The y of {owner} must be an indicator matrix, 1 where a sample has a label and 0 elsewhere. Got "
            f"{got} instead. Make one with sklearn.preprocessing.MultiLabelBinarizer; −1 or NaN says that it is not "
            "known whether a sample has a label."
        )
    return rows.astype(np.int64)


def read_labels(y: Any, n: int, task: Task) -> np.ndarray:
    """Labels that a learner holds for n samples, as an array with a row for each.

    Examples
    --------
    >>> read_labels(["cat", "dog"], 2, "classification")
    array(['cat', 'dog'], dtype='<U3')
    >>> read_labels([0], 2, "classification")
    Traceback (most recent call last):
        ...
    skal.exceptions.NoLabelledDataError: The learner's y_training must hold one label for each of the 2 rows of ...
    """
    if n_masked := count_masked(y):
        raise InvalidTypeError(
            f"The learner's y_training must have a label for every sample. Got {n_masked} masked labels. Leave these "
            "samples out."
        )
    try:
        rows = sp.csr_matrix(y).toarray() if sp.issparse(y) else np.asarray(y.cpu() if isinstance(y, Tensor) else y)
    except (ValueError, NotImplementedError):  # ragged, or without values
        rows = np.empty(())
    if rows.shape[:1] != (n,):
        raise NoLabelledDataError(
            f"The learner's y_training must hold one label for each of the {n} rows of X_training. Got {shorten(y)} "
            "instead. Pass labels for all of them."
        )
    if task != CLASSIFICATION:
        return check_targets("the learner", rows, task)
    kind = rows.dtype.kind
    if kind not in "iufbUOST" or (kind == "O" and not all(isinstance(value, _CLASS) for value in rows.flat)):
        raise InvalidTypeError(
            f"The learner's y_training must hold integers or strings. Got {shorten(rows)} instead. Teach the learner "
            "labels that name a class, one for each sample."
        )
    if rows.ndim > 1:
        raise InvalidParameterError(
            f"The learner's y_training must hold one label per sample, or an indicator matrix. Got labels of shape "
            f"{rows.shape} instead. Pass integers: y.argmax(1) of one-hot rows, y.ravel() of a column."
        )
    return rows


def class_positions(owner: str, y: np.ndarray, n_classes: int, binary: bool, ignored: int | None) -> np.ndarray:
    """Labels 0 … C−1, or the one that the loss ignores, as int64; ``binary`` losses have floating-point labels.

    Examples
    --------
    >>> class_positions("EGL", np.array([0.0, 1.0]), 2, True, None)
    array([0, 1])
    """
    if binary and np.isin(y, (0.0, 1.0)).all():
        y = y.astype(np.int64)
    counted = y[y != ignored] if y.dtype.kind in "iub" else y
    if y.dtype.kind not in "iub" or (counted.size and (counted.min() < 0 or counted.max() >= n_classes)):
        raise NoLabelledDataError(
            f"The labels that {owner} differentiates must be integers in 0 … {n_classes - 1}, one for each output of "
            f"the network. Got {shorten(np.unique(y))} instead. Encode them, for example with "
            "sklearn.preprocessing.LabelEncoder, and give the last layer an output for every class."
        )
    return y.astype(np.int64)


def type_of_target_of(y: Any) -> str:
    """scikit-learn's name for this kind of labels; if it has none, the labels themselves, shortened."""
    try:
        return str(type_of_target(y))
    except ValueError:
        return shorten(y)


def find_label_probabilities(estimator: Any, owner: str) -> Callable[[Any], np.ndarray]:
    """A function for (n, L, 2) probabilities: that a sample lacks, or has, each of L labels.

    Estimators give a list of (n, 2) arrays, of which one has a single column where only one value was seen, or one
    (n, L) array.

    Examples
    --------
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> model = KNeighborsClassifier(1).fit([[0.0], [1.0]], [[0, 1], [1, 1]])
    >>> find_label_probabilities(model, "Margin")([[1.0]])[..., 1]
    array([[1., 1.]])
    """
    if not hasattr(estimator, "predict_proba") and not hasattr(estimator, "decision_function"):
        raise InvalidTypeError(
            f"The estimator that {owner} works on must have predict_proba or decision_function. "
            f"Got {type(estimator).__name__} instead. Pass a classifier that has one of them; OneVsRestClassifier has "
            "decision_function where MultiOutputClassifier has none."
        )

    def predict(X: Any) -> np.ndarray:
        if not hasattr(estimator, "predict_proba"):
            found: Any = expit(np.asarray(estimator.decision_function(X), dtype=np.float64))
        else:
            found = estimator.predict_proba(X)
        if isinstance(found, list):
            known = [np.asarray(values) for values in estimator.classes_]
            pairs = zip(found, known, strict=True)
            found = np.stack([np.asarray(p)[:, values == 1].sum(axis=1) for p, values in pairs], axis=1)
        p = np.asarray(found, dtype=np.float64)
        if p.ndim == 3:  # a skorch net gives (n, 2, L)
            p = p[:, 1]
        return np.stack([1 - p, p], axis=-1)

    return predict


def predict_numbers(estimator: Any, X: Any) -> np.ndarray:
    """(n, k) numbers that a regressor predicts.

    Examples
    --------
    >>> from sklearn.linear_model import Ridge
    >>> predict_numbers(Ridge().fit([[0.0], [1.0]], [0, 0]), [[1.0]])
    array([[0.]])
    """
    numbers = np.asarray(estimator.predict(X), dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise NonFiniteError(
            "The estimator's predictions must be finite. Got NaN or infinity instead. Training has probably diverged: "
            "lower the learning rate or scale the inputs, and fit again."
        )
    return numbers.reshape(len(numbers), -1)


def refuse_task(owner: str, task: Task, tasks: Sequence[Task], why: str = "") -> InvalidTypeError:
    """The error for a strategy that has nothing to say about this task."""
    able = " or ".join(_IN_WORDS[name] for name in tasks)
    reason = f" {why}" if why else ""
    return InvalidTypeError(
        f"The task of {owner} must be {' or '.join(tasks)} ({able}).{reason} Got {task} ({_IN_WORDS[task]}) instead. "
        f"{_INSTEAD[task]}"
    )
