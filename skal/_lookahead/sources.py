# SPDX-License-Identifier: BSD-3-Clause
"""Where a posterior comes from: exact blocks of a kernel, or features that one pass leaves.

A source has read the labelled samples; it makes posteriors for sets of candidates, in groups that fit into memory.
Both kinds have the same methods. Index letters as in :mod:`skal._lookahead.posterior`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from skal._core.copies import copy_groups
from skal._core.memory import new_rows, rows_within
from skal._core.network import Network
from skal._core.outputs import compares_outputs, probabilities_of_logits
from skal._core.samples import Samples
from skal._core.sharding import filled
from skal._lookahead.features import FeatureReader, Features, PlanChangedError
from skal._lookahead.posterior import (
    MADE,
    KernelBlocks,
    Outputs,
    Posterior,
    RidgeSolver,
    diagonal_blocks,
    places,
)
from skal._lookahead.variance import TEMPERATURE, Importance, newton_importance
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError
from skal.reuse import reused
from skal.tangent._gradients import one_hot
from skal.tangent._kernels import kernel_diagonal, kernel_matrix
from skal.tangent._tangent_engine import TangentEngine

_DOUBLE = 8  # bytes
Answer = TypeVar("Answer")
# between two sets of samples, (nB, mB); of every sample with itself, (n, B, B)
Kernel = tuple[Callable[[Samples, "Samples | None"], Tensor], Callable[[Samples], Tensor]]


def read_outputs(network: Network, logits: Tensor) -> Outputs:
    """(n, c) logits of a network as everything that the look-ahead needs of them."""
    f, to_proba = logits.double(), probabilities_of_logits(network.net)
    proba = torch.softmax(f, dim=-1) if to_proba is None else to_proba(f)
    squared = compares_outputs(network.criterion)
    return Outputs(f, f if squared else proba, proba, to_proba, TEMPERATURE if squared else 1.0)


def exact_kernel(engine: TangentEngine, kind: str) -> Kernel:
    """The network's own kernel, as a :class:`KernelSource` wants it."""

    def kernel(X: Samples, Z: Samples | None) -> Tensor:
        return kernel_matrix(engine, X, Z, kind)

    def own(samples: Samples) -> Tensor:
        if kind != "entk":
            return kernel_diagonal(engine, samples, kind)[:, None, None]
        return torch.cat([diagonal_blocks(kernel(part, None), engine.n_classes) for part in _parts(samples, 64)])

    return kernel, own


def _parts(samples: Samples, size: int) -> list[Samples]:
    return [samples.take(range(i, min(i + size, len(samples)))) for i in range(0, len(samples), size)]


def _residuals(context: QueryContext, outputs: Outputs) -> Tensor:
    """(n, c) what the labels of the labelled samples leave to be learnt."""
    labels = context.class_labels
    return one_hot(labels, len(labels), context.n_classes, context.logit_network).double() - outputs.link


def _groups_of_copies(context: QueryContext, samples: Samples) -> Tensor:
    """(N,) integers that exact copies among the samples share; −1 for copies of labelled samples.

    Copies are told by what the network is given: gradients of different samples may differ by less than rounding.
    """
    groups = copy_groups(context.network, samples, context.labelled, context.batch_size)
    return torch.as_tensor(groups, device=context.device)


class _WithMemory(Protocol):
    context: QueryContext
    memory: int


def _share(source: _WithMemory, bound: int | None) -> int:
    """Bytes that a source has of the context's memory, or would have of another bound."""
    return source.memory if bound is None else source.memory * bound // source.context.memory


def too_little_memory(context: QueryContext, room: int, fits: Callable[[int], bool]) -> InvalidParameterError:
    """What to raise where ``max_memory`` is too small: it names the smallest bound that fits."""
    low, high = context.memory, 2 * context.memory
    while not fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    expected = f"at least {high} bytes (there is room for {room} samples at a time)"
    remedy = "Raise it, choose among fewer samples with subset, or lower evaluation or n_features."
    got = "1GB" if context.max_memory is None else context.max_memory
    return InvalidParameterError.for_parameter(context.owner, "max_memory", expected, got, remedy)


