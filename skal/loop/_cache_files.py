# SPDX-License-Identifier: BSD-3-Clause
"""The cache of a run: files that save time, and that anybody may delete at any moment.

``cache/state.json`` says how far the rounds have come, and ``cache/network-….safetensors`` holds the network that it
names. Both carry a checksum: a file that is damaged, or was never written to its end, is as good as none. Reading them
runs no code.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from skal.exceptions import CheckpointError, shorten

_STATE = "state.json"
_NETWORK = re.compile(r"network-[0-9a-f]{32}\.safetensors")
_FORMAT = 1
_HEAD = b'{"sum": "%s", "content": '
_HEAD_LENGTH = len(_HEAD % (b"0" * 32))


class CacheFiles:
    """The files.

    Parameters
    ----------
    folder : path
        Made if it is not there. Files of others in it are left alone.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     CacheFiles(Path(folder)).write({"round": 1}, {"weight": torch.ones(2)})
    ...     CacheFiles(Path(folder)).read()
    ({'round': 1}, {'weight': tensor([1., 1.])})
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._network: str | None = None  # the file of the network that belongs to the state

    def read(self) -> tuple[Any, Any] | None:
        """State and network of the last write, None if there was none; ValueError if a file is damaged."""
        for attempt in range(3):
            try:
                return self._read()
            except FileNotFoundError as error:
                # a reader may meet a writer: the network that the state names has just been replaced
                if attempt == 2:
                    raise ValueError(f"{error.filename} is missing") from error
            except (OSError, KeyError, TypeError, SafetensorError) as error:
                raise ValueError(f"{type(error).__name__}: {error}") from error
        return None

    def _read(self) -> tuple[Any, Any] | None:
        path = self.folder / _STATE
        if not path.exists():
            return None
        data = path.read_bytes()
        body = data[_HEAD_LENGTH:-1]
        if data != _HEAD % _sum(body) + body + b"}":
            raise ValueError(f"{_STATE} is damaged")
        content = from_json(body, {})
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {_FORMAT}")
        name, network = content["network"], None
        if name is not None:
            if not _NETWORK.fullmatch(name):
                raise ValueError(f"{_STATE} names a file that is not its own")
            data = (self.folder / name).read_bytes()
            if name != _network_name(data):
                raise ValueError(f"{name} is damaged")
            header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
            network = from_json(header["__metadata__"]["tree"].encode(), load(data))
        self._network = name
        return content["state"], network

    def write(self, state: Any, network: Any = None) -> None:
        """Replace the state, and the network if one is given."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = self._network
        if network is not None:
            tensors: dict[str, torch.Tensor] = {}
            tree = to_json(network, tensors).decode()
            data = save(tensors, {"tree": tree})
            name = _network_name(data)
            _replace(self.folder / name, data)
        body = to_json({"format": _FORMAT, "network": name, "state": state}, {})
        _replace(self.folder / _STATE, _HEAD % _sum(body) + body + b"}")
        self._network = name
        for path in self.folder.iterdir():
            if _NETWORK.fullmatch(path.name.removesuffix(".new")) and path.name != name:
                path.unlink(missing_ok=True)


def _sum(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).hexdigest().encode()


def _network_name(data: bytes) -> str:
    return f"network-{_sum(data).decode()}.safetensors"


def _replace(path: Path, data: bytes) -> None:
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)  # left over from a write that broke off, or a link that somebody has put there
    with open(new, "xb") as file:
        file.write(data)
    os.replace(new, path)


def to_json(tree: Any, tensors: dict[str, torch.Tensor]) -> bytes:
    """The tree as JSON, its tensors moved to ``tensors``.

    Examples
    --------
    >>> tensors = {}
    >>> data = to_json({"betas": (0.9, 0.99), 0: torch.ones(2)}, tensors)
    >>> from_json(data, tensors)
    {'betas': (0.9, 0.99), 0: tensor([1., 1.])}
    """
    return json.dumps(_in_types_of_json(tree, tensors)).encode()


def from_json(data: bytes, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The reverse of :func:`to_json`."""

    def restore(part: dict[str, Any]) -> Any:  # called for the innermost parts first
        if "__tensor__" in part:
            return tensors[part["__tensor__"]]
        if "__array__" in part:
            return np.array(part["__array__"], dtype=part["dtype"])
        if "__dict__" in part:
            return dict(part["__dict__"])
        return tuple(part["__tuple__"]) if "__tuple__" in part else part

    return json.loads(data, object_hook=restore)


def _in_types_of_json(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, torch.Tensor):
        key = str(len(tensors))
        # a copy of its own: safetensors refuses tensors that share memory, as tied weights do
        tensors[key] = tree.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"__tensor__": key}
    if isinstance(tree, np.ndarray) and tree.dtype.kind in "iufbU":
        return {"__array__": tree.tolist(), "dtype": tree.dtype.str}
    if isinstance(tree, np.generic):
        return tree.item()
    inner = partial(_in_types_of_json, tensors=tensors)
    if isinstance(tree, Mapping):
        if all(isinstance(key, str) and not key.startswith("__") for key in tree):
            return {key: inner(value) for key, value in tree.items()}
        return {"__dict__": [[inner(key), inner(value)] for key, value in tree.items()]}
    if isinstance(tree, tuple):
        return {"__tuple__": [inner(value) for value in tree]}
    if isinstance(tree, list):
        return [inner(value) for value in tree]
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise CheckpointError(
        f"A checkpoint must hold numbers, strings and tensors alone. Got a {type(tree).__name__} ({shorten(tree)}) in "
        "the state of the network, its optimizer or the strategy. Leave it out of the state, or run without checkpoint."
    )
