# SPDX-License-Identifier: BSD-3-Clause
"""Whether a layer receives the samples of a batch in the order in which the network does.

A module may sort its batch, by length for example, and restore the order at the end. What a layer inside received in
row i then belongs to another sample. Passing a batch in two orders shows that: the rows must change places alike. The
second order begins with the second row and ends with the first. Modules that turn their batch around, or sort it, do
something else to it than to the first. Those that shift it do not, but the first sample, which comes twice, shows them:
no other neighbours in the circle of rows are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal._core.network import Network
from skal._core.samples import Samples

N_ORDERED = 8  # samples that are passed in two orders, one of them twice


def two_orders(network: Network, samples: Samples) -> Iterator[Any]:
    """A batch of a few samples from all over the given ones with the first again at its end, and the same rolled."""
    rows = np.linspace(0, len(samples) - 1, min(N_ORDERED, len(samples))).round().astype(np.int64)
    rows = np.append(rows, rows[0])
    for some in (rows, np.roll(rows, -1)):
        yield next(network.batches(samples.take(some), len(rows)))


def row_digests(x: Tensor) -> Tensor:
    """(n, ...) -> (n, 2) numbers in float64 that tell rows apart: a fixed projection, and the length."""
    rows = x.detach().reshape(x.shape[0], -1).double()
    weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=rows.device).cos()
    return torch.stack([rows @ weights, rows.norm(dim=1)], dim=1)


def rolled(x: Tensor, second: Tensor, epsilon: float) -> bool:
    """Whether the rows of the second tensor are those of x with the first at the end, and x ends as it begins."""
    return x.shape == second.shape and _alike(x.roll(-1, 0), second, x, epsilon) and ends_as_it_begins(x, epsilon)


def ends_as_it_begins(x: Tensor, epsilon: float) -> bool:
    """Whether the first row of x is its last, up to rounding."""
    return _alike(x[0], x[-1], x, epsilon)


def _alike(one: Tensor, other: Tensor, x: Tensor, epsilon: float) -> bool:
    # kernels that round rows by where they stand are off by a few units, other rows by much more
    return bool((one.double() - other.double()).norm() <= epsilon**0.5 * x.double().norm())
