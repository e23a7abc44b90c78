# SPDX-License-Identifier: BSD-3-Clause
"""Which batch keeps a kernel matrix best conditioned: exact searches for the largest smallest eigenvalue.

Letters: n labelled points L, N pool points U, m candidate batches Q of b positions in U. A candidate's matrix is the
kernel on L ∪ Q. ``λ_min(M) > λ`` holds if and only if ``M − λI`` has a Cholesky factor. With the decomposition
``K_LL = E Λ Eᵀ`` and ``W = Eᵀ K_LU``, both shared by all candidates and all λ, that is so if and only if λ < Λ_min and
the b × b Schur complement ``K_QQ − λI − W_Qᵀ (Λ − λ)⁻¹ W_Q`` has one. So a candidate is tested against the best value
so far, and an eigenvalue is computed only for those that pass: of m exchangeable candidates about ln m are records.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from math import comb
from typing import NamedTuple, Protocol

import numpy as np
import torch
from scipy.linalg import eigh, lapack, solve_triangular
from scipy.optimize import brentq

from skal.context import rows_within
from skal.tangent._tangent_engine import no_gradients

EPS = float(np.finfo(np.float64).eps)
# of the b × b matrices that are tested at once
CHUNK_BYTES = 32 * 2**20
# points after which greedy search decomposes its kernel anew
_REFRESH = 16
# of λ_max: no eigenvalue of a kernel is further below zero, whatever its rounding
_BELOW = 1e-6


class BatchKernel(Protocol):
    """The kernel on pool points, of which only the parts on single batches are ever computed."""

    def diagonal(self) -> np.ndarray:
        """(N,) array."""

    def among(self, batch: np.ndarray) -> np.ndarray:
        """(b, b) array."""


class Spectrum(NamedTuple):
    """Eigenvalues, ascending, and eigenvectors of the labelled block: (n,), (n, n)."""

    values: np.ndarray
    vectors: np.ndarray

    @classmethod
    def of(cls, K: np.ndarray) -> Spectrum:
        """The spectrum of a symmetric (n, n) matrix."""
        return cls(np.empty(0), K) if len(K) == 0 else cls(*np.linalg.eigh(K))

    def weights(self, shift: float) -> np.ndarray | None:
        """``(Λ − shift)⁻¹``: (n,); None if that is not positive."""
        if len(self.values) and self.values[0] <= shift:
            return None
        return 1 / (self.values - shift)


class KernelBlocks(NamedTuple):
    """The kernel on labelled and pool points; there may be no labelled ones.

    Attributes
    ----------
    LL : (n, n) array
    LU : (n, N) array
    UU : (N, N) array, or BatchKernel
    spectrum : Spectrum, optional
        Of LL, if it is known.
    """

    LL: np.ndarray
    LU: np.ndarray
    UU: np.ndarray | BatchKernel
    spectrum: Spectrum | None = None

    def join(self, batch: np.ndarray) -> np.ndarray:
        """The kernel on L ∪ Q: (n + b, n + b) array."""
        cross = self.LU[:, batch]
        return np.block([[self.LL, cross], [cross.T, self.among(batch)]])

    def among(self, batch: np.ndarray) -> np.ndarray:
        """The kernel on Q: (b, b) array."""
        return self.UU[np.ix_(batch, batch)] if isinstance(self.UU, np.ndarray) else self.UU.among(batch)

    def rotate(self) -> tuple[Spectrum, np.ndarray]:
        """Λ and E, and ``Wᵀ = K_ULE``: (N, n), a row for each point."""
        spectrum = self.spectrum or Spectrum.of(self.LL)
        return spectrum, self.LU.T @ spectrum.vectors


def draw_batches(n_points: int, size: int, n_candidates: int, generator: np.random.Generator) -> np.ndarray:
    """Batches of distinct points, uniformly at random: (m, size) array; all there are, if these are not more than m.

    Examples
    --------
    >>> draw_batches(3, 2, 1000, np.random.default_rng(0)).tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    if comb(n_points, size) <= n_candidates:
        return np.array(list(combinations(range(n_points), size)), dtype=np.int64).reshape(-1, size)
    draws = [generator.choice(n_points, size, replace=False, shuffle=False) for _ in range(n_candidates)]
    return np.array(draws, dtype=np.int64)


