# SPDX-License-Identifier: BSD-3-Clause
"""Networks that learn to predict their own loss, for :class:`skal.strategies.LearningLoss`."""

from skal.loss_prediction._loss_classifier import LossPredictionClassifier
from skal.loss_prediction._module import LossPredictingModule, ranking_loss

__all__ = ["LossPredictingModule", "LossPredictionClassifier", "ranking_loss"]
