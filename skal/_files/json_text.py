# SPDX-License-Identifier: BSD-3-Clause
"""JSON from anywhere, JSON that anybody can read, and JSON for trees with tensors and arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from skal.exceptions import CheckpointError, shorten

if TYPE_CHECKING:
    import torch


def parse_json(data: bytes | str) -> Any:
    """Read JSON; anything wrong with it is a ValueError.

    Examples
    --------
    >>> parse_json(b'{"a": [1, null]}')
    {'a': [1, None]}
    >>> parse_json("[" * 100_000)
    Traceback (most recent call last):
    ...
    ValueError: it is nested too deeply
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def format_json(value: Any, indent: int | None = None) -> str:
    """JSON with its letters as they are; where UTF-8 has none for them, all are escaped.

    Examples
    --------
    >>> format_json(["naïve"]), format_json(["naïve", "\\ud800"])
    ('["naïve"]', '["na\\\\u00efve", "\\\\ud800"]')
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return text if is_utf8(text) else json.dumps(value, indent=indent)


def is_utf8(text: str) -> bool:
    """True if a text can be written in UTF-8; half of a surrogate pair cannot.

    Examples
    --------
    >>> is_utf8("naïve"), is_utf8("\\ud800")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def to_json(tree: Any, tensors: dict[str, torch.Tensor]) -> bytes:
    """The tree as JSON, its tensors moved to ``tensors``.

    Examples
    --------
    >>> import torch
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
    import torch  # texts, which most callers have, are read without it

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
