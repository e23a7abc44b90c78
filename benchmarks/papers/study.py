"""What a study is: a table by a command, at three sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student
from sklearn.utils import Bunch

from benchmarks._kept import Kept
from skal.datasets import load

# to see that it runs; for two cores; the paper's, as far as it is stated
SIZES = ("quick", "scaled", "full")


@dataclass(frozen=True)
class Study:
    """One command.

    Attributes
    ----------
    name : str
    repeats : str
        The figures and tables of the papers.
    table : callable
        (size, kept results, folder for a benchmark's runs or None) -> Markdown.
    """

    name: str
    repeats: str
    table: Callable[[str, Kept, Path | None], str]


def images(name: str, size: str, n: int, seed: int) -> Bunch:
    """The first n of the training images in random order, all test images, in [−1, 1]; digits where it is quick."""
    data = load("digits" if size == "quick" else name)
    rows = np.random.default_rng(seed).permutation(len(data.X_train))[:n]
    parts = {"X_train": data.X_train[rows], "X_test": data.X_test}
    return Bunch(
        y_train=data.y_train[rows], y_test=data.y_test, name=data.name, **{k: 2 * X - 1 for k, X in parts.items()}
    )


def halve_images(X: np.ndarray) -> np.ndarray:
    """(n, c, h, w) images as means of 2 × 2 pixels: a quarter of the work."""
    n, channels, height, width = X.shape
    return X.reshape(n, channels, height // 2, 2, width // 2, 2).mean(axis=(3, 5))


def mean_std(values: Sequence[Any], digits: int = 3) -> str:
    """Of runs, as text."""
    array = np.asarray(values, dtype=float)
    return f"{array.mean():.{digits}g} ± {array.std(ddof=1) if len(array) > 1 else 0.0:.2g}"


def paired_gap(differences: Any, decimals: int = 1) -> str:
    """The mean of paired differences, its 95 % interval (Student's t), and how many are above 0."""
    gaps = np.asarray(differences, dtype=float)
    n, mean = len(gaps), gaps.mean()
    half = student.ppf(0.975, n - 1) * gaps.std(ddof=1) / np.sqrt(n) if n > 1 else np.inf
    text, low, high = (f"{value:+.{decimals}f}" for value in (mean, mean - half, mean + half))
    return f"{text} ({low} to {high}; {(gaps > 0).sum()} of {n})"
