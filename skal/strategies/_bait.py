# SPDX-License-Identifier: BSD-3-Clause
"""BAIT: the samples whose labels tell most about the last layer (Ash, Goel, Krishnamurthy and Kakade 2021)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import QueryStrategy, query_function
from skal.context import QueryContext, Samples
from skal.exceptions import InvalidParameterError
from skal.strategies._fisher import BLOCK_BYTES, blocks, forward_backward
from skal.strategies._pool_features import PoolFeatures, feature_shape
from skal.validation import Features, Integer, Real, make_generator

__all__ = ["BAIT", "bait"]


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
        n, fits = context.n_pool, self._n_that_fit(context, context.n_pool, n_instances)[0]
        rows = np.arange(n)
        if fits < n:
            rows = np.sort(make_generator(type(self).__name__, self.random_state).choice(n, size=fits, replace=False))
            context = context.restrict(rows)
        read = PoolFeatures(context, self.features, normalize=False)
        raw = read.gather(np.arange(context.n_pool))
        scale = _root_mean_square(raw)
        features, variances = _layer(raw, scale), _variances(context, None, read.device)
        keys = read.copy_keys()
        labelled, taken = (features[:0], variances[:0]), keys[:0]
        if context.n_labelled:
            others = _layer(read.of(context.labelled), scale)
            labelled = others, _variances(context, context.labelled, read.device)
            taken = read.copy_keys(context.labelled)
        del raw, read
        given = (features, variances, *labelled, self.ridge, keys, taken)
        picked, rises = forward_backward(*given, n_instances, self.oversample)
        return rows[picked], rises

    def _n_that_fit(self, context: QueryContext, n: int, n_instances: int) -> tuple[int, int]:
        """How many samples take part, and the bytes that they need."""
        shape, n_classes = feature_shape(context, self.features), context.n_classes
        # M, its factor, its inverse, the information and products of them; features as they come and in double;
        # probabilities, variances, two numbers for each class and what changes them
        fixed = 48 * n_classes * (shape.width + 1) ** 2 + 2 * BLOCK_BYTES
        of_one = shape.row_bytes + 8 * (shape.width + 1) + 80 * n_classes + 48
        fits = max(0, context.memory - fixed) // of_one - context.n_labelled
        needed = min(n, self.oversample * n_instances)
        if fits < needed:
            expected = f"at least {fixed + (needed + context.n_labelled) * of_one} bytes for {needed} samples"
            remedy = "Raise it, or pass features with fewer columns (for example a PCA)."
            raise InvalidParameterError.for_parameter("BAIT", "max_memory", expected, context.max_memory, remedy)
        fits = min(n, fits)
        return fits, fixed + (fits + context.n_labelled) * of_one


def _root_mean_square(features: Tensor) -> float:
    """Of all numbers, whose squares may be too large for a float: (n, d) -> float."""
    largest = max(float(features.max()), -float(features.min()), torch.finfo(torch.float64).tiny)
    squares = sum(float((some.double() / largest).square_().sum()) for some in blocks(features))
    ridge: float = largest * max((squares / features.numel()) ** 0.5, 1e-300)
    return ridge


def _layer(features: Tensor, scale: float) -> Tensor:
    """Inputs of the last layer, with a constant: (n, d) -> (n, d + 1)."""
    inputs = torch.ones(len(features), features.shape[1] + 1, dtype=torch.float64, device=features.device)
    for some, part in zip(blocks(inputs), blocks(features, inputs.shape[1] * 8), strict=True):
        some[:, :-1] = part.double() / scale
    return inputs


def _variances(context: QueryContext, samples: Samples | None, device: torch.device) -> Tensor:
    """p (1 − p) of every class: (n, C)."""
    proba = torch.as_tensor(context.predict_proba(samples), device=device)
    return proba * (1 - proba)


bait = query_function(BAIT, "bait", __name__)
