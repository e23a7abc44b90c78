"""The strategy that maximises weighed coverage of the pool: what MaxHerding, UHerding and ProbCover have in common."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal._core.memory import rows_within
from skal._core.samples import Samples
from skal.base import Passes, QueryStrategy
from skal.context import QueryContext
from skal.strategies._coverage import BLOCK_BYTES, CACHE_BYTES, KERNELS, greedy_coverage, similarity_to
from skal.strategies._features import check_features, come_from_estimator
from skal.strategies._pool_features import PoolFeatures
from skal.validation import check_choice, check_integer, check_real, make_generator

_AUTO_EVALUATION = 5000
_EXACT_UP_TO = 20_000


def _room(context: QueryContext) -> int:
    """Bytes for similarities: a quarter of a bound, beside the features, or half of what there is without one."""
    return context.memory // (2 if context.memory_bound is None else 4)


class CoverageStrategy(QueryStrategy):
    """A strategy that maximises weighed coverage of the pool: a subclass has the kernel, the radius, the weights."""

    needs_network = False

    radii: ClassVar[list[str]] = ["auto", "minimum"]  # names of rules for the radius
    kernel: str
    radius: Any
    features: Any
    evaluation: Any
    random_state: Any

    def _check_params(self) -> None:
        super()._check_params()
        owner = type(self).__name__
        check_choice(owner, "kernel", self.kernel, [*KERNELS, "tangent"])
        if isinstance(self.radius, str):
            check_choice(owner, "radius", self.radius, self.radii)
        else:
            check_real(owner, "radius", self.radius, 1e-12, remedy="Pass a number > 0, or 'auto'.")
        check_features(owner, self.features)
        if self.evaluation != "auto":
            check_integer(owner, "evaluation", self.evaluation, 1, optional=True)

    @property
    def _spec(self) -> Any:
        return "tangent" if self.kernel == "tangent" else self.features

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        room = None if context.memory_bound is None else context.memory // 2
        read = PoolFeatures(context, self._spec, room=room)
        rows = self._evaluation_rows(context.n_pool)
        evaluation = read(torch.as_tensor(rows, device=read.device))
        labelled = read.of(context.labelled) if context.n_labelled else evaluation[:0]
        radius = self._radius(context, read, labelled)
        similarity = similarity_to(evaluation, "cosine" if self.kernel == "tangent" else self.kernel, radius)
        covered = evaluation.new_zeros(len(evaluation))
        for block in labelled.split(rows_within(CACHE_BYTES, 8 * len(evaluation))) if len(labelled) else ():
            covered = torch.maximum(covered, similarity(block).amax(0))
        # the sum over the evaluation set stands for the sum over the pool
        weights = self._weights(context, context.pool.take(rows)) * (context.n_pool / len(rows))
        return greedy_coverage(
            read,
            read.copy_keys(),
            similarity,
            torch.as_tensor(weights).to(evaluation),
            covered,
            read.copy_keys(context.labelled) if context.n_labelled else torch.zeros(0, device=read.device),
            n_instances,
            symmetric=len(rows) == context.n_pool,
            room=_room(context),
        )

    def _evaluation_rows(self, n_pool: int) -> np.ndarray:
        n = self._n_evaluation(n_pool)
        if n == n_pool:
            return np.arange(n_pool)
        return np.sort(make_generator(type(self).__name__, self.random_state).choice(n_pool, size=n, replace=False))

    def _n_evaluation(self, n_pool: int) -> int:
        if self.evaluation == "auto":
            return n_pool if n_pool <= _EXACT_UP_TO else _AUTO_EVALUATION
        return n_pool if self.evaluation is None else min(n_pool, self.evaluation)

    @abstractmethod
    def _radius(self, context: QueryContext, read: PoolFeatures, labelled: Tensor) -> float:
        """σ."""

    def _weights(self, context: QueryContext, samples: Samples) -> np.ndarray:
        """(e,) weights of some samples of the pool."""
        return np.ones(len(samples))

    def _passes(self, context: QueryContext, n: int, n_instances: int) -> Passes:
        forward = context.has_network and come_from_estimator(self._spec)
        return Passes(forward=n, labelled_forward=context.n_labelled) if forward else Passes()

    def _memory(self, context: QueryContext, n: int, n_instances: int) -> int:
        width = PoolFeatures(context.restrict(range(1)), self._spec).width
        e = self._n_evaluation(n)
        room = 2 * n * width * 4 if context.memory_bound is None else min(2 * n * width * 4, context.memory // 2)
        return room + 4 * e * width + 40 * n + min(_room(context), 4 * n * e) + BLOCK_BYTES // 4

    def _work(self, n: int, n_instances: int) -> float:
        return float(n) * self._n_evaluation(n)
