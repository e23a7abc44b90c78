# SPDX-License-Identifier: BSD-3-Clause
"""Fitted estimators as files: scikit-learn's parts by skops, the weights of networks by safetensors; no pickle.

skops writes what an object is made of, with the names of its classes. Networks and tensors are taken out first, because
skorch and torch would pickle them: a network becomes its class, its parameters and its tensors.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import InconsistentVersionWarning
from skorch import NeuralNet

from skal.exceptions import CheckpointError, InvalidTypeError, shorten
from skal.models._allowed import (
    audit,
    check_networks,
    check_trees,
    class_names,
    name_of,
    network_names,
    resolve,
    unknown_names,
)
from skal.models._net_training import initialize_network, load_network_state, network_state
from skal.models._network_file import NETWORK, content_sum, pack_network, unpack_network

FILE = re.compile(rf"estimator-[0-9a-f]{{32}}\.skops|{NETWORK.pattern}")
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
    """A tensor among the parameters of a network, as an array.

    Parameters
    ----------
    tensor : tensor
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.array = tensor.detach().cpu().numpy().copy()


class SavedNetwork:
    """What a skorch net is made of, but for its weights.

    Parameters
    ----------
    net : NeuralNet
    file : str or None
        The name of the file that has its state; None for one that has not been fitted.
    """

    def __init__(self, net: NeuralNet, file: str | None) -> None:
        self.net_class, self.params, self.file = type(net), _predicting_params(net), file

    def make(self, state: Any, sample: np.ndarray | None) -> NeuralNet:
        """The net; ``sample`` is for one that must see samples to know its size."""
        if not (isinstance(self.net_class, type) and issubclass(self.net_class, NeuralNet)):
            raise CheckpointError(
                f"A network of a model must be a skorch net. Got {shorten(self.net_class)}. Write the model again."
            )
        # how many processes feed a network is the machine's affair, not the file's
        net = self.net_class(**{name: part for name, part in self.params.items() if not name.endswith("num_workers")})
        if state is not None:
            initialize_network(net, sample, None)
            load_network_state(net, state)
        return net


def pack(value: Any) -> tuple[dict[str, bytes], list[str]]:
    """The files of a value by their names, the estimator's first, and what a user must trust to read them.

    Parameters
    ----------
    value : estimator, or lists and dicts of estimators, arrays and plain values
    """
    from skops.io import dumps

    files: dict[str, bytes] = {}
    places: dict[int, Any] = {}
    for part in walk(value):
        if isinstance(part, NeuralNet):
            name, content = _network_file(part) if part.initialized_ else (None, b"")
            saved = SavedNetwork(part, name)
            places[id(part)] = _swap(saved, _tensors_of(saved))
            files |= {} if name is None else {name: content}
    try:
        data = dumps(_swap(value, places | _tensors_of(value)))
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise InvalidTypeError(
            "A model must be made of estimators, numbers, strings, arrays and classes to be saved without pickle. Got "
            f"a part that is none of these ({type(error).__name__}: {error}). Use another estimator, or joblib for "
            "files that stay with you."
        ) from error
    names = unknown_names(data)
    for name in names:
        _check_importable(name)
    networks, own = network_names(walk(value))
    names += [*networks, *(part.name for part in own)]
    return {f"estimator-{content_sum(data)}.skops": data} | files, names


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

    files = {name: _read(folder, name) for name in names}
    data = files[names[0]]
    changed = [name for name, content in files.items() if content_sum(content) not in name]
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
    tensors = (part for part in walk(value) if isinstance(part, SavedTensor))
    value = _swap(value, {id(part): torch.from_numpy(part.array) for part in tensors})
    networks = [part for part in walk(value) if isinstance(part, SavedNetwork)]
    states = {name: unpack_network(name, content) for name, content in files.items() if NETWORK.fullmatch(name)}
    return _swap(value, {id(part): part.make(part.file and states[part.file], sample) for part in networks})


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


def _network_file(net: NeuralNet) -> tuple[str, bytes]:
    """The state that predicts; that of the optimizer is for training alone."""
    return pack_network(network_state(net) | {"optimizers": {}, "history": []})


def _tensors_of(value: Any) -> dict[int, SavedTensor]:
    return {id(part): SavedTensor(part) for part in walk(value) if isinstance(part, torch.Tensor)}


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


def _read(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        if FILE.fullmatch(name) and path.is_file():  # a pipe would never end
            return path.read_bytes()
    except FileNotFoundError:  # it was there a moment ago
        pass
    raise CheckpointError(f"A model must have the file {name}. Got none in {folder}. Copy the whole folder.")
