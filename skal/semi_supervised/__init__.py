# SPDX-License-Identifier: BSD-3-Clause
"""Learning from labelled and unlabelled samples together."""

from skal.semi_supervised._augment import StrongImage, StrongJitter, WeakImage, WeakJitter
from skal.semi_supervised._darp import DARPReport, darp, solve_darp
from skal.semi_supervised._fixmatch import FixMatchClassifier

__all__ = [
    "DARPReport",
    "FixMatchClassifier",
    "StrongImage",
    "StrongJitter",
    "WeakImage",
    "WeakJitter",
    "darp",
    "solve_darp",
]
