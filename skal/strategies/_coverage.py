# SPDX-License-Identifier: BSD-3-Clause
"""Coverage of a set of samples by some of them, maximised greedily.

``Cov(S) = Σ_x w(x) max_{s ∈ S} k(x, s)`` is monotone and submodular in S for weights w ≥ 0. A gain can only shrink when
S grows, so that an old gain is an upper bound: lazy evaluation makes the same picks as greedy evaluation of everything.

Index letters: N candidates, e evaluation samples, m centres, d features.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from skal.context import rows_within
from skal.strategies._gains import Gains
from skal.strategies._pool_features import row_keys
from skal.strategies._similarity import Kernel, coverage_by

BLOCK_BYTES = 2**24  # bytes of features and similarities that are worked on at once
_FIRST_LOOK = 64  # candidates whose gains are brought up to date at first
_MOST_RIVALS = 256  # candidates whose gains are compared in double precision; of more, content decides
_DOUBLE_ERROR = 1e-10  # smaller errors of a similarity cannot be improved in double precision


def _gains_in_double(
    features: Tensor, centres: Tensor, kernel: Kernel, evaluation: Tensor, weights: Tensor, block_bytes: int
) -> Tensor:
    """Gains of some candidates, in double precision: (r, d), and (m, d) features of what covers already -> (r,)."""
    features, centres = features.double(), centres.double()
    gains = features.new_zeros(len(features))
    step = rows_within(block_bytes, 8 * (2 * features.shape[1] + 3 * len(features)))
    for points, weight in zip(evaluation.split(step), weights.split(step), strict=True):
        similarity = kernel.precisely_to(points)
        covered = coverage_by(centres, similarity, len(points), block_bytes, centres)
        gains += similarity(features).sub_(covered).clamp_min_(0) @ weight.double()
    return gains


class _Content:
    """Numbers that depend on nothing but a candidate's features."""

    def __init__(self, read: Callable[[Tensor], Tensor], n: int, step: int) -> None:
        self._read, self._n, self._step = read, n, step
        self._of_all: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        if self._of_all is None and len(rows) <= _MOST_RIVALS:
            return row_keys(self._read(rows))
        if self._of_all is None:  # as many will be asked for again
            self._of_all = torch.empty(self._n, dtype=torch.float64, device=rows.device)
            for some in torch.arange(self._n, device=rows.device).split(self._step):
                self._of_all[some] = row_keys(self._read(some))
        return self._of_all[rows]


def greedy_coverage(
    read: Callable[[Tensor], Tensor],
    keys: Tensor,
    kernel: Kernel,
    evaluation: Tensor,
    weights: Tensor,
    labelled: Tensor,
    taken: Tensor,
    n_instances: int,
    *,
    symmetric: bool = False,
    room: int = 2**29,
    block_bytes: int = BLOCK_BYTES,
    first_look: int = _FIRST_LOOK,
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates that raise the coverage most, one after the other.

    A copy of a taken or picked sample is not picked while others are left. Candidates whose gains are equal but for
    the rounding of single precision are compared in double precision. Of those that are still equal, one is picked by
    its content, so that the order of the candidates does not matter.

    Parameters
    ----------
    read : callable
        Features of some candidates: (r,) rows -> (r, d) tensor.
    keys : (N,) tensor
        Equal for copies; see :meth:`PoolFeatures.copy_keys`.
    kernel : Kernel
        k
    evaluation : (e, d) tensor
        Features of the samples x that are summed over.
    weights : (e,) tensor
        w ≥ 0, in the precision of the features.
    labelled : (n, d) tensor
        Features of the samples that are labelled already.
    taken : (m,) tensor
        The keys of those samples.
    n_instances : int
        At most N.
    symmetric : bool
        Whether the candidates are the evaluation samples, in their order.
    room, block_bytes : int
        Bytes for similarities that are kept, and for what is worked on.
    first_look : int
        How many gains are brought up to date at first.

    Returns
    -------
    picked : (n_instances,) array, distinct, in the order of choice
    gains : (n_instances,) array
        By how much each raised the coverage.

    Examples
    --------
    >>> X = torch.tensor([[0.0], [0.1], [5.0], [0.2]])
    >>> ball = Kernel("tophat", 0.15)
    >>> greedy_coverage(X.__getitem__, torch.arange(4), ball, X, torch.ones(4), X[:0], torch.zeros(0), 2)
    (array([1, 2]), array([3., 1.]))
    """
    gains_of = Gains(read, len(keys), kernel, evaluation, weights, labelled, room, block_bytes)

    def compare(rows: Tensor) -> Tensor:
        """Gains of rivals, summed over the samples that one of them may cover better."""
        features = read(rows)
        counting = gains_of.samples_for(features)
        centres = torch.cat([labelled, read(torch.as_tensor(picked, dtype=torch.int64, device=rows.device))])
        return _gains_in_double(features, centres, kernel, evaluation[counting], weights[counting], block_bytes)

    content = _Content(read, len(keys), rows_within(block_bytes, 12 * evaluation.shape[1]))
    gains, errors = gains_of.of_all(symmetric)
    up_to_date = torch.full_like(gains, -1, dtype=torch.int32)  # how many picks a gain knows of
    spent = torch.isin(keys, taken.to(keys))  # copies of what is labelled or picked
    free = torch.ones_like(spent)
    picked: list[int] = []
    metrics: list[float] = []
    for number in range(n_instances):
        open_ = free & ~spent
        if not bool(open_.any()):
            open_ = free
        n_looked_at = first_look
        while True:
            highest = (gains + errors).masked_fill_(~open_, -torch.inf)  # upper bounds of the gains
            known = (up_to_date == number) & open_
            at_least = (gains - errors).masked_fill_(~known, -torch.inf).max()
            rivals = highest >= at_least
            # no gain falls below 0
            stale = (rivals & ~known & open_ & (highest > 0)).nonzero()[:, 0]
            if len(stale) == 0:
                break
            if len(stale) > n_looked_at:
                stale = stale[highest[stale].topk(n_looked_at).indices]
            gains[stale], errors[stale] = gains_of.of(stale)
            up_to_date[stale] = number
            n_looked_at *= 4
        rows = (rivals & open_).nonzero()[:, 0]
        if 1 < len(rows) <= _MOST_RIVALS and kernel.error(weights.dtype) > _DOUBLE_ERROR:
            gains[rows] = exact = compare(rows)
            rows = rows[exact >= exact.max() * (1 - 1e-12)]
        chosen = rows if len(rows) == 1 else rows[content(rows).argmax()][None]
        picked.append(int(chosen))
        metrics.append(float(gains[chosen]))
        free[chosen] = False
        spent |= keys == keys[chosen]
        gains_of.cover(chosen)
    return np.array(picked), np.array(metrics)
