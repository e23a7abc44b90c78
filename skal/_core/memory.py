# SPDX-License-Identifier: BSD-3-Clause
"""Memory: how many rows fit into a bound, room for many, what a pass takes, whether an error means too little of it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

if TYPE_CHECKING:
    from skal._core.network import Network

DEFAULT_MEMORY = 10**9  # bytes, where the user has set no bound
PRODUCT_BYTES = 2**20  # of a matrix that are multiplied at once
_LARGE = 2**22  # bytes from which on numpy asks for large pages
_NUMPY = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}

_MESSAGES = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    # oneDNN, which convolves on the CPU, has no other words for it
    "could not create a primitive",
    "could not create a memory object",
    "could not execute a primitive",
)


def rows_within(n_bytes: int, row_bytes: int, at_least: int = 1) -> int:
    """How many rows of ``row_bytes`` fit into ``n_bytes``.

    Examples
    --------
    >>> rows_within(1000, 300), rows_within(1000, 3000), rows_within(1000, 3000, at_least=0)
    (3, 1, 0)
    """
    return max(at_least, int(n_bytes) // max(1, int(row_bytes)))


def new_rows(n: int, like: Tensor) -> Tensor:
    """Room for n rows like those of a tensor, on its device; what is in them is left to chance.

    On a processor numpy makes much room: it asks the system for large pages, where torch does not. The system clears
    pages when they are written to for the first time, which takes four times as long for small ones.

    Examples
    --------
    >>> new_rows(5, torch.zeros(2, 3)).shape
    torch.Size([5, 3])
    """
    shape = (n, *like.shape[1:])
    if like.is_cpu and like.dtype in _NUMPY and prod(shape) * like.element_size() >= _LARGE:
        return torch.from_numpy(np.empty(shape, dtype=_NUMPY[like.dtype]))
    return like.new_empty(shape)


def product_rows(matrix: Tensor) -> int:
    """How many rows of a matrix to multiply at once: all of them, unless that is done on the CPU.

    There MKL copies both factors of a product into a work space, and keeps it: one as large as all rows would stay.

    Examples
    --------
    >>> product_rows(torch.zeros(2000, 256).double())
    512
    """
    if matrix.device.type != "cpu":
        return max(1, len(matrix))
    return rows_within(PRODUCT_BYTES, matrix.element_size() * matrix[:1].numel())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller chunk may help."""
    text = str(error).lower()
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(words in text for words in _MESSAGES)


def activation_bytes(network: Network, sample: Any) -> int:
    """Bytes that autograd keeps for one sample's backward pass, parameters and buffers not counted."""
    own = {t.untyped_storage().data_ptr() for t in (*network.module.parameters(), *network.module.buffers())}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = network.logits(sample)  # alive until counted: its graph keeps the tensors, so no address comes twice
    del logits
    return sum(seen.values())
