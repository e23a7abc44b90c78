# SPDX-License-Identifier: BSD-3-Clause
"""BAIT: the samples whose labels tell most about the last layer (Ash, Goel, Krishnamurthy and Kakade 2021).

The information of a sample about the weights of class c is ``s_c φ φᵀ`` with ``s_c = p_c (1 − p_c)``; about those of a
target, under squared loss, ``φ φᵀ``. With
``M_c = λI + Σ s_c φ φᵀ`` over labelled and chosen samples, and F_c the mean of ``s_c φ φᵀ`` over the pool, a batch is
to make ``Σ_c tr(M_c⁻¹ F_c)`` small. A sample changes M_c by one rank, so that all candidates' effects follow from two
numbers for each class, ``q = s φᵀ M⁻¹ φ`` and ``r = s φᵀ M⁻¹ F M⁻¹ φ``, which are brought up to date.

Index letters: N candidates, n labelled samples, C classes, d features.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import ANY_TASK, QueryStrategy, query_function
from skal.context import QueryContext, Samples, rows_within
from skal.exceptions import InvalidParameterError
from skal.strategies._linear_posterior import factorize
from skal.strategies._pool_features import PoolFeatures
from skal.validation import Features, Integer, Real, make_generator

_BLOCK_BYTES = 2**21  # bytes of features in double precision that are worked on at once


class BAIT(QueryStrategy):
    """Query the samples that make the Fisher information of a linear classifier large where the pool needs it.

    The classifier is thought of as a last layer on features, with one block of Fisher information per class. Twice as
    many samples as asked for are chosen one after the other, each lowering the expected error over the pool most; then
    the least useful ones are given back, one after the other.

    Parameters
    ----------
    ridge : float, default=1.0
        Added to the information on the diagonal, λ.
    oversample : int, default=2
        How many times the batch is chosen before samples are given back.
    features : {"auto", "input", "last_layer", "tangent"}, transformer, callable or nn.Module, default="auto"
        See :class:`MaxHerding`; they are scaled by one number for all, to a mean square of 1, and a constant is added.
    subset : int or None, default=None
        Choose among this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the subset, and for the samples that take part.

    See Also
    --------
    BADGE : Large and different gradients of the last layer.
    NTKLookahead : Expected variance under a kernel.

    Notes
    -----
    The metrics say by how much the objective would rise without the sample. Copies of labelled or queried samples are
    queried only when nothing else is left. Blocks between classes are left out of the Fisher information: a last layer
    of C classes on d features has C blocks of d × d rather than one matrix of Cd × Cd.

    References
    ----------
    J. T. Ash, S. Goel, A. Krishnamurthy and S. M. Kakade (2021). Gone fishing: neural active learning with Fisher
    embeddings. NeurIPS.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.strategies import BAIT, bait
    >>> digits = load("digits")
    >>> X, y = digits.X_train.reshape(-1, 64), digits.y_train
    >>> learner = ActiveLearner(LogisticRegression(max_iter=1000), BAIT(), X_training=X[:20], y_training=y[:20])
    >>> indices, samples = learner.query(X[20:], n_instances=10)
    >>> samples.shape
    (10, 64)
    >>> bool((bait(learner, X[20:], 10) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = {
        "ridge": Real(1e-12, 1e12, remedy="Pass a number > 0."),
        "oversample": Integer(1),
        "features": Features(),
    }
    tasks = ANY_TASK
    needs_network = False

    def __init__(
        self,
        *,
        ridge: float = 1.0,
        oversample: int = 2,
        features: Any = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.ridge = ridge
        self.oversample = oversample
        self.features = features
        self.subset = subset
        self.random_state = random_state

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        n, fits = context.n_pool, self._n_that_fit(context, n_instances)
        rows = np.arange(n)
        if fits < n:
            rows = np.sort(make_generator(type(self).__name__, self.random_state).choice(n, size=fits, replace=False))
            context = context.restrict(rows)
        read = PoolFeatures(context, self.features, normalize=False)
        raw = read.gather(np.arange(context.n_pool))
        scale, precision = _root_mean_square(raw), context.features(self.features, context.pool.take(range(1))).dtype
        features, variances = _layer(raw, scale, precision), _variances(context, None, read.device)
        keys = read.copy_keys()
        labelled, taken = (features[:0], variances[:0]), keys[:0]
        if context.n_labelled:
            others = _layer(read.of(context.labelled), scale, precision)
            labelled = others, _variances(context, context.labelled, read.device)
            taken = read.copy_keys(context.labelled)
        del raw, read
        given = (features, variances, *labelled, self.ridge, keys, taken)
        picked, rises = forward_backward(*given, n_instances, self.oversample)
        return rows[picked], rises

    def _n_that_fit(self, context: QueryContext, n_instances: int) -> int:
        """The number of samples of the pool that take part."""
        first = context.features(self.features, context.pool.take(range(1)))
        n, width, n_classes = context.n_pool, first.shape[1], context.n_classes
        # M, its factor, its inverse, the information and products of them; features as they come and in double;
        # probabilities, variances, two numbers for each class and what changes them
        fixed = 48 * n_classes * (width + 1) ** 2 + 2 * _BLOCK_BYTES
        of_one = first.element_size() * width + 8 * (width + 1) + 80 * n_classes + 48
        fits = max(0, context.memory - fixed) // of_one - context.n_labelled
        needed = min(n, self.oversample * n_instances)
        if fits < needed:
            expected = f"at least {fixed + (needed + context.n_labelled) * of_one} bytes for {needed} samples"
            remedy = "Raise it, or pass features with fewer columns (for example a PCA)."
            raise InvalidParameterError.for_parameter(context.owner, "max_memory", expected, context.max_memory, remedy)
        return min(n, fits)


class _Design:
    """The inverse of M, and what candidates would do to the objective."""

    def __init__(self, features: Tensor, variances: Tensor, inverse: Tensor, information: Tensor) -> None:
        self._features, self._variances = features, variances  # (N, d), (N, C)
        self._inverse, self._information = inverse, information  # M⁻¹, F: (C, d, d)
        self._q, self._r = torch.empty_like(variances), torch.empty_like(variances)
        for c, (P, F) in enumerate(zip(inverse, information, strict=True)):
            self._q[:, c] = variances[:, c] * _forms(features, P)
            self._r[:, c] = variances[:, c] * _forms(features, P @ F @ P)

    def effects(self, sign: int) -> Tensor:
        """The fall of the objective with each candidate (1), or its rise without it (−1): (N,)."""
        return (self._r / (1 + sign * self._q)).sum(1)

    def change(self, row: int, sign: int) -> None:
        """Count a candidate (1), or no more (−1)."""
        phi, s = self._features[row].to(self._inverse), self._variances[row]
        u = self._inverse @ phi  # (C, d)
        scale = sign * s / (1 + sign * self._q[row])
        Fu = torch.einsum("cij,cj->ci", self._information, u)
        PFu = torch.einsum("cij,cj->ci", self._inverse, Fu)
        a, h = (_product(self._features, both.T) for both in (u, PFu))  # (N, C)
        self._q -= self._variances * scale * a.square()
        self._r -= self._variances * (2 * scale * a * h - scale.square() * (u * Fu).sum(1) * a.square())
        self._inverse.baddbmm_((u * -scale[:, None])[:, :, None], u[:, None, :])

    def of(self, rows: Tensor) -> _Design:
        """The same for some of the candidates, with everything computed anew."""
        return _Design(self._features[rows], self._variances[rows], self._inverse, self._information)


def blocks(rows: Tensor, row_bytes: int | None = None) -> tuple[Tensor, ...]:
    """Parts of rows, to be worked on one after the other."""
    blocks: tuple[Tensor, ...] = rows.split(rows_within(_BLOCK_BYTES, row_bytes or rows.element_size() * rows.shape[1]))
    return blocks


def _forms(features: Tensor, matrix: Tensor) -> Tensor:
    """φᵀ A φ of every row: (N, d), (d, d) -> (N,)."""
    return torch.cat([(_product(some, matrix).mul_(some)).sum(1) for some in blocks(features)])


def _product(features: Tensor, matrix: Tensor) -> Tensor:
    """Made in the precision of the features, of which there are many: (N, d), (d, m) -> (N, m) like the matrix."""
    return (features @ matrix.to(features)).to(matrix)


def information(features: Tensor, variances: Tensor) -> Tensor:
    """Sum of the Fisher information of samples, in the variances' precision: (n, d), (n, C) -> (C, d, d)."""
    found = variances.new_zeros(variances.shape[1], features.shape[1], features.shape[1])
    parts = blocks(features)
    for some, s in zip(parts, variances.split(max(1, len(parts[0]))), strict=True):
        for c in range(len(found)):
            found[c] += (some * s[:, c, None].to(some)).T @ some
    return found


def forward_backward(
    features: Tensor,
    variances: Tensor,
    labelled: Tensor,
    labelled_variances: Tensor,
    ridge: float,
    keys: Tensor,
    taken: Tensor,
    n_instances: int,
    oversample: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Candidates that lower the objective most, some of them given back.

    Parameters
    ----------
    features, variances : (N, d), (N, C) tensors
        Variances in double precision. Products of features are made in theirs, all else in double precision.
    labelled, labelled_variances : (n, d), (n, C) tensors
    ridge : float
        λ
    keys, taken : (N,), (n,) tensors
        Equal for copies: copies of taken or chosen samples are chosen only when nothing else is left.
    n_instances, oversample : int
        ``oversample * n_instances`` are chosen, or fewer if the pool has fewer different ones.

    Returns
    -------
    picked : (n_instances,) array
        The most useful first.
    rises : (n_instances,) array
        Of the objective without each.
    """
    M = information(labelled.to(variances), labelled_variances)
    M.diagonal(dim1=1, dim2=2).add_(ridge)
    factor, units = factorize(M)
    inverse = torch.cholesky_inverse(factor).mul_(units[:, :, None]).mul_(units[:, None, :])
    design = _Design(features, variances, inverse, information(features, variances).div_(len(features)))
    spent, free = torch.isin(keys, taken), torch.ones(len(keys), dtype=torch.bool, device=keys.device)
    picked: list[int] = []
    while len(picked) < min(len(keys), oversample * n_instances):
        open_ = free & ~spent
        if not bool(open_.any()):
            if len(picked) >= n_instances:
                break
            open_ = free
        row = int(design.effects(1).masked_fill_(~open_, -torch.inf).argmax())
        design.change(row, 1)
        picked.append(row)
        free[row] = False
        spent |= keys == keys[row]
    chosen = torch.tensor(picked, device=keys.device)
    design, left = design.of(chosen), torch.ones(len(picked), dtype=torch.bool, device=keys.device)
    while int(left.sum()) > n_instances:
        row = int(design.effects(-1).masked_fill_(~left, torch.inf).argmin())
        design.change(row, -1)
        left[row] = False
    rises = design.effects(-1)[left]
    order = rises.argsort(descending=True, stable=True)
    return chosen[left][order].cpu().numpy(), rises[order].cpu().numpy()


def _root_mean_square(features: Tensor) -> float:
    """Root of the mean square of numbers whose squares may be too large for a float: (n, d) -> float."""
    largest = max(float(features.max()), -float(features.min()), torch.finfo(torch.float64).tiny)
    squares = sum(float((some.double() / largest).square_().sum()) for some in blocks(features))
    ridge: float = largest * max((squares / features.numel()) ** 0.5, 1e-300)
    return ridge


def _layer(features: Tensor, scale: float, precision: torch.dtype) -> Tensor:
    """Inputs of the last layer, with a constant: (n, d) -> (n, d + 1)."""
    inputs = torch.ones(len(features), features.shape[1] + 1, dtype=precision, device=features.device)
    for some, part in zip(blocks(inputs), blocks(features, inputs.shape[1] * 8), strict=True):
        some[:, :-1] = part.double() / scale
    return inputs


def _variances(context: QueryContext, samples: Samples | None, device: torch.device) -> Tensor:
    """p (1 − p) of every class or label: (n, C). Targets of a regression have the same φ, and one block for all."""
    return context.meaning.variances(torch.as_tensor(context.answers(samples), device=device))


bait = query_function(BAIT, "bait", __name__)
