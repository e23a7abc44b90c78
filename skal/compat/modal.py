# SPDX-License-Identifier: BSD-3-Clause
"""The bridge to modAL, releases 0.4.1 and 0.4.2.1.

With skal imported, importing modAL calls :func:`patch_modal`, once. It repairs modAL's own modules where the installed
numpy, pandas or scikit-learn have left modAL behind, and changes nothing in those packages. The guide's page on modAL
lists the repairs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from skal.exceptions import InvalidParameterError

__all__ = ["ask", "expects_metrics", "insists_on_n_instances", "patch_modal", "strategy_name", "takes_n_instances"]


def patch_modal() -> bool:
    """Let modAL run on the installed packages.

    Makes the repairs that are needed and have not been made; none where modAL runs by itself.

    Returns
    -------
    bool
        Whether anything was changed.

    Examples
    --------
    >>> from skal.compat.modal import patch_modal
    >>> patch_modal()  # importing modAL has done it
    False
    """
    from skal.compat._repairs import make_repairs

    return make_repairs()


def expects_metrics(learner: Any) -> bool:
    """True if a learner wants ``(indices, metrics)`` from its strategy, as modAL's do since 0.4.2.

    Earlier releases, plain objects and skal's own learners get the bare index array. modAL's two conventions are told
    apart by the ``return_metrics`` parameter of its ``query``, which came with the second.

    Parameters
    ----------
    learner : object
        Whatever calls the strategy.

    Returns
    -------
    bool
        Whether metrics are wanted.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearner
    >>> from skal.compat.modal import expects_metrics
    >>> expects_metrics(ActiveLearner(LogisticRegression()))
    False
    """
    for cls in type(learner).__mro__:
        package = cls.__module__.split(".")[0]
        if package in ("modAL", "skal") and "query" in vars(cls):
            return package == "modAL" and _returns_metrics(vars(cls)["query"])
    return False


@lru_cache(maxsize=16)  # to read a signature takes longer than a small query's own work
def _returns_metrics(query: Callable[..., Any]) -> bool:
    return "return_metrics" in inspect.signature(query).parameters


def takes_n_instances(strategy: Any) -> bool:
    """True if a query function can be told how many samples to choose.

    modAL's first form of a strategy is a function of learner and pool, with keyword arguments of its own: it chooses
    as many samples as it likes, mostly one.

    Parameters
    ----------
    strategy : callable
        A query function.

    Returns
    -------
    bool
        Whether it has a parameter ``n_instances``, or takes any keyword.

    Examples
    --------
    >>> from skal.compat.modal import takes_n_instances
    >>> takes_n_instances(lambda learner, X_pool: 0)
    False
    >>> takes_n_instances(lambda learner, X_pool, n_instances=1: range(n_instances))
    True
    """
    parameters = _parameters(strategy)
    return "n_instances" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _parameters(strategy: Any) -> dict[str, inspect.Parameter]:
    """The parameters that can be given by name; of a function that does not say, ``**anything``."""
    try:
        parameters = inspect.signature(strategy).parameters
    except (TypeError, ValueError):
        return {"anything": inspect.Parameter("anything", inspect.Parameter.VAR_KEYWORD)}
    return {name: p for name, p in parameters.items() if p.kind not in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)}


def insists_on_n_instances(strategy: Any) -> bool:
    """True if a query function must be told how many samples to choose: it has no default of its own.

    Parameters
    ----------
    strategy : callable
        A query function.

    Returns
    -------
    bool
        Whether calling it without ``n_instances`` would fail.

    Examples
    --------
    >>> from skal.compat.modal import insists_on_n_instances
    >>> insists_on_n_instances(lambda learner, X_pool, n_instances: range(n_instances))
    True
    """
    parameter = _parameters(strategy).get("n_instances")
    return parameter is not None and parameter.default is parameter.empty


def ask(strategy: Any, learner: Any, X_pool: Any, n_instances: int | None = None, **params: Any) -> tuple[Any, Any]:
    """Indices and metrics (None without) from a query function in any of modAL's forms, called once.

    Parameters
    ----------
    strategy : callable
        A query function.
    learner, X_pool : object
        What it is called with.
    n_instances : int, optional
        Passed on if it is given and the function takes it. A function that does not is asked for one sample only.
    **params
        Passed on.

    Returns
    -------
    indices : array-like or int
        As the function gave them.
    metrics : object or None
        None where it gave none.

    Examples
    --------
    >>> from skal.compat.modal import ask
    >>> ask(lambda learner, X_pool, n_instances: [2, 0], None, [1, 2, 3], 2)
    ([2, 0], None)
    >>> ask(lambda learner, X_pool, threshold: (2, 0.7), None, [1, 2, 3], threshold=0.5)
    (2, 0.7)
    """
    if n_instances is not None and takes_n_instances(strategy):
        params["n_instances"] = n_instances
    elif n_instances not in (None, 1):
        raise InvalidParameterError.for_parameter(
            strategy_name(strategy),
            "n_instances",
            "1, since the function does not take it",
            n_instances,
            "Query one sample at a time, or give the function a parameter n_instances.",
        )
    answer = strategy(learner, X_pool, **params)
    return answer if isinstance(answer, tuple) else (answer, None)


def strategy_name(strategy: Any) -> str:
    """The name of a query function in a message.

    Parameters
    ----------
    strategy : callable
        A query function, a partial of one, or an object.

    Returns
    -------
    str
        Its own name, or that of its class.

    Examples
    --------
    >>> from functools import partial
    >>> from modAL.uncertainty import margin_sampling
    >>> from skal.compat.modal import strategy_name
    >>> strategy_name(partial(margin_sampling, n_instances=3))
    'margin_sampling'
    """
    strategy = getattr(strategy, "func", strategy)
    return getattr(strategy, "__name__", type(strategy).__name__)