def smallest_eigenvalue(M: np.ndarray) -> float:
    """The smallest eigenvalue of a symmetric (s, s) matrix."""
    return float(eigh(M, eigvals_only=True, subset_by_index=[0, 0], check_finite=False)[0])


def numerical_rank(M: np.ndarray, relative: float) -> int:
    """Number of eigenvalues of a symmetric (s, s) matrix above ``relative`` times the largest."""
    values = np.linalg.eigvalsh(M)
    return int((values > relative * values[-1]).sum())


def pruned_search(
    kernel: KernelBlocks, batches: np.ndarray, bar: float = -np.inf, chunk_bytes: int = CHUNK_BYTES
) -> tuple[int, float]:
    """The first of the batches with the largest ``λ_min(K(L ∪ Q))``, and that value.

    Parameters
    ----------
    kernel : KernelBlocks
    batches : (m, b) integer array
    bar : float
        Only batches above it count. It is raised to the rounding level ``(n + b) · eps · λ_max`` at least, below
        which an eigenvalue means nothing.
    chunk_bytes : int
        Of the matrices that are tested at once.

    Returns
    -------
    index : int
        Position among the batches, -1 if none is above the bar.
    value : float
        Its smallest eigenvalue; the bar if there is none.

    Examples
    --------
    >>> K = np.diag([3.0, 1.0, 2.0])
    >>> pruned_search(KernelBlocks(np.eye(1) * 5, np.zeros((1, 3)), K), np.array([[0, 1], [0, 2], [1, 2]]))
    (1, 2.0)
    """
    n, (m, b) = len(kernel.LL), batches.shape
    own = kernel.UU.diagonal()
    # the largest diagonal entry is a lower bound of λ_max that costs nothing
    largest = max(kernel.LL.diagonal().max(initial=0.0), own[batches].max(axis=1).min())
    best, bar = -1, max(bar, (n + b) * EPS * largest)
    spectrum, W = kernel.rotate()

    def survivors_of(some: np.ndarray) -> np.ndarray:
        """Positions of the batches above the bar, in order."""
        weights = spectrum.weights(bar)
        if weights is None:  # the labelled block alone is not above the bar, and no batch can lift it: interlacing
            return np.empty(0, dtype=np.int64)
        alive = np.flatnonzero((own - bar - np.square(W) @ weights > 0)[some].all(axis=1))
        complements = _schur_complements(kernel, W, weights, some[alive], -bar, chunk_bytes)
        return np.concatenate([np.empty(0, dtype=np.int64), *(alive[rows][_factors(S)[1]] for rows, S in complements)])

    position = 0
    while position < m:
        # as many as have been seen: of these, about one beats the best of those
        stop = min(m, 2 * position + 1)
        survivors = position + survivors_of(batches[position:stop])
        while len(survivors):
            first, survivors = survivors[0], survivors[1:]
            value = smallest_eigenvalue(kernel.join(batches[first]))
            if value > bar:
                best, bar = int(first), value
                if len(survivors):
                    survivors = survivors[survivors_of(batches[survivors])]
        position = stop
    return best, float(bar)


def points_above(K_LL: np.ndarray, K_LU: np.ndarray, diagonal: np.ndarray, bar: float) -> np.ndarray:
    """Find the points u with ``λ_min(K(L ∪ {u})) > bar``: (n, n), (n, N), (N,) -> (N,) bool.

    A batch with one that has not is no better than the bar: eigenvalues interlace.
    """
    V = _whiten(K_LL, K_LU, bar)
    if V is None:
        return np.zeros(len(diagonal), dtype=bool)
    possible: np.ndarray = diagonal - bar - np.einsum("nu,nu->u", V, V) > 0
    return possible


def _whiten(K_LL: np.ndarray, K_LU: np.ndarray, shift: float) -> np.ndarray | None:
    """``F⁻¹ K_LU`` with ``F Fᵀ = K_LL − shift·I``; None if that is not positive definite."""
    if len(K_LL) == 0:
        return K_LU
    factor, failed = lapack.dpotrf(K_LL - shift * np.eye(len(K_LL)), lower=1)
    if failed:
        return None
    solved: np.ndarray = solve_triangular(factor, K_LU, lower=True, check_finite=False)
    return solved


def _whiten_with_ridge(K_LL: np.ndarray, K_LU: np.ndarray, ridge: float) -> np.ndarray:
    V = _whiten(K_LL, K_LU, -ridge)
    if V is None:
        raise no_gradients("NPC")
    return V


