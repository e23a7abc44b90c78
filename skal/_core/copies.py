# SPDX-License-Identifier: BSD-3-Clause
"""Exact copies among samples, and samples that come again, found by what the network is given of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import ConcatDataset, Dataset, Subset

from skal._core.network import Network
from skal._core.samples import Samples


def fingerprints(network: Network, samples: Samples, batch_size: int) -> Iterator[bytes]:
    """A digest of what the network is given for each sample: equal for exact copies."""
    for batch in network.batches(samples, batch_size):
        arrays = [_as_array(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        for row in zip(*arrays, strict=True):
            digest = blake2b(digest_size=16)
            for part in row:
                digest.update(part.tobytes())
            yield digest.digest()


def _as_array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()  # numpy has none


def _shared_fingerprints(network: Network, samples: Samples, batch_size: int) -> Iterator[bytes]:
    """Those of all samples, in order, read by the network's workers."""

    def shard(part: Samples) -> np.ndarray:
        return np.frombuffer(b"".join(fingerprints(network, part, batch_size)), dtype="V16")

    shards = network.sharding.map(shard, samples, batch_size)
    return (digest.tobytes() for digests in shards for digest in digests)


def copy_groups(network: Network, samples: Samples, known: Samples, batch_size: int) -> np.ndarray:
    """(n,) integers that exact copies share, −1 for copies of known samples."""
    groups = dict.fromkeys(fingerprints(network, known, batch_size), -1)
    numbers = [
        groups.setdefault(fingerprint, row)
        for row, fingerprint in enumerate(_shared_fingerprints(network, samples, batch_size))
    ]
    return np.array(numbers, dtype=np.int64)


def distinct_rows(network: Network, samples: Samples, batch_size: int, seen: set[bytes]) -> np.ndarray:
    """Rows of the samples that are no copies of an earlier one or of what has been seen; they are added to that."""
    rows = []
    for row, fingerprint in enumerate(_shared_fingerprints(network, samples, batch_size)):
        if fingerprint not in seen:
            seen.add(fingerprint)
            rows.append(row)
    return np.array(rows, dtype=np.int64)


def row_keys(network: Network, samples: Samples, batch_size: int) -> list[Hashable]:
    """What each sample is recognised by in a later query: its content, or where it stands in a Dataset."""
    if isinstance(samples.X, Dataset):
        return [origin(samples.X, int(row)) for row in samples.row_numbers(0, len(samples))]
    return list(fingerprints(network, samples, batch_size))


def origin(dataset: Any, row: int) -> tuple[int, int]:
    """The Dataset that a row of a Subset or ConcatDataset is taken from, and its place there."""
    while True:
        if isinstance(dataset, Subset):
            dataset, row = dataset.dataset, int(dataset.indices[row])
        elif isinstance(dataset, ConcatDataset):
            number = int(np.searchsorted(dataset.cumulative_sizes, row, side="right"))
            row -= dataset.cumulative_sizes[number - 1] if number else 0
            dataset = dataset.datasets[number]
        else:
            return id(dataset), row
