# SPDX-License-Identifier: BSD-3-Clause
"""The random generators that everybody shares: their states, and how they are put back.

Asking ``random`` and numpy for a state takes longer than all else in a small query. So the bytes in which they keep it
are read where they lie in memory: they tell whether it is still the one that was asked for last.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_Bytes = ctypes.c_char * (625 * 4)  # of 624 numbers and a position, as numpy and Python lay them out


class GeneratorStates:
    """States of ``random``, numpy and torch at one moment.

    Examples
    --------
    >>> import random
    >>> from skal._core.generators import GeneratorStates
    >>> before = GeneratorStates()
    >>> first = random.random()
    >>> before.restore()
    >>> random.random() == first
    True
    """

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        self._python_raw, self._python = _python.state()
        self._numpy_raw, self._numpy = _numpy.state()

    def restore(self) -> None:
        """Put them back; doing so twice does no harm."""
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)
        # they are hardly ever touched, and looking takes less than setting
        if self._python_raw is None or _raw_python_state() != self._python_raw:
            random.setstate(self._python)
        if self._numpy_raw is None or _raw_numpy_state() != self._numpy_raw:
            np.random.set_state(self._numpy)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Give torch, numpy and ``random`` their states back, whatever happens inside."""
    before = GeneratorStates()
    try:
        yield
    finally:
        before.restore()


class _Generator:
    """A shared generator that is asked for its state only if that is another one than the last time.

    Parameters
    ----------
    read : callable
        What it holds, to be compared; None where that cannot be read.
    ask : callable
        Its state.
    is_whole : callable
        Whether what is read stands for all of a state.
    """

    def __init__(self, read: Callable[[], Any], ask: Callable[[], Any], is_whole: Callable[[Any], bool]) -> None:
        self._read, self._ask, self._is_whole = read, ask, is_whole
        self._last: tuple[Any, Any] = None, None

    def state(self) -> tuple[Any, Any]:
        """What is read now, None where it does not stand for the whole state; and the state."""
        raw, last = self._read(), self._last
        if raw is not None and raw == last[0]:
            return last
        state = self._ask()
        # another thread may have drawn a number in between
        is_whole = self._is_whole(state) and raw == self._read()
        self._last = last = (raw if is_whole else None), state
        return last


def _raw_numpy_state() -> bytes | None:
    """What numpy's shared generator holds; None if it is not the usual one."""
    global _numpy_bytes
    generator = np.random.mtrand.get_bit_generator()
    if generator is not _numpy_bytes[0]:
        is_usual = isinstance(generator, np.random.MT19937)
        _numpy_bytes = generator, _Bytes.from_address(generator.ctypes.state_address) if is_usual else None
    return None if _numpy_bytes[1] is None else _numpy_bytes[1].raw


def _raw_python_state() -> tuple[bytes, float | None] | None:
    """What ``random`` holds, with half a pair of normal numbers; None if the bytes are not where they should be."""
    return None if _python_bytes is None else (_python_bytes.raw, _python_generator.gauss_next)


def _bytes_of(generator: Any) -> Any | None:
    """Where a generator of ``random`` keeps its position and 624 numbers, in this order; None if that is unknown."""
    if sys.implementation.name != "cpython" or type(generator) is not random.Random:
        return None  # id is no address, or somebody has put another generator in the place
    *numbers, position = generator.getstate()[1]
    held = ctypes.string_at(id(generator), random.Random.__basicsize__)
    offset = held.find(struct.pack("=i624I", position, *numbers))
    return None if offset < 0 else _Bytes.from_address(id(generator) + offset)


_numpy_bytes: tuple[Any, Any] = None, None  # of the generator that stands in front
_python_generator: Any = getattr(random.getstate, "__self__", None)
_python_bytes = _bytes_of(_python_generator)
_python = _Generator(_raw_python_state, random.getstate, lambda state: True)
# numpy keeps half a pair of normal numbers elsewhere
_numpy = _Generator(_raw_numpy_state, lambda: np.random.get_state(legacy=False), lambda state: not state["has_gauss"])
