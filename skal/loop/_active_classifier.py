# SPDX-License-Identifier: BSD-3-Clause
"""A classifier whose ``fit`` spends a labelling budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from skal._core.estimators import refuse_fit_params
from skal.base import QueryCost, as_strategy
from skal.exceptions import InvalidParameterError
from skal.learners import ActiveLearner
from skal.loop._fitting import Trainer
from skal.loop._labels import check_one_label_each, find_labels, label_reader
from skal.loop._progress import LoopState
from skal.loop._rules import Rules, uses_unlabelled
from skal.loop._session import LabellingSession
from skal.models._predictor import Predictor, check_samples
from skal.models._saved_model import write_model


class ActiveLearningClassifier(MetaEstimatorMixin, ClassifierMixin, BaseEstimator):
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
        ``train_score``, ``eval_score`` (with ``eval_set``), ``seconds_fit``, ``seconds_query``. With ``stop`` also
        ``elapsed`` and what the criterion looks at: ``agreement``, ``uncertainty_mean``, ``uncertainty_max``,
        ``heldout_score``, ``n_heldout``.
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

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        oracle: Callable[[np.ndarray, Any], Any] | None = None,
        eval_set: tuple[Any, Any] | None = None,
        target: Any = None,
        **unknown: Any,
    ) -> ActiveLearningClassifier:
        """Run the loop.

        Parameters
        ----------
        X : array-like, tensor, data frame, Dataset, memory map, or dict of arrays
            The samples.
        y : array-like, optional
            The labels, of which only those of queried samples are read. A sample with None or NaN cannot be labelled
            and is passed over. A Dataset of ``(x, y)`` pairs brings its own.
        oracle : callable, optional
            Labels on demand, in the place of y: ``oracle(indices, samples)`` gives one label per sample, None where
            it has none, or a dict from positions to labels.
        eval_set : tuple of X and y, optional
            To be scored in every round; nothing depends on the scores.
        target : samples, or array-like of numbers, optional
            The samples that the model will be used on, or a weight for each row of X: what ``query_strategy`` and
            ``initial`` are to work for. See :class:`skal.strategies.MaxHerding`.
        **unknown
            Refused; ``sample_weight`` with what to do instead.

        Returns
        -------
        ActiveLearningClassifier
            Itself, fitted.
        """
        owner = type(self).__name__
        refuse_fit_params(owner, unknown)
        X = self._check_samples(X, reset=True)
        reader = None if oracle is not None else label_reader(owner, X, y)
        askable = None if oracle is not None else find_labels(y, unlabelled=uses_unlabelled(self.estimator))
        self.session_ = self._start(X, eval_set, reader=reader, askable=askable, target=target)
        self.session_.run(reader if oracle is None else oracle)  # type: ignore[arg-type]
        del self.session_
        return self

    def start(
        self,
        X: Any,
        y: Any = None,
        ids: Any = None,
        eval_set: tuple[Any, Any] | None = None,
        readonly: bool = False,
        target: Any = None,
    ) -> LabellingSession:
        """Begin, or with a checkpoint go on with, a session in which somebody labels between the rounds.

        Parameters
        ----------
        X : array-like, tensor, data frame, Dataset, memory map, or dict of arrays
            The samples.
        y : array-like, optional
            Labels that are there already. None, NaN, masked entries and −1 (unless it is in ``classes``) are unknown.
        ids : array-like of int or str, optional
            By what the samples are known, whatever their order. By default the index of a data frame, the attribute or
            method ``ids`` of a Dataset, or else, with a checkpoint, a hash of each sample's content.
        eval_set : tuple of X and y, optional
            To be scored in every round; nothing depends on the scores.
        readonly : bool, default=False
            Open the checkpoint to look, while somebody else may write.
        target : samples, or array-like of numbers, optional
            The samples that the model will be used on, or a weight for each row of X; see :meth:`fit`. A session that
            goes on may have another one.

        Returns
        -------
        LabellingSession
            Which asks, and is told.
        """
        X = self._check_samples(X, reset=True)
        if y is not None:
            check_one_label_each(X, y, "start")
        return self._start(X, eval_set, ids=ids, given=y, readonly=readonly, target=target)

    def predict(self, X: Any) -> np.ndarray:
        """Labels of the samples, as the estimator predicts them.

        Parameters
        ----------
        X : array-like, tensor, data frame, Dataset, memory map, or dict of arrays, n samples
            As ``fit`` takes them.

        Returns
        -------
        (n,) array
            Of the labels' own type.
        """
        check_is_fitted(self, "estimator_")
        return self._predictor.predict(self._check_samples(X, reset=False))

    @available_if(lambda self: hasattr(getattr(self, "estimator_", self.estimator), "predict_proba"))  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, C) probabilities of the classes in ``classes_``."""
        check_is_fitted(self, "estimator_")
        return self._predictor.predict_proba(self._check_samples(X, reset=False))

    @property
    def learner_(self) -> ActiveLearner:
        """The learner of the last training: what a strategy is asked with."""
        check_is_fitted(self, "estimator_")
        learner = ActiveLearner(self.estimator_, self.query_strategy_)
        if self._labelled is not None:
            learner.X_training, learner.y_training = self._labelled  # type: ignore[assignment]
        return learner

    def cost(self, X_pool: Any, n_instances: int | None = None) -> QueryCost:
        """Forecast of what the next query will take, as ``strategy.cost`` gives it.

        Parameters
        ----------
        X_pool : array-like, tensor, data frame, Dataset, memory map, or dict of arrays
            The samples to choose from.
        n_instances : int, optional
            ``query_size`` by default.

        Returns
        -------
        QueryCost
            Passes through the network, memory and seconds.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.linear_model import LogisticRegression
        >>> from skal import ActiveLearningClassifier
        >>> X = np.linspace(0, 1, 50).reshape(-1, 1)
        >>> loop = ActiveLearningClassifier(LogisticRegression(), n_initial=10, n_rounds=1).fit(X, X[:, 0] > 0.4)
        >>> loop.cost(X).passes  # there is no network
        Passes(forward=0, backward=0)
        """
        check_is_fitted(self, "estimator_")
        strategy = as_strategy(self.query_strategy_)
        if strategy is None:
            expected, remedy = "a strategy of skal to forecast a query", "Time a query of your own strategy."
            owner = type(self).__name__
            raise InvalidParameterError.for_parameter(owner, "query_strategy", expected, self.query_strategy, remedy)
        return strategy.cost(self, X_pool, self.query_size if n_instances is None else n_instances)

    def save_model(self, path: Any, *, features: Any = None) -> None:
        """Write the fitted model to a folder, without pickle, for :func:`skal.load_model`.

        ``model.json`` says in words what the model takes, its classes, what it was trained on and how good it was found
        to be; ``estimator-….skops`` has the parts of scikit-learn, and ``network-….safetensors`` a network.
        What cannot be written so is refused by name: a module that is an object, a class that cannot be imported.

        Parameters
        ----------
        path : path
            The folder; made if it is not there.
        features : transformer, optional
            What computed X, if the loop was fitted on features: ``load_model(path).predict`` then takes what this
            transformer takes.
        """
        check_is_fitted(self, "estimator_")
        seen = {name: getattr(self, name) for name in ("n_features_in_", "feature_names_in_") if hasattr(self, name)}
        row = self.history_[-1] if self.history_ else None
        write_model(path, self._predictor, features=features, labelled=self._labelled, row=row, seen=seen)

    def __getstate__(self) -> dict[str, Any]:
        # samples do not travel with a model; a session, which may hold a lock, does not either
        state = dict(super().__getstate__())
        state.pop("session_", None)
        return state | {"_labelled": None} if "_labelled" in state else state

    def _start(self, X: Any, eval_set: Any, **data: Any) -> LabellingSession:
        rules = Rules.of(self, X, eval_set, **data)
        for name in ("estimator_", "classes_", "session_"):  # the others have a value before the first training, too
            self.__dict__.pop(name, None)
        return LabellingSession(self, rules)

    def _take_results(self, state: LoopState, trainer: Trainer | None, strategy: Any) -> None:
        """Set the fitted attributes."""
        self.queried_ = np.array(state.labelled, dtype=np.int64)
        self.history_ = [dict(row) for row in state.history]
        self.stop_reason_, self.query_strategy_, self.initial_ = state.stop_reason, strategy, state.start
        if trainer is not None and trainer.predictor is not None:
            self._take_predictor(trainer.predictor, trainer.labelled)

    def _take_predictor(self, predictor: Predictor, labelled: tuple[Any, np.ndarray] | None) -> None:
        self._predictor, self._labelled = predictor, labelled
        self.estimator_, self.classes_ = predictor.estimator, predictor.names

    def _check_samples(self, X: Any, *, reset: bool) -> Any:
        return check_samples(self, self.estimator, X, reset=reset)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        tags.classifier_tags.poor_score = True  # how good a score is depends on the budget
        return tags
