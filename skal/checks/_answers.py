# SPDX-License-Identifier: BSD-3-Clause
"""Checks of what a strategy returns, and to whom."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import modAL.models
import numpy as np
from sklearn.base import clone

from skal._core.guard import preserve_rng
from skal.base import ScoreStrategy, query_function
from skal.checks._support import answer, expect, expect_batch, expect_error, expect_same, fresh, variant
from skal.compat.modal import expects_metrics
from skal.exceptions import InvalidParameterError
from skal.learners import ActiveLearner


def check_indices(strategy: Any, learner: Any, X_pool: Any) -> None:
    """``n_instances`` distinct int64 positions with a metric each, for one, two, many and all samples."""
    for n_instances in (1, 2, len(X_pool) // 2, len(X_pool)):
        expect_batch(strategy, learner, X_pool, n_instances)
    expect_batch(strategy, learner, X_pool[:1], 1, "a pool of one sample")


def check_score_shape(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Score strategies: ``_score`` gives one number per sample. The first check, since nothing works without it."""
    if isinstance(strategy, ScoreStrategy):
        context = fresh(strategy).prepare(learner, X_pool)
        with context.query():
            shape = np.shape(fresh(strategy)._score(context))
        expect(
            shape == (len(X_pool),),
            f"_score must return one number for each sample, an array of shape ({len(X_pool)},). Got shape {shape}.",
        )


