# SPDX-License-Identifier: BSD-3-Clause
"""Uncertainty of class probabilities."""

from __future__ import annotations

import numpy as np
from scipy.special import entr


def least_confidence_scores(proba: np.ndarray) -> np.ndarray:
    """One minus the largest probability: (N, C) -> (N,)."""
    doubt: np.ndarray = 1 - proba.max(axis=1)
    return doubt


def margin_scores(proba: np.ndarray) -> np.ndarray:
    """Minus the gap between the two largest probabilities: (N, C) -> (N,)."""
    second, first = np.partition(proba, proba.shape[1] - 2, axis=1)[:, -2:].T if proba.shape[1] > 1 else (0, proba.T[0])
    closeness: np.ndarray = second - first
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
