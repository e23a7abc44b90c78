"""The tangent kernel on a labelled set and candidate batches of a pool, computed where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isqrt

import numpy as np
import torch

from skal._core.memory import rows_within
from skal._core.samples import Samples
from skal.strategies._npc._spectral import (
    EPS,
    KernelBlocks,
    greedy_logdet,
    greedy_search,
    numerical_rank,
    points_above,
    pruned_search,
    ridge_logdets,
    smallest_eigenvalue,
    used_points,
)
from skal.tangent._engine import TangentEngine
from skal.tangent._kernels import kernel_diagonal, kernel_matrix
from skal.tangent._sketch import feature_matrix

# of the mean diagonal: far above the rounding of the gradients, far below what tells samples apart
RIDGE = 1e-3
KERNEL_BYTES = 3 * 8  # of an entry: three arrays of float64 at a time


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
        self.engine, self.pool, self.labelled, self.kind, self.memory = engine, pool, labelled, kind, memory
        self.n = 0 if labelled is None else len(labelled)
        self.K_LL = np.empty((0, 0)) if labelled is None else self._matrix(labelled)
        self.max_points = max(1, isqrt(rows_within(memory, KERNEL_BYTES)) - self.n)
        self._last: tuple[np.ndarray, KernelBlocks] | None = None

    def _matrix(self, first: Samples, second: Samples | None = None) -> np.ndarray:
        return kernel_matrix(self.engine, first, second, self.kind).cpu().numpy()

    def _with_labelled(self, samples: Samples) -> np.ndarray:
        return np.empty((0, len(samples))) if self.labelled is None else self._matrix(self.labelled, samples)

    def exact_blocks(self, points: np.ndarray) -> KernelBlocks:
        """The exact kernel on labelled set and some points of the pool; that of the last call is kept."""
        if self._last is None or not np.array_equal(self._last[0], points):
            self._last = None
            samples = self.pool.take(points)
            self._last = points, KernelBlocks(self.K_LL, self._with_labelled(samples), self._matrix(samples))
        return self._last[1]

    def _groups(self, batches: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Consecutive batches whose points fit into memory: where they start, their points, and positions in these."""
        start = 0
        while start < len(batches):
            stop = min(len(batches), start + rows_within(self.max_points, batches.shape[1]))
            if len(np.unique(batches[start:])) <= self.max_points:
                stop = len(batches)
            yield start, *used_points(batches[start:stop])
            start = stop

    def best(
        self,
        batches: np.ndarray,
        bar: float = -np.inf,
        winner: np.ndarray | None = None,
        blocks: Callable[[np.ndarray], KernelBlocks] | None = None,
    ) -> tuple[np.ndarray | None, float]:
        """The batch with the largest λ_min above the bar, and that value; the winner so far if there is none.

        The kernel on some points is the exact one, or what ``blocks`` gives.
        """
        for start, points, local in self._groups(batches):
            kernel = (blocks or self.exact_blocks)(points)
            if self.n and start == 0:  # λ_max of the labelled block is a lower bound of every candidate's
                largest = float(np.linalg.eigvalsh(kernel.LL)[-1])
                bar = max(bar, self.rounding(self.n + batches.shape[1]) * largest)
            index, value = pruned_search(kernel, local, bar)
            if index >= 0:
                winner, bar = batches[start + index], value
        return winner, bar

    def sketched_best(self, batches: np.ndarray, n_features: int, seed: int) -> tuple[np.ndarray | None, float]:
        """The batch that wins under a sketched kernel, and its exact λ_min; None if there is no room for sketches."""
        points = np.unique(batches)
        if (self.n + len(points)) * n_features * 8 > self.memory:
            return None, -np.inf

        def features(samples: Samples) -> np.ndarray:
            return feature_matrix(self.engine, samples, self.kind, n_features, seed).double().cpu().numpy()

        sketches = features(self.pool.take(points))
        labelled = np.empty((0, n_features)) if self.labelled is None else features(self.labelled)

        def blocks(some: np.ndarray) -> KernelBlocks:
            rows = sketches[np.searchsorted(points, some)]
            return KernelBlocks(labelled @ labelled.T, labelled @ rows.T, rows @ rows.T)

        winner, _ = self.best(batches, blocks=blocks)
        return (None, -np.inf) if winner is None else (winner, smallest_eigenvalue(self.exact(winner)))

    def not_ruled_out(self, batches: np.ndarray, bar: float) -> np.ndarray:
        """The batches in which every single point leaves λ_min above the bar."""
        points = np.unique(batches)
        above = np.empty(len(points), dtype=bool)
        # the diagonal carries the rounding of the network's own precision
        slack = 1 + 100 * torch.finfo(self.engine.network.dtype).eps
        step = rows_within(self.max_points**2, self.n)
        for start in range(0, len(points), step):
            samples = self.pool.take(points[start : start + step])
            diagonal = kernel_diagonal(self.engine, samples, self.kind).cpu().numpy()
            K_LU = self._with_labelled(samples)
            above[start : start + step] = points_above(self.K_LL, K_LU, diagonal * slack, bar)
        return batches[above[np.searchsorted(points, batches)].all(axis=1)]

    def exact(self, batch: np.ndarray) -> np.ndarray:
        """The exact kernel on labelled set and batch."""
        points = np.sort(batch) if self._last is None or not np.isin(batch, self._last[0]).all() else self._last[0]
        return self.exact_blocks(points).joined(np.searchsorted(points, batch))

    def rounding(self, size: int) -> float:
        """What of λ_max an eigenvalue of a (size, size) kernel must exceed to mean anything.

        The gradients themselves are rounded, to a few units of the network's precision ε: that alone gives eigenvalues
        of the order ε² λ_max to a kernel that should have zeros.
        """
        return size * max(EPS, 16 * torch.finfo(self.engine.network.dtype).eps ** 2)

    def rank(self, batch: np.ndarray) -> int:
        """Of the kernel on labelled set and batch, up to rounding."""
        K = self.exact(batch)
        return numerical_rank(K, self.rounding(len(K)))

    def largest_logdet(self, batches: np.ndarray) -> np.ndarray:
        """The batch with the largest ``log det(K + ρI)``."""
        ridge = RIDGE * float(self.K_LL.diagonal().mean()) if self.n else None
        best, record = batches[0], -np.inf
        for start, points, local in self._groups(batches):
            kernel = self.exact_blocks(points)
            if ridge is None:
                ridge = RIDGE * float(kernel.UU.diagonal().mean())
            values = ridge_logdets(kernel, local, ridge)
            if values.max() > record:
                best, record = batches[start + int(values.argmax())], values.max()
        return best

    def greedy(self, points: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """A batch of these points, each the one that keeps λ_min highest, and λ_min after each."""
        picked, values = greedy_search(self.exact_blocks(points), size)
        return points[picked], values

    def greedy_logdet(self, points: np.ndarray, size: int) -> np.ndarray:
        """A batch of these points, each the one that raises ``log det(K + ρI)`` most."""
        kernel = self.exact_blocks(points)
        ridge = RIDGE * float(np.concatenate([kernel.LL.diagonal(), kernel.UU.diagonal()]).mean())
        return points[greedy_logdet(kernel, size, ridge)]
