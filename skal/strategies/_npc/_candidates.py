"""The tangent kernel on a labelled set and candidate batches of a pool, computed where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from skal._core.network import Network
from skal._core.samples import Samples
from skal.strategies._npc._spectral import (
    EPS,
    joined,
    numerical_rank,
    points_above,
    pruned_search,
    ridge_logdets,
    smallest_eigenvalue,
)
from skal.tangent._engine import TangentEngine
from skal.tangent._kernels import kernel_diagonal, kernel_matrix
from skal.tangent._sketch import feature_matrix

__all__ = ["CandidateKernel", "distinct_rows", "fingerprints"]

# of the mean diagonal: far above the rounding of the gradients, far below what tells samples apart
RIDGE = 1e-3
# kernel of some pool points: (n, u) with the labelled points and (u, u) among themselves
Blocks = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class CandidateKernel:
    """Blocks of the exact kernel within a memory bound, and the searches over batches that need them.

    Parameters
    ----------
    engine : TangentEngine
    pool : Samples
    labelled : Samples or None
    kind : {"pntk", "logit", "trace"}
    memory : int
        Bytes for blocks of the kernel.

    Attributes
    ----------
    n : int
        Number of labelled samples.
    K_LL : (n, n) array
    """

    def __init__(self, engine: TangentEngine, pool: Samples, labelled: Samples | None, kind: str, memory: int) -> None:
        self.engine, self.pool, self.labelled, self.kind = engine, pool, labelled, kind
        self.n = 0 if labelled is None else len(labelled)
        self.K_LL = np.empty((0, 0)) if labelled is None else self._matrix(labelled, None)
        self.memory = memory
        # three arrays of float64 at a time
        self.max_points = max(1, int((memory / (3 * 8)) ** 0.5) - self.n)
        self._last: tuple[np.ndarray, tuple[np.ndarray, np.ndarray]] | None = None

    def _matrix(self, first: Samples, second: Samples | None) -> np.ndarray:
        return kernel_matrix(self.engine, first, second, self.kind).cpu().numpy()

    def exact(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n, u) and (u, u) blocks of the exact kernel; those of the last call are kept."""
        if self._last is not None and np.array_equal(self._last[0], points):
            return self._last[1]
        self._last = None
        samples = self.pool.take(points)
        K_LU = np.empty((0, len(points))) if self.labelled is None else self._matrix(self.labelled, samples)
        self._last = points, (K_LU, self._matrix(samples, None))
        return self._last[1]

    def _groups(self, batches: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Consecutive batches whose points fit into memory: their points, and the batches as positions in these."""
        start = 0
        while start < len(batches):
            stop = min(len(batches), start + max(1, self.max_points // batches.shape[1]))
            if len(np.unique(batches[start:])) <= self.max_points:
                stop = len(batches)
            points, local = np.unique(batches[start:stop], return_inverse=True)
            yield np.arange(start, stop), points, local.reshape(stop - start, -1)
            start = stop

    def best(
        self, batches: np.ndarray, bar: float = -np.inf, winner: np.ndarray | None = None
    ) -> tuple[np.ndarray | None, float]:
        """The batch with the largest λ_min above the bar, and that value; the winner so far if there is none."""
        return self._best(batches, self.K_LL, self.exact, bar, winner)

    def _best(
        self, batches: np.ndarray, K_LL: np.ndarray, blocks: Blocks, bar: float, winner: np.ndarray | None
    ) -> tuple[np.ndarray | None, float]:
        if self.n:  # λ_max of the labelled block is a lower bound of every candidate's
            bar = max(bar, self.rounding(self.n + batches.shape[1]) * float(np.linalg.eigvalsh(K_LL)[-1]))
        for rows, points, local in self._groups(batches):
            index, value = pruned_search(K_LL, *blocks(points), local, bar)
            if index >= 0:
                winner, bar = batches[rows[index]], value
        return winner, bar

    def proposed(self, batches: np.ndarray, n_features: int, seed: int) -> tuple[np.ndarray | None, float]:
        """The batch that wins under a sketched kernel, and its exact λ_min; None if there is no room for sketches."""
        points = np.unique(batches)
        if (self.n + len(points)) * n_features * 8 > self.memory:
            return None, -np.inf

        def features(samples: Samples) -> np.ndarray:
            return feature_matrix(self.engine, samples, self.kind, n_features, seed).double().cpu().numpy()

        sketches = features(self.pool.take(points))
        labelled = np.empty((0, n_features)) if self.labelled is None else features(self.labelled)

        def blocks(some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            rows = sketches[np.searchsorted(points, some)]
            return labelled @ rows.T, rows @ rows.T

        winner, _ = self._best(batches, labelled @ labelled.T, blocks, -np.inf, None)
        return (None, -np.inf) if winner is None else (winner, smallest_eigenvalue(self.joined(winner)))

    def not_ruled_out(self, batches: np.ndarray, bar: float) -> np.ndarray:
        """The batches in which every single point leaves λ_min above the bar."""
        points = np.unique(batches)
        above = np.empty(len(points), dtype=bool)
        step = max(1, self.max_points**2 // max(1, self.n))
        for start in range(0, len(points), step):
            samples = self.pool.take(points[start : start + step])
            diagonal = kernel_diagonal(self.engine, samples, self.kind).cpu().numpy()
            K_LU = np.empty((0, len(samples))) if self.labelled is None else self._matrix(self.labelled, samples)
            # the diagonal carries the rounding of the network's own precision
            slack = 1 + 100 * torch.finfo(self.engine.network.dtype).eps
            above[start : start + step] = points_above(self.K_LL, K_LU, diagonal * slack, bar)
        return batches[above[np.searchsorted(points, batches)].all(axis=1)]

    def joined(self, batch: np.ndarray) -> np.ndarray:
        """The exact kernel on labelled set and batch."""
        if self._last is not None and np.isin(batch, self._last[0]).all():
            points, (K_LU, K_UU) = self._last
            return joined(self.K_LL, K_LU, K_UU, np.searchsorted(points, batch))
        samples = self.pool.take(batch)
        K_LU = np.empty((0, len(batch))) if self.labelled is None else self._matrix(self.labelled, samples)
        return joined(self.K_LL, K_LU, self._matrix(samples, None), np.arange(len(batch)))

    def rounding(self, size: int) -> float:
        """What of λ_max an eigenvalue of a (size, size) kernel must exceed to mean anything.

        The gradients themselves are rounded, to a few units of the network's precision ε: that alone gives eigenvalues
        of the order ε² λ_max to a kernel that should have zeros.
        """
        return size * max(EPS, 16 * torch.finfo(self.engine.network.dtype).eps ** 2)

    def rank(self, batch: np.ndarray) -> int:
        """Of the kernel on labelled set and batch, up to rounding."""
        M = self.joined(batch)
        return numerical_rank(M, self.rounding(len(M)))

    def largest_logdet(self, batches: np.ndarray) -> np.ndarray:
        """The batch with the largest ``log det(K + ρI)``."""
        ridge = RIDGE * float(self.K_LL.diagonal().mean()) if self.n else None
        best, record = batches[0], -np.inf
        for rows, points, local in self._groups(batches):
            K_LU, K_UU = self.exact(points)
            if ridge is None:
                ridge = RIDGE * float(K_UU.diagonal().mean())
            values = ridge_logdets(self.K_LL, K_LU, K_UU, local, ridge)
            if values.max() > record:
                best, record = batches[rows[int(values.argmax())]], values.max()
        return best


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
