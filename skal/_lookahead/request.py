# SPDX-License-Identifier: BSD-3-Clause
"""The request for a look-ahead: its parameters, with defaults that suit its criterion, and what it sums over."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from skal._core.pool import Samples
from skal._lookahead.posterior import Posterior
from skal._lookahead.sources import Source
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError

ONE_BY_ONE = ["direct", "one_step", "retrain"]
EXACT_LENGTH = 4096


@dataclass(frozen=True)
class Settings:
    """The parameters of :class:`skal.strategies.NTKLookahead` of the same names."""

    criterion: str
    kernel: str
    retraining: str
    reference: str
    batch: str
    n_features: int | str | None
    evaluation: int | str | None
    ridge: float
    backend: str
    random_state: Any
    target: Any
    layers: Any

    @classmethod
    def of(cls, strategy: Any, label_noise: float | None = None) -> Settings:
        """The parameters of a strategy; ``"auto"`` becomes what suits its criterion, and the task's own noise."""
        given = {field.name: getattr(strategy, field.name) for field in fields(cls)}
        variance = given["criterion"] == "variance"
        if given["batch"] == "auto":
            given["batch"] = "greedy" if variance else "top"
        if isinstance(given["ridge"], str):
            given["ridge"] = label_noise or (1e-2 if variance else 1e-4)
        return cls(**given)

    def sketch_lengths(self, kernel: str) -> tuple[int, int] | None:
        """Length of the sketch, and up to how many entries gradients are kept as they are; None for exact kernels."""
        if self.n_features is None or kernel in ("entk", "trace") or self.retraining != "linearized":
            return None
        if self.n_features == "auto":  # sums of squares over many samples forgive more than sums of lengths do
            return (1024 if self.criterion == "variance" else EXACT_LENGTH), EXACT_LENGTH
        return int(self.n_features), int(self.n_features)

    def evaluation_rows(self, context: QueryContext, generator: np.random.Generator) -> np.ndarray:
        """The rows of the pool, or of a target in its place, over which the change is summed."""
        n = context.n_pool
        size = min(n, 2000) if self.evaluation == "auto" else n if self.evaluation is None else int(self.evaluation)
        if size > n:
            expected = f"at most the number of samples that take part ({n})"
            remedy = "Pass None for all of them, or 'auto' for at most 2000."
            raise InvalidParameterError.for_parameter(context.owner, "evaluation", expected, self.evaluation, remedy)
        return np.arange(n) if size == n else np.sort(generator.choice(n, size=size, replace=False))


@dataclass(frozen=True)
class Evaluation:
    """The samples over which the change is summed, standing for all that count: some of the pool's, or a target's.

    A posterior has one entry for each of its samples. Where they are a target's, or where the pool comes in groups, the
    evaluation samples come first.
    """

    rows: np.ndarray  # (e,) positions in the pool, or in the target
    n_total: int  # how many samples these stand for
    target: Samples | None = None  # these e samples, if they are not of the pool
    weights: np.ndarray | None = None  # (N,) how much the pool's samples count; None if all count alike

    @classmethod
    def of(cls, context: QueryContext, settings: Settings, generator: np.random.Generator) -> Evaluation:
        """A part of the samples that a query is for, as large as the settings say."""
        aim = context.aim(settings.target)
        rows, n = settings.evaluation_rows(aim.part, generator), aim.part.n_pool
        if aim.rows is None:
            return cls(rows, n, target=aim.part.pool.take(rows))
        if isinstance(aim.rows, range):
            return cls(rows, n)
        weights = np.zeros(context.n_pool)
        weights[aim.rows] = aim.weights
        return cls(aim.rows[rows], n, weights=weights)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_before(self) -> int:
        """The number of a posterior's entries before those of the pool."""
        return 0 if self.target is None else len(self.rows)

    def others(self, candidates: np.ndarray) -> np.ndarray:
        """The candidates that are no evaluation samples themselves."""
        return candidates if self.target is not None else np.setdiff1d(candidates, self.rows)

    def whole(self, source: Source, pool: Samples, n_total: int | None) -> tuple[Posterior, np.ndarray]:
        """A posterior with all of the pool, and what its entries are: positions in the pool, −1 for the target's."""
        everyone = np.arange(len(pool))
        if self.target is not None:
            return self.group(source, pool, everyone, n_total)
        return source.posterior(pool, everyone, self.rows, n_total), everyone

    def group(
        self, source: Source, pool: Samples, others: np.ndarray, n_total: int | None
    ) -> tuple[Posterior, np.ndarray]:
        """A posterior with the evaluation samples and some others; its entries as in :meth:`whole`."""
        first = np.arange(len(self))
        if self.target is not None:
            entries = np.concatenate([np.full(len(self), -1), others])
            return source.posterior(pool, others, first, n_total, self.target), entries
        entries = np.concatenate([self.rows, others])
        return source.posterior(pool, entries, first, n_total), entries

    def weights_of(self, entries: np.ndarray) -> np.ndarray | None:
        """The weights of a posterior's entries in the sums; None if all are equal."""
        if self.target is not None:
            return (entries < 0).astype(np.float64)
        return None if self.weights is None else self.weights[entries]
