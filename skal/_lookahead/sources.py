# SPDX-License-Identifier: BSD-3-Clause
"""Where a posterior comes from: exact blocks of a kernel, or features that one pass leaves.

A source has read the labelled samples; it makes posteriors for sets of candidates, in groups that fit into memory.
Index letters as in :mod:`skal._lookahead.posterior`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal._core.identity import copy_groups
from skal._core.memory import fill_rows, rows_within
from skal._core.pool import Samples
from skal._lookahead.feature_reader import Covariances, FeatureReader, Features
from skal._lookahead.posterior import MADE, Outputs, Posterior, RidgeSolver, diagonal_blocks, places, read_outputs
from skal._lookahead.sequential import KernelBlocks
from skal._lookahead.variance import Importance, newton_importance
from skal.context import QueryContext
from skal.exceptions import OutputError
from skal.tangent._gradients import one_hot
from skal.tangent._kernels import kernel_diagonal, kernel_matrix
from skal.tangent._tangent_engine import TangentEngine

_DOUBLE = 8  # bytes
# between two sets of samples, (nB, mB); of every sample with itself, (n, B, B)
Kernel = tuple[Callable[[Samples, "Samples | None"], Tensor], Callable[[Samples], Tensor]]


class Source(ABC):
    """Makes posteriors from a kernel, within a bound on memory."""

    def __init__(self, context: QueryContext, memory: int) -> None:
        self.context, self.memory = context, memory

    def importance(self, p: Tensor, tau: float, rho: float, scale: float) -> Importance:
        """The weights of candidates with (N, c) probabilities, from τ, ρ and the kernel's scale."""
        return newton_importance(p, tau, rho, scale, self.context.meaning)

    def outputs(self, samples: Samples) -> Outputs:
        """Outputs of the network at any samples."""
        return read_outputs(self.context.logit_network, self.context.logits(samples))

    @abstractmethod
    def room(self, n_numbers: int) -> int:
        """The number of candidates that fit into memory with this many numbers for each."""

    def greedy_room(self, n_numbers: int) -> int:
        """The number of candidates that fit if the query conditions on its picks."""
        return self.room(n_numbers)

    @abstractmethod
    def posterior(
        self,
        pool: Samples,
        rows: np.ndarray,
        evaluation: np.ndarray,
        n_total: int | None,
        target: Samples | None = None,
    ) -> Posterior:
        """The posterior of some rows of the pool, evaluation samples included; to be conditioned if n_total is None.

        A target's samples, which are evaluation samples then, come before those rows.
        """


class TangentSource(Source):
    """A source of a network's own kernel: its linearisation predicts, and takes labels one after the other."""

    labelled_logits: Tensor  # (n, c) of the network at the labelled samples
    residuals: Tensor  # (n, c) what their labels leave to be learnt

    def _begin(self, outputs: Outputs) -> None:
        self.labelled_logits, self.residuals = outputs.f, self._targets(outputs) - outputs.link

    def _targets(self, outputs: Outputs) -> Tensor:
        """(n, c) what the labels want the outputs, or the probabilities, to be."""
        if not self.context.meaning.is_exclusive:
            targets = torch.as_tensor(self.context.labels, dtype=torch.float64, device=outputs.f.device)
            if targets.numel() != outputs.f.numel():
                raise OutputError(
                    f"The network that {self.context.owner} works on must have one output for each target. Got "
                    f"{outputs.f.shape[1]} outputs, and labels of shape {tuple(targets.shape)}. Give its last layer as "
                    "many outputs as there are targets, and train it again."
                )
            targets = targets.reshape(outputs.f.shape)
            # what nobody has said leaves no residual
            return (
                torch.where(targets < 0, outputs.link, targets) if self.context.meaning.has_probabilities else targets
            )
        labels = self.context.class_labels
        return one_hot(labels, len(labels), outputs.f.shape[1], self.context.logit_network).double()

    def _groups(self, *parts: Samples) -> Tensor:
        """(N,) integers that exact copies among the samples share; −1 for copies of labelled samples.

        Copies are recognised by their inputs: gradients of different samples may differ by less than rounding.
        """
        context = self.context
        groups = copy_groups([digest for part in parts for digest in part.digests()], context.labelled.digests())
        return torch.as_tensor(groups, device=context.device)

    @property
    @abstractmethod
    def solver(self) -> RidgeSolver:
        """The solver of the labelled samples' kernel."""

    @abstractmethod
    def blocks(self, pool: Samples, evaluation: np.ndarray) -> KernelBlocks:
        """For true labels of the pool's samples, which come one after the other, while the pool is read once."""

    @abstractmethod
    def predict(self, samples: Samples) -> Tensor:
        """(n, c) outputs of the linearised network at any samples."""


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


