# SPDX-License-Identifier: BSD-3-Clause
"""Reading pickles of plain data without running any code that they name.

A pickle may call any function of any module. Here the few names that numpy arrays need are answered by stand-ins that
only keep numbers, and every other name is refused. Not even numpy's own functions are called on the file's data.
"""

import io
import pickle
import re
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

_NUMBER = re.compile(r"[biuf][1248]")


def load_plain_pickle(content: bytes, source: str) -> dict[Any, Any]:
    """Return the pickled dicts, lists, strings, numbers and numeric arrays; strings of Python 2 become bytes.

    Arrays are looked for as the values of the outermost dict only.
    """
    try:
        loaded = _PlainUnpickler(io.BytesIO(content), encoding="bytes").load()
        if not isinstance(loaded, dict):
            raise pickle.UnpicklingError(f"expected a dict, got {type(loaded).__name__}")
        return {key: value.array if isinstance(value, _Array) else value for key, value in loaded.items()}
    # Damaged or hostile bytes can make the unpickler fail in any way: all of them mean an unusable file.
    except Exception as error:
        raise ValueError(
            f"{source}: truncated, damaged or unsafe pickle ({type(error).__name__}: {error}). Get the file again from "
            f"the data set's home page."
        ) from error


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        # "numpy.core" was renamed "numpy._core"; files of both ages exist.
        known = _stand_ins().get((module.replace("numpy._core", "numpy.core"), name))
        if known is None:
            raise pickle.UnpicklingError(f"the file asks for {module}.{name}, which is not plain data")
        return known


def _stand_ins() -> dict[tuple[str, str], Callable[..., Any]]:
    # Functions are made anew for each file: a pickle can set attributes on what it is given.
    return {
        ("numpy.core.multiarray", "_reconstruct"): lambda cls, shape, code: _Array(),
        ("numpy.core.numeric", "_frombuffer"): lambda buffer, dtype, shape, order: _Array().fill(
            buffer, dtype, shape, order == "F"
        ),
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _DType,
        # How Python 3 writes bytes in the protocols of Python 2.
        ("_codecs", "encode"): lambda text, encoding: text.encode("latin1"),
    }


def _text(value: Any) -> str:
    return value.decode("ascii") if isinstance(value, bytes) else str(value)


class _DType:
    """What is pickled of a dtype: its code, such as "u1", and its byte order."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, *flags: Any) -> None:
        self.code = _text(code)
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])

    def numpy(self) -> np.dtype[Any]:
        if not _NUMBER.fullmatch(self.code) or self.order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"arrays must be numeric, got the type {self.order}{self.code}")
        return np.dtype(self.order + self.code)


class _Array:
    """What is pickled of an array, turned into a numpy array from its raw bytes."""

    __slots__ = ("array",)

    array: NDArray[Any]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, buffer = state
        self.fill(buffer, dtype, shape, fortran)

    def fill(self, buffer: Any, dtype: _DType, shape: Any, fortran: Any) -> Any:
        lengths = tuple(int(length) for length in shape)
        numbers = np.frombuffer(buffer, dtype=dtype.numpy())
        if len(numbers) != prod(lengths):
            raise pickle.UnpicklingError(f"an array of shape {lengths} holds {len(numbers)} values")
        self.array = numbers.reshape(lengths, order="F" if fortran else "C")
        return self
