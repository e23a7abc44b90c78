# SPDX-License-Identifier: BSD-3-Clause
"""Strategies of scikit-activeml in the loop: objects whose ``query`` takes all samples and labels with gaps."""

from __future__ import annotations

import inspect
from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError


class ForeignStrategy:
    """An object with scikit-activeml's ``query`` as a function of a learner, as skal and modAL have it.

    It gets the labelled samples and the pool as rows, the labels with gaps, the pool as candidates, and the learner's
    model as it is: probabilities are those of the loop's classifier, and its features are the inputs. Before there is a
    label, a model that cannot predict gives all classes the same probability, as scikit-activeml's own do.

    Parameters
    ----------
    strategy : object
        Such as ``skactiveml.pool.Badge()``. One without ``random_state`` gets another seed at each query, from NumPy's
        generator, which a run seeds.

    Examples
    --------
    >>> from skal.bench._activeml import ForeignStrategy
    >>> class First:  # stands for one of scikit-activeml's
    ...     def query(self, X, y, candidates=None, batch_size=1):
    ...         return candidates[:batch_size]
    >>> from skal import ActiveLearner
    >>> from sklearn.linear_model import LogisticRegression
    >>> learner = ActiveLearner(LogisticRegression(), ForeignStrategy(First()))
    >>> learner.query(np.eye(4), n_instances=2)[0]
    array([0, 1])
    """

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.__module__ = type(strategy).__module__
        self.__name__ = self.__qualname__ = " ".join(repr(strategy).split())  # with its parameters, for the record

    def __call__(self, learner: Any, X_pool: Any, n_instances: int = 1) -> np.ndarray:
        """Positions in the pool."""
        pool, known = np.asarray(X_pool), learner.X_training
        X = pool if known is None else np.concatenate([np.asarray(known, dtype=pool.dtype), pool])
        n_known = len(X) - len(pool)
        y = np.full(len(X), np.nan)
        y[:n_known] = [] if known is None else learner.y_training
        strategy = deepcopy(self.strategy)
        if getattr(strategy, "random_state", 0) is None:
            strategy.random_state = int(np.random.randint(2**31))
        rows = X.reshape(len(X), -1)
        arguments = {"candidates": np.arange(n_known, len(X)), "batch_size": n_instances}
        wanted = inspect.signature(strategy.query).parameters
        if "clf" in wanted or "estimator" in wanted:
            model = _given_class()(learner, X.shape[1:], y[:n_known])
            own = {"clf": model, "estimator": model, "fit_clf": False, "fit_estimator": False}
            arguments |= {name: value for name, value in own.items() if name in wanted}
        found: np.ndarray = np.asarray(strategy.query(X=rows, y=y, **arguments), dtype=np.int64) - n_known
        return found


@cache
def _given_class() -> Any:
    """scikit-activeml's kind of classifier around a model that is fitted already; made where it is used."""
    from skactiveml.base import SkactivemlClassifier

    class Given(SkactivemlClassifier):
        """The learner's model; it is never fitted again."""

        def __init__(self, learner: Any, shape: tuple[int, ...], known: np.ndarray) -> None:
            self.learner, self.shape = learner, shape
            self.n_classes = 1 + int(known.max()) if len(known) else 2
            super().__init__(classes=list(range(self.n_classes)))

        def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Given:
            return self

        def predict_proba(self, X: Any) -> np.ndarray:
            try:
                proba = np.asarray(self.learner.predict_proba(np.reshape(X, (len(X), *self.shape))))
            except NotFittedError:
                return np.full((len(X), self.n_classes), 1 / self.n_classes)
            whole: np.ndarray = proba / proba.sum(axis=1, keepdims=True)  # float32 rounds, and their checks are strict
            return whole

        def predict(self, X: Any) -> np.ndarray:
            places: np.ndarray = self.predict_proba(X).argmax(axis=1)
            return places

    return Given


def adapt(strategy: Any) -> Any:
    """A strategy as the loop calls it: objects that only have ``query`` are wrapped."""
    foreign = not callable(strategy) and callable(getattr(strategy, "query", None))
    return ForeignStrategy(strategy) if foreign else strategy
