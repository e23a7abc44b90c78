"""The samples that are labelled before the first query."""

from __future__ import annotations

from typing import Any

import numpy as np

from skal.exceptions import InvalidParameterError, NoLabelledDataError

__all__ = ["given_start", "random_start", "stratified_start"]


def random_start(pool: np.ndarray, size: int, seed: int) -> np.ndarray:
    """``size`` positions of the pool, drawn without replacement."""
    return np.random.default_rng(seed).choice(pool, size=min(size, len(pool)), replace=False)


def stratified_start(labels: list[Any], size: int, seed: int) -> np.ndarray:
    """``size`` positions, every class at least once if there is room, otherwise in proportion to its frequency.

    Parameters
    ----------
    labels : list
        Of all samples, None where there is no label.
    size : int
    seed : int

    Examples
    --------
    >>> labels = ["a"] * 90 + ["b"] * 9 + ["c"]
    >>> [labels[i] for i in sorted(stratified_start(labels, 10, seed=0))]
    ['a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', 'b', 'c']
    """
    known = np.array([i for i, label in enumerate(labels) if label is not None], dtype=np.int64)
    if len(known) == 0:
        raise NoLabelledDataError(
            "The y given to a stratified start must hold labels. Got none instead. Pass y, or use initial='random'."
        )
    generator = np.random.default_rng(seed)
    _, codes, counts = np.unique(np.array([labels[i] for i in known]), return_inverse=True, return_counts=True)
    size = min(size, len(known))
    taken = np.zeros(len(counts), dtype=int)
    for _ in range(size):
        # the class that lacks most; one that has none yet goes first, a rare one before a frequent one
        lacking = counts * size / counts.sum() - taken + np.where(taken == 0, size * (2 - counts / counts.sum()), 0)
        taken[np.argmax(np.where(taken < counts, lacking, -np.inf))] += 1
    rows = [generator.choice(np.flatnonzero(codes == k), size=n, replace=False) for k, n in enumerate(taken)]
    return known[generator.permutation(np.concatenate(rows))]


def given_start(indices: Any, n_samples: int, owner: str) -> np.ndarray:
    """The user's own positions, checked."""
    array = np.asarray(indices)
    flat = array.ndim == 1 and array.size > 0 and array.dtype.kind in "iu"
    if not flat or array.min() < 0 or array.max() >= n_samples or len(np.unique(array)) != len(array):
        expected = f"'random', 'stratified' or distinct positions in 0 … {n_samples - 1}"
        remedy = "Pass a flat, non-empty array of integers without duplicates."
        got = indices if isinstance(indices, str) else array.tolist()
        raise InvalidParameterError.for_parameter(owner, "initial", expected, got, remedy)
    return array.astype(np.int64)
