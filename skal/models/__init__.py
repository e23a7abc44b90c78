# SPDX-License-Identifier: BSD-3-Clause
"""Fitted models to take away: saved in a folder, and loaded without running anything that is not allowed by name."""

from skal.models._saved_model import SavedModel, SavedRegressor, load_model

__all__ = ["SavedModel", "SavedRegressor", "load_model"]
