# SPDX-License-Identifier: BSD-3-Clause
"""A fitted loop as a folder of JSON and safetensors: its estimator, what its outputs mean, and what it takes.

Classes are written by their names, and imported when the model is loaded; nothing is pickled.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline
from skorch import NeuralNet
from torch.utils.data import Dataset

from skal._core.containers import dataset_input, n_rows, take_rows
from skal._version import __version__
from skal.exceptions import CheckpointError, InvalidTypeError, shorten
from skal.loop._cache_files import from_json, to_json
from skal.loop._fitting import Predictor, initialize_network

_JSON, _TENSORS = "model.json", "model.safetensors"
_FORMAT = 1
# a network predicts without these, so that one that cannot be written is left out, and named in the file
_ONLY_FOR_TRAINING = (
    "callbacks",
    "optimizer",
    "iterator_train",
    "train_split",
    "verbose",
    "warm_start",
    "lr",
    "max_epochs",
)


def write_model(path: Any, predictor: Predictor, labelled: Any, attributes: dict[str, Any]) -> None:
    """Write what predicts, what it was trained on (for the shape of a sample) and attributes of a loop to a folder."""
    tensors: dict[str, torch.Tensor] = {}
    left_out: list[str] = []
    estimator = _write(predictor.estimator, "estimator_", left_out)
    steps = predictor.estimator.steps if isinstance(predictor.estimator, Pipeline) else []
    shape, dtype = _input_of(labelled)
    content = {
        "format": _FORMAT,
        "skal": __version__,
        "classes": predictor.names.tolist(),
        "classes_dtype": predictor.names.dtype.str,
        "columns": predictor.columns.tolist(),
        "input_shape": shape,
        "input_dtype": dtype,
        "preprocessing": [repr(step) for _, step in steps[:-1]],
        "left_out": left_out,
        "classifier": _write(attributes, "classifier", left_out),
        "estimator": estimator,
    }
    data = to_json(content, tensors)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    for name in (_TENSORS, _JSON):
        (folder / name).unlink(missing_ok=True)  # an earlier model, or a link that somebody has put there
    (folder / _TENSORS).write_bytes(save_tensors(tensors))
    (folder / _JSON).write_text(json.dumps(json.loads(data), indent=1))


def read_model(path: Any) -> tuple[Predictor, dict[str, Any]]:
    """What :func:`write_model` has written: the predictor, and attributes of the loop."""
    folder = Path(path)
    try:
        text, tensors = (folder / _JSON).read_bytes(), load_tensors((folder / _TENSORS).read_bytes())
        content = from_json(text, tensors)
        version = content["format"]
    except Exception as error:
        raise CheckpointError(
            f"{folder} must hold a model written by save_model. Got {type(error).__name__}: {error}. "
            f"Pass the folder that has {_JSON} and {_TENSORS}."
        ) from error
    if version != _FORMAT:
        raise CheckpointError(
            f"The model in {folder} must be of format {_FORMAT}. Got {version!r} instead. It was written by skal "
            f"{content.get('skal')}: use that."
        )
    sample = None
    if content["input_shape"] is not None:
        sample = np.zeros((1, *content["input_shape"]), dtype=content["input_dtype"])
    estimator = _read(content["estimator"], sample)
    names = np.array(content["classes"], dtype=content["classes_dtype"])
    predictor = Predictor(estimator, names, np.array(content["columns"], dtype=np.int64))
    return predictor, _read(content["classifier"], sample)


def _input_of(labelled: Any) -> tuple[list[int] | None, str | None]:
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


def _write(value: Any, where: str, left_out: list[str]) -> Any:
    """A tree that JSON and safetensors can hold; refused with the name of what it cannot be made of."""
    if isinstance(value, NeuralNet):
        return _write_network(value, where, left_out)
    if isinstance(value, type):
        return {"@class": _name_of(value, where)}
    if isinstance(value, BaseEstimator):
        params = value.get_params(deep=False)
        fitted = {name: part for name, part in vars(value).items() if name not in params}
        return {
            "@estimator": _name_of(type(value), where),
            "params": {name: _write(part, f"{where}.{name}", left_out) for name, part in params.items()},
            "fitted": {name: _write(part, f"{where}.{name}", left_out) for name, part in fitted.items()},
        }
    if isinstance(value, np.ndarray) and value.dtype.kind == "O":
        return {"@objects": [_write(part, where, left_out) for part in value.tolist()]}
    if isinstance(value, Mapping):
        return {"@items": [[_write(part, where, left_out) for part in item] for item in value.items()]}
    if isinstance(value, (list, tuple)):
        parts = [_write(part, where, left_out) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    known = isinstance(value, np.ndarray) and value.dtype.kind in "biufU"
    if value is None or known or isinstance(value, (bool, int, float, str, np.generic, torch.Tensor)):
        return value
    raise _cannot(where, value, "Use joblib or skops for this estimator, or one whose parts are numbers and arrays.")


def _write_network(net: NeuralNet, where: str, left_out: list[str]) -> dict[str, Any]:
    params = {name: part for name, part in net.get_params(deep=False).items() if not name.startswith("_")}
    kept = {}
    for name, part in params.items():
        if isinstance(part, torch.nn.Module):
            remedy = "Give the net the module's class, and its arguments as module__NAME."
            raise _cannot(f"{where}.{name}", part, remedy)
        try:
            kept[name] = _write(part, f"{where}.{name}", [])
        except InvalidTypeError:
            if name.split("__")[0] not in _ONLY_FOR_TRAINING:
                raise
            left_out.append(f"{where}.{name}")
    kept["device"] = "cpu"
    return {
        "@network": _name_of(type(net), where),
        "params": kept,
        "modules": {name: dict(getattr(net, f"{name}_").state_dict()) for name in net._modules + net._criteria},
        "classes": getattr(net, "classes_inferred_", None),
        "extra": net.get_state() if hasattr(net, "get_state") else None,
    }


def _read(value: Any, sample: np.ndarray | None) -> Any:
    """The reverse of :func:`_write`."""
    if isinstance(value, (list, tuple)):
        return type(value)(_read(part, sample) for part in value)
    if not isinstance(value, dict):
        return value
    if "@class" in value:
        return _import(value["@class"])
    if "@objects" in value:
        return np.array(_read(value["@objects"], sample), dtype=object)
    if "@items" in value:
        return {_read(key, sample): _read(part, sample) for key, part in value["@items"]}
    if "@estimator" in value:
        params = {name: _read(part, sample) for name, part in value["params"].items()}
        estimator = _import(value["@estimator"])(**params)
        vars(estimator).update({name: _read(part, sample) for name, part in value["fitted"].items()})
        return estimator
    net = _import(value["@network"])(**{name: _read(part, sample) for name, part in value["params"].items()})
    initialize_network(net, sample, None)
    for name, tensors in value["modules"].items():
        getattr(net, f"{name}_").load_state_dict(tensors)
    if value["classes"] is not None:
        net.classes_inferred_ = value["classes"]
    if value["extra"] is not None:
        net.set_state(value["extra"])
    return net


def _name_of(cls: type, where: str) -> str:
    name = f"{cls.__module__}:{cls.__qualname__}"
    try:
        found = None if cls.__module__ == "__main__" else _import(name)
    except CheckpointError:
        found = None
    if found is not cls:
        raise _cannot(where, cls, "Define the class at the top of a module that can be imported.")
    return name


def _import(name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise CheckpointError(
            f"The classes that a model names must be installed. Got {name!r}, which cannot be imported ({error}). "
            "Install the package that has it."
        ) from error
    if not isinstance(found, type):
        raise CheckpointError(f"A model must name classes. Got {name!r}. Write the model again with save_model.")
    return found


def _cannot(where: str, value: Any, remedy: str) -> InvalidTypeError:
    return InvalidTypeError(
        f"A model must be made of numbers, strings, arrays and classes to be saved without pickle. Got {where} = "
        f"{shorten(value)} instead. {remedy}"
    )
