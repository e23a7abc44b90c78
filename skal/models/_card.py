# SPDX-License-Identifier: BSD-3-Clause
"""What is said about a saved model: what it takes, what it was trained on, and how good it was found to be."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from sklearn.pipeline import Pipeline
from torch.utils.data import Dataset

from skal._core.containers import dataset_input, n_rows, take_rows
from skal.stopping import wilson_interval


def input_of(labelled: Any) -> tuple[list[int] | None, str | None]:
    """Shape and type of one sample, None if it is no array."""
    if labelled is None or n_rows(labelled[0]) == 0:
        return None, None
    X = labelled[0]
    first = dataset_input(X[0]) if isinstance(X, Dataset) else take_rows(X, slice(0, 1))
    row = first if isinstance(X, Dataset) else first[0] if isinstance(first, (np.ndarray, torch.Tensor)) else None
    row = row.detach().cpu().numpy() if isinstance(row, torch.Tensor) else row
    if not isinstance(row, np.ndarray) or row.dtype.kind not in "biuf":
        return None, None
    return list(row.shape), row.dtype.str


def what_it_takes(features: Any, shape: list[int] | None, dtype: str | None, seen: dict[str, Any]) -> str:
    """Describe what ``predict`` takes."""
    if features is not None:
        features = features.steps[0][1] if isinstance(features, Pipeline) else features
        return str(getattr(features, "takes", f"what {type(features).__name__} takes"))
    if "feature_names_in_" in seen:
        return f"a data frame with the columns {', '.join(map(str, seen['feature_names_in_']))}"
    if shape is not None:
        return f"an array of shape ({', '.join(['n', *map(str, shape)])}) and type {np.dtype(dtype)}"
    return "samples as the model was fitted on"


def describe_part(part: Any) -> Any:
    """Describe a step by what it says of itself (as a pre-trained network does), or by its class."""
    if isinstance(part, Pipeline):
        return [describe_part(step) for _, step in part.steps]
    if hasattr(part, "describe"):
        return part.describe()
    return None if part is None else type(part).__name__


def describe_labels(predictor: Any, labelled: Any, row: dict[str, Any]) -> dict[str, Any]:
    """Describe the labels that a model was trained on."""
    codes = np.empty(0) if labelled is None else labelled[1]
    return {"labels": len(codes), **predictor.describe(codes), "round": row.get("round")}


def describe_scores(row: dict[str, Any]) -> dict[str, Any]:
    """Describe what was measured on labels that the model was not trained on."""
    found = {name: row[name] for name in ("valid_score", "eval_score") if row.get(name) is not None}
    score, n = row.get("heldout_score"), row.get("n_heldout")
    if score is not None and n:
        low, high = wilson_interval(round(score * n), n)
        found["heldout"] = {"accuracy": score, "labels": n, "low": low, "high": high}
    return found


def installed_version(package: str) -> str | None:
    """The version of a package, None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