def points_of(batches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The points that batches hold, and the batches as positions among these."""
    points, local = np.unique(batches, return_inverse=True)
    return points, local.reshape(batches.shape)


def _schur_complements(
    kernel: KernelBlocks, W: np.ndarray, weights: np.ndarray, batches: np.ndarray, shift: float, chunk_bytes: int
) -> Iterator[tuple[slice, np.ndarray]]:
    """``K_QQ + shift·I − W_Qᵀ diag(weights) W_Q``, some batches at a time: where they stand, and (c, b, b) matrices."""
    b, UU = batches.shape[1], kernel.UU
    points, local = points_of(batches)
    shared = None
    # one product for all points where it costs less than one for each batch
    if isinstance(UU, np.ndarray) and len(points) ** 2 <= len(batches) * b * b:
        shared = UU[np.ix_(points, points)] - (W[points] * weights) @ W[points].T
    step = rows_within(chunk_bytes, 8 * b * (b if shared is not None else b + 2 * len(weights)))
    for start in range(0, len(batches), step):
        rows = slice(start, start + step)
        if shared is not None:
            Q = local[rows]
            S = shared[Q[:, :, None], Q[:, None, :]]
        else:
            W_Q = W[batches[rows]]  # (c, b, n)
            S = np.stack([kernel.among(batch) for batch in batches[rows]]) - (W_Q * weights) @ W_Q.transpose(0, 2, 1)
        S[:, np.arange(b), np.arange(b)] += shift
        yield rows, S


def _factors(S: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
    """Cholesky factors of (c, b, b) matrices, and which of the matrices have one."""
    factors, failed = torch.linalg.cholesky_ex(torch.from_numpy(S))
    return factors, failed.numpy() == 0


def greedy_search(kernel: KernelBlocks, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Points added one by one, each the one that keeps ``λ_min`` highest.

    Parameters
    ----------
    kernel : KernelBlocks
    size : int

    Returns
    -------
    picked : (size,) array
    values : (size,) array
        λ_min after each; it never rises.

    Examples
    --------
    >>> greedy_search(KernelBlocks(np.empty((0, 0)), np.empty((0, 3)), np.diag([3.0, 1.0, 2.0])), 2)
    (array([0, 2]), array([3., 2.]))
    """
    picked: list[int] = []
    values: list[float] = []
    state: _Bordered | None = None
    for _ in range(size):
        if state is None or len(state.added) == _REFRESH:
            state = _Bordered(kernel, picked)
        best, value = _best_point(state, np.setdiff1d(np.arange(len(state.UU)), np.array(picked, dtype=np.int64)))
        state.added.append(best)
        picked.append(best)
        values.append(value)
    return np.array(picked), np.array(values)


class _Bordered:
    """The kernel on L ∪ Q ∪ A, with the decomposition of that on L ∪ Q and a few points A that were added since.

    Its eigenvalues below those of the decomposed block are the roots of the secular equation: where the smallest
    eigenvalue of the Schur complement ``K_AA − λI − W_Aᵀ (Λ − λ)⁻¹ W_A`` is zero. It falls as λ grows.
    """

    def __init__(self, kernel: KernelBlocks, picked: list[int]) -> None:
        self.UU = np.asarray(kernel.UU)
        self.spectrum = Spectrum.of(kernel.join(np.array(picked, dtype=np.int64)))
        self.W = self.spectrum.vectors.T @ np.concatenate([kernel.LU, self.UU[picked]])  # (s, N)
        self.added: list[int] = []

    def remainders(self, points: np.ndarray, shift: float) -> np.ndarray | None:
        """What remains of each point after projecting out all others, minus the shift: positive if λ_min exceeds it.

        None if it is not above the shift without them.
        """
        weights = self.spectrum.weights(shift)
        if weights is None:
            return None
        W, A = self.W[:, points], np.array(self.added, dtype=np.int64)
        left: np.ndarray = self.UU.diagonal()[points] - shift - weights @ np.square(W)
        if len(A):
            W_A = self.W[:, A].T * weights
            own = self.UU[np.ix_(A, A)] - shift * np.eye(len(A)) - W_A @ self.W[:, A]
            V = _whiten(own, self.UU[np.ix_(A, points)] - W_A @ W, 0.0)
            if V is None:
                return None
            left -= np.einsum("au,au->u", V, V)
        return left

    def smallest_eigenvalue(self, point: int, low: float) -> float:
        """λ_min with one more point, if it is above ``low``; otherwise some number that is not."""
        A = np.array([*self.added, point])
        own, W = self.UU[np.ix_(A, A)], self.W[:, A]

        def smallest(shift: float) -> float:
            weights = self.spectrum.weights(shift)
            assert weights is not None  # the shift is below Λ_min
            complement = own - shift * np.eye(len(A)) - (W.T * weights) @ W
            return float(np.linalg.eigvalsh(complement)[0])

        values = self.spectrum.values
        size = float(max(values[-1] if len(values) else 0.0, own.diagonal().max()))
        if len(values) == 0:
            return smallest(0.0)
        low = max(low, -_BELOW * size)
        high = float(np.nextafter(values[0], -np.inf))
        if high <= low or smallest(low) <= 0:
            return low
        if smallest(high) >= 0:
            return high
        return float(brentq(smallest, low, high, xtol=1e-18 * size, rtol=4 * EPS))


def _best_point(state: _Bordered, points: np.ndarray) -> tuple[int, float]:
    """The point that gives the largest λ_min when it is added, and that value."""
    best, bar = -1, -np.inf
    shift = 0.0
    while len(points):
        left = state.remainders(points, shift)
        if left is None:
            if best >= 0:
                break
            left = state.UU.diagonal()[points]  # its own length where the others have no factor
        if best >= 0:
            points, left = points[left > 0], left[left > 0]
            if len(points) == 0:
                break
        promising = int(points[np.argmax(left)])
        value = state.smallest_eigenvalue(promising, bar)
        if best < 0 or value > bar:
            best, bar = promising, value
        points = points[points != promising]
        shift = bar
    return best, bar


def ridge_logdets(
    kernel: KernelBlocks, batches: np.ndarray, ridge: float, chunk_bytes: int = CHUNK_BYTES
) -> np.ndarray:
    """``log det(K(L ∪ Q) + ρI) − log det(K_LL + ρI)`` of every batch: (m,) array.

    Tells batches apart where all their smallest eigenvalues are zero: it counts every direction, those without any
    length alike, and prefers batches whose points are long and unlike one another.

    Examples
    --------
    >>> K = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> kernel = KernelBlocks(np.empty((0, 0)), np.empty((0, 3)), K)
    >>> ridge_logdets(kernel, np.array([[0, 1], [0, 2]]), 1.0).round(3)
    array([1.099, 1.386])
    """
    spectrum, W = kernel.rotate()
    weights = spectrum.weights(-ridge)
    if weights is None:
        raise no_gradients("NPC")
    result = np.full(len(batches), -np.inf)
    for rows, S in _schur_complements(kernel, W, weights, batches, ridge, chunk_bytes):
        factors, good = _factors(S)
        logs = 2 * torch.diagonal(factors, dim1=1, dim2=2).log().sum(1).numpy()
        result[rows] = np.where(good, logs, -np.inf)
    return result


def greedy_logdet(kernel: KernelBlocks, size: int, ridge: float) -> np.ndarray:
    """Points added one by one, each the one that raises ``log det(K + ρI)`` most: a pivoted Cholesky factorisation.

    Examples
    --------
    >>> K = np.array([[2.0, 1.9, 0.0], [1.9, 2.0, 0.0], [0.0, 0.0, 1.0]])
    >>> greedy_logdet(KernelBlocks(np.empty((0, 0)), np.empty((0, 3)), K), 2, 1e-3)
    array([0, 2])
    """
    V, UU = _whiten_with_ridge(kernel.LL, kernel.LU, ridge), np.asarray(kernel.UU)
    left = UU.diagonal() + ridge - np.einsum("nu,nu->u", V, V)
    rows = np.concatenate([V, np.empty((size, len(UU)))])
    picked: list[int] = []
    for step in range(len(V), len(V) + size):
        best = int(np.argmax(np.where(np.isin(np.arange(len(left)), picked), -np.inf, left)))
        rows[step] = (UU[best] - rows[:step, best] @ rows[:step]) / np.sqrt(max(left[best], ridge))
        left = left - rows[step] ** 2
        picked.append(best)
    return np.array(picked)
