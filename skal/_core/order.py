# SPDX-License-Identifier: BSD-3-Clause
"""Whether a layer receives the samples of a batch in the order in which the network does.

A module may sort its batch, by length for example, and restore the order at the end. What a layer inside received in
row i then belongs to another sample. Passing a batch in two orders shows that: the rows must change places alike. The
second order begins with the second sample and ends with the first, because a module that turns its batch around does
the same to a batch that is turned around.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal._core.network import Network
from skal._core.samples import Samples

N_ORDERED = 8  # samples that are passed in two orders, one of them twice


def two_orders(network: Network, samples: Samples) -> list[Any]:
    """:func:`some_and_the_first_again`, and the same batch with its first row at the end."""
    rows = _rows(samples)
    return [_batch(network, samples, some) for some in (rows, np.roll(rows, -1))]


def some_and_the_first_again(network: Network, samples: Samples) -> Any:
    """A batch of a few samples from all over the given ones, with the first once more at the end.

    However a module sorts a batch, this one is not in order already, unless all its samples are alike.
    """
    return _batch(network, samples, _rows(samples))


def _rows(samples: Samples) -> np.ndarray:
    rows = np.linspace(0, len(samples) - 1, min(N_ORDERED, len(samples))).round().astype(np.int64)
    return np.append(rows, rows[0])


def _batch(network: Network, samples: Samples, rows: np.ndarray) -> Any:
    return next(network.batches(samples.take(rows), len(rows)))


def row_digests(x: Tensor) -> Tensor:
    """(n, ...) -> (n, 2) numbers in float64 that tell rows apart: a fixed projection, and the length."""
    rows = x.detach().reshape(x.shape[0], -1).double()
    weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=rows.device).cos()
    return torch.stack([rows @ weights, rows.norm(dim=1)], dim=1)


def rolled(x: Tensor, second: Tensor, epsilon: float) -> bool:
    """Whether the rows of the second tensor are those of x with the first at the end, up to rounding."""
    if x.shape != second.shape:
        return False
    x, second = x.double(), second.double()
    # kernels that round rows by where they stand are off by a few units, other rows by much more
    return bool((x.roll(-1, 0) - second).norm() <= epsilon**0.5 * x.norm())