class KernelSource:
    """Exact blocks of a scalar or matrix kernel, within a number of bytes; epsilon is the precision of variances."""

    importance = staticmethod(newton_importance)

    def __init__(self, context: QueryContext, kernel: Kernel, *, ridge: float, epsilon: float, memory: int) -> None:
        self.context, self.ridge, self.epsilon, self.memory = context, ridge, epsilon, memory
        self.kernel, self.own = kernel
        self.K_LL = self.kernel(context.labelled, None)
        self.B = len(self.K_LL) // len(context.labelled)
        self.residuals = _residuals(context, self.outputs(context.labelled))

    def outputs(self, samples: Samples) -> Outputs:
        """Of the network, at any samples."""
        network = self.context.logit_network
        return read_outputs(network, network.all_logits(samples, self.context.batch_size))

    def room(self, n_evaluation: int, bound: int | None = None) -> int:
        """How many candidates fit into memory: three arrays, twice with evaluation and once with labelled samples."""
        entries = self.B**2 * (2 * n_evaluation + 3 * len(self.context.labelled))
        return rows_within(_share(self, bound), _DOUBLE * entries, at_least=0)

    def greedy_room(self, n_numbers: int, bound: int | None = None) -> int:
        """How many may be conditioned on, G with ``8 B² G (2 G + 3 n)`` bytes, for the kernel among all of them."""
        n = len(self.context.labelled)
        return int((math.sqrt(9 * n**2 + _share(self, bound) / self.B**2) - 3 * n) / 4)

    def posterior(self, pool: Samples, rows: np.ndarray, evaluation: np.ndarray, n_total: int | None) -> Posterior:
        """Of some rows of the pool, with evaluation samples among them; for later conditioning if n_total is None."""
        samples = pool.take(rows)
        if n_total is None or len(evaluation) == len(rows):
            return self.blocks(samples, evaluation).posterior(n_total)
        K_CE = self.kernel(samples, samples.take(evaluation))
        return self.blocks_of(samples, evaluation, K_CE, self.own(samples)).posterior(n_total)

    def labelled_logits(self) -> Tensor:
        """(n, c) of the network at the labelled samples."""
        return self.outputs(self.context.labelled).f

    @property
    def solver(self) -> RidgeSolver:
        """Of the labelled samples' kernel."""
        return RidgeSolver(self.K_LL, self.ridge)

    def blocks(self, pool: Samples, evaluation: np.ndarray) -> KernelBlocks:
        """For true labels of the pool's samples, which come one after the other, while the pool is read once."""
        K, B = self.kernel(pool, None), self.B
        everything = np.array_equal(evaluation, np.arange(len(pool)))
        K_CE = K if everything else K[:, places(torch.as_tensor(evaluation, device=K.device), B)]

        def among(rows: Tensor, columns: Tensor) -> Tensor:
            return K[places(rows, B)[:, None], places(columns, B)]

        return self.blocks_of(pool, evaluation, K_CE, diagonal_blocks(K, B), among)

    def blocks_of(
        self, samples: Samples, evaluation: Any, K_CE: Tensor, own: Tensor, among: Callable[..., Any] | None = None
    ) -> KernelBlocks:
        """These blocks of the kernel, with what else belongs to them."""
        K_LC, positions = self.kernel(self.context.labelled, samples), torch.as_tensor(evaluation, device=K_CE.device)
        outputs, ridge, epsilon = self.outputs(samples), self.ridge, self.epsilon
        groups = _groups_of_copies(self.context, samples)
        return KernelBlocks(
            self.K_LL, K_LC, K_CE, own, self.residuals, outputs, positions, ridge, groups, epsilon, among
        )

    def linearized(self, samples: Samples) -> Tensor:
        """(n, c) outputs of the linearised network at any samples."""
        coefficients = self.solver(self.residuals.reshape(len(self.K_LL), -1))
        parts = _parts(samples, rows_within(self.memory, 2 * _DOUBLE * self.B * len(self.K_LL)))
        moved = torch.cat([self.kernel(self.context.labelled, part).T @ coefficients for part in parts])
        f = self.outputs(samples).f
        return f + moved.reshape(f.shape)


