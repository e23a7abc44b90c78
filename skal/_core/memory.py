# SPDX-License-Identifier: BSD-3-Clause
"""Memory: how many rows fit into a bound, room for many rows, and errors that mean there was too little."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from skal.exceptions import OutputError

Result = TypeVar("Result")  # tensors, or tuples of them

DEFAULT_MEMORY = 10**9  # bytes, where the user has set no bound
PRODUCT_BYTES = 2**20  # bytes of a matrix that are multiplied at once
_LARGE = 2**22  # bytes above which numpy asks for large pages
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
    """Count the rows of ``row_bytes`` that fit into ``n_bytes``.

    Parameters
    ----------
    n_bytes, row_bytes : int
        The bound, and the size of a row.
    at_least : int, default=1
        The answer where fewer fit.

    Returns
    -------
    int
        A number of rows.

    Examples
    --------
    >>> from skal.context import rows_within
    >>> rows_within(1000, 300), rows_within(1000, 3000), rows_within(1000, 3000, at_least=0)
    (3, 1, 0)
    """
    return max(at_least, int(n_bytes) // max(1, int(row_bytes)))


def new_rows(n: int, like: Tensor) -> Tensor:
    """Uninitialised room for n rows like those of a tensor, on its device.

    On a processor numpy makes large rooms: it asks the system for large pages, where torch does not. The system clears
    pages on the first write, which takes four times as long for small ones.

    Examples
    --------
    >>> new_rows(5, torch.zeros(2, 3)).shape
    torch.Size([5, 3])
    """
    shape = (n, *like.shape[1:])
    if like.is_cpu and like.dtype in _NUMPY and prod(shape) * like.element_size() >= _LARGE:
        return torch.from_numpy(np.empty(shape, dtype=_NUMPY[like.dtype]))
    return like.new_empty(shape)


def fill_rows(parts: Iterator[Result], n: int) -> Result:
    """Tensors (or tuples of them) of n rows in all, filled as parts come: concatenation would take twice the room.

    Parameters
    ----------
    parts : iterator of tensors, or of tuples of them
        One part of the rows after the other.
    n : int
        Rows of all parts together.

    Returns
    -------
    tensor, or tuple of tensors
        All rows, in their order.

    Examples
    --------
    >>> import torch
    >>> from skal.context import fill_rows
    >>> fill_rows(iter([torch.tensor([1, 2]), torch.tensor([3])]), 3)
    tensor([1, 2, 3])
    """
    wholes: list[Tensor] = []
    position = 0
    structure: Any = None
    try:
        for part in parts:
            leaves, structure = ([part], None) if isinstance(part, Tensor) else tree_flatten(part)
            rows = leaves[0].shape[0]
            end = position + rows
            if end > n or (len(leaves) > 1 and any(leaf.shape[0] != rows for leaf in leaves)):
                raise _count_error(n, f"{sorted({leaf.shape[0] for leaf in leaves})} after {position}")
            if rows == n:
                return part
            if not wholes:
                wholes = [new_rows(n, leaf) for leaf in leaves]
            for whole, leaf in zip(wholes, leaves, strict=True):
                place = whole[position:end]
                if leaf.shape != place.shape:
                    raise _count_error(n, f"shape {tuple(leaf.shape[1:])} after {tuple(whole.shape[1:])}")
                place.copy_(leaf)  # at once: a module may return the same memory again and again
            position = end
    finally:
        # a generator that holds a mode of torch, or hooks, gives them back now and not when it is collected
        if hasattr(parts, "close"):
            parts.close()
    if position != n:
        raise _count_error(n, str(position))
    whole_parts: Any = wholes[0] if structure is None and wholes else tree_unflatten(wholes, structure)
    result: Result = whole_parts
    return result


def _count_error(n: int, got: str) -> OutputError:
    return OutputError(
        f"The network must give one row of outputs, of one shape, for each of the {n} samples. Got {got} instead. "
        "Return one row per sample of the batch, in the batch's order."
    )


def product_rows(matrix: Tensor) -> int:
    """Choose how many rows of a matrix to multiply at once: all of them, except on the CPU.

    There MKL copies both factors into a work space and keeps it: one as large as all rows would stay.

    Parameters
    ----------
    matrix : (n, d) tensor
        A factor of the product.

    Returns
    -------
    int
        A number of rows, at least 1.

    Examples
    --------
    >>> from skal.context import product_rows
    >>> product_rows(torch.zeros(2000, 256).double())
    512
    """
    if matrix.device.type != "cpu":
        return max(1, len(matrix))
    return rows_within(PRODUCT_BYTES, matrix.element_size() * matrix[:1].numel())


def is_out_of_memory(error: BaseException) -> bool:
    """True if a smaller chunk may help."""
    text = str(error).lower()
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or any(words in text for words in _MESSAGES)
