# SPDX-License-Identifier: BSD-3-Clause
"""Batches of arrays for a network: slices of what the user has, on the network's device, kept from harm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.samples import Samples
from skal.exceptions import InvalidTypeError

_GROUP = 64  # batches that are read at once where reading takes no memory
_FLOATS = {torch.float32: np.float32, torch.float64: np.float64}  # types of arrays that need no conversion


def slices(samples: Samples, batch_size: int, device: torch.device, dtype: torch.dtype) -> Iterator[Any]:
    """The samples in batches, as tensors on a device, floating-point ones of this type: views where that is enough."""
    # what is neither copied nor converted is looked at for many batches at once
    together = _GROUP if _is_in_place(samples, device, dtype) else 1
    for chunk in samples.chunks(together * batch_size):
        if together == 1:
            yield placed(chunk, device, dtype)
            continue
        parts = (chunk[start : start + batch_size] for start in range(0, len(chunk), batch_size))
        yield from parts if isinstance(chunk, Tensor) else map(torch.from_numpy, parts)


def unharmed(batches: Iterator[Any]) -> Iterator[Any]:
    """The batches as they are, or copies if the module writes into its input: they may be the user's own array.

    Whether it does shows the first batch, which is always a copy: torch counts how often a tensor is written into.
    """
    writes = True
    for number, batch in enumerate(batches):
        if number and not writes:
            yield batch
            continue
        own = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, batch)
        yield own
        # tensors made in inference mode are not counted
        writes = any(x.is_inference() or x._version for x in tree_leaves(own) if isinstance(x, Tensor))


def _is_in_place(samples: Samples, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether rows of the samples are batches as they lie in memory."""
    X = samples.X
    if samples.transform is not None or not isinstance(samples.rows, range) or device.type != "cpu":
        return False
    if isinstance(X, Tensor):
        return X.is_cpu and (X.dtype == dtype or not X.is_floating_point())
    if type(X) is not np.ndarray or not X.flags.writeable or min(X.strides) < 0:
        return False
    # a comparison with None would be one with float64
    return X.dtype.kind in "iub" or (dtype in _FLOATS and X.dtype == _FLOATS[dtype])


def placed(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Numbers as tensors on a device, floating-point ones of this type."""
    if isinstance(value, Mapping):
        return {key: placed(part, device, dtype) for key, part in value.items()}
    if isinstance(value, (tuple, list)) and not all(isinstance(part, (int, float)) for part in value):
        return type(value)(placed(part, device, dtype) for part in value)
    if not isinstance(value, Tensor):
        array = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise InvalidTypeError(
                "The network's input must be numbers. "
                f"Got an array of dtype {array.dtype} instead. Encode it first, for example in a Pipeline."
            )
        value = as_tensor(array)
    return value.to(device, dtype) if value.is_floating_point() else value.to(device)


def as_tensor(array: np.ndarray) -> Tensor:
    """Numbers as a tensor on the host, without a copy where torch can share them.

    It has no longer floats than float64, and shares neither read-only memory (memory maps) nor arrays that run
    backwards.

    Examples
    --------
    >>> as_tensor(np.arange(3)[::-1])
    tensor([2, 1, 0])
    """
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(np.float64)
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy()
    return torch.from_numpy(array)
