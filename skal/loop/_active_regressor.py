# SPDX-License-Identifier: BSD-3-Clause
"""A regressor whose ``fit`` spends a labelling budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import RegressorMixin

from skal._core.tasks import REGRESSION, check_targets, find_task
from skal.exceptions import InvalidParameterError, InvalidTypeError, shorten
from skal.loop._active_loop import ActiveLearningLoop


class ActiveLearningRegressor(RegressorMixin, ActiveLearningLoop):
    """Active learning as a regressor: ``fit`` asks for the numbers of some samples and learns from those.

    Works in cross-validation, grid search (``query_strategy__noise``, ``estimator__alpha``) and pipelines.

    Parameters
    ----------
    estimator : regressor
        A skorch ``NeuralNetRegressor``, a Pipeline that ends in one, or any scikit-learn regressor. A clone of it is
        fitted: a net on numbers less their mean and over their deviation, and what it predicts is scaled back; anything
        else on the numbers as they are.
    query_strategy : callable, str or None, default="auto"
        A strategy of skal that works on regressors, its name such as ``"lcmd"``, or a function ``f(learner, X_pool,
        n_instances)`` that returns positions; ``"auto"`` and None are the recommended strategy. An estimator is cloned,
        and seeded in every round: from its ``random_state`` if that is an integer, from the loop's if it is None.
    n_initial : int, default=20
        Labels before the first query. With 0 a skorch net makes the first query with its initial weights.
    initial : {"random", "auto"}, strategy or array of int, default="auto"
        How the first samples are chosen. A strategy that needs no labels, such as ``MaxHerding()``, or its name,
        chooses them before anything is trained. An array gives their positions, and ``n_initial`` is not used.
    query_size : int, default=10
        Labels per round.
    n_rounds : int or None, default=10
        Rounds after the initial one. None goes on until everything is labelled.
    budget : int or None, default=None
        Labels in all, the initial ones included. Takes the place of ``n_rounds``.
    scoring : str, callable or None, default=None
        As in scikit-learn, for the scores in the history. None is R².
    reinitialize : bool, default=False
        Train a network from scratch in every round. Other estimators start anew whenever they are fitted.
    callbacks : list of callables or None, default=None
        ``callback(regressor, row)`` is called after every round; one that returns True ends the loop.
    checkpoint : path or None, default=None
        A folder for the labels and a cache. ``fit`` or ``start`` with the same data and parameters goes on from there.
        Every label is in its ``labels.jsonl``; its ``cache/`` may be deleted at any time.
    verbose : int, default=0
        1 prints a row per round. With ``skal.set_config(progress=True)`` there is one progress bar for the whole run.
    random_state : None, int, Generator or RandomState, default=None
        For the initial set, the training and the strategy.
    stop : StoppingCriterion or None, default=None
        ``Budget`` or ``MaxTime`` of :mod:`skal.stopping`. The other criteria count how often classes are right.
    hold_out : {"random"}, default="random"
        As in :class:`ActiveLearningClassifier`; audits are of classes.

    Attributes
    ----------
    estimator_ : regressor
        Fitted; a net on the scaled labels.
    queried_ : (n_labelled,) int64 array
        Positions of the labelled samples, in the order they were labelled.
    history_ : list of dict
        One row a round, as of :class:`ActiveLearningClassifier`.
    query_strategy_ : callable
        The strategy that was used, with what it has learnt; for "auto" the one that was recommended last.
    initial_ : str or None
        How the first samples were chosen, and why so.
    stop_reason_ : str
        "budget", "pool exhausted", "callback", or "stop: " and the reason that ``stop`` gives.
    session_ : LabellingSession
        Only if ``fit`` was interrupted: ``session_.run(oracle)`` goes on.
    n_features_in_, feature_names_in_
        As in scikit-learn, for arrays and data frames.

    Notes
    -----
    Only the labels of queried samples are used; that y is finite and not constant is checked for all of it. Labels may
    be rows of several numbers. A network's targets get the shape and type of its outputs.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.ensemble import RandomForestRegressor
    >>> from skal import ActiveLearningRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> loop = ActiveLearningRegressor(RandomForestRegressor(20, random_state=0), n_rounds=3, random_state=0)
    >>> loop.fit(X, y)
    ActiveLearningRegressor(...)
    >>> loop.queried_.shape, [row["n_labelled"] for row in loop.history_]
    ((50,), [20, 30, 40, 50])
    """

    def __init__(
        self,
        estimator: Any,
        query_strategy: Any = "auto",
        *,
        n_initial: int = 20,
        initial: Any = "auto",
        query_size: int = 10,
        n_rounds: int | None = 10,
        budget: int | None = None,
        scoring: Any = None,
        reinitialize: bool = False,
        callbacks: Sequence[Callable[..., Any]] | None = None,
        checkpoint: Any = None,
        verbose: int = 0,
        random_state: Any = None,
        stop: Any = None,
        hold_out: str = "random",
    ) -> None:
        self.estimator = estimator
        self.query_strategy = query_strategy
        self.n_initial = n_initial
        self.initial = initial
        self.query_size = query_size
        self.n_rounds = n_rounds
        self.budget = budget
        self.scoring = scoring
        self.reinitialize = reinitialize
        self.callbacks = callbacks
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.random_state = random_state
        self.stop = stop
        self.hold_out = hold_out

    def _find_task(self, y: Any) -> str:
        if find_task(self.estimator) != REGRESSION:
            remedy = "Use ActiveLearningClassifier for classes, and skorch.NeuralNetRegressor for a network."
            owner = type(self).__name__
            got = type(self.estimator).__name__
            raise InvalidTypeError.for_parameter(owner, "estimator", "a regressor", got, remedy)
        return REGRESSION

    def _find_askable(self, y: Any, task: str) -> np.ndarray | None:
        if y is None:  # a Dataset brings its own
            return None
        numbers = check_targets(type(self).__name__, y, task)
        if len(numbers) > 1 and (numbers == numbers[:1]).all():
            raise InvalidParameterError(
                f"The y of {type(self).__name__} must vary. Got {shorten(numbers[0].tolist())} for all {len(numbers)} "
                "samples. There is nothing to learn from them: check which column is the target."
            )
        return None

    def _take_predictor(self, predictor: Any) -> None:
        """Nothing more than what every loop has."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # how good a score is depends on the budget
        return tags
