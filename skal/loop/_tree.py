"""Nested state as JSON and tensors, and back, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from skal.exceptions import CheckpointError, shorten

__all__ = ["join", "split"]


def split(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """The tree with its tensors moved to ``tensors`` and everything else in types that JSON has.

    Examples
    --------
    >>> tensors = {}
    >>> skeleton = split({"betas": (0.9, 0.99), 0: torch.ones(2)}, tensors)
    >>> join(skeleton, tensors)
    {'betas': (0.9, 0.99), 0: tensor([1., 1.])}
    """
    if isinstance(tree, torch.Tensor):
        key = str(len(tensors))
        # a copy of its own: safetensors refuses tensors that share memory, as tied weights do
        tensors[key] = tree.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"__tensor__": key}
    if isinstance(tree, np.ndarray) and tree.dtype.kind in "iufbU":
        return {"__array__": tree.tolist(), "dtype": tree.dtype.str}
    if isinstance(tree, np.generic):
        return tree.item()
    if isinstance(tree, Mapping):
        if all(isinstance(key, str) and not key.startswith("__") for key in tree):
            return {key: split(value, tensors) for key, value in tree.items()}
        return {"__dict__": [[split(key, tensors), split(value, tensors)] for key, value in tree.items()]}
    if isinstance(tree, tuple):
        return {"__tuple__": [split(value, tensors) for value in tree]}
    if isinstance(tree, list):
        return [split(value, tensors) for value in tree]
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise CheckpointError(
        f"A checkpoint must hold numbers, strings and tensors alone. Got a {type(tree).__name__} ({shorten(tree)}) in "
        "the state of the network, its optimizer or the strategy. Leave it out of the state, or run without checkpoint."
    )


def join(skeleton: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The reverse of :func:`split`."""
    if isinstance(skeleton, list):
        return [join(value, tensors) for value in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if "__tensor__" in skeleton:
        return tensors[skeleton["__tensor__"]]
    if "__array__" in skeleton:
        return np.array(skeleton["__array__"], dtype=skeleton["dtype"])
    if "__dict__" in skeleton:
        return {join(key, tensors): join(value, tensors) for key, value in skeleton["__dict__"]}
    if "__tuple__" in skeleton:
        return tuple(join(value, tensors) for value in skeleton["__tuple__"])
    return {key: join(value, tensors) for key, value in skeleton.items()}
