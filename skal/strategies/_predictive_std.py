# SPDX-License-Identifier: BSD-3-Clause
"""Predictive deviation: how uncertain a regressor is of each sample by itself."""

from __future__ import annotations

from functools import partial
from inspect import signature
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import ANY_TASK, ScoreStrategy, query_function
from skal.context import QueryContext, Samples, fill_rows
from skal.exceptions import InvalidParameterError
from skal.strategies._dropout import MOST_PASSES, dropout_outputs, seeds_of
from skal.strategies._linear_posterior import (
    CONSTRAINTS,
    NOISE,
    KernelReader,
    LinearPosterior,
    MemberPredictions,
    find_members,
    target_units,
)
from skal.validation import Choice, Integer, Real, make_generator

_ROWS = 4096


class PredictiveStd(ScoreStrategy):
    """Query the samples whose predicted number has the largest standard deviation.

    Parameters
    ----------
    source : {"auto", "return_std", "ensemble", "dropout", "posterior"}, default="auto"
        Where the deviation comes from. ``return_std`` asks an estimator whose ``predict`` has that parameter (Gaussian
        processes, Bayesian ridge regression). ``ensemble`` is the spread of the predictions of a forest, of bagging, of
        a voting regressor or of a committee. ``dropout`` is the spread of a network's outputs over dropout masks.
        ``posterior`` is that of a linear model on features, given the labelled samples: with a network, of its
        linearisation. ``auto`` is the first that there is of ``return_std``, ``ensemble`` and ``posterior``.
    n_passes : int, default=20
        Masks of ``dropout``.
    noise : float, default=1e-4
        Of ``posterior``: variance of a label's noise, as a part of the pool's mean variance before any label.
    features : {"auto", "input", "prepared", "last_layer", "tangent"}, transformer, callable or module, default="auto"
        Of ``posterior``; see :class:`LCMD`.
    n_features : "auto", int or None, default="auto"
        Of ``posterior``; see :class:`LCMD`.
    subset : int or None, default=None
        Score only this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the subset, and for the dropout masks.

    See Also
    --------
    MaxDet : One sample after the other, each as if those before had been labelled.
    UHerding : Covers the samples whose deviation is large.

    Notes
    -----
    A batch of the largest deviations holds samples that are alike: use it for single queries, or as the uncertainty of
    :class:`UHerding`. Several targets count in units of the labelled targets' own deviations; the score is the root of
    the mean variance.

    References
    ----------
    A. Kirsch (2023). Black-box batch active learning for regression. TMLR.

    Examples
    --------
    >>> from sklearn.datasets import make_regression
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from skal import ActiveLearner
    >>> from skal.strategies import PredictiveStd, predictive_std
    >>> X, y = make_regression(n_samples=100, n_features=3, random_state=0)
    >>> process = GaussianProcessRegressor(optimizer=None)
    >>> learner = ActiveLearner(process, PredictiveStd(), X_training=X[:20], y_training=y[:20])
    >>> indices, samples = learner.query(X[20:], n_instances=2)
    >>> samples.shape
    (2, 3)
    >>> bool((predictive_std(learner, X[20:], 2) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = CONSTRAINTS | {
        "source": Choice("auto", "return_std", "ensemble", "dropout", "posterior"),
        "n_passes": Integer(2, MOST_PASSES),
        "noise": Real(1e-12, 1e12, remedy="Pass a number > 0, such as 1e-4."),
    }
    tasks = ANY_TASK
    needs_network = False
    zero_is_certain = True

    def __init__(
        self,
        *,
        source: str = "auto",
        n_passes: int = 20,
        noise: float = NOISE,
        features: Any = "auto",
        n_features: int | str | None = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.source = source
        self.n_passes = n_passes
        self.noise = noise
        self.features = features
        self.n_features = n_features
        self.subset = subset
        self.random_state = random_state

    def _score(self, context: QueryContext) -> np.ndarray:
        source = self.source
        if source == "auto":
            source = "return_std" if _returns_std(context) else "ensemble" if _is_ensemble(context) else "posterior"
        if source == "return_std":
            return self._by_return_std(context)
        if source == "ensemble":
            return self._by_ensemble(context)
        return self._by_dropout(context) if source == "dropout" else self._by_posterior(context)

    def _by_return_std(self, context: QueryContext) -> np.ndarray:
        if not _returns_std(context):
            raise self._unusable("an estimator whose predict has return_std", context)
        predict = partial(context.estimator.predict, return_std=True)
        parts = [np.asarray(predict(X)[1], dtype=np.float64) for X in context.pool.chunks(_ROWS, stacked=True)]
        return _root_mean_square(np.concatenate(parts), target_units(context))

    def _by_ensemble(self, context: QueryContext) -> np.ndarray:
        members = find_members(context) if _is_ensemble(context) else None
        if members is None:
            raise self._unusable("a forest, a bagging or voting regressor, or a committee of regressors", context)
        read = MemberPredictions(context, members)  # less their mean, over √m: the square is the variance
        parts = [read(X) for X in context.pool.chunks(_ROWS, stacked=True)]
        n_targets = parts[0].shape[1] // len(members)
        deviations: np.ndarray = np.sqrt(np.square(np.concatenate(parts)).sum(axis=1) / n_targets)
        return deviations

    def _by_dropout(self, context: QueryContext) -> np.ndarray:
        context.require_network()
        if context.meaning.has_probabilities:
            raise self._unusable("a network that predicts numbers", context)
        network, seeds = context.network, seeds_of(self, make_generator(type(self).__name__, self.random_state))
        owner, batch_size = context.owner, context.batch_size

        def shard(part: Samples) -> Tensor:
            chunks = dropout_outputs(network, part, batch_size, seeds, owner)
            return fill_rows((outputs.double().var(dim=0, unbiased=False) for outputs in chunks), len(part))

        variances = network.collect(shard, context.pool, batch_size).cpu().numpy()
        return _root_mean_square(np.sqrt(variances), target_units(context))

    def _by_posterior(self, context: QueryContext) -> np.ndarray:
        reader = KernelReader(context, self.features, self.n_features)
        posterior = LinearPosterior(reader.labelled_features(), self.noise)
        return torch.cat([posterior.variances(block).sqrt() for block in reader.blocks()]).cpu().numpy()

    def _unusable(self, expected: str, context: QueryContext) -> InvalidParameterError:
        got = f"source={self.source!r} for {type(context.inner_estimator).__name__}"
        wanted, remedy = f"one that the estimator has ({expected})", f"Use {expected}, or source='posterior'."
        return InvalidParameterError.for_parameter(type(self).__name__, "source", wanted, got, remedy)


def _returns_std(context: QueryContext) -> bool:
    """True if ``predict`` gives deviations, through the steps before it."""
    predict = getattr(context.inner_estimator, "predict", None)
    return not context.has_network and predict is not None and "return_std" in signature(predict).parameters


def _is_ensemble(context: QueryContext) -> bool:
    without = context.meaning.has_probabilities or context.has_network
    return not without and find_members(context) is not None


def _root_mean_square(deviations: np.ndarray, units: np.ndarray) -> np.ndarray:
    """(N,) or (N, k) deviations and (1, k) units -> (N,)."""
    root: np.ndarray = np.sqrt(np.square(deviations.reshape(len(deviations), -1) / units).mean(axis=1))
    return root


predictive_std = query_function(PredictiveStd, "predictive_std", __name__)
