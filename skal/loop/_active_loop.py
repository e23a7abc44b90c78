# SPDX-License-Identifier: BSD-3-Clause
"""What the loops of classifiers and regressors have in common: ``fit``, sessions, results."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.utils import get_tags
from sklearn.utils.validation import check_is_fitted

from skal._core.estimators import refuse_fit_params
from skal.base import QueryCost, as_strategy
from skal.exceptions import InvalidParameterError
from skal.learners import ActiveLearner
from skal.loop._fitting import Trainer
from skal.loop._labels import check_one_label_each, label_reader
from skal.loop._progress import LoopState
from skal.loop._rules import Rules
from skal.loop._session import LabellingSession
from skal.models._predictor import check_samples
from skal.models._saved_model import write_model

if TYPE_CHECKING:
    from typing import Self


class ActiveLearningLoop(MetaEstimatorMixin, BaseEstimator):
    """Active learning as an estimator: a subclass has the parameters, and says what labels are."""

    estimator: Any
    query_strategy: Any
    query_size: int

    @abstractmethod
    def _find_task(self, y: Any) -> str:
        """Find what is learnt from labels y, as far as there are some; refuse estimators that cannot."""

    @abstractmethod
    def _find_askable(self, y: Any, task: str) -> np.ndarray | None:
        """(n,) which samples have a label in y; None if all have. Refuses labels that cannot be used."""

    @abstractmethod
    def _take_predictor(self, predictor: Any) -> None:
        """Set the attributes that only a trained loop has."""

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        oracle: Callable[[np.ndarray, Any], Any] | None = None,
        eval_set: tuple[Any, Any] | None = None,
        target: Any = None,
        **unknown: Any,
    ) -> Self:
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
        ActiveLearningClassifier or ActiveLearningRegressor
            Itself, fitted.
        """
        owner = type(self).__name__
        refuse_fit_params(owner, unknown)
        X = self._check_samples(X, reset=True)
        reader = None if oracle is not None else label_reader(owner, X, y)
        task = self._find_task(None if oracle is not None else y)
        askable = None if oracle is not None else self._find_askable(y, task)
        self.session_ = self._start(X, eval_set, task=task, reader=reader, askable=askable, target=target)
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
        task = self._find_task(y)
        return self._start(X, eval_set, task=task, ids=ids, given=y, readonly=readonly, target=target)

    def predict(self, X: Any) -> np.ndarray:
        """Labels of the samples, as the estimator predicts them.

        Parameters
        ----------
        X : array-like, tensor, data frame, Dataset, memory map, or dict of arrays, n samples
            As ``fit`` takes them.

        Returns
        -------
        (n,) array, (n, k) where a label is a row of numbers
            Of the labels' own type.
        """
        check_is_fitted(self, "estimator_")
        labels: np.ndarray = self._predictor.predict(self._check_samples(X, reset=False))
        return labels

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
            self._predictor, self._labelled = trainer.predictor, trainer.labelled
            self.estimator_ = trainer.predictor.estimator
            self._take_predictor(trainer.predictor)

    def _check_samples(self, X: Any, *, reset: bool) -> Any:
        return check_samples(self, self.estimator, X, reset=reset)

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags = inner.input_tags
        tags.target_tags.multi_output = inner.target_tags.multi_output
        return tags
