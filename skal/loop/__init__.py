# SPDX-License-Identifier: BSD-3-Clause
"""The whole active-learning loop: as a scikit-learn estimator, and as a session that waits for somebody's labels."""

from skal.loop._active_classifier import ActiveLearningClassifier
from skal.loop._active_regressor import ActiveLearningRegressor
from skal.loop._audit_report import AuditReport
from skal.loop._display import ActiveLearningCurveDisplay
from skal.loop._final import FinalLabels
from skal.loop._session import LabellingSession

__all__ = [
    "ActiveLearningClassifier",
    "ActiveLearningCurveDisplay",
    "ActiveLearningRegressor",
    "AuditReport",
    "FinalLabels",
    "LabellingSession",
]
