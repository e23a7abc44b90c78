# SPDX-License-Identifier: BSD-3-Clause
"""A classifier whose ``fit`` spends a labelling budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skal._core.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, UNKNOWN, check_targets, find_task, needs_rows
from skal.exceptions import InvalidParameterError, InvalidTypeError, shorten
from skal.loop._active_loop import ActiveLearningLoop
from skal.loop._labels import find_labels
from skal.loop._rules import uses_unlabelled
from skal.models._predictor import Predictor


class ActiveLearningClassifier(ClassifierMixin, ActiveLearningLoop):
    """Active learning as a classifier: ``fit`` asks for the labels of some samples and learns from those.

    Works in cross-validation, grid search (``query_strategy__gamma``, ``estimator__lr``) and pipelines.

    Parameters
    ----------
    estimator : classifier
        A skorch net, a Pipeline that ends in one, or any scikit-learn classifier. A clone of it is fitted. If it learns
        from unlabelled data (scikit-learn's semi-supervised classifiers, or any with ``uses_unlabelled = True``), it
        gets all samples, with the label −1 where there is none.
    query_strategy : callable, str or None, default="auto"
        A strategy of skal or of modAL, its name such as ``"uherding"``, or a function ``f(learner, X_pool,
        n_instances)`` that returns positions; ``"auto"`` and None are the recommended strategy. An estimator is cloned,
        and seeded in every round: from its ``random_state`` if that is an integer, from the loop's if it is None.
    n_initial : int, default=20
        Labels before the first query. With 0 a skorch net makes the first query with its initial weights.
    initial : {"random", "stratified", "auto"}, strategy or array of int, default="auto"
        How the first samples are chosen. "stratified" reads all of y, to have every class from the start. A strategy
        that needs no labels, such as ``MaxHerding()``, or its name, chooses them before anything is trained. "auto" is
        ``MaxHerding`` where features mean something (a classifier on inputs that are numbers, or a network with frozen
        layers), and random otherwise. An array gives their positions, and ``n_initial`` is not used.
    query_size : int, default=10
        Labels per round.
    n_rounds : int or None, default=10
        Rounds after the initial one. None goes on until everything is labelled.
    budget : int or None, default=None
        Labels in all, the initial ones included. Takes the place of ``n_rounds``.
    scoring : str, callable or None, default=None
        As in scikit-learn, for the scores in the history. None is accuracy.
    classes : array or None, default=None
        All classes, if they are known: output k of a network is the k-th in sorted order. Without it, integers are
        the numbers of the network's outputs, and other labels take the next output when they are first seen.
        Of an indicator matrix the names of its columns, in order; ``labels.jsonl`` keeps them, and a ``checkpoint``
        whose columns are named otherwise is refused.
    reinitialize : bool, default=False
        Train a network from scratch in every round. Other estimators start anew whenever they are fitted.
    callbacks : list of callables or None, default=None
        ``callback(classifier, row)`` is called after every round; one that returns True ends the loop.
    checkpoint : path or None, default=None
        A folder for the labels and a cache. ``fit`` or ``start`` with the same data and parameters goes on from there.
        Every label is in its ``labels.jsonl``; its ``cache/`` may be deleted at any time.
    verbose : int, default=0
        1 prints a row per round. With ``skal.set_config(progress=True)`` there is one progress bar for the whole run.
    random_state : None, int, Generator or RandomState, default=None
        For the initial set, the training and the strategy.
    stop : StoppingCriterion or None, default=None
        A criterion of :mod:`skal.stopping` that may end the loop earlier; with ``n_rounds=None`` it alone decides.
    hold_out : {"random", "audit"}, default="random"
        What becomes of labels that are held out. "random": if ``stop`` wants it, a share of the labels is never trained
        on. "audit": a share is held out in any case, a fifth if ``stop`` says nothing else; ``session.audit()`` tells
        what they say, and when the loop ends, they are trained on.

    Attributes
    ----------
    estimator_ : classifier
        Fitted on the labels.
    queried_ : (n_labelled,) int64 array
        Positions of the labelled samples, in the order they were labelled.
    history_ : list of dict
        One row a round: ``round``, ``n_labelled``, ``indices``, ``declined``, ``metrics`` of the strategy,
        ``reason`` (which strategy chose, and why this one), ``train_score``, ``eval_score`` (with ``eval_set``),
        ``seconds_fit``, ``seconds_query``. With ``stop`` also ``elapsed`` and what the criterion looks at:
        ``agreement``, ``uncertainty_mean``, ``uncertainty_max``, ``heldout_score``, ``n_heldout``.
    classes_ : (n_classes,) array
        Sorted. Without ``classes``, those seen; for a network with integer labels one per output.
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
    y may be an indicator matrix, dense or sparse: 1 where a sample has a label. ``predict`` and ``predict_proba`` then
    give (n, L) arrays, and ``classes_`` are the numbers of the columns.

    Only the labels of queried samples are read from y, except for a stratified start. As long as the labels are too few
    to fit the estimator (none, or one class for an estimator that is not a network), rounds draw at random.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearningClassifier
    >>> X, y = load_digits(return_X_y=True)
    >>> clf = ActiveLearningClassifier(LogisticRegression(max_iter=500), n_initial=30, n_rounds=3, random_state=0)
    >>> clf.fit(X, y)
    ActiveLearningClassifier(...)
    >>> clf.queried_.shape, [row["n_labelled"] for row in clf.history_]
    ((60,), [30, 40, 50, 60])
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
        classes: Any = None,
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
        self.classes = classes
        self.reinitialize = reinitialize
        self.callbacks = callbacks
        self.checkpoint = checkpoint
        self.verbose = verbose
        self.random_state = random_state
        self.stop = stop
        self.hold_out = hold_out

    @available_if(lambda self: hasattr(getattr(self, "estimator_", self.estimator), "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, C) probabilities of the classes in ``classes_``; of several labels at once, that a sample has each."""
        check_is_fitted(self, "estimator_")
        proba: np.ndarray = self._predictor.predict_proba(self._check_samples(X, reset=False))
        return proba

    def _find_task(self, y: Any) -> str:
        task = find_task(self.estimator, y)
        if task == REGRESSION:
            got, remedy = type(self.estimator).__name__, "Use ActiveLearningRegressor."
            raise InvalidTypeError.for_parameter(type(self).__name__, "estimator", "a classifier", got, remedy)
        if task == CLASSIFICATION and y is not None and needs_rows(self.estimator):
            raise InvalidParameterError(
                f"The y of {type(self).__name__} must have a column for each of several labels with "
                f"{type(self.estimator).__name__}. Got one label for each sample. Pass an indicator matrix, or a "
                "classifier of one label: the one inside, or a NeuralNetBinaryClassifier."
            )
        return task

    def _find_askable(self, y: Any, task: str) -> np.ndarray | None:
        if task == MULTILABEL and y is not None:
            known = self._check_indicators(y)
            return None if known.all() else np.asarray(known.any(axis=1))
        return find_labels(y, unlabelled=uses_unlabelled(self.estimator))

    def _check_indicators(self, y: Any) -> np.ndarray:
        """(n, L) which labels of samples are known; refused if there is nothing to learn about one."""
        rows = check_targets(type(self).__name__, y, MULTILABEL)
        constant = np.flatnonzero(~((rows == 0).any(axis=0) & (rows == 1).any(axis=0)))
        if len(rows) > 1 and len(constant):
            has = "all" if (rows[:, constant[0]] == 1).any() else "none"
            raise InvalidParameterError(
                f"Each label in the y of {type(self).__name__} must be present in some samples and absent in others. "
                f"Got {has} of the {len(rows)} samples with label {constant[0]} (constant columns: "
                f"{shorten(constant.tolist())}). There is nothing to learn about them: remove these columns."
            )
        known: np.ndarray = rows != UNKNOWN
        return known

    def _take_predictor(self, predictor: Predictor) -> None:
        self.classes_ = predictor.names

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # how good a score is depends on the budget
        return tags
