"""The data of a benchmark: inputs as the protocol wants them, the part of the pool that a seed works with."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import numpy as np

from skal.bench._protocol import Protocol
from skal.datasets import load
from skal.exceptions import InvalidParameterError, SkalError


@dataclass(frozen=True)
class Data:
    """Arrays, labels as 0 … C−1."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    n_classes: int

    def details(self) -> dict[str, Any]:
        """Sizes and a fingerprint of the labels and of some inputs, for the record."""
        some = self.X_train[:: max(1, len(self.X_train) // 100)]
        digest = sha256(self.y_train.tobytes() + self.y_test.tobytes() + some.tobytes())
        sizes = {"n_test_samples": len(self.X_test), "n_classes": self.n_classes}
        return {"train_shape": list(self.X_train.shape)} | sizes | {"data_sha256": digest.hexdigest()[:16]}

    def start(self, protocol: Protocol, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Positions of the pool of a seed, and of its first labels within the pool: the same for every strategy."""
        generator = np.random.default_rng([seed, 0])
        n_pool = len(self.X_train) if protocol.n_pool is None else min(protocol.n_pool, len(self.X_train))
        rows = np.sort(generator.choice(len(self.X_train), size=n_pool, replace=False))
        needed = protocol.n_initial + protocol.rounds * protocol.batch  # before anything of that length is made
        if needed > n_pool:
            expected = f"such that n_initial + rounds * batch is at most {n_pool}, the size of the pool"
            remedy = f"{needed} labels do not fit: ask for fewer rounds or smaller batches."
            raise InvalidParameterError.for_parameter("run_benchmark", "rounds", expected, protocol.rounds, remedy)
        if protocol.start == "balanced":
            return rows, _balanced(self.y_train[rows], protocol.n_initial, generator)
        return rows, generator.choice(n_pool, size=protocol.n_initial, replace=False)


def _balanced(y: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """As many of each class as the size allows, the remainder from classes drawn at random."""
    order = generator.permutation(len(y))
    classes = generator.permutation(np.unique(y))
    queues = [order[y[order] == label] for label in classes]
    turns = [queue[k] for k in range(max(map(len, queues))) for queue in queues if k < len(queue)]
    return np.array(turns[:size], dtype=np.int64)


def make_data(data: Any, protocol: Protocol, data_home: Any = None) -> Data:
    """Load what is named, or take what is given: an object with ``X_train``, ``y_train``, ``X_test``, ``y_test``."""
    try:
        bunch = load(data, data_home, **protocol.data_params) if isinstance(data, str) else data
    except ValueError as error:  # a file that is damaged, or holds something else
        raise error if isinstance(error, SkalError) else InvalidParameterError(str(error)) from error
    if not all(hasattr(bunch, name) for name in ("X_train", "y_train", "X_test", "y_test")):
        expected = "the name of a data set, or an object with X_train, y_train, X_test and y_test"
        remedy = "See skal.datasets.load."
        raise InvalidParameterError.for_parameter("run_benchmark", "data", expected, data, remedy)
    X_train, X_test = _scaled(np.asarray(bunch.X_train), np.asarray(bunch.X_test), protocol.inputs)
    classes, codes = np.unique(np.concatenate([bunch.y_train, bunch.y_test]), return_inverse=True)
    y_train, y_test = np.split(codes.astype(np.int64), [len(bunch.y_train)])
    if protocol.n_test is not None and protocol.n_test < len(X_test):
        rows = np.sort(np.random.default_rng(0).choice(len(X_test), size=protocol.n_test, replace=False))
        X_test, y_test = X_test[rows], y_test[rows]
    return Data(X_train, y_train, X_test, y_test, len(classes))


def _scaled(X_train: np.ndarray, X_test: np.ndarray, inputs: str) -> tuple[np.ndarray, np.ndarray]:
    if inputs == "unit":
        return X_train, X_test
    if inputs == "signed":
        return 2 * X_train - 1, 2 * X_test - 1
    axes = (0, *range(2, X_train.ndim))
    mean = X_train.mean(axis=axes, keepdims=True, dtype=np.float64).astype(X_train.dtype)
    std = X_train.std(axis=axes, keepdims=True, dtype=np.float64).astype(X_train.dtype)
    return (X_train - mean) / np.maximum(std, 1e-8), (X_test - mean) / np.maximum(std, 1e-8)
