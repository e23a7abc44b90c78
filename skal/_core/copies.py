"""Exact copies among samples, found by what the network is given of each."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from skal._core.network import Network
from skal._core.samples import Samples

__all__ = ["distinct_rows", "fingerprints"]


def fingerprints(network: Network, samples: Samples, batch_size: int) -> Iterator[bytes]:
    """A digest of what the network is given for each sample: equal for exact copies."""
    for batch in network.batches(samples, batch_size):
        arrays = [leaf.detach().cpu().contiguous().numpy() for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        for row in zip(*arrays, strict=True):
            digest = blake2b(digest_size=16)
            for part in row:
                digest.update(part.tobytes())
            yield digest.digest()


def distinct_rows(network: Network, samples: Samples, batch_size: int, seen: set[bytes]) -> np.ndarray:
    """Rows of the samples that are no copies of an earlier one or of what has been seen; they are added to that."""

    def shard(part: Samples) -> np.ndarray:
        return np.frombuffer(b"".join(fingerprints(network, part, batch_size)), dtype="V16")

    rows = []
    shards = network.sharding.map(shard, samples, batch_size)
    for row, fingerprint in enumerate(digest.tobytes() for digests in shards for digest in digests):
        if fingerprint not in seen:
            seen.add(fingerprint)
            rows.append(row)
    return np.array(rows, dtype=np.int64)
