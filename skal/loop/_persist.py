# SPDX-License-Identifier: BSD-3-Clause
"""Fitted estimators as files: scikit-learn's parts by skops, the weights of networks by safetensors; no pickle.

skops writes what an object is made of, with the names of its classes. Networks and tensors are taken out first, because
skorch and torch would pickle them: a network becomes its class, its parameters and its tensors.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from sklearn.exceptions import InconsistentVersionWarning
from skorch import NeuralNet

from skal.exceptions import CheckpointError, InvalidTypeError, shorten
from skal.loop._allowed import audit, check_networks, check_trees, class_names, name_of, resolve, unknown_names
from skal.loop._net_training import initialize_network

FILE = re.compile(r"(?:estimator|weights)-([0-9a-f]{32})\.(?:skops|safetensors)")
# a network predicts without these, so that one that is no plain value or known class is left out
_ONLY_FOR_TRAINING = (
    "augment",
    "callbacks",
    "optimizer",
    "iterator_train",
    "train_split",
    "verbose",
    "warm_start",
    "lr",
    "max_epochs",
)


class SavedTensor:
    """The place of a tensor.

    Parameters
    ----------
    key : str
        Its name among the weights.
    """

    def __init__(self, key: str) -> None:
        self.key = key


class SavedNetwork:
    """What a skorch net is made of.

    Parameters
    ----------
    net : NeuralNet
        Initialised.
    """

    def __init__(self, net: NeuralNet) -> None:
        self.net_class = type(net)
        self.params = _predicting_params(net)
        self.modules = {name: dict(getattr(net, f"{name}_").state_dict()) for name in net._modules + net._criteria}
        self.classes = getattr(net, "classes_inferred_", None)
        self.extra = net.get_state() if hasattr(net, "get_state") else None

    def make(self, sample: np.ndarray | None) -> NeuralNet:
        """The net; ``sample`` is for one that must see samples to know its size."""
        if not (isinstance(self.net_class, type) and issubclass(self.net_class, NeuralNet)):
            raise CheckpointError(
                f"A network of a model must be a skorch net. Got {shorten(self.net_class)}. Write the model again."
            )
        net = self.net_class(**self.params)
        initialize_network(net, sample, None)
        for name, tensors in self.modules.items():
            getattr(net, f"{name}_").load_state_dict(tensors)
        if self.classes is not None:
            net.classes_inferred_ = self.classes
        if self.extra is not None:
            net.set_state(self.extra)
        return net


def pack(value: Any) -> tuple[dict[str, bytes], list[str]]:
    """The files of a value by their names, the estimator's first, and what a user must trust to read them.

    Parameters
    ----------
    value : estimator, or lists and dicts of estimators, arrays and plain values
    """
    from skops.io import dumps

    tensors: dict[str, torch.Tensor] = {}
    networks = [part for part in walk(value) if isinstance(part, NeuralNet)]
    saved = {id(net): _take_tensors(SavedNetwork(net), tensors) for net in networks}
    plain = _take_tensors(value, tensors, saved)
    try:
        data = dumps(plain)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InvalidTypeError(
            "A model must be made of estimators, numbers, strings, arrays and classes to be saved without pickle. Got "
            f"a part that is none of these ({type(error).__name__}: {error}). Use another estimator, or joblib for "
            "files that stay with you."
        ) from error
    names = unknown_names(data)
    for name in names:
        _check_importable(name)
    files = {_file_name("estimator", data, "skops"): data}
    if tensors:
        weights = save_tensors(tensors)
        files[_file_name("weights", weights, "safetensors")] = weights
    return files, names


def unpack(folder: Path, names: list[str], sample: np.ndarray | None, trusted: Iterable[Any]) -> Any:
    """The value of :func:`pack`, from a folder with its files.

    Parameters
    ----------
    folder : path
    names : list of str
        Of the files; a name has the file's digest in it.
    sample : (1, ...) array or None
        For networks that must see samples to know their size.
    trusted : iterable of str or type
        What the user allows besides.
    """
    from skops.io import loads

    data, *others = [_read(folder, name) for name in names]
    pairs = zip(names, (data, *others), strict=True)
    changed = [name for name, content in pairs if FILE.fullmatch(name)[1] != _digest(content)]  # type: ignore[index]
    try:
        allowed = audit(data, trusted, str(folder / names[0]))
    except CheckpointError:  # what is in the file matters more than that it has changed
        raise
    except Exception:
        if not changed:
            raise
    if changed:
        raise CheckpointError(
            f"The files of a model must be as they were written. Got {folder / changed[0]}, whose content has changed. "
            "Copy the whole folder again."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InconsistentVersionWarning)  # said once for the whole model
        value = loads(data, trusted=allowed)
    check_trees(walk(value), walk)
    check_networks(walk(value), trusted)
    tensors = load_tensors(others[0]) if others else {}
    value = _swap(value, {id(part): tensors[part.key] for part in walk(value) if isinstance(part, SavedTensor)})
    networks = {id(part): part.make(sample) for part in walk(value) if isinstance(part, SavedNetwork)}
    return _swap(value, networks)


def walk(value: Any) -> Iterator[Any]:
    """A value and everything that it is made of, each part once; networks and tensors are not opened."""
    stack, seen = [value], set()
    while stack:
        part = stack.pop()
        if id(part) in seen or isinstance(part, (str, bytes, int, float, type, FunctionType, ModuleType)):
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, (NeuralNet, torch.Tensor)):
            continue
        if isinstance(part, Mapping):
            stack += part.values()
        elif isinstance(part, (list, tuple, set, frozenset)):
            stack += part
        elif isinstance(part, np.ndarray):
            stack += part.ravel().tolist() if part.dtype.kind == "O" else []
        stack += vars(part).values() if hasattr(part, "__dict__") else []


def _take_tensors(value: Any, tensors: dict[str, torch.Tensor], saved: dict[int, Any] | None = None) -> Any:
    """A copy with a place for each tensor, which goes to ``tensors``; what is in ``saved`` is exchanged as well."""
    places = dict(saved or {})
    found = [part for part in walk(value) if isinstance(part, torch.Tensor)]
    for tensor in found:
        key = f"{len(tensors):04d}"
        # a copy of its own: safetensors refuses tensors that share memory, as tied weights do
        tensors[key] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        places[id(tensor)] = SavedTensor(key)
    return _swap(value, places)


def _swap(value: Any, others: dict[int, Any]) -> Any:
    """A copy with other objects in the places of some, wherever they are; the value itself if there are none."""
    return deepcopy(value, dict(others)) if others else value


def _predicting_params(net: NeuralNet) -> dict[str, Any]:
    """The parameters that a net needs to predict, and those of its training that are plain."""
    params: dict[str, Any] = {}
    for name, part in net.get_params(deep=False).items():
        if name.startswith("_"):  # skorch lists some attributes among the parameters
            continue
        if isinstance(part, torch.nn.Module):
            raise InvalidTypeError(
                f"A network must name its module's class to be saved without pickle. Got {name} = {shorten(part)}. "
                "Give the net the class, and its arguments as module__NAME."
            )
        plain = part is None or isinstance(part, (bool, int, float, str))
        known = isinstance(part, type) and name_of(part) in class_names()
        if plain or known or name.split("__")[0] not in _ONLY_FOR_TRAINING:
            params[name] = part
    return params | {"device": "cpu"}


def _check_importable(name: str) -> None:
    try:
        found = None if name.startswith("__main__.") else resolve(name)
    except (ImportError, AttributeError, ValueError):
        found = None
    if found is None:
        raise InvalidTypeError(
            f"A model must be made of classes and functions that another process can import, to be saved without "
            f"pickle. Got {name}. Define it at the top of a module that can be imported."
        )


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


def _file_name(kind: str, data: bytes, suffix: str) -> str:
    """A name that only this content has: files of two models do not mix, and a changed one is noticed."""
    return f"{kind}-{_digest(data)}.{suffix}"


def _read(folder: Path, name: str) -> bytes:
    path = folder / name
    if not FILE.fullmatch(name) or not path.is_file():  # a pipe would never end
        raise CheckpointError(f"A model must have the file {name}. Got none in {folder}. Copy the whole folder.")
    return path.read_bytes()
