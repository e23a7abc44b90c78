# SPDX-License-Identifier: BSD-3-Clause
"""Whether a layer receives the samples of a batch in the order in which the network does.

A module may sort its batch, by length for example, and restore the order at the end. What a layer inside received in
row i then belongs to another sample. Passing a batch in two orders shows that: the rows must be mirrored, too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal._core.network import Network
from skal._core.samples import Samples

N_ORDERED = 8  # samples that are passed in two orders


def two_orders(network: Network, samples: Samples) -> list[Any]:
    """A batch of a few samples from all over the given ones, and the same batch from its last sample to its first."""
    rows = np.linspace(0, len(samples) - 1, min(N_ORDERED, len(samples))).round().astype(np.int64)
    return [next(network.batches(samples.take(some), len(rows))) for some in (rows, rows[::-1].copy())]


def row_digests(x: Tensor) -> Tensor:
    """(n, ...) -> (n, 2) numbers in float64 that tell rows apart: a fixed projection, and the length."""
    rows = x.detach().reshape(x.shape[0], -1).double()
    weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=rows.device).cos()
    return torch.stack([rows @ weights, rows.norm(dim=1)], dim=1)


def mirrored(x: Tensor, backwards: Tensor, epsilon: float) -> bool:
    """Whether the rows of one tensor are those of the other from the last to the first, up to rounding."""
    if x.shape != backwards.shape:
        return False
    x, backwards = x.double(), backwards.double()
    # kernels that round rows by where they stand are off by a few units, other rows by much more
    return bool((x.flip(0) - backwards).norm() <= epsilon**0.5 * x.norm())