def check_scores(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Score strategies: one float64 per sample, and the batch is those with the largest, best first.

    Where the scores are those of the first pick, that one has the largest.
    """
    if not hasattr(strategy, "scores"):
        return
    scores = fresh(strategy).scores(learner, X_pool)
    expect(
        isinstance(scores, np.ndarray) and scores.dtype == np.float64 and scores.shape == (len(X_pool),),
        f"scores must be a float64 array of shape ({len(X_pool)},). "
        f"Got {getattr(scores, 'dtype', type(scores).__name__)} of shape {np.shape(scores)}.",
    )
    expect(np.isfinite(scores).all(), "scores must be finite where everything is scored.")
    first_only = getattr(strategy, "scores_first_pick", False)
    n_instances = 1 if first_only else len(X_pool) // 2
    indices, metrics = fresh(strategy).select(learner, X_pool, n_instances)
    tolerance = 1e-5 if first_only else 0.0
    same = np.allclose(metrics, scores[indices], rtol=tolerance, atol=0)
    expect(same, "The metrics must be the scores of the chosen samples, as scores() gives them.")
    expect((np.diff(metrics) <= 0).all(), f"The chosen samples must come best first. Got the scores {metrics}.")
    expect(
        scores[indices].min() >= np.delete(scores, indices).max() * (1 - tolerance),
        "The chosen samples must be those with the largest scores. Got one with a lower score than one left behind.",
    )


def check_subset(strategy: Any, learner: Any, X_pool: Any) -> None:
    """``subset``: only that many samples are scored and chosen from, the others score −inf."""
    if "subset" not in strategy.get_params(deep=False):
        return
    n_pool, subset = len(X_pool), len(X_pool) // 2
    indices, _ = expect_batch(strategy, learner, X_pool, subset, f"subset={subset}", subset=subset)
    if hasattr(strategy, "scores"):
        scores = answer(strategy, learner, X_pool, subset=subset)
        outside = int(np.isneginf(scores).sum())
        expect(
            outside == n_pool - subset,
            f"With subset={subset} the other {n_pool - subset} samples must score -inf. Got -inf for {outside}.",
        )
        scored = set(np.flatnonzero(scores > -np.inf))
        expect(set(indices) == scored, "With subset only samples that have a score may be chosen.")
    other, _ = fresh(strategy, subset=subset, random_state=1).select(learner, X_pool, subset)
    expect(set(other) != set(indices), "Another random_state must draw another subset. Got the same samples.")
    ask, parts = fresh(strategy, subset=subset).select, ("n_instances", "subset", str(subset + 1))
    expect_error(InvalidParameterError, "n_instances larger than subset", parts, ask, learner, X_pool, subset + 1)
    whole = answer(strategy, learner, X_pool)
    for larger in (n_pool, n_pool + 1):
        got = answer(strategy, learner, X_pool, subset=larger)
        expect_same(whole, got, f"subset={larger} for a pool of {n_pool}")


def check_duplicates(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Samples that occur more than once: distinct positions all the same, and equal scores."""
    half = len(X_pool) // 2
    twice = np.concatenate([X_pool[:half], X_pool[:half]])
    expect_batch(strategy, learner, twice, 2 * half, "a pool with every sample twice")
    if hasattr(strategy, "scores") and not strategy.draws_from_pool:
        first, second = np.split(answer(strategy, learner, twice), 2)
        expect_same(first, second, "The second copy of every sample")
    expect_batch(strategy, learner, np.repeat(X_pool[:1], 10, axis=0), 5, "a pool of equal samples")


def check_one_class(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A learner that has seen only one class so far."""
    y = np.asarray(learner.y_training)
    rows = np.flatnonzero(y == y[0])
    X = learner.X_training[rows]
    with preserve_rng():
        net = clone(learner.estimator).fit(X, y[rows])
    one_class = variant(learner, estimator=net, X_training=X, y_training=y[rows])
    expect_batch(strategy, one_class, X_pool, 5, "a learner that knows one class")


def _learners(learner: Any, strategy: Any) -> Iterator[Any]:
    """The two ActiveLearners around the same estimator and labels, without training it again."""
    for cls in (modAL.models.ActiveLearner, ActiveLearner):
        active = cls(learner.estimator, query_strategy=strategy)
        active.X_training, active.y_training = learner.X_training, learner.y_training
        yield active


def check_convention(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Indices for a plain object, for skal's learner and for modAL 0.4.1; ``(indices, metrics)`` for 0.4.2."""
    indices, metrics = fresh(strategy).select(learner, X_pool, 2)
    for caller in (variant(learner), *_learners(learner, strategy)):
        name = f"{type(caller).__module__}.{type(caller).__name__}"
        got = fresh(strategy)(caller, X_pool, 2)
        if expects_metrics(caller):
            expect(isinstance(got, tuple) and len(got) == 2, f"{name} must get (indices, metrics). Got {got!r}.")
            expect(np.array_equal(got[1], metrics), f"{name} must get the metrics {metrics}. Got {got[1]!r}.")
            got = got[0]
        expect(isinstance(got, np.ndarray), f"{name} must get an index array. Got {type(got).__name__}.")
        expect(np.array_equal(got, indices), f"{name} must get the indices {indices}. Got {got!r}.")


def check_called_once(strategy: Any, learner: Any, X_pool: Any) -> None:
    """``query`` of modAL's learner and of skal's: one call of the strategy, and its indices and their rows."""
    calls: list[Any] = []

    def count_call(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return fresh(strategy)(*args, **kwargs)

    for n_instances in (1, 2, 5):
        expected, _ = fresh(strategy).select(learner, X_pool, n_instances)
        for active in _learners(learner, count_call):
            calls.clear()
            name = f"{type(active).__module__}.ActiveLearner.query(X_pool, n_instances={n_instances})"
            indices, samples = active.query(X_pool, n_instances=n_instances)
            expect(len(calls) == 1, f"{name} must call the strategy once. Got {len(calls)} calls.")
            expect(np.array_equal(indices, expected), f"{name} must return {expected}. Got {indices!r}.")
            expect(np.array_equal(samples, X_pool[expected]), f"{name} must return the rows of these indices.")


def check_function(strategy: Any, learner: Any, X_pool: Any) -> None:
    """``f(learner, X_pool, n, **params)`` is ``Class(**params)(learner, X_pool, n)``."""
    function = query_function(type(strategy), "function", __name__)
    # each side has parameters of its own: a strategy may keep state in one of them
    expected = fresh(strategy)(learner, X_pool, 3)
    got = function(learner, X_pool, 3, **fresh(strategy).get_params(deep=False))
    expect(np.array_equal(got, expected), f"The function must give {expected}, as the class does. Got {got}.")
    unknown = partial(function, no_such_parameter=1)
    case = "An unknown parameter of the function"
    expect_error(InvalidParameterError, case, ["no_such_parameter"], unknown, learner, X_pool, 3)
