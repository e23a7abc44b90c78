# SPDX-License-Identifier: BSD-3-Clause
"""The parameters of a look-ahead, with the defaults that suit its criterion."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

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

    @classmethod
    def of(cls, strategy: Any, task: str = "classification") -> Settings:
        """The parameters of a strategy; ``"auto"`` becomes what suits its criterion and the task."""
        given = {field.name: getattr(strategy, field.name) for field in fields(cls)}
        variance = given["criterion"] == "variance"
        if given["batch"] == "auto":
            given["batch"] = "greedy" if variance else "top"
        if isinstance(given["ridge"], str):
            given["ridge"] = 1e-2 if variance and task != "regression" else 1e-4
        return cls(**given)

    def sketch_lengths(self, kernel: str) -> tuple[int, int] | None:
        """Length of the sketch, and up to how many entries gradients are kept as they are; None for exact kernels."""
        if self.n_features is None or kernel in ("entk", "trace") or self.retraining != "linearized":
            return None
        if self.n_features == "auto":  # sums of squares over many samples forgive more than sums of lengths do
            return (1024 if self.criterion == "variance" else EXACT_LENGTH), EXACT_LENGTH
        return int(self.n_features), int(self.n_features)

    def evaluation_rows(self, context: QueryContext, generator: np.random.Generator) -> np.ndarray:
        """The rows of the pool over which the change is summed."""
        n = context.n_pool
        size = min(n, 2000) if self.evaluation == "auto" else n if self.evaluation is None else int(self.evaluation)
        if size > n:
            expected = f"at most the number of samples that take part ({n})"
            remedy = "Pass None for all of them, or 'auto' for at most 2000."
            raise InvalidParameterError.for_parameter(context.owner, "evaluation", expected, self.evaluation, remedy)
        return np.arange(n) if size == n else np.sort(generator.choice(n, size=size, replace=False))
