# SPDX-License-Identifier: BSD-3-Clause
"""The strategy that maximises weighed coverage of a target: what MaxHerding, UHerding and ProbCover have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import ANY_TASK, QueryStrategy
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError
from skal.strategies._coverage import greedy_coverage
from skal.strategies._leaves import PoolLeaves
from skal.strategies._pool_features import PoolFeatures
from skal.strategies._similarity import KERNELS, Kernel
from skal.validation import Choice, Features, Integer, Real, Target, make_generator

_AUTO_EVALUATION = 5000
_EXACT_UP_TO = 20_000
_FEWEST = 256  # evaluation samples that a bound may leave
_SAMPLE_BYTES = 64  # for each candidate: its key, its gain and the state of that


class CoverageStrategy(QueryStrategy):
    """A strategy that maximises weighed coverage of the pool, or of a target.

    A subclass has the kernel, the radius, the weights.
    """

    constraints: ClassVar = {
        "kernel": Choice(*KERNELS, "tangent", "forest"),
        "radius": Real(1e-12, 1e12, words=("auto", "minimum"), remedy="Pass a number > 0, or 'auto'."),
        "features": Features(),
        "normalize": Choice(True, False),
        "evaluation": Integer(1, optional=True, words=("auto",)),
        "target": Target(),
    }
    tasks = ANY_TASK
    needs_network = False

    kernel: str
    radius: Any
    features: Any
    evaluation: Any
    random_state: Any
    normalize = True
    target: Any = None

    @property
    def needs_labels(self) -> bool:  # type: ignore[override]
        """A forest has to be taught."""
        return self.kernel == "forest"

    def _read(self, context: QueryContext) -> PoolFeatures:
        if self.kernel == "forest":
            return PoolLeaves(context, self.features)
        features = "tangent" if self.kernel == "tangent" else self.features
        return PoolFeatures(context, features, normalize=self.normalize)

    def _kernel(self, context: QueryContext, read: PoolFeatures, labelled: Tensor) -> Kernel:
        if self.kernel == "forest":
            return Kernel("forest", 1.0)
        return Kernel("cosine" if self.kernel == "tangent" else self.kernel, self._radius(context, read, labelled))

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        read, aim = self._read(context), context.aim(self.target)
        n = aim.part.n_pool
        rows = self._evaluation_rows(n, self._n_that_fit(context, read, n))
        if aim.rows is None:
            evaluation = read.of(aim.part.pool.take(rows))
        else:
            evaluation = read.gather(np.asarray(aim.rows)[np.asarray(rows)])
        labelled = read.of(context.labelled) if context.n_labelled else evaluation[:0]
        kernel = self._kernel(context, read, labelled)
        # the sum over the evaluation set stands for the sum over all that count
        weights = self._weights(aim.part.restrict(rows)) * aim.weights[np.asarray(rows)] * (n / len(rows))
        return greedy_coverage(
            read,
            read.copy_keys(),
            kernel,
            evaluation,
            torch.as_tensor(weights).to(evaluation),
            labelled,
            read.copy_keys(context.labelled) if context.n_labelled else torch.zeros(0, device=read.device),
            n_instances,
            symmetric=aim.rows is not None and len(rows) == context.n_pool,
            room=context.memory // (2 if context.memory_bound is None else 4),
            block_bytes=read.block_bytes,
        )

    def _n_that_fit(self, context: QueryContext, read: PoolFeatures, n: int) -> int:
        """Evaluation samples of n: half of a bound is for features, a quarter for similarities, an eighth for work."""
        wanted = self._n_evaluation(n)
        if context.memory_bound is None:
            return wanted
        of_one = self._evaluation_bytes(context, read)
        fixed = _SAMPLE_BYTES * context.n_pool + 3 * read.row_bytes * context.n_labelled
        fits = max(0, 5 * context.memory // 8 - fixed) // of_one
        needed = min(n, _FEWEST) if self.evaluation == "auto" else wanted
        if fits < needed:
            smallest = -(-8 * (fixed + needed * of_one) // 5)
            expected = f"at least {smallest} bytes for {needed} evaluation samples of {n}"
            remedy = "Raise it, or take fewer of the pool with subset, or fewer evaluation samples with evaluation."
            raise InvalidParameterError.for_parameter(context.owner, "max_memory", expected, context.max_memory, remedy)
        return min(wanted, fits)

    def _evaluation_bytes(self, context: QueryContext, read: PoolFeatures) -> int:
        """Bytes of an evaluation sample: its features, for one kernel in double precision too, and its own numbers."""
        return read.row_bytes + (8 * read.width if self.kernel == "laplace" else 0) + 32

    def _evaluation_rows(self, n_all: int, n: int) -> np.ndarray | range:
        if n == n_all:
            return range(n_all)
        return np.sort(make_generator(type(self).__name__, self.random_state).choice(n_all, size=n, replace=False))

    def _n_evaluation(self, n_all: int) -> int:
        if self.evaluation == "auto":
            return n_all if n_all <= _EXACT_UP_TO else _AUTO_EVALUATION
        return n_all if self.evaluation is None else min(n_all, self.evaluation)

    @abstractmethod
    def _radius(self, context: QueryContext, read: PoolFeatures, labelled: Tensor) -> float:
        """σ."""

    def _weights(self, context: QueryContext) -> np.ndarray:
        """(e,) weights of the samples that coverage is summed over."""
        return np.ones(context.n_pool)
