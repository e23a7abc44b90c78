# SPDX-License-Identifier: BSD-3-Clause
"""The tangent kernel on a labelled set and candidate batches of a pool, computed where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import isqrt

import numpy as np
import torch

from skal.context import Samples, TangentEngine, rows_within
from skal.strategies._spectral import (
    EPS,
    BatchKernel,
    KernelBlocks,
    Spectrum,
    greedy_logdet,
    greedy_search,
    numerical_rank,
    points_above,
    points_of,
    pruned_search,
    ridge_logdets,
    smallest_eigenvalue,
)
from skal.tangent._cotangents import kernel_cotangents
from skal.tangent._kept import KeptGradients, keep_gradients, kept_bytes
from skal.tangent._kernels import kernel_diagonal, kernel_matrix
from skal.tangent._sketch import feature_matrix
from skal.tangent._tangent_engine import non_finite_gradients

# of the mean diagonal: far above the rounding of the gradients, far below what tells samples apart
RIDGE = 1e-3
KERNEL_BYTES = 3 * 8  # for each entry: three arrays of float64 at a time
_STRIP = 128  # rows of a symmetric kernel that are computed at once


class GradientKernel:
    """The kernel on pool points from their gradients, which are kept; its parts on single batches are formed alone."""

    def __init__(self, gradients: KeptGradients) -> None:
        self.gradients = gradients

    def diagonal(self) -> np.ndarray:
        """(N,) squared lengths."""
        return self.gradients.squares().cpu().numpy()

    def among(self, batch: np.ndarray) -> np.ndarray:
        """(b, b) kernel."""
        part = self.gradients.take(batch)
        return part.gram(part).cpu().numpy()


class CandidateKernel:
    """Blocks of the exact kernel within a memory bound, and the searches over batches that need them.

    The gradients of as many points as there is room for are read once and kept; of the kernel among them only what
    batches need is formed. Where not even a batch's gradients fit, the kernel is computed block by block instead.

    Parameters
    ----------
    engine : TangentEngine
    pool : Samples
    labelled : Samples or None
    kind : {"pntk", "logit", "trace"}
    memory : int
        Bytes for gradients that are kept, and for blocks of the kernel.

    Attributes
    ----------
    n : int
        Number of labelled samples.
    K_LL : (n, n) array
    """

    def __init__(self, engine: TangentEngine, pool: Samples, labelled: Samples | None, kind: str, memory: int) -> None:
        self.engine, self.pool, self.labelled, self.kind, self.memory = engine, pool, labelled, kind, memory
        self.n = 0 if labelled is None else len(labelled)
        self._cotangents = kernel_cotangents(kind, engine.n_classes)
        self.room = Room(memory, self.n, kept_bytes(engine, pool, self._cotangents))
        self._own: KeptGradients | None = None
        if labelled is not None and self.room.keeps_labelled:
            self._own = self._gradients(labelled)
        if labelled is None:
            self.K_LL = np.empty((0, 0))
        else:
            self.K_LL = self._matrix(labelled) if self._own is None else _symmetric(self._own)
        self.spectrum = Spectrum.of(self.K_LL)
        self._last: tuple[np.ndarray, KernelBlocks] | None = None

    def _gradients(self, samples: Samples) -> KeptGradients:
        kept = keep_gradients(self.engine, samples, self._cotangents)
        if not bool(torch.isfinite(kept.squares()).all()):
            self.engine.network.all_outputs(samples, self.engine.batch_size)  # raises, if it is the outputs
            raise non_finite_gradients()
        return kept

    def _matrix(self, first: Samples, second: Samples | None = None) -> np.ndarray:
        return kernel_matrix(self.engine, first, second, self.kind).cpu().numpy()

    def _kernel_with_labels(self, samples: Samples, gradients: KeptGradients | None = None) -> np.ndarray:
        if self.labelled is None:
            return np.empty((0, len(samples)))
        if self._own is None or gradients is None:
            return self._matrix(self.labelled, samples)
        return self._own.gram(gradients).cpu().numpy()

    def exact_blocks(self, points: np.ndarray, whole: bool = True) -> KernelBlocks:
        """The exact kernel on labelled set and some points of the pool; that of the last call is kept.

        If it is not wanted as a whole, only the parts on single batches are formed.
        """
        if self._last is None or not np.array_equal(self._last[0], points):
            self._last = None
            samples = self.pool.take(points)
            UU: np.ndarray | BatchKernel
            if len(points) <= self.room.points and (not whole or self.room.fits_whole(len(points))):
                gradients = self._gradients(samples)
                LU = self._kernel_with_labels(samples, gradients)
                UU = _symmetric(gradients) if whole else GradientKernel(gradients)
            else:
                LU, UU = self._kernel_with_labels(samples), self._matrix(samples)
            self._last = points, KernelBlocks(self.K_LL, LU, UU, self.spectrum)
        return self._last[1]

    def _groups(self, batches: np.ndarray, max_points: int) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Consecutive batches whose points fit into memory: where they start, their points, and positions in these."""
        start = 0
        while start < len(batches):
            stop = min(len(batches), start + rows_within(max_points, batches.shape[1]))
            if len(np.unique(batches[start:])) <= max_points:
                stop = len(batches)
            yield start, *points_of(batches[start:stop])
            start = stop

    def _exact_groups(self, batches: np.ndarray) -> Iterator[tuple[int, KernelBlocks, np.ndarray]]:
        """The groups, each with the exact kernel on its points, which is read once."""
        size = batches.shape[1]
        for start, points, local in self._groups(batches, self.room.group(size)):
            yield start, self.exact_blocks(points, self.room.whole(len(points), len(local), size)), local

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
        if blocks is None:
            groups = self._exact_groups(batches)
        else:
            found = self._groups(batches, self.room.matrix)
            groups = ((start, blocks(points), local) for start, points, local in found)
        for start, kernel, local in groups:
            if self.n and start == 0:  # λ_max of the labelled block is a lower bound of every candidate's
                largest = float(np.linalg.eigvalsh(kernel.LL)[-1])
                bar = max(bar, self.rounding(self.n + batches.shape[1]) * largest)
            index, value = pruned_search(kernel, local, bar)
            if index >= 0:
                winner, bar = batches[start + index], value
            del kernel  # there is room for one group at a time
        return winner, bar

    def best_by_sketch(self, batches: np.ndarray, n_features: int, seed: int) -> tuple[np.ndarray | None, float]:
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

    def keep_possible(self, batches: np.ndarray, bar: float) -> np.ndarray:
        """The batches in which every single point leaves λ_min above the bar."""
        points = np.unique(batches)
        above = np.empty(len(points), dtype=bool)
        # the diagonal carries the rounding of the network's own precision
        slack = 1 + 100 * torch.finfo(self.engine.network.dtype).eps
        step = rows_within(self.room.matrix**2, self.n)
        for start in range(0, len(points), step):
            samples = self.pool.take(points[start : start + step])
            diagonal = kernel_diagonal(self.engine, samples, self.kind).cpu().numpy()
            K_LU = self._kernel_with_labels(samples)
            above[start : start + step] = points_above(self.K_LL, K_LU, diagonal * slack, bar)
        return batches[above[np.searchsorted(points, batches)].all(axis=1)]

    def exact(self, batch: np.ndarray) -> np.ndarray:
        """The exact kernel on labelled set and batch."""
        points = np.sort(batch) if self._last is None or not np.isin(batch, self._last[0]).all() else self._last[0]
        return self.exact_blocks(points, whole=False).join(np.searchsorted(points, batch))

    def rounding(self, size: int) -> float:
        """The part of λ_max below which an eigenvalue of a (size, size) kernel is rounding.

        The gradients themselves are rounded, to a few units of the network's precision ε: that alone gives eigenvalues
        of the order ε² λ_max to a kernel that should have zeros.
        """
        return size * max(EPS, 16 * torch.finfo(self.engine.network.dtype).eps ** 2)

    def rank(self, batch: np.ndarray) -> int:
        """Rank of the kernel on labelled set and batch, up to rounding."""
        K = self.exact(batch)
        return numerical_rank(K, self.rounding(len(K)))

    def largest_logdet(self, batches: np.ndarray) -> np.ndarray:
        """The batch with the largest ``log det(K + ρI)``."""
        ridge = RIDGE * float(self.K_LL.diagonal().mean()) if self.n else None
        best: np.ndarray = batches[0]
        record = -np.inf
        for start, kernel, local in self._exact_groups(batches):
            if ridge is None:
                ridge = RIDGE * float(kernel.UU.diagonal().mean())
            values = ridge_logdets(kernel, local, ridge)
            if values.max() > record:
                best, record = batches[start + int(values.argmax())], values.max()
            del kernel  # there is room for one group at a time
        return best

    def greedy(self, points: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
        """A batch of these points, each the one that keeps λ_min highest, and λ_min after each."""
        picked, values = greedy_search(self.exact_blocks(points), size)
        return points[picked], values

    def greedy_logdet(self, points: np.ndarray, size: int) -> np.ndarray:
        """A batch of these points, each the one that raises ``log det(K + ρI)`` most."""
        kernel = self.exact_blocks(points)
        ridge = RIDGE * float(np.concatenate([kernel.LL.diagonal(), kernel.UU.diagonal()]).mean())
        chosen: np.ndarray = points[greedy_logdet(kernel, size, ridge)]
        return chosen


class Room:
    """The number of the pool's points that have room within a bound, and in which form.

    Parameters
    ----------
    memory : int
        Bytes.
    n : int
        Number of labelled samples.
    kept : int
        Bytes of one sample's gradients, in the form for inner products.
    """

    def __init__(self, memory: int, n: int, kept: int) -> None:
        self.memory, self.n, self.kept = memory, n, kept
        self.keeps_labelled = n * (kept + KERNEL_BYTES * n) <= memory // 4
        self.matrix = max(1, isqrt(rows_within(memory, KERNEL_BYTES)) - n)
        left = memory - KERNEL_BYTES * n * n - (n * kept if self.keeps_labelled else 0)
        self.points = rows_within(left, kept + KERNEL_BYTES * n + 64, at_least=0)

    def group(self, size: int) -> int:
        """Points that batches of this size are searched among at a time."""
        return self.points if self.points >= size else self.matrix

    def whole(self, n_points: int, n_batches: int, size: int) -> bool:
        """True if the kernel on all points is formed: it fits, and costs less than the kernels of all batches."""
        return self.fits_whole(n_points) and n_points**2 < n_batches * size**2

    def fits_whole(self, n_points: int) -> bool:
        """True if the kernel on this many points fits beside their gradients."""
        return KERNEL_BYTES * (n_points + self.n) ** 2 + self.kept * n_points <= self.memory


def _symmetric(gradients: KeptGradients) -> np.ndarray:
    """Inner products of all pairs, exactly symmetric: only one of each two is computed."""
    n = gradients.n
    K = np.empty((n, n))
    for start in range(0, n, _STRIP):
        rows, onwards = slice(start, min(start + _STRIP, n)), slice(start, n)
        K[rows, onwards] = gradients.take(rows).gram(gradients.take(onwards)).cpu().numpy()
    upper = np.triu(K)
    return upper + np.triu(upper, 1).T
