# SPDX-License-Identifier: BSD-3-Clause
"""A checksum in the last digits of a plan's probabilities: which samples belong to it, and whether all are there.

Nothing in a sample's position says that chance drew it, and a part of a plan looks like a smaller plan. So the last 20
bits of each probability, which change it by less than 3 parts in 10 billion, are replaced: 8 by a mark of the sample,
12 by a checksum of the whole plan, or of all draws so far where samples are drawn one after the other. A plan that is
written to a file with all digits, sorted, or used for another model, keeps them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Positions = NDArray[np.int64]
_Bits = NDArray[np.uint64]

_MARK, _ALL = np.uint64(2**8 - 1), np.uint64(2**20 - 1)


def add_checksum(positions: Positions, probabilities: Floats, n: int, drawn: Positions | None = None) -> Floats:
    """Probabilities that carry the checksum, (m,); those of 1, which leave nothing to chance, stay as they are.

    Parameters
    ----------
    positions : array of shape (m,)
        The samples drawn.
    probabilities : array of shape (m,)
        Their probabilities.
    n : int
        How many samples they were drawn from.
    drawn : array of int or None, default=None
        The samples drawn before, if order matters; None for a plan, whose order does not.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit._checksum import add_checksum, read_checksum
    >>> at = np.array([5, 3, 8])
    >>> chance = add_checksum(at, np.full(3, 0.3), 10)
    >>> bool(np.allclose(chance, 0.3, rtol=3e-10)), read_checksum(at, chance, 10)
    (True, (True, True))
    >>> read_checksum(at[:2], chance[:2], 10), read_checksum(at, np.full(3, 0.3), 10)
    ((True, False), (False, False))
    """
    before = np.zeros(0, dtype=np.int64) if drawn is None else drawn
    code = checksums(np.concatenate([before, positions]), n, drawn is not None)[len(before) :]
    bits = np.ascontiguousarray(probabilities, dtype=np.float64).view(np.uint64)
    return np.where(probabilities < 1, ((bits & ~_ALL) | code).view(np.float64), probabilities)


def read_checksum(positions: Positions, probabilities: Floats, n: int, in_order: bool = False) -> tuple[bool, bool]:
    """Whether all probabilities were made for these samples, and whether the plan, or the sequence, is complete.

    Some probability is below 1 unless all n samples are there: no sample has none.
    """
    bits = np.ascontiguousarray(probabilities, dtype=np.float64).view(np.uint64)
    off = ((bits ^ checksums(positions, n, in_order)) & _ALL)[probabilities < 1]
    known = (len(off) > 0 or len(positions) == n) and not (off & _MARK).any()
    return known, known and not off.any()


def checksums(positions: Positions, n: int, in_order: bool) -> _Bits:
    """20 bits for each position, (m,)."""
    m = len(positions)
    own = scramble(positions.astype(np.uint64) + scramble(np.full(m, n, dtype=np.uint64)))
    places = np.arange(m, dtype=np.uint64)
    whole = np.cumsum(scramble(own + places)) if in_order else np.full(m, own.sum(dtype=np.uint64))
    return (own & _MARK) | (scramble(own + whole) & _ALL & ~_MARK)


def scramble(bits: Any) -> _Bits:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014): every bit of the result depends on all of an entry."""
    mixed: _Bits = bits + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
