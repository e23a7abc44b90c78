# SPDX-License-Identifier: BSD-3-Clause
"""Learners: an estimator, the labels it has been taught, and a strategy to ask for more."""

from skal.learners._active import ActiveLearner
from skal.learners._linearized import LinearizedLearner

__all__ = ["ActiveLearner", "LinearizedLearner"]
