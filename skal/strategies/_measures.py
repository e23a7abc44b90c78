# SPDX-License-Identifier: BSD-3-Clause
"""Uncertainty of class probabilities."""

from __future__ import annotations

import numpy as np
from scipy.special import entr

# with so few classes and so many rows a look at one column after the other is quicker than a partition of every row
_FEW_CLASSES = 16
_MANY_ROWS = 1000


def least_confidence_scores(proba: np.ndarray) -> np.ndarray:
    """One minus the largest probability: (N, C) -> (N,)."""
    doubt: np.ndarray = 1 - proba.max(axis=1)
    return doubt


def margin_scores(proba: np.ndarray) -> np.ndarray:
    """Minus the gap between the two largest probabilities: (N, C) -> (N,)."""
    if proba.shape[1] > 1 and (proba.shape[1] > _FEW_CLASSES or len(proba) < _MANY_ROWS):
        parted = np.partition(proba, proba.shape[1] - 2, axis=1)
        closeness: np.ndarray = parted[:, -2] - parted[:, -1]
        return closeness
    first, *others = proba.T
    second = np.zeros_like(first) if not others else np.full_like(first, -np.inf)
    for column in others:
        second = np.maximum(second, np.minimum(first, column))
        first = np.maximum(first, column)
    closeness = second - first
    return closeness


def entropy_scores(proba: np.ndarray) -> np.ndarray:
    """Entropy in nats, ``0 log 0 = 0``: (N, C) -> (N,)."""
    entropies: np.ndarray = entr(np.clip(proba, 0, None)).sum(axis=1)
    return entropies


# by name, none of them negative
UNCERTAINTIES = {
    "margin": lambda proba: 1 + margin_scores(proba),
    "entropy": entropy_scores,
    "least_confidence": least_confidence_scores,
}
