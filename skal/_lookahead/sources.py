"""Where a look-ahead comes from: exact kernels, or features that one pass leaves.

A source has read the labelled samples; it makes look-aheads for sets of candidates, in groups that fit into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from skal._core.samples import Samples
from skal._lookahead.features import FeatureReader, Features, PlanChangedError, joined_features
from skal._lookahead.posterior import Lookahead, Outputs, Reading, RidgeSolver, lookahead_from_kernels
from skal._lookahead.sequence import Sequence

__all__ = ["FeatureSource", "KernelSource", "Source", "pool_scores"]

Kernel = Callable[[Samples, "Samples | None"], Tensor]
_DOUBLE = 8  # bytes


class Source(Protocol):
    """Makes look-aheads."""

    def room(self, n_evaluation: int) -> int:
        """Number of candidates, evaluation samples included, that fit into memory for one round of scores."""

    def lookahead(
        self, pool: Samples, rows: np.ndarray, evaluation: np.ndarray, n_total: int | None, *, keep: bool = False
    ) -> Any:
        """A look-ahead for some rows of the pool; the evaluation set as positions among them.

        With ``keep`` it is for many rounds, with candidates that become labelled in between.
        """

    def sequence(self, pool: Samples, evaluation: np.ndarray) -> Sequence:
        """For labels that come one after the other; the pool is read once, and the change summed over some rows."""

    def linearized(self, samples: Samples) -> Tensor:
        """(n, c) outputs of the linearised network at any samples."""


class KernelSource:
    """Exact blocks of a scalar kernel.

    Parameters
    ----------
    kernel : callable, (Samples, Samples or None) -> float64 tensor
    diagonal : callable, Samples -> (n,) float64 tensor
    outputs : callable, Samples -> Outputs
    labelled : Samples
    targets : (n, c) float64 tensor
        One-hot labels.
    ridge, epsilon : float
    memory : int
        Bytes for blocks of the kernel.
    zero_mean : bool
        Whether the kernel explains the outputs alone, as a Gaussian process does, not their difference to a network.
    """

    def __init__(
        self,
        kernel: Kernel,
        diagonal: Callable[[Samples], Tensor],
        outputs: Callable[[Samples], Outputs],
        labelled: Samples,
        targets: Tensor,
        *,
        ridge: float,
        epsilon: float,
        memory: int,
        zero_mean: bool = False,
    ) -> None:
        self.kernel, self.diagonal, self.outputs, self.labelled = kernel, diagonal, outputs, labelled
        self.ridge, self.epsilon, self.memory, self.zero_mean = ridge, epsilon, memory, zero_mean
        self.K_LL = kernel(labelled, None)
        self.residuals = targets if zero_mean else targets - outputs(labelled).link

    def room(self, n_evaluation: int) -> int:
        """Three arrays at a time: with the evaluation samples twice, with the labelled ones once."""
        return self.memory // (_DOUBLE * (2 * n_evaluation + 3 * len(self.labelled)))

    def lookahead(
        self, pool: Samples, rows: np.ndarray, evaluation: np.ndarray, n_total: int | None, *, keep: bool = False
    ) -> Lookahead:
        """See :class:`Source`."""
        samples = pool.take(rows)
        everything = keep or len(evaluation) == len(rows)
        K_CC = self.kernel(samples, None if everything else samples.take(evaluation))
        prior = K_CC.diagonal().clone() if everything else self.diagonal(samples)
        positions = torch.as_tensor(evaluation, device=K_CC.device)
        outputs = self.outputs(samples)
        lookahead = lookahead_from_kernels(
            self.K_LL,
            self.kernel(self.labelled, samples),
            K_CC,
            prior,
            self.residuals,
            outputs._replace(network=torch.zeros_like(outputs.network)) if self.zero_mean else outputs,
            positions,
            self.ridge,
            epsilon=self.epsilon,
            n_total=n_total,
            keep=keep,
        )
        return lookahead.as_own_network() if self.zero_mean else lookahead

    def linearized(self, samples: Samples) -> Tensor:
        """See :class:`Source`."""
        coefficients = RidgeSolver(self.K_LL, self.ridge)(self.residuals)
        step = max(1, self.memory // (_DOUBLE * 2 * len(self.labelled)))
        parts = [samples.take(np.arange(i, min(i + step, len(samples)))) for i in range(0, len(samples), step)]
        moved = torch.cat([self.kernel(self.labelled, part).T @ coefficients for part in parts])
        return moved if self.zero_mean else moved + self.outputs(samples).network

    def sequence(self, pool: Samples, evaluation: np.ndarray) -> Sequence:
        """See :class:`Source`."""
        K_CC = self.kernel(pool, None)
        return _sequence(
            self.K_LL,
            self.kernel(self.labelled, pool),
            K_CC[:, evaluation] if len(evaluation) < len(pool) else K_CC,
            lambda j: K_CC[:, j],
            K_CC.diagonal().clone(),
            self.residuals,
            self.outputs(pool),
            torch.as_tensor(evaluation, device=K_CC.device),
            self.ridge,
            self.epsilon,
        )


class FeatureSource:
    """Features of one pass; see :mod:`skal._lookahead.features`.

    Parameters
    ----------
    make_reader : callable, () -> FeatureReader
    reading : Reading
    targets : (n, c) float64 tensor
        One-hot labels.
    epsilon : float
    memory : int
        Bytes for the features that are kept at a time.
    """

    def __init__(
        self,
        make_reader: Callable[[], FeatureReader],
        reading: Reading,
        targets: Tensor,
        *,
        epsilon: float,
        memory: int,
    ) -> None:
        self.make_reader, self.reading, self.epsilon, self.memory = make_reader, reading, epsilon, memory
        self._last: tuple[np.ndarray, Features] | None = None
        try:
            self.reader = make_reader()
        except PlanChangedError:
            self.reader = make_reader()
        self.residuals = targets - reading.read(self.reader.logits).link

    def _read(self, what: Callable[[FeatureReader], Any]) -> Any:
        """Ask the reader; if gradients take another form halfway, the labelled samples are read again in that form."""
        try:
            return what(self.reader)
        except PlanChangedError:
            self.reader, self._last = self.make_reader(), None
            return what(self.reader)

    def room(self, n_evaluation: int) -> int:
        """As many as their features allow."""
        return self.memory // self.reader.bytes_per_sample

    def lookahead(
        self, pool: Samples, rows: np.ndarray, evaluation: np.ndarray, n_total: int | None, *, keep: bool = False
    ) -> Lookahead:
        """See :class:`Source`; the evaluation samples' features are read once."""
        features = self._features(pool, rows, evaluation)
        outputs = self.reading.read(features.logits)
        return Lookahead(
            self.reader.covariance(features),
            outputs,
            outputs.network + features.alpha @ self.residuals,
            self.reader.rho,
            torch.as_tensor(evaluation, device=features.alpha.device),
            features.copies,
            epsilon=self.epsilon,
            n_total=n_total,
            keep=keep and 8 * len(rows) * len(evaluation) <= self.memory,
            memory=self.memory // 4,  # there are up to four of that size
        )

    def linearized(self, samples: Samples) -> Tensor:
        """See :class:`Source`."""
        return self._read(lambda reader: reader.linearized(samples, self.residuals))

    def sequence(self, pool: Samples, evaluation: np.ndarray) -> Sequence:
        """See :class:`Source`; the kernel is exact with the labelled samples, and estimated among candidates."""
        features = self._read(lambda reader: reader.features(pool))
        covariance = self.reader.covariance(features)
        alpha, K_CL = features.alpha, self.reader.kernel_rows(features)
        positions = torch.as_tensor(evaluation, device=alpha.device)
        everything = torch.arange(len(pool), device=alpha.device)

        def column(j: int) -> Tensor:
            return covariance.column(j).addmv_(K_CL, alpha[j])

        return _sequence(
            self.reader.K_LL,
            K_CL.T,
            covariance.block(everything, positions).addmm_(K_CL, alpha[positions].T),
            column,
            features.prior,
            self.residuals,
            self.reading.read(features.logits),
            positions,
            self.reader.ridge,
            self.epsilon,
        )

    def _features(self, pool: Samples, rows: np.ndarray, evaluation: np.ndarray) -> Features:
        e = len(evaluation)
        if not np.array_equal(evaluation, np.arange(e)):  # everything fits
            return self._read(lambda reader: reader.features(pool.take(rows)))
        self._read_evaluation(pool, rows[:e])
        if len(rows) == e:
            return self._read_evaluation(pool, rows)
        others = self._read(lambda reader: reader.features(pool.take(rows[e:])))
        return joined_features([self._read_evaluation(pool, rows[:e]), others])

    def _read_evaluation(self, pool: Samples, rows: np.ndarray) -> Features:
        """Features of the evaluation set, read when they are first asked for, or when the reader has changed."""
        if self._last is None or not np.array_equal(self._last[0], rows):
            self._last = rows, self._read(lambda reader: reader.features(pool.take(rows)))
        return self._last[1]


