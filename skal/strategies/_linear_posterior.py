# SPDX-License-Identifier: BSD-3-Clause
r"""A linear model on features φ, and what labels leave unknown of it: the variance that regression strategies look at.

The features are scaled by one number, so that the mean of ‖φ‖² over the pool is 1, and a label has noise s². Then

    S(x, x') = φᵀφ' − φᵀ Φ_Lᵀ (Φ_L Φ_Lᵀ + s²I)⁻¹ Φ_L φ'.

φ is the gradient of a network's outputs (several of them: side by side, so that φᵀφ' is the trace kernel), the
predictions of an ensemble's members less their mean (whose products are their covariance, Kirsch 2023), or the inputs.

Index letters: N candidates, n labelled samples, d features, m members of an ensemble, k targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import BaggingRegressor, VotingRegressor
from sklearn.ensemble._forest import BaseForest
from torch import Tensor

from skal.context import QueryContext, Samples, rows_within
from skal.exceptions import FeatureError, InvalidParameterError
from skal.validation import Features, Integer, is_auto, make_generator

NOISE = 1e-4
_SKETCH = 1024
_EXACT = 4096  # numbers of a gradient that are kept as they are
_BLOCK_BYTES = 2**24
CONSTRAINTS = {
    "features": Features(),
    "n_features": Integer(1, 10**8, optional=True, words=("auto",), remedy="Pass an integer > 0, None or 'auto'."),
}


def find_members(context: QueryContext) -> list[Callable[[Any], np.ndarray]] | None:
    """The predictions of an ensemble's members for samples as the estimator gets them; None if it is no ensemble.

    Forests, bagging and voting regressors, and modAL's committees of regressors.
    """
    estimator = context.inner_estimator
    if hasattr(estimator, "learner_list"):
        return [learner.predict for learner in estimator.learner_list]
    if isinstance(estimator, BaggingRegressor):
        pairs = zip(estimator.estimators_, estimator.estimators_features_, strict=True)
        return [partial(_predict_from, member, columns) for member, columns in pairs]
    if isinstance(estimator, (BaseForest, VotingRegressor)):
        return [member.predict for member in estimator.estimators_]
    return None


def _predict_from(member: Any, columns: np.ndarray, X: np.ndarray) -> np.ndarray:
    predicted: np.ndarray = member.predict(X[:, columns])
    return predicted


def target_units(context: QueryContext) -> np.ndarray:
    """(1, k) deviations of several labelled targets, so that dollars do not outweigh metres; 1 for a single one."""
    if hasattr(context.learner, "learner_list") or not context.n_labelled or context.labels.ndim == 1:
        return np.ones((1, 1))
    spread = context.labels.std(axis=0, keepdims=True)
    return np.where(spread > 0, spread, 1.0) if spread.shape[1] > 1 else np.ones((1, 1))


class MemberPredictions:
    """Features of a black box: what the members of an ensemble predict, less their mean, over √m.

    Parameters
    ----------
    context : QueryContext
        Of a regression.
    members : list of callables
        From :func:`find_members`.
    """

    def __init__(self, context: QueryContext, members: list[Callable[[Any], np.ndarray]]) -> None:
        self._members, self._steps = members, context.transformers
        self._units = target_units(context)

    def __call__(self, X: Any) -> np.ndarray:
        """(n, m·k) features of the samples."""
        for step in self._steps:
            X = step.transform(X)
        X = X.to_numpy() if hasattr(X, "to_numpy") else X
        found = np.stack([np.asarray(member(X), dtype=np.float64) for member in self._members], axis=1)  # (n, m[, k])
        found = found.reshape(*found.shape[:2], -1) / self._units
        centred = (found - found.mean(axis=1, keepdims=True)) / np.sqrt(len(self._members))
        rows: np.ndarray = centred.reshape(len(centred), -1)
        return rows


def settle_features(context: QueryContext, features: Any) -> Any:
    """The kind of φ: gradients of a network, predictions of an ensemble, or the inputs by their kind."""
    if not is_auto(features):
        return features
    if context.has_network:
        return "tangent"
    predicts_numbers = context.is_fitted and not context.meaning.has_probabilities
    members = find_members(context) if predicts_numbers else None
    return "prepared" if members is None else MemberPredictions(context, members)


class KernelReader:
    """Reads φ, scaled, in float64: of the pool in blocks, kept if there is room.

    Parameters
    ----------
    context : QueryContext
    features
        See :func:`settle_features` and :meth:`~skal.context.QueryContext.features`.
    n_features : "auto", int or None
        Length of the sketch of gradients; ``auto`` keeps up to 4096 numbers, and sketches more to 1024. None keeps all.
    """

    def __init__(self, context: QueryContext, features: Any, n_features: int | str | None) -> None:
        self._context = context
        self._spec = settle_features(context, features)
        sketch, exact = (_SKETCH, _EXACT) if n_features == "auto" else (n_features or 1, n_features or 10**8)
        self._lengths = int(sketch), int(exact)
        self._scale = 1.0
        first = self.of(context.pool.take(range(1)))
        self.width, self.device = first.shape[1], first.device
        self._kept = self.of(context.pool) if self.room() >= context.n_pool else None
        squares = sum(float(block.square().sum()) for block in self.blocks()) / context.n_pool
        self._scale = squares**-0.5 if squares > 0 else 1.0
        if self._kept is not None:
            self._kept *= self._scale

    def room(self) -> int:
        """The number of samples whose features fit: half of the memory holds two copies and the labelled ones."""
        return rows_within(self._context.memory // 2, 16 * self.width, at_least=0) - self._context.n_labelled

    def of(self, samples: Samples) -> Tensor:
        """(n, d) features of any samples."""
        if isinstance(self._spec, str) and self._spec == "tangent":
            found = self._context.tangent_features(samples, *self._lengths)
        else:
            found = self._context.features(self._spec, samples)
        return found.double() * self._scale

    def labelled_features(self) -> Tensor:
        """(n, d) features of the labelled samples; none without labels."""
        if self._context.n_labelled:
            found = self.of(self._context.labelled)
            if found.shape[1] != self.width:
                got = f"{self.width} columns for the pool, and {found.shape[1]} for labelled samples"
                raise FeatureError.for_features(self._context.owner, "of one length for all samples", got)
            return found
        return torch.empty(0, self.width, dtype=torch.float64, device=self.device)

    def blocks(self) -> Iterator[Tensor]:
        """Features of the pool, part by part."""
        if self._kept is not None:
            yield self._kept
            return
        pool, block_bytes = self._context.pool, min(_BLOCK_BYTES, self._context.memory // 8)
        size = rows_within(block_bytes, 16 * self.width)
        for start in range(0, len(pool), size):
            yield self.of(pool.take(range(start, min(start + size, len(pool)))))

    def gather(self, rows: np.ndarray) -> Tensor:
        """(r, d) features of some rows of the pool."""
        if self._kept is None:
            return self.of(self._context.pool.take(rows))
        return self._kept[torch.as_tensor(rows, device=self._kept.device)]


def read_candidates(strategy: Any, context: QueryContext, n_instances: int) -> tuple[np.ndarray, Tensor, Tensor]:
    """Positions (N,) that take part, their features (N, d), and those of the labelled samples (n, d).

    Where memory does not hold the features of all, a random part of the pool takes part.
    """
    reader = KernelReader(context, strategy.features, strategy.n_features)
    n, fits = context.n_pool, reader.room()
    rows = np.arange(n)
    if fits < n:
        if fits < n_instances:
            needed = 32 * reader.width * (n_instances + context.n_labelled)
            remedy = "Raise it, or lower n_features."
            expected = f"at least {needed} bytes for {n_instances} samples"
            raise InvalidParameterError.for_parameter(context.owner, "max_memory", expected, context.max_memory, remedy)
        rows = np.sort(make_generator(context.owner, strategy.random_state).choice(n, size=fits, replace=False))
    return rows, reader.gather(rows), reader.labelled_features()


def factorize(M: Tensor) -> tuple[Tensor, Tensor]:
    """Factor L and units u of positive matrices, with ``u M u = L Lᵀ``: (..., d, d) -> (..., d, d), (..., d).

    In units in which the diagonal is 1, a labelled sample with a 1e30 that stands for "unknown" does not hide what the
    others tell. What is added to the diagonal is the rounding of a sum.

    Examples
    --------
    >>> L, u = factorize(torch.diag(torch.tensor([4.0, 1e60], dtype=torch.float64)))
    >>> [round(x, 6) for x in L.diagonal().tolist()], float(u[0])
    ([1.0, 1.0], 0.5)
    """
    u = M.diagonal(dim1=-2, dim2=-1).rsqrt()
    scaled = u[..., :, None] * M * u[..., None, :]
    scaled.diagonal(dim1=-2, dim2=-1).add_(M.shape[-1] * torch.finfo(M.dtype).eps)
    return torch.linalg.cholesky(scaled), u


class LinearPosterior:
    """S among candidates, conditioned on labelled samples: ``S = ψψᵀ − W Wᵀ``.

    With fewer labels than features W has a column for each label; otherwise ψ has taken them in.

    Parameters
    ----------
    labelled : (n, d) tensor
        In float64.
    noise : float
        s².
    """

    def __init__(self, labelled: Tensor, noise: float = NOISE) -> None:
        n, d = labelled.shape
        self.noise, self._labelled = noise, labelled
        self._dual = n <= d
        K = labelled @ labelled.T if self._dual else labelled.T @ labelled
        K.diagonal().add_(noise)
        self._factor, self._units = factorize(K)

    def split(self, phi: Tensor) -> tuple[Tensor, Tensor]:
        """ψ and W of candidates: (N, d) -> (N, d), (N, n or 0)."""
        if self._dual:
            K = (self._units[:, None] * self._labelled) @ phi.T
            return phi, torch.linalg.solve_triangular(self._factor, K, upper=False).T
        psi = torch.linalg.solve_triangular(self._factor, (phi * self._units).T, upper=False).T * self.noise**0.5
        return psi, phi[:, :0]

    def variances(self, phi: Tensor) -> Tensor:
        """(N,) S(x, x)."""
        psi, W = self.split(phi)
        return (psi.square().sum(1) - W.square().sum(1)).clamp_min_(0)