class _Covariances:
    """S among the candidates from their features, which stand with the evaluation samples first: (r,), (m,) -> (r, m).

    What is compared often then stands side by side, and need not be copied.
    """

    def __init__(self, reader: FeatureReader, features: Features, evaluation: Tensor) -> None:
        self.e = len(evaluation)
        rank = torch.arange(len(features.prior), device=evaluation.device) + self.e
        rank[evaluation] = torch.arange(self.e, device=evaluation.device)
        self._order = rank.argsort()
        self._place = self._order.argsort()
        self._reader, self._features = reader, features.take(self._order)

    def __call__(self, rows: Tensor, columns: Tensor) -> Tensor:
        here, there = (self._features.take(self._place[some]) for some in (rows, columns))
        return self._reader.covariance(here, there).double()

    def with_evaluation(self, made: int) -> Tensor:
        """(N, e) of all candidates with the evaluation samples, ``made`` entries at a time, in the sketch's precision.

        Those among the evaluation samples are symmetric: little more than half of them is made.
        """
        e, order, reader, features = self.e, self._order, self._reader, self._features
        S = new_rows(len(order), features.psi.new_empty(0, e))
        step = rows_within(made, e)
        narrow = max(1, step // 4)  # the wider a part, the more of it is on both sides of the diagonal
        for start in range(0, e, narrow):
            stop = min(e, start + narrow)
            part = reader.covariance(features.take(slice(start, stop)), features.take(slice(start, e)))
            S[order[start:stop], start:] = part
            S[order[stop:e], start:stop] = part[:, stop - start :].T
        for start in range(e, len(order), step):
            rows = slice(start, start + step)
            S[order[rows]] = reader.covariance(features.take(rows), features.take(slice(0, e)))
        return S


class FeatureSource:
    """Features of one pass, within a number of bytes; the reader that is made has read the labelled samples.

    It was given room for the features of ``n_kept`` candidates.
    """

    importance = staticmethod(newton_importance)

    def __init__(
        self, context: QueryContext, make_reader: Callable[[], FeatureReader], memory: int, n_kept: int
    ) -> None:
        self.context, self.make_reader, self.memory, self.n_kept = context, make_reader, memory, n_kept
        self._shared: Features | None = None  # of the evaluation set, where a pool comes in groups
        try:
            self.reader = make_reader()
        except PlanChangedError:
            self.reader = make_reader()
        self.residuals = _residuals(context, self._outputs(self.reader.logits))

    def _asked(self, question: Callable[[], Answer]) -> Answer:
        """The answer; if gradients take another form halfway, the labelled samples are read again in that form."""
        try:
            return question()
        except PlanChangedError:
            self.reader, self._shared = self.make_reader(), None
            return question()

    def _outputs(self, logits: Tensor) -> Outputs:
        return read_outputs(self.context.logit_network, logits)

    def _features(self, samples: Samples) -> Features:
        """Kept for other strategies of the query where half of the room suffices: the other half holds the copy."""
        context, reader = self.context, self.reader
        what, compute = ("look-ahead features", *reader.form), partial(reader.features, samples)
        labelled, limit = (context.labelled,), reader.engine.memory // 2
        if samples is context.pool:
            return context.remember(what, compute, also=labelled, limit=limit)
        return reused(reader.engine.network, samples, what, compute, also=labelled, limit=limit)

    def _group(self, pool: Samples, rows: np.ndarray, n_shared: int) -> Features:
        """Features of one of several groups that begin with the evaluation set, which is read once."""
        if self._shared is None:
            self._shared = self._features(pool.take(rows[:n_shared]))
        return filled(iter([self._shared, self._features(pool.take(rows[n_shared:]))]), len(rows))

    def room(self, n_evaluation: int, bound: int | None = None) -> int:
        """How many candidates fit into memory: as many as their features allow, which are longer where they may be."""
        memory = _share(self, bound)
        of_one = self.reader.bytes_within(memory // self.n_kept, self.reader.engine.memory * memory // self.memory)
        return rows_within(memory, of_one, at_least=0)

    def greedy_room(self, n_numbers: int, bound: int | None = None) -> int:
        """How many may be conditioned on, with this many numbers for each: covariances and picks."""
        return min(self.room(n_numbers, bound), rows_within(_share(self, bound), _DOUBLE * n_numbers, at_least=0))

    def outputs(self, samples: Samples) -> Outputs:
        """Of the network, at any samples."""
        network = self.context.logit_network
        return self._outputs(network.all_logits(samples, self.context.batch_size))

    def posterior(self, pool: Samples, rows: np.ndarray, evaluation: np.ndarray, n_total: int | None) -> Posterior:
        """Of some rows of the pool, with evaluation samples among them; for later conditioning if n_total is None."""
        e, everything = len(evaluation), len(rows) == len(pool)
        features = self._asked(lambda: self._features(pool) if everything else self._group(pool, rows, e))
        reader, outputs, own = self.reader, self._outputs(features.logits), features.variance[:, None, None]
        positions = torch.as_tensor(evaluation, device=own.device)
        F, rho, prior, epsilon = (
            outputs.f + features.alpha @ self.residuals,
            reader.solver.rho,
            features.prior,
            reader.epsilon,
        )
        block = _Covariances(reader, features, positions)
        del features  # unless somebody else keeps them, the copy in another order is the only one from here on
        made = min(MADE, self.memory // (4 * _DOUBLE))  # there are up to four of that size
        keep = n_total is None and _DOUBLE * len(rows) * e <= self.memory
        S = block.with_evaluation(made) if keep else None
        groups = _groups_of_copies(self.context, pool if everything else pool.take(rows))
        given = (block, own, prior, outputs, F, rho, positions, groups, epsilon, S)
        return Posterior(*given, n_total=n_total, made=made, scale=reader.solver.scale)

    def labelled_logits(self) -> Tensor:
        """(n, c) of the network at the labelled samples."""
        logits: Tensor = self.reader.logits
        return logits

    @property
    def solver(self) -> RidgeSolver:
        """Of the labelled samples' kernel."""
        return self.reader.solver

    def blocks(self, pool: Samples, evaluation: np.ndarray) -> KernelBlocks:
        """For true labels, one after the other; exact with the labelled samples, and estimated among candidates."""
        features = self._asked(lambda: self._features(pool))
        reader, alpha = self.reader, features.alpha
        K_CL, positions = reader.kernel_rows(features), torch.as_tensor(evaluation, device=alpha.device)

        def among(rows: Tensor, columns: Tensor) -> Tensor:
            S = reader.covariance(features.take(rows), features.take(columns)).double()
            return S.addmm_(K_CL[rows], alpha[columns].T)

        K_CE, own = among(torch.arange(len(pool), device=alpha.device), positions), features.prior[:, None, None]
        outputs, ridge, epsilon = self._outputs(features.logits), reader.ridge, reader.epsilon
        groups = _groups_of_copies(self.context, pool)
        return KernelBlocks(
            reader.K_LL, K_CL.T, K_CE, own, self.residuals, outputs, positions, ridge, groups, epsilon, among
        )

    def linearized(self, samples: Samples) -> Tensor:
        """(n, c) outputs of the linearised network at any samples."""
        return self._asked(lambda: self.reader.linearized(samples, self.residuals))


Source = KernelSource | FeatureSource


class PosteriorSource(Protocol):
    """What the criterion ``variance`` asks of a source; kernels on features have one of their own."""

    @property
    def importance(self) -> Callable[[Tensor, float, float, float], Importance]:
        """Of (N, c) probabilities, τ, ρ and the kernel's scale."""

    def room(self, n_numbers: int, /, bound: int | None = None) -> int:
        """How many candidates fit into memory, or would with another ``max_memory``."""

    def greedy_room(self, n_numbers: int, /, bound: int | None = None) -> int:
        """How many of them if they are conditioned on."""

    def outputs(self, samples: Samples) -> Outputs:
        """Of the classifier, at any samples."""

    def posterior(self, pool: Samples, rows: np.ndarray, evaluation: np.ndarray, n_total: int | None) -> Posterior:
        """Of some rows of the pool."""


def in_groups(
    source: PosteriorSource, pool: Samples, evaluation: np.ndarray, score: Callable[[Posterior, Tensor], Tensor]
) -> Tensor:
    """(N,) scores, group by group where the pool does not fit into memory at once."""
    N, e = len(pool), len(evaluation)
    if source.room(e) >= N:
        posterior = source.posterior(pool, np.arange(N), evaluation, N)
        return score(posterior, torch.arange(N, device=posterior.own.device))
    others = np.setdiff1d(np.arange(N), evaluation)
    step = max(1, source.room(e) - e)
    parts = []
    for start in range(0, len(others), step):
        group = np.concatenate([evaluation, others[start : start + step]])
        posterior = source.posterior(pool, group, np.arange(e), N)
        rows = torch.arange(len(group), device=posterior.own.device)
        parts.append(score(posterior, rows[e:] if start else rows))
    scores = torch.cat(parts)
    order = torch.as_tensor(np.concatenate([evaluation, others]), device=scores.device)
    return torch.empty_like(scores).index_copy_(0, order, scores)
