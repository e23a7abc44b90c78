# SPDX-License-Identifier: BSD-3-Clause
"""When to stop labelling: criteria, and how good the model is now and would be with more labels.

Criteria are combined with ``|`` (any of them) and ``&`` (all of them), and given to
``ActiveLearningClassifier(stop=...)``, to a session, or to ``skal.label``.

>>> from skal.stopping import Budget, MaxTime, StablePredictions
>>> StablePredictions() & Budget(100) | MaxTime(3600)
StablePredictions() & Budget(n_labels=100) | MaxTime(seconds=3600)
"""

from skal.stopping._certified import Certified
from skal.stopping._changes import StablePredictions, UncertaintyPlateau
from skal.stopping._criterion import AllOf, AnyOf, StoppingCriterion
from skal.stopping._forecast import Forecast, forecast_accuracy, wilson_interval
from skal.stopping._labels_needed import LabelsNeeded, forecast_labels
from skal.stopping._limits import Budget, HoldOut, MaxTime, TargetScore

__all__ = [
    "AllOf",
    "AnyOf",
    "Budget",
    "Certified",
    "Forecast",
    "HoldOut",
    "LabelsNeeded",
    "MaxTime",
    "StablePredictions",
    "StoppingCriterion",
    "TargetScore",
    "UncertaintyPlateau",
    "forecast_accuracy",
    "forecast_labels",
    "wilson_interval",
]
