# SPDX-License-Identifier: BSD-3-Clause
"""Posteriors of a kernel on features: what the look-ahead by variance needs of any classifier.

Index letters as in :mod:`skal._lookahead.posterior`; d features of length 1.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from skal._lookahead.posterior import MADE, Outputs, Posterior, RidgeSolver, join_outputs, precision_of_variances
from skal._lookahead.sources import Source
from skal._lookahead.variance import Importance, margin_importance
from skal.context import QueryContext, Samples, rows_within
from skal.strategies._leaves import PoolLeaves
from skal.strategies._pool_features import PoolFeatures, row_keys
from skal.strategies._similarity import labelled_radius, similarity_to

KERNELS = ["rbf", "laplace", "linear", "forest"]
_DOUBLE = 8  # bytes


class FeatureKernelSource(Source):
    """Blocks of a kernel on features, made when they are needed, within half of the context's memory.

    Parameters
    ----------
    context : QueryContext
    kernel : {"rbf", "laplace", "linear", "forest"}
    features
        See :func:`skal.strategies._features.features_of`.
    radius : "auto" or float
        Of rbf and laplace; ``auto`` is the labelled samples' median distance to their nearest labelled neighbours.
    ridge : float
        Noise of a label, as a part of the kernel's mean diagonal.
    normalize : bool, default=True
        Whether features are scaled to length 1.
    """

    def __init__(
        self,
        context: QueryContext,
        kernel: str,
        features: object,
        radius: float | str,
        ridge: float,
        normalize: bool = True,
    ) -> None:
        super().__init__(context, context.memory // 2)
        room = None if context.memory_bound is None else context.memory // 4
        if kernel == "forest":
            self._read: PoolFeatures = PoolLeaves(context, features, room=room)
        else:
            self._read = PoolFeatures(context, features, normalize=normalize, room=room)
        self._labelled = self._read.of(context.labelled).double()
        self._kernel = kernel
        self._radius = labelled_radius(self._labelled, radius) if isinstance(radius, str) else float(radius)
        self._solver = RidgeSolver(self._between(self._labelled)(self._labelled), ridge)
        self._labelled_keys = self._keys(self._labelled, context.labelled)

    def _between(self, points: Tensor) -> Callable[[Tensor], Tensor]:
        """A function that computes the kernel of other rows with these: (r, d) -> (r, m)."""
        if self._kernel == "linear":
            return lambda rows: rows @ points.T
        return similarity_to(points, self._kernel, self._radius)

    def importance(self, p: Tensor, tau: float, rho: float, scale: float) -> Importance:
        """Weights by margins: labels count more, and are less noisy, where the classifier is unsure."""
        return margin_importance(p, rho, scale, self.context.meaning)

    def outputs(self, samples: Samples) -> Outputs:
        """Outputs of the classifier at any samples; logarithms of its probabilities stand for logits."""
        if self.context.has_network:
            return super().outputs(samples)
        meaning, p = self.context.meaning, torch.as_tensor(self.context.answers(samples), device=self._labelled.device)
        return Outputs(meaning.logits(p), p, p, None if meaning.is_exclusive else torch.sigmoid)

    def room(self, n_numbers: int) -> int:
        """The number of candidates that fit into memory with this many numbers for each, beside features and labels."""
        entries = n_numbers + 3 * len(self._labelled) + 2 * self._read.width
        return rows_within(self.memory, _DOUBLE * entries, at_least=0)

    def posterior(
        self,
        pool: Samples,
        rows: np.ndarray,
        evaluation: np.ndarray,
        n_total: int | None,
        target: Samples | None = None,
    ) -> Posterior:
        """The posterior of some rows of the pool, as in :class:`Source`."""
        device, solver, first = self._labelled.device, self._solver, [] if target is None else [target]
        of_rows = self._read(torch.as_tensor(rows, device=device))
        X = torch.cat([*map(self._read.of, first), of_rows])
        parts = [*first, pool.take(rows)]
        positions = torch.as_tensor(evaluation, device=device)
        K_CL = self._between(self._labelled.to(X))(X)  # (N, n), and all among candidates, in the features' precision
        exact = K_CL.double()
        alpha = solver(exact.T)  # (n, N)

        def covariance(some: Tensor, columns: Tensor) -> Tensor:
            return self._between(X[columns])(X[some]).addmm_(K_CL[some], alpha[:, columns].to(X), alpha=-1)

        prior = X.double().square().sum(1) if self._kernel == "linear" else torch.ones_like(exact[:, 0])
        own = (prior - (exact * alpha.T).sum(1)).clamp_min_(0)[:, None, None]
        outputs = join_outputs([self.outputs(part) for part in parts])
        S = covariance(torch.arange(len(X), device=device), positions) if n_total is None else None
        epsilon = precision_of_variances(X.dtype, X.dtype)
        given = (
            lambda some, columns: covariance(some, columns).double(),
            own,
            prior,
            outputs,
            outputs.f,
            solver.rho,
            positions,
            self._groups(X, parts),
            epsilon,
            S,
        )
        made = min(MADE, self.memory // (4 * _DOUBLE))
        return Posterior(*given, n_total=n_total, made=made, scale=solver.scale)

    def _keys(self, X: Tensor, samples: Samples) -> Tensor:
        """Keys of samples with these features; leaves do not tell copies."""
        return self._read.copy_keys(samples) if self._kernel == "forest" else row_keys(X)

    def _groups(self, X: Tensor, parts: list[Samples]) -> Tensor:
        """(N,) integers that copies share; −1 for copies of labelled samples."""
        keys = torch.cat(
            [self._keys(some, part) for some, part in zip(X.split([*map(len, parts)]), parts, strict=True)]
        )
        groups = torch.unique(keys, return_inverse=True)[1]
        apart: Tensor = groups.masked_fill(torch.isin(keys, self._labelled_keys), -1)
        return apart