class KernelSource(TangentSource):
    """Exact blocks of a scalar or matrix kernel; epsilon is the precision of variances."""

    def __init__(self, context: QueryContext, kernel: Kernel, *, ridge: float, epsilon: float, memory: int) -> None:
        super().__init__(context, memory)
        self.ridge, self.epsilon = ridge, epsilon
        self.kernel, self.own = kernel
        self.K_LL = self.kernel(context.labelled, None)
        self.B = len(self.K_LL) // len(context.labelled)
        self._begin(self.outputs(context.labelled))

    def room(self, n_numbers: int) -> int:
        """Three arrays, twice with evaluation and once with labelled samples."""
        entries = self.B**2 * (2 * n_numbers + 3 * len(self.context.labelled))
        return rows_within(self.memory, _DOUBLE * entries, at_least=0)

    def greedy_room(self, n_numbers: int) -> int:
        """G with ``8 B² G (2 G + 3 n)`` bytes, for the kernel among all of them."""
        n = len(self.context.labelled)
        return int((math.sqrt(9 * n**2 + self.memory / self.B**2) - 3 * n) / 4)

    def posterior(
        self,
        pool: Samples,
        rows: np.ndarray,
        evaluation: np.ndarray,
        n_total: int | None,
        target: Samples | None = None,
    ) -> Posterior:
        """The posterior of some rows of the pool, evaluation samples included; to be conditioned if n_total is None.

        A target's samples, which are evaluation samples then, come before those rows.
        """
        samples = pool.take(rows) if target is None else target.before(pool.take(rows))
        if n_total is None or len(evaluation) == len(rows):
            return self.blocks(samples, evaluation).posterior(n_total)
        K_CE = self.kernel(samples, samples.take(evaluation))
        return self.blocks_of(samples, evaluation, K_CE, self.own(samples)).posterior(n_total)

    @property
    def solver(self) -> RidgeSolver:
        """The solver of the labelled samples' kernel."""
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
        """The blocks of the kernel for true labels, from these parts."""
        K_LC, positions = self.kernel(self.context.labelled, samples), torch.as_tensor(evaluation, device=K_CE.device)
        given = (self.K_LL, K_LC, K_CE, own, self.residuals, self.outputs(samples), positions)
        return KernelBlocks(*given, self.ridge, self._groups(samples), self.epsilon, among)

    def predict(self, samples: Samples) -> Tensor:
        """(n, c) outputs of the linearised network at any samples."""
        coefficients = self.solver(self.residuals.reshape(len(self.K_LL), -1))
        parts = _parts(samples, rows_within(self.memory, 2 * _DOUBLE * self.B * len(self.K_LL)))
        moved = torch.cat([self.kernel(self.context.labelled, part).T @ coefficients for part in parts])
        f = self.outputs(samples).f
        return f + moved.reshape(f.shape)