def _sequence(
    K_LL: Tensor,
    K_LC: Tensor,
    K_CE: Tensor,
    column: Callable[[int], Tensor],
    prior: Tensor,
    residuals: Tensor,
    outputs: Outputs,
    evaluation: Tensor,
    ridge: float,
    epsilon: float,
) -> Sequence:
    def build(K_LL: Tensor, K_LC: Tensor, residuals: Tensor) -> Lookahead:
        return lookahead_from_kernels(
            K_LL, K_LC, K_CE.clone(), prior, residuals, outputs, evaluation, ridge, epsilon=epsilon, column=column
        )

    return Sequence(K_LL, K_LC, lambda j: column(j)[:, None], residuals, outputs, build)


def pool_scores(
    source: Source, pool: Samples, evaluation: np.ndarray, criterion: str, reference: str, to_proba: Any = None
) -> Tensor:
    """(N,) scores of a pool, group by group where it does not fit into memory at once.

    Parameters
    ----------
    source : Source
    pool : Samples
    evaluation : (e,) array
        Rows of the pool over which the change is summed.
    criterion, reference, to_proba
        See :meth:`Lookahead.scores`.
    """
    N, e = len(pool), len(evaluation)
    if source.room(e) >= N:
        return source.lookahead(pool, np.arange(N), evaluation, N).scores(criterion, reference, to_proba=to_proba)
    parts = []
    order = np.concatenate([evaluation, np.setdiff1d(np.arange(N), evaluation)])
    for group in _groups(order, e, max(1, source.room(e) - e)):
        lookahead = source.lookahead(pool, np.concatenate([evaluation, group]), np.arange(e), N)
        own = np.arange(e, e + len(group)) if len(group) else np.arange(e)
        parts.append(lookahead.scores(criterion, reference, torch.as_tensor(own), to_proba=to_proba))
    scores = torch.cat(parts)
    result = torch.empty_like(scores)
    result[torch.as_tensor(order, device=scores.device)] = scores
    return result


def _groups(order: np.ndarray, n_evaluation: int, size: int) -> Iterator[np.ndarray]:
    """The samples besides the evaluation set; first of all none of them, for the evaluation set's own scores."""
    yield order[:0]
    for start in range(n_evaluation, len(order), size):
        yield order[start : start + size]
