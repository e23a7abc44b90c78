# SPDX-License-Identifier: BSD-3-Clause
"""The data of a benchmark: inputs as the protocol wants them, and the pool that a seed draws from them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import normalize
from sklearn.utils import Bunch
from torch.utils.data import Dataset

from skal._core.identity import data_digest
from skal._core.tasks import check_targets, n_columns
from skal.bench._protocol import Protocol, find_rows
from skal.datasets import load
from skal.datasets._npz import read_array
from skal.datasets._splits import every_fifth
from skal.exceptions import InvalidParameterError, SkalError

_ARRAYS = ("X_train", "y_train", "X_test", "y_test")
_COPIES = 5  # of one sample, where there are duplicates
_NOISE = 0.1  # of a near copy, in standard deviations of the inputs


@dataclass(frozen=True)
class Pool:
    """The common start of all strategies of a seed.

    Attributes
    ----------
    rows : (n,) int array
        Positions in the training set; a copy has that of its original.
    X, y : arrays
        Samples and labels of these.
    initial : (n_initial,) int array
        Positions in the pool of the first labels, unless a strategy chooses them.
    """

    rows: np.ndarray
    X: np.ndarray
    y: np.ndarray
    initial: np.ndarray


@dataclass(frozen=True)
class Data:
    """Arrays, labels as 0 … C−1."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    n_classes: int

    def details(self) -> dict[str, Any]:
        """Sizes and a digest of the labels and of some inputs, for the record."""
        some = self.X_train[:: max(1, len(self.X_train) // 100)]
        sizes = {"n_test_samples": len(self.X_test), "n_classes": self.n_classes}
        return (
            {"train_shape": list(self.X_train.shape)} | sizes | {"data": data_digest([self.y_train, self.y_test, some])}
        )

    def pool(self, protocol: Protocol, seed: int) -> Pool:
        """The pool of a seed and its first labels: the same for every strategy."""
        generator = np.random.default_rng([seed, 0])
        rows = self._rows(protocol, generator)
        needed = protocol.n_initial + protocol.n_rounds * protocol.query_size  # before anything of that length is made
        if needed > len(rows):
            expected = f"such that n_initial + n_rounds * query_size is at most {len(rows)}, the size of the pool"
            remedy = f"{needed} labels do not fit: ask for fewer rounds or smaller batches."
            raise InvalidParameterError.for_parameter("run_benchmark", "n_rounds", expected, protocol.n_rounds, remedy)
        if protocol.initial == "balanced":
            initial = _draw_balanced(self.y_train[rows], protocol.n_initial, generator)
        else:
            initial = generator.choice(len(rows), size=protocol.n_initial, replace=False)
        X = self.X_train if len(rows) == len(self.X_train) and not protocol.duplicates else self.X_train[rows]
        if protocol.duplicates:
            rows, X = _add_copies(rows, X, protocol.duplicates, generator)
        return Pool(rows, X, self.y_train[rows], initial)

    def _rows(self, protocol: Protocol, generator: np.random.Generator) -> np.ndarray:
        n_pool = len(self.X_train) if protocol.n_pool is None else min(protocol.n_pool, len(self.X_train))
        if protocol.imbalance == 1:
            return np.sort(generator.choice(len(self.X_train), size=n_pool, replace=False))
        return _draw_imbalanced(self.y_train, n_pool, protocol.imbalance, generator)


def _draw_imbalanced(y: np.ndarray, size: int, ratio: float, generator: np.random.Generator) -> np.ndarray:
    """Positions of classes in random order whose sizes fall evenly, on a log scale, from ``ratio`` to 1.

    As many as the classes allow, at most ``size``.
    """
    order, counts = generator.permutation(np.unique(y)), np.bincount(y)
    shares = ratio ** -np.linspace(0, 1, len(order))
    scale = min(size / shares.sum(), *(counts[order] / shares))
    parts = [
        generator.choice(np.flatnonzero(y == label), size=max(1, int(scale * share)), replace=False)
        for label, share in zip(order, shares, strict=True)
    ]
    return np.sort(np.concatenate(parts))


def _add_copies(
    rows: np.ndarray, X: np.ndarray, share: float, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Replace a part of the pool by copies of a few other samples, every second copy with a little noise."""
    n_copies = round(share * len(rows))
    places = generator.permutation(len(rows))
    copies, originals = places[:n_copies], places[n_copies : n_copies + max(1, n_copies // _COPIES)]
    sources = np.resize(originals, n_copies)
    rows, X, spread = rows.copy(), X.copy(), X.std(axis=0)
    rows[copies], X[copies] = rows[sources], X[sources]
    near = copies[1::2]
    X[near] += (_NOISE * spread * generator.standard_normal((len(near), *X.shape[1:]))).astype(X.dtype)
    return rows, X


def _draw_balanced(y: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """As many of each class as the size allows, the remainder from classes drawn at random."""
    order = generator.permutation(len(y))
    classes = generator.permutation(np.unique(y))
    queues = [order[y[order] == label] for label in classes]
    turns = [queue[k] for k in range(max(map(len, queues))) for queue in queues if k < len(queue)]
    return np.array(turns[:size], dtype=np.int64)


def find_data(data: Any, data_params: Any, data_home: Any = None, task: str = "classification") -> Any:
    """Find the data by name, path or arrays: an object with ``X_train``, ``y_train``, ``X_test`` and ``y_test``."""
    if isinstance(data, (str, os.PathLike)) and task != "classification":
        return _read_rows(os.fspath(data), data_home, task)
    if isinstance(data, (str, os.PathLike)):
        try:
            return load(os.fspath(data), data_home, **data_params)
        except ValueError as error:  # a file that is damaged, or holds something else
            raise error if isinstance(error, SkalError) else InvalidParameterError(str(error)) from error
    if isinstance(data, (tuple, list)) and len(data) == 2:
        X, y = data
        return _divide(X, y, task)
    if isinstance(data, (tuple, list)) and len(data) == 4:
        return Bunch(**dict(zip(_ARRAYS, data, strict=True)), name="data")
    if not all(hasattr(data, name) for name in _ARRAYS):
        expected = "(X, y), the name of a data set, the path of an npz file, or an object with X_train, y_train, X_test"
        remedy = "See skal.datasets.load."
        raise InvalidParameterError.for_parameter("run_benchmark", "data", f"{expected} and y_test", data, remedy)
    return data


def _read_rows(data: str, data_home: Any, task: str) -> Bunch:
    """Numbers, or several labels, from an npz file; ``diabetes``, which scikit-learn has, is always there."""
    if data in ("diabetes", "digits") and task == "regression":  # digits is what a protocol has by default
        X, y = load_diabetes(return_X_y=True)
        return Bunch(**_divide(X, y, task) | {"name": "diabetes"})
    path = find_rows(data, data_home)
    try:
        return Bunch(**{name: read_array(path, name) for name in _ARRAYS}, name=path.stem)
    except (KeyError, ValueError) as error:
        raise InvalidParameterError(
            f"The data of run_benchmark must have {', '.join(_ARRAYS)}. Got {path}: {error}. Save all with numpy.savez."
        ) from error


def _divide(X: Any, y: Any, task: str = "classification") -> Bunch:
    """Set a fifth of each class, or of all samples, aside for testing, always the same fifth."""
    X = _as_samples(X)
    y = _as_labels(y, X) if task == "classification" else check_targets("run_benchmark", y, task)
    order = np.random.default_rng(0).permutation(len(y))
    test = np.zeros(len(y), dtype=bool)
    groups = y[order] if task == "classification" else np.zeros(len(y), dtype=np.int64)
    test[order[every_fifth(groups)]] = True
    if not test.any():
        expected, got = "(X, y) with a class of at least two samples", f"{len(y)} samples"
        remedy = "Pass (X_train, y_train, X_test, y_test) to choose the test samples yourself."
        raise InvalidParameterError.for_parameter("run_benchmark", "data", expected, got, remedy)
    return Bunch(X_train=X[~test], y_train=y[~test], X_test=X[test], y_test=y[test], name="data")


def _as_samples(X: Any) -> np.ndarray:
    expected = "made of arrays of numbers, of shape (n, features) or (n, channels, height, width)"
    X = _as_array(X, expected, "Turn texts or files into features first.")
    if X.dtype.kind not in "fiub" or X.ndim < 2 or 0 in X.shape or not np.isfinite(X).all():
        got = f"{X.dtype} of shape {X.shape}"
        if X.dtype.kind == "f" and X.ndim >= 2 and X.size:
            got += ", with NaN or infinity"
        remedy = "Turn texts or files into features, and fill or remove what is missing."
        raise InvalidParameterError.for_parameter("run_benchmark", "data", expected, got, remedy)
    array: np.ndarray = X if X.dtype == np.float32 else X.astype(np.float32)
    return array


def _as_labels(y: Any, X: np.ndarray) -> np.ndarray:
    """(n,) labels of the samples, which can be sorted."""
    expected, remedy = "arrays with one label for each sample", "Pass y of shape (n,), of one type and without gaps."
    labels: np.ndarray = _as_array(y, expected, remedy)
    kinds = {type(label) for label in labels.tolist()} if labels.dtype.kind == "O" and labels.ndim == 1 else {int}
    sortable = labels.dtype.kind in "iubfUSO" and len(kinds) == 1 and issubclass(kinds.pop(), (str, int, float))
    if labels.shape != X.shape[:1] or not sortable or pd.isna(labels).any():
        got = f"arrays of shapes {X.shape} and {labels.shape}, labels of {labels.dtype}"
        raise InvalidParameterError.for_parameter("run_benchmark", "data", expected, got, remedy)
    return labels


def _as_array(value: Any, expected: str, remedy: str) -> np.ndarray:
    try:
        if isinstance(value, Dataset):  # numpy would read it one sample after the other, for ever
            raise TypeError("a Dataset")
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        got = f"a {type(value).__name__} ({str(error).split('.')[0]})"
        raise InvalidParameterError.for_parameter("run_benchmark", "data", expected, got, remedy) from error


def make_data(bunch: Any, protocol: Protocol) -> Data:
    """The arrays of a data set as the protocol wants them."""
    X_train, X_test = _as_samples(bunch.X_train), _as_samples(bunch.X_test)
    if X_train.shape[1:] != X_test.shape[1:]:
        expected, got = "made of samples of one shape", f"{X_train.shape[1:]} for training, {X_test.shape[1:]} to test"
        remedy = "Prepare both in the same way."
        raise InvalidParameterError.for_parameter("run_benchmark", "data", expected, got, remedy)
    X_train, X_test = _scale(X_train, X_test, protocol.inputs)
    if protocol.task != "classification":
        return _cut_test(X_train, X_test, *_as_targets(bunch, X_train, X_test, protocol.task), protocol)
    own, other = _as_labels(bunch.y_train, X_train), _as_labels(bunch.y_test, X_test)
    classes, codes = np.unique(np.concatenate([own, other]), return_inverse=True)
    if len(classes) < 2:
        expected, got = "made of samples of at least two classes", f"only {classes.tolist()}"
        raise InvalidParameterError.for_parameter("run_benchmark", "data", expected, got, "Check y.")
    y_train, y_test = np.split(codes.astype(np.int64), [len(own)])
    return _cut_test(X_train, X_test, y_train, y_test, len(classes), protocol)


def _cut_test(
    X_train: np.ndarray, X_test: np.ndarray, y_train: np.ndarray, y_test: np.ndarray, n: int, protocol: Protocol
) -> Data:
    """The data with as many test samples as the protocol wants; n is the number of classes, labels or targets."""
    if protocol.n_test is not None and protocol.n_test < len(X_test):
        rows = np.sort(np.random.default_rng(0).choice(len(X_test), size=protocol.n_test, replace=False))
        X_test, y_test = X_test[rows], y_test[rows]
    return Data(X_train, y_train, X_test, y_test, n)


def _as_targets(bunch: Any, X_train: np.ndarray, X_test: np.ndarray, task: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Numbers in deviations of the training targets, or indicator matrices; and how many columns there are."""
    own, other = (check_targets("run_benchmark", y, task) for y in (bunch.y_train, bunch.y_test))
    if len(own) != len(X_train) or len(other) != len(X_test) or own.shape[1:] != other.shape[1:]:
        expected, remedy = "arrays with one label for each sample", "Pass y of shape (n,) or (n, k)."
        got = f"labels of shapes {own.shape} and {other.shape} for {len(X_train)} and {len(X_test)} samples"
        raise InvalidParameterError.for_parameter("run_benchmark", "data", expected, got, remedy)
    if task == "regression":
        mean, scale = own.mean(axis=0), np.maximum(own.std(axis=0), np.finfo(float).tiny)
        own, other = (own - mean) / scale, (other - mean) / scale
    return own, other, n_columns(own)


def _scale(X_train: np.ndarray, X_test: np.ndarray, inputs: str) -> tuple[np.ndarray, np.ndarray]:
    if inputs == "unit":
        return X_train, X_test
    if inputs == "signed":
        return 2 * X_train - 1, 2 * X_test - 1
    if inputs == "normalized":
        return _normalize(X_train), _normalize(X_test)
    axes = (0, *range(2, X_train.ndim))
    mean = X_train.mean(axis=axes, keepdims=True, dtype=np.float64).astype(X_train.dtype)
    std = X_train.std(axis=axes, keepdims=True, dtype=np.float64).astype(X_train.dtype)
    return (X_train - mean) / np.maximum(std, 1e-8), (X_test - mean) / np.maximum(std, 1e-8)


def _normalize(X: np.ndarray) -> np.ndarray:
    normed: np.ndarray = normalize(X.reshape(len(X), -1)).reshape(X.shape)
    return normed
