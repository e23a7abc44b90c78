# SPDX-License-Identifier: BSD-3-Clause
"""Query strategies: check once, then one hook per algorithm.

``Passes`` and ``QueryCost`` are what the cost of a query is forecast in.
"""

from __future__ import annotations

import inspect
import re
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from math import isnan
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, clone

from skal._core.pool import candidate_rows
from skal._core.tasks import refuse_task
from skal._cost import Passes, QueryCost, measure_cost
from skal.compat.modal import expects_metrics
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError, InvalidQueryError, NonFiniteError
from skal.validation import Constrained, Constraint, Integer, Seed, check_known, make_generator

ANY_TASK = ("classification", "regression", "multilabel")
_N_INSTANCES = Integer(1, remedy="Ask for at least one sample.")

__all__ = ["Passes", "QueryCost", "QueryStrategy", "ScoreStrategy", "as_strategy", "query_function", "top"]


class QueryStrategy(Constrained, BaseEstimator, metaclass=ABCMeta):
    """Base of all strategies: a subclass writes ``__init__`` (assignments only) and ``_select``.

    An instance is a query strategy in modAL's form: ``strategy(learner, X_pool, n_instances)``. It answers in the
    convention of the learner that calls it. :meth:`select` always returns indices and metrics.

    Class attributes say what a strategy works with. The first five are enforced here, before ``_select`` runs; all of
    them tell :mod:`skal.checks` what to expect.

    Attributes
    ----------
    constraints : dict
        For each parameter what it may be, as a :class:`skal.validation.Constraint`. Those of base classes count too.
    needs_fitted : bool, default=True
        Whether the estimator must be fitted.
    needs_network : bool, default=True
        Whether the estimator must be a skorch net, or end in one. False: any classifier with ``predict_proba``.
    needs_labels : bool, default=False
        Whether the learner must hold labelled samples.
    tasks : sequence of str, default=("classification",)
        What it has something to say about: ``"classification"``, ``"regression"`` and ``"multilabel"``.
    why_these_tasks : str, default=""
        Why the others make no sense: a sentence for the error that refuses them.
    reads_outputs : bool, default=True
        Whether the estimator's outputs are looked at, so that bad ones are noticed.
    draws_from_pool : bool, default=False
        Whether the answer comes from random draws over the pool's positions, so that a pool in another order may get
        another answer from the same ``random_state``.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.base import QueryStrategy
    >>> from skal.checks import make_learner
    >>> class EveryOther(QueryStrategy):
    ...     needs_network = reads_outputs = False
    ...
    ...     def _select(self, context, n_instances):
    ...         rows = np.arange(context.n_pool)
    ...         indices = np.concatenate([rows[::2], rows[1::2]])[:n_instances]
    ...         return indices, np.zeros(n_instances)
    >>> learner, X_pool = make_learner()
    >>> EveryOther()(learner, X_pool, n_instances=3)
    array([0, 2, 4])
    """

    constraints: ClassVar[dict[str, Constraint]] = {"subset": Integer(1, optional=True), "random_state": Seed()}
    needs_fitted: bool = True
    needs_network: bool = True
    needs_labels: bool = False
    tasks: Sequence[str] = ("classification",)
    why_these_tasks: str = ""
    reads_outputs: bool = True
    draws_from_pool: bool = False

    def __sklearn_clone__(self) -> QueryStrategy:
        """A copy with the same parameters; what computes features is fitted, or frozen, and is the same object.

        So is a target: samples are not copied.
        """
        params = self.get_params(deep=False)
        return type(self)(**{k: v if k in ("features", "target") else clone(v, safe=False) for k, v in params.items()})

    def __call__(self, learner: Any, X_pool: Any, n_instances: int = 1) -> Any:
        """Choose ``n_instances`` samples of the pool.

        Parameters
        ----------
        learner : object with ``estimator``, ``X_training``, ``y_training``
            The learner that calls the strategy.
        X_pool : array-like, tensor, memory map, Dataset, or dict of arrays
            The samples to choose from.
        n_instances : int, default=1
            How many.

        Returns
        -------
        indices : (n_instances,) int64 array, or ``(indices, metrics)`` if modAL >= 0.4.2 asks
            Distinct positions in the pool, best first.
        """
        indices, metrics = self.select(learner, X_pool, n_instances)
        return (indices, metrics) if expects_metrics(learner) else indices

    def select(
        self, learner: Any, X_pool: Any, n_instances: int = 1, candidates: Any = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Choose samples, for any learner.

        Parameters
        ----------
        learner : object with ``estimator``, ``X_training``, ``y_training``
            The learner that calls the strategy.
        X_pool : array-like, tensor, memory map, Dataset, or dict of arrays
            The samples to choose from.
        n_instances : int, default=1
            How many samples to choose.
        candidates : array-like of int or bool, optional
            Positions in the pool, or a mask of its rows, that may be chosen. The other rows are not read, and nothing
            is copied: a pool on disk can stay as it is while its rows are labelled.

        Returns
        -------
        indices : (n_instances,) int64 array
            Distinct positions in the pool, best first.
        metrics : (n_instances,) array
            Their scores, or whatever else the strategy reports about them.
        """
        context = self.prepare(learner, X_pool)
        if candidates is None:
            return self._choose(context, n_instances)
        rows = candidate_rows(type(self).__name__, candidates, context.n_pool)
        indices, metrics = self._choose(context.restrict(rows), n_instances)
        return rows[indices], metrics

    def select_as_arm(self, context: QueryContext, n_instances: int = 1) -> tuple[np.ndarray, np.ndarray]:
        """Choose samples as one of several strategies in the same query.

        Parameters
        ----------
        context : QueryContext
            From :meth:`~skal.context.QueryContext.for_arms`: the arms share what they compute.
        n_instances : int, default=1
            How many samples to choose.

        Returns
        -------
        indices, metrics : arrays
            As in :meth:`select`.
        """
        self.check_params()
        return self._choose(self._require(context.for_strategy(type(self).__name__)), n_instances)

    def prepare(self, learner: Any, X_pool: Any) -> QueryContext:
        """Check parameters, learner and pool, and put together what ``_select`` will see.

        Parameters
        ----------
        learner : object with ``estimator``, ``X_training``, ``y_training``
            The learner that calls the strategy.
        X_pool : array-like, tensor, memory map, Dataset, or dict of arrays
            The samples to choose from.

        Returns
        -------
        QueryContext
            Of the whole pool.
        """
        self.check_params()
        return self._require(QueryContext(learner, X_pool, owner=type(self).__name__))

    def _require(self, context: QueryContext) -> QueryContext:
        self.check_task(context.task)
        if self.needs_fitted:
            context.require_fitted()
        if self.needs_network:
            context.require_network()
        if self.needs_labels:
            context.require_labels()
        return context

    def _choose(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        self.check_n_instances(n_instances, context.n_pool)
        with context.query():
            rows, part = self.subset_of(context)
            indices, metrics = self._select(part, int(n_instances))
            indices, values = np.asarray(indices, dtype=np.int64), np.asarray(metrics)
            if values.dtype.kind == "f" and isnan(np.vdot(values, values)):  # NaN if any entry is NaN
                raise NonFiniteError(
                    f"The metrics of {type(self).__name__} must be finite. Got NaN. The inputs, features or parameters "
                    "are too large, or training has diverged: scale them, and fit again."
                )
        return indices if part is context else rows[indices], values  # no subset: indices are pool positions already

    def cost(self, learner: Any, X_pool: Any, n_instances: int = 1) -> QueryCost:
        """Forecast of what ``select`` with the same arguments will take, from small queries that are made.

        Passes, memory and time are measured on the first samples of the pool, a few hundred to a few thousand of them,
        and extrapolated. Results that a cache keeps from earlier queries do not count.

        Parameters
        ----------
        learner : object with ``estimator``, ``X_training``, ``y_training``
            The learner that calls the strategy.
        X_pool : array-like, tensor, memory map, Dataset, or dict of arrays
            The samples to choose from.
        n_instances : int, default=1
            How many samples to choose.

        Returns
        -------
        QueryCost
            Passes through the network, memory and seconds.
        """
        context = self.prepare(learner, X_pool)
        self.check_n_instances(n_instances, context.n_pool)
        return measure_cost(self, context, X_pool, int(n_instances))

    @abstractmethod
    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        """Distinct indices into the pool, best first, and one metric for each."""

    def check_task(self, task: str) -> None:
        """Refuse a task about which the strategy has nothing to say.

        Parameters
        ----------
        task : {"classification", "regression", "multilabel"}
        """
        if task not in self.tasks:
            raise refuse_task(type(self).__name__, task, self.tasks, self.why_these_tasks)

    def check_n_instances(self, n_instances: Any, n_pool: int) -> None:
        """Refuse a number of samples that cannot be chosen from a pool of this size.

        Parameters
        ----------
        n_instances : object
            What the user asked for.
        n_pool : int
            Size of the pool.
        """
        owner, subset = type(self).__name__, getattr(self, "subset", None)
        _N_INSTANCES.check(owner, "n_instances", n_instances)
        if n_instances > n_pool:
            expected = f"at most the size of the pool ({n_pool})"
            remedy = "Ask for fewer samples, or pass a larger pool."
        elif subset is not None and n_instances > subset:
            expected = f"at most subset ({subset}), the number of samples that take part"
            remedy = "Ask for fewer samples, or raise subset."
        else:
            return
        raise InvalidParameterError.for_parameter(owner, "n_instances", expected, n_instances, remedy)

    def subset_of(self, context: QueryContext) -> tuple[np.ndarray, QueryContext]:
        """The part of the pool that ``subset`` asks for, drawn with ``random_state``.

        Parameters
        ----------
        context : QueryContext
            Of the whole pool.

        Returns
        -------
        rows : int array
            Positions in the pool, ascending.
        part : QueryContext
            Of these rows alone.
        """
        n_pool, subset = context.n_pool, getattr(self, "subset", None)
        if subset is None or subset >= n_pool:
            return np.arange(n_pool), context
        rows = np.sort(self._subset_generator().choice(n_pool, size=subset, replace=False))
        return rows, context.restrict(rows)

    def _subset_generator(self) -> np.random.Generator:
        """The generator that draws the subset; a strategy with state may use another one in every round."""
        return make_generator(type(self).__name__, getattr(self, "random_state", None))


class ScoreStrategy(QueryStrategy):
    """A strategy that gives every pool sample a score of its own: a subclass writes ``_score``.

    If it has a ``subset`` parameter (and ``random_state``), only that many random samples of the pool are scored.

    Attributes
    ----------
    scores_first_pick : bool, default=False
        Whether a batch is chosen one sample after the other, and the scores are those of the first.
    zero_is_certain : bool, default=False
        Whether scores are amounts of uncertainty, of which 0 is none; otherwise they have an order alone.

    Examples
    --------
    >>> from skal.base import ScoreStrategy
    >>> from skal.checks import make_learner
    >>> class Gini(ScoreStrategy):
    ...     needs_network = False
    ...
    ...     def _score(self, context):
    ...         return 1 - (context.predict_proba() ** 2).sum(axis=1)
    >>> learner, X_pool = make_learner()
    >>> indices, metrics = Gini().select(learner, X_pool, n_instances=3)
    >>> bool((metrics == Gini().scores(learner, X_pool)[indices]).all())
    True
    """

    scores_first_pick: bool = False
    zero_is_certain: bool = False

    @abstractmethod
    def _score(self, context: QueryContext) -> np.ndarray:
        """(N,) scores of the pool, higher is queried earlier."""

    def scores(self, learner: Any, X_pool: Any) -> np.ndarray:
        """Scores of all samples of the pool.

        Parameters
        ----------
        learner : object with ``estimator``, ``X_training``, ``y_training``
            The learner that calls the strategy.
        X_pool : array-like, tensor, memory map, Dataset, or dict of arrays
            The samples to score.

        Returns
        -------
        (N,) float64 array
            Higher is queried earlier; −inf outside ``subset``.
        """
        context = self.prepare(learner, X_pool)
        with context.query():
            return self._score_subset(context)

    def score_as_part(self, context: QueryContext) -> np.ndarray:
        """Scores as a part of another strategy's query.

        Parameters
        ----------
        context : QueryContext
            Of that query, or of some of its samples.

        Returns
        -------
        (N,) float64 array
            As in :meth:`scores`.
        """
        self.check_params()
        return self._score_subset(self._require(context.for_strategy(type(self).__name__)))

    def _score_subset(self, context: QueryContext) -> np.ndarray:
        rows, part = self.subset_of(context)
        scores = np.full(context.n_pool, -np.inf)
        scores[rows] = self._check_scores(part.n_pool, self._score(part))
        return scores

    def _check_scores(self, n: int, raw: Any) -> np.ndarray:
        scores: np.ndarray = np.asarray(raw, dtype=np.float64)
        if scores.shape != (n,):
            raise InvalidQueryError(
                f"The _score of {type(self).__name__} must return one number for each of the {n} samples, an array of "
                f"shape ({n},). Got shape {scores.shape} instead. Reduce the other dimensions, and score every sample "
                "of context.pool."
            )
        if scores.size and scores.max() < np.inf:  # neither NaN nor infinity
            return scores
        if np.isnan(scores).any():
            raise NonFiniteError(
                f"The scores of {type(self).__name__} must not be NaN. Got NaN for {np.isnan(scores).sum()} samples. "
                "Check the network's outputs: training may have diverged."
            )
        if np.isposinf(scores).any():
            raise NonFiniteError(
                f"The scores of {type(self).__name__} must be finite. Got infinity for {np.isposinf(scores).sum()} "
                "samples, which cannot be compared. Scale the inputs, or make the strategy's parameters smaller."
            )
        return scores

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        scores = self._check_scores(context.n_pool, self._score(context))
        indices = top(scores, n_instances)
        return indices, scores[indices]


def top(scores: np.ndarray, k: int) -> np.ndarray:
    """Positions of the k largest scores, best first; equal scores keep the pool's order.

    Parameters
    ----------
    scores : (N,) array
        Without NaN.
    k : int
        At most N.

    Returns
    -------
    (k,) int64 array
        Distinct positions.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.base import top
    >>> top(np.array([1.0, 3.0, 3.0, 2.0]), 3)
    array([1, 2, 3])
    """
    if k == 1:
        return np.array([scores.argmax()])  # the first of the largest
    # everything at least as large as the k-th stands a chance: a partition, then a stable sort of those few
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= threshold)
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]


def query_function(strategy: type[QueryStrategy], name: str, module: str) -> Callable[..., Any]:
    """The strategy as a function in modAL's form.

    ``f(learner, X_pool, n_instances=1, **params)`` is ``strategy(**params)(learner, X_pool, n_instances)``. The
    function's ``strategy`` attribute is the class. Its docstring has the parameters and the examples of the class.
    Of a score strategy, ``f.scores(learner, X_pool, **params)`` gives the scores: what modAL calls a utility measure.

    Parameters
    ----------
    strategy : subclass of QueryStrategy
        Its parameters become keyword arguments.
    name : str
        Of the function.
    module : str
        Where the function is defined: ``__name__``.

    Returns
    -------
    callable
        The function.

    Examples
    --------
    >>> from skal.base import query_function
    >>> from skal.checks import make_learner
    >>> from skal.strategies import Margin
    >>> closest = query_function(Margin, "closest", __name__)
    >>> learner, X_pool = make_learner()
    >>> bool((closest(learner, X_pool, 3, subset=None) == Margin(subset=None)(learner, X_pool, 3)).all())
    True
    """

    def query(learner: Any, X_pool: Any, n_instances: int = 1, **params: Any) -> Any:
        return make(**params)(learner, X_pool, n_instances)

    def make(**params: Any) -> QueryStrategy:
        return make_with(strategy, name, params)

    own = [inspect.Parameter(p, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in ("learner", "X_pool")]
    own.append(inspect.Parameter("n_instances", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=1))
    params = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in inspect.signature(strategy).parameters.values()]
    query.__signature__ = inspect.Signature([*own, *params])  # type: ignore[attr-defined]
    query.strategy = strategy  # type: ignore[attr-defined]
    query.make = make  # type: ignore[attr-defined]
    if issubclass(strategy, ScoreStrategy):
        query.scores = lambda learner, X_pool, **params: make(**params).scores(learner, X_pool)  # type: ignore
    query.__name__ = query.__qualname__ = name
    query.__module__ = module
    query.__doc__ = _function_doc(strategy, name)
    return query


def make_with(strategy: type[QueryStrategy], name: str, params: dict[str, Any]) -> QueryStrategy:
    """The strategy with these parameters; unknown ones are refused. ``name`` is what the user calls the strategy."""
    known, remedy = inspect.signature(strategy).parameters, f"See the documentation of {strategy.__name__}."
    check_known(f"parameters of {name}", params, known, remedy=remedy)
    return strategy(**params)


def as_strategy(query_strategy: Any, **params: Any) -> QueryStrategy | None:
    """The strategy behind one of skal's query functions, or the object itself; None for any other callable.

    Parameters
    ----------
    query_strategy : callable
        What the user passed as a strategy.
    **params
        Of a query function.

    Returns
    -------
    QueryStrategy or None
        With these parameters.

    Examples
    --------
    >>> from skal.base import as_strategy
    >>> from skal.strategies import margin
    >>> as_strategy(margin, subset=100)
    Margin(subset=100)
    """
    if isinstance(query_strategy, QueryStrategy) and not params:
        return query_strategy
    if isinstance(query_strategy, partial) and not query_strategy.args:
        own = {name: value for name, value in query_strategy.keywords.items() if name != "n_instances"}
        return as_strategy(query_strategy.func, **(own | params))
    make = getattr(query_strategy, "make", None)
    return make(**params) if isinstance(getattr(query_strategy, "strategy", None), type) and callable(make) else None


def _function_doc(strategy: type[QueryStrategy], name: str) -> str:
    """A docstring whose parameters and examples are those of the class."""
    doc = inspect.cleandoc(strategy.__doc__ or "")

    def section(title: str) -> str:
        match = re.search(rf"^{title}\n-+\n(.*?)(?=^\S[^\n]*\n---|\Z)", doc, re.MULTILINE | re.DOTALL)
        return "" if match is None else match[1].strip()

    undocumented = f"**params\n    Those of :class:`{strategy.__name__}`." if strategy._get_param_names() else ""
    return inspect.cleandoc(_FUNCTION_DOC).format(
        cls=strategy.__name__,
        name=name,
        params=section("Parameters") or undocumented,
        rest="".join(
            f"\n\n{title}\n{'-' * len(title)}\n{section(title)}"
            for title in ("References", "Examples")
            if section(title)
        ),
    )


_FUNCTION_DOC = """Query as :class:`{cls}` does: the function in modAL's form.

    ``{name}(learner, X_pool, n_instances, **params)`` is ``{cls}(**params)(learner, X_pool, n_instances)``.

    Parameters
    ----------
    learner : object with ``estimator``, ``X_training``, ``y_training``
        The learner that calls the strategy.
    X_pool : array-like, tensor, memory map, Dataset, or dict of arrays
        The samples to choose from.
    n_instances : int, default=1
        How many samples to choose.
    {params}

    Returns
    -------
    indices : (n_instances,) int64 array, or ``(indices, metrics)`` if modAL >= 0.4.2 asks
        Distinct positions in the pool, best first.

    See Also
    --------
    {cls} : The same with methods (``scores``, ``cost``) and parameters that a grid search can set.{rest}
    """
