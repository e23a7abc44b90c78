# SPDX-License-Identifier: BSD-3-Clause
"""The random generators that everybody shares: their states, and how they are put back."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_MT19937_BYTES = 625 * 4  # 624 numbers and a position, as numpy lays them out


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
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
        self._raw = _raw_numpy_state()
        self._numpy = _numpy_state(self._raw)

    def restore(self) -> None:
        """Put them back; doing so twice does no harm."""
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        # numpy takes longest, and is hardly ever touched. A normal number may come from a pair that was drawn before
        if self._raw is None or self._numpy["has_gauss"] or _raw_numpy_state() != self._raw:
            np.random.set_state(self._numpy)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Give torch, numpy and ``random`` their states back, whatever happens inside."""
    before = GeneratorStates()
    try:
        yield
    finally:
        before.restore()


# the last state that was asked for, and the bytes that stood for it: asking takes longer than all else in a small query
_known: dict[bytes, Any] = {}


def _numpy_state(raw: bytes | None) -> Any:
    state: Any = None if raw is None else _known.get(raw)
    if state is not None:
        return state
    state = np.random.get_state(legacy=False)
    _known.clear()
    if raw is not None and not state["has_gauss"]:  # half a pair of normal numbers is not among the bytes
        _known[raw] = state
    return state


def _raw_numpy_state() -> bytes | None:
    """What numpy's shared generator holds; None if it is not the usual one."""
    generator = np.random.mtrand.get_bit_generator()
    if not isinstance(generator, np.random.MT19937):
        return None
    return ctypes.string_at(generator.ctypes.state_address, _MT19937_BYTES)
