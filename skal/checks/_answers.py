"""Checks of what a strategy returns, and to whom."""

from __future__ import annotations

from typing import Any

import modAL.models
import numpy as np
from sklearn.base import clone

from skal._core.network import preserved_rng
from skal.base import query_function
from skal.checks._support import Outcome, expect, expect_close, expect_error, expect_valid, fresh, variant
from skal.compat.modal import expects_metrics
from skal.exceptions import InvalidParameterError
from skal.learners import ActiveLearner


def check_indices(strategy: Any, learner: Any, X_pool: Any) -> None:
    """``n_instances`` distinct int64 positions with a metric each, for one, two, many and all samples."""
    n_pool = len(X_pool)
    for n_instances in (1, 2, n_pool // 2, n_pool):
        indices, metrics = fresh(strategy).select(learner, X_pool, n_instances)
        expect_valid(indices, metrics, n_instances, n_pool)
    indices, metrics = fresh(strategy).select(learner, X_pool[:1], 1)
    expect_valid(indices, metrics, 1, 1, "a pool of one sample")


def check_scores(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Score strategies: one float64 per sample, and the batch is those with the largest, best first."""
    if not hasattr(strategy, "scores"):
        return
    scores = fresh(strategy).scores(learner, X_pool)
    expect(
        isinstance(scores, np.ndarray) and scores.dtype == np.float64 and scores.shape == (len(X_pool),),
        f"scores must be a float64 array of shape ({len(X_pool)},). "
        f"Got {getattr(scores, 'dtype', type(scores).__name__)} of shape {np.shape(scores)}.",
    )
    expect(np.isfinite(scores).all(), "scores must be finite where everything is scored.")
    n_instances = len(X_pool) // 2
    indices, metrics = fresh(strategy).select(learner, X_pool, n_instances)
    expect(
        np.array_equal(metrics, scores[indices]),
        "The metrics must be the scores of the chosen samples, as scores() gives them.",
    )
    expect((np.diff(metrics) <= 0).all(), f"The chosen samples must come best first. Got the scores {metrics}.")
    expect(
        metrics.min() >= np.delete(scores, indices).max(),
        "The chosen samples must be those with the largest scores. Got one with a lower score than one left behind.",
    )


def check_subset(strategy: Any, learner: Any, X_pool: Any) -> None:
    """``subset``: only that many samples are scored and chosen from, the others score −inf."""
    if "subset" not in strategy.get_params(deep=False):
        return
    n_pool, subset = len(X_pool), len(X_pool) // 2
    limited = fresh(strategy, subset=subset)
    indices, metrics = limited.select(learner, X_pool, subset)
    expect_valid(indices, metrics, subset, n_pool, f"subset={subset}")
    if hasattr(strategy, "scores"):
        scores = limited.scores(learner, X_pool)
        expect(
            np.isneginf(scores).sum() == n_pool - subset,
            f"With subset={subset} the other {n_pool - subset} samples must score -inf. "
            f"Got -inf for {np.isneginf(scores).sum()}.",
        )
        expect(
            set(indices) == set(np.flatnonzero(scores > -np.inf)),
            "With subset only samples that have a score may be chosen.",
        )
    other, _ = fresh(strategy, subset=subset, random_state=1).select(learner, X_pool, subset)
    expect(set(other) != set(indices), "Another random_state must draw another subset. Got the same samples.")
    expect_error(
        lambda: limited.select(learner, X_pool, subset + 1),
        InvalidParameterError,
        "n_instances larger than subset",
        "n_instances",
        "subset",
        str(subset + 1),
    )
    for larger in (n_pool, n_pool + 1):
        expect_close(
            Outcome.of(fresh(strategy), learner, X_pool),
            Outcome.of(fresh(strategy, subset=larger), learner, X_pool),
            f"subset={larger} for a pool of {n_pool}",
        )


def check_duplicates(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Samples that occur more than once: distinct positions all the same, and equal scores."""
    half = len(X_pool) // 2
    twice = np.concatenate([X_pool[:half], X_pool[:half]])
    indices, metrics = fresh(strategy).select(learner, twice, 2 * half)
    expect_valid(indices, metrics, 2 * half, 2 * half, "a pool with every sample twice")
    if hasattr(strategy, "scores") and not strategy.draws_from_pool:
        scores = fresh(strategy).scores(learner, twice)
        first, second = (Outcome(part, indices, metrics) for part in np.split(scores, 2))
        expect_close(first, second, "The second copy of every sample")
    same = np.repeat(X_pool[:1], 10, axis=0)
    indices, metrics = fresh(strategy).select(learner, same, 5)
    expect_valid(indices, metrics, 5, 10, "a pool of equal samples")


def check_one_class(strategy: Any, learner: Any, X_pool: Any) -> None:
    """A learner that has seen only one class so far."""
    y = np.asarray(learner.y_training)
    rows = np.flatnonzero(y == y[0])
    X = learner.X_training[rows]
    with preserved_rng():
        net = clone(learner.estimator).fit(X, y[rows])
    indices, metrics = fresh(strategy).select(
        variant(learner, estimator=net, X_training=X, y_training=y[rows]), X_pool, 5
    )
    expect_valid(indices, metrics, 5, len(X_pool), "a learner that knows one class")


def _learners(learner: Any, strategy: Any) -> list[Any]:
    """The two ActiveLearners around the same estimator and labels, without training it again."""
    made = []
    for cls in (modAL.models.ActiveLearner, ActiveLearner):
        active = cls(learner.estimator, query_strategy=strategy)
        active.X_training, active.y_training = learner.X_training, learner.y_training
        made.append(active)
    return made


def check_convention(strategy: Any, learner: Any, X_pool: Any) -> None:
    """Indices for a plain object, for skal's learner and for modAL 0.4.1; ``(indices, metrics)`` for 0.4.2."""
    indices, metrics = fresh(strategy).select(learner, X_pool, 2)
    for caller in (variant(learner), *_learners(learner, strategy)):
        name = f"{type(caller).__module__}.{type(caller).__name__}"
        answer = fresh(strategy)(caller, X_pool, 2)
        if expects_metrics(caller):
            expect(
                isinstance(answer, tuple) and len(answer) == 2, f"{name} must get (indices, metrics). Got {answer!r}."
            )
            expect(np.array_equal(answer[1], metrics), f"{name} must get the metrics {metrics}. Got {answer[1]!r}.")
            answer = answer[0]
        expect(isinstance(answer, np.ndarray), f"{name} must get an index array. Got {type(answer).__name__}.")
        expect(np.array_equal(answer, indices), f"{name} must get the indices {indices}. Got {answer!r}.")


class _Counting:
    """A strategy that counts how often it is asked."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self.strategy(*args, **kwargs)


def check_called_once(strategy: Any, learner: Any, X_pool: Any) -> None:
    """``query`` of modAL's learner and of skal's: one call of the strategy, and its indices and their rows."""
    for n_instances in (1, 2, 5):
        expected, _ = fresh(strategy).select(learner, X_pool, n_instances)
        for number in range(2):
            counting = _Counting(fresh(strategy))
            active = _learners(learner, counting)[number]
            name = f"{type(active).__module__}.ActiveLearner.query(X_pool, n_instances={n_instances})"
            indices, samples = active.query(X_pool, n_instances=n_instances)
            expect(counting.calls == 1, f"{name} must call the strategy once. Got {counting.calls} calls.")
            expect(np.array_equal(indices, expected), f"{name} must return {expected}. Got {indices!r}.")
            expect(np.array_equal(samples, X_pool[expected]), f"{name} must return the rows of these indices.")


def check_function(strategy: Any, learner: Any, X_pool: Any) -> None:
    """``f(learner, X_pool, n, **params)`` is ``Class(**params)(learner, X_pool, n)``."""
    function = query_function(type(strategy), "function", __name__)
    # each side has parameters of its own: a strategy may keep state in one of them
    expected = fresh(strategy)(learner, X_pool, 3)
    got = function(learner, X_pool, 3, **fresh(strategy).get_params(deep=False))
    expect(np.array_equal(got, expected), f"The function must give {expected}, as the class does. Got {got}.")
    expect_error(
        lambda: function(learner, X_pool, 3, no_such_parameter=1),
        InvalidParameterError,
        "An unknown parameter of the function",
        "no_such_parameter",
    )
