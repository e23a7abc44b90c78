# SPDX-License-Identifier: BSD-3-Clause
"""The state of a network as one file, by safetensors: the same in the cache of a run and in a saved model."""

from __future__ import annotations

import json
import re
from typing import Any

import torch
from safetensors.torch import load, save

from skal._core.identity import digest_bytes
from skal._files.json_text import from_json, to_json

NETWORK = re.compile(r"network-[0-9a-f]{32}\.safetensors")


def pack_network(state: Any) -> tuple[str, bytes]:
    """Name and content of the file; the name has the content's sum in it.

    Parameters
    ----------
    state : tree of dicts, lists, numbers, strings, arrays and tensors

    Examples
    --------
    >>> name, data = pack_network({"weight": torch.ones(2), "classes": [0, 1]})
    >>> bool(NETWORK.fullmatch(name)), unpack_network(name, data)
    (True, {'weight': tensor([1., 1.]), 'classes': [0, 1]})
    """
    tensors: dict[str, torch.Tensor] = {}
    tree = to_json(state, tensors).decode()
    data = save(tensors, {"tree": tree})
    return f"network-{content_sum(data)}.safetensors", data


def unpack_network(name: str, data: bytes) -> Any:
    """The state; ValueError if the file is not as it was written."""
    if name != f"network-{content_sum(data)}.safetensors":
        raise ValueError(f"{name} is damaged")
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return from_json(header["__metadata__"]["tree"].encode(), load(data))


def content_sum(data: bytes) -> str:
    """A checksum, to notice changed files."""
    return digest_bytes(data).hex()