class FeatureSource(TangentSource):
    """Features of one pass, from a reader that has read the labelled samples."""

    def __init__(self, context: QueryContext, reader: FeatureReader, memory: int) -> None:
        super().__init__(context, memory)
        self.reader = reader
        self._shared: tuple[object, Features] | None = None  # of the evaluation set, where a pool comes in groups
        self._begin(read_outputs(context.logit_network, reader.logits))

    def room(self, n_numbers: int) -> int:
        """The number of candidates whose features fit into memory."""
        return rows_within(self.memory, self.reader.bytes_per_sample, at_least=0)

    def greedy_room(self, n_numbers: int) -> int:
        """The number that fits with this many numbers for each, for covariances and picks."""
        return min(self.room(n_numbers), rows_within(self.memory, _DOUBLE * n_numbers, at_least=0))

    def _group(self, evaluation: Samples, others: Samples) -> Features:
        """Features of one of several groups that begin with the evaluation set, which is read once."""
        reader = self.reader
        while True:
            if self._shared is None or self._shared[0] is not reader.solver:
                self._shared = reader.solver, reader.features(evaluation)
            form, shared = self._shared
            found = reader.features(others)
            if form is reader.solver:  # otherwise gradients took another form meanwhile
                return fill_rows(iter([shared, found]), len(evaluation) + len(others))

    def posterior(
        self,
        pool: Samples,
        rows: np.ndarray,
        evaluation: np.ndarray,
        n_total: int | None,
        target: Samples | None = None,
    ) -> Posterior:
        """The posterior of some rows of the pool, evaluation samples included; to be conditioned if n_total is None.

        A target's samples, which are evaluation samples then, come before those rows.
        """
        e, reader = len(evaluation), self.reader
        parts = [pool.take(rows[:e]), pool.take(rows[e:])] if target is None else [target, pool.take(rows)]
        if target is None and len(rows) == len(pool):
            parts = [pool]
        features = reader.features(pool) if len(parts) == 1 else self._group(*parts)
        outputs, own = read_outputs(self.context.logit_network, features.logits), features.variance[:, None, None]
        positions = torch.as_tensor(evaluation, device=own.device)
        F, prior = outputs.f + features.alpha @ self.residuals, features.prior
        block = Covariances(reader, features, positions)
        del features  # the copy in another order is the only one from here on
        made = min(MADE, self.memory // (4 * _DOUBLE))  # there are up to four of that size
        keep = n_total is None and _DOUBLE * len(own) * e <= self.memory
        S = block.with_evaluation(made) if keep else None
        groups, rho = self._groups(*parts), reader.solver.rho
        given = (block, own, prior, outputs, F, rho, positions, groups, reader.epsilon, S)
        return Posterior(*given, n_total=n_total, made=made, scale=reader.solver.scale)

    @property
    def solver(self) -> RidgeSolver:
        """The solver of the labelled samples' kernel."""
        return self.reader.solver

    def blocks(self, pool: Samples, evaluation: np.ndarray) -> KernelBlocks:
        """Blocks for true labels, one by one; exact with the labelled samples, and estimated among candidates."""
        reader, features = self.reader, self.reader.features(pool)
        K_CL, alpha = reader.kernel_rows(features), features.alpha
        positions = torch.as_tensor(evaluation, device=alpha.device)

        def among(rows: Tensor, columns: Tensor) -> Tensor:
            S = reader.covariance(features.take(rows), features.take(columns)).double()
            return S.addmm_(K_CL[rows], alpha[columns].T)

        K_CE, own = among(torch.arange(len(pool), device=alpha.device), positions), features.prior[:, None, None]
        outputs = read_outputs(self.context.logit_network, features.logits)
        given = (reader.K_LL, K_CL.T, K_CE, own, self.residuals, outputs, positions)
        return KernelBlocks(*given, reader.ridge, self._groups(pool), reader.epsilon, among)

    def predict(self, samples: Samples) -> Tensor:
        """(n, c) outputs of the linearised network at any samples."""
        return self.reader.predict(samples, self.residuals)
