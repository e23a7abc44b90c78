# SPDX-License-Identifier: BSD-3-Clause
"""Strategies by name: ``badge``, ``random``, ``dynamic_al(gamma=inf)``."""

from __future__ import annotations

from typing import Any

from skal._vocabulary import parse_strategy
from skal.base import QueryStrategy, make_with
from skal.exceptions import InvalidTypeError

# filled by the package: strategies do not import one another
CLASSES: dict[str, type[QueryStrategy]] = {}


def named_strategy(owner: str, parameter: str, strategy: Any) -> Any:
    """Resolve a user's strategy: a name becomes an object, ``None`` is ``"auto"``, a class is refused.

    Examples
    --------
    >>> named_strategy("ActiveLearner", "query_strategy", "margin")
    Margin()
    """
    if strategy is None or isinstance(strategy, str):
        return make_strategy(strategy or "auto")
    if isinstance(strategy, type):
        remedy = f"Make an object of it: {strategy.__name__}()."
        raise InvalidTypeError.for_parameter(owner, parameter, "a strategy, not a class", strategy, remedy)
    if not callable(strategy):
        expected = "callable, or the name of a strategy"
        remedy = "Pass for example 'margin' or skal.strategies.Margin()."
        raise InvalidTypeError.for_parameter(owner, parameter, expected, strategy, remedy)
    return strategy


def make_strategy(spec: str) -> QueryStrategy:
    """Make the strategy that a text names, by its function or its class, with its parameters if it has any.

    Examples
    --------
    >>> make_strategy("dynamic_al(gamma=inf, batch='top')")
    DynamicAL(gamma=inf)
    >>> make_strategy("MaxHerding(features='input')")
    MaxHerding(features='input')
    """
    cls, name, params = parse_strategy(spec)
    return make_with(CLASSES[cls], name, params)
