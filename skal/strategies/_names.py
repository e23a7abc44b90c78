# SPDX-License-Identifier: BSD-3-Clause
"""Strategies by name: ``badge``, ``random``, ``dynamic_al(gamma=inf)``."""

from __future__ import annotations

import ast
import math
from typing import Any

from skal.base import QueryStrategy, make_with
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.validation import check_known

# filled by the package: strategies do not import one another
KNOWN: dict[str, type[QueryStrategy]] = {}


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
    try:
        tree = ast.parse(spec.strip(), mode="eval").body
        call = tree if isinstance(tree, ast.Call) else ast.Call(tree, [], [])
        if not isinstance(call.func, ast.Name) or call.args:
            raise ValueError
        name = call.func.id
        params = {keyword.arg: _value(keyword.value) for keyword in call.keywords if keyword.arg}
    except (SyntaxError, ValueError):
        raise InvalidParameterError(
            f"A strategy must be written as a name, or as name(parameter=value). Got {spec!r} instead. "
            "Write for example 'badge' or 'dynamic_al(gamma=0)'."
        ) from None
    known = _by_name()
    if name not in known:
        check_known("name of a strategy", [name], sorted(KNOWN), remedy="Pass a strategy of your own as an object.")
    return make_with(known[name], name, params)


def names_a_strategy(spec: str) -> bool:
    """Whether a text begins with the name of a strategy."""
    return spec.split("(")[0].strip() in _by_name()


def _by_name() -> dict[str, type[QueryStrategy]]:
    """By the names of functions and of classes."""
    return {cls.__name__: cls for cls in KNOWN.values()} | KNOWN


def _value(node: ast.expr) -> Any:
    return math.inf if isinstance(node, ast.Name) and node.id == "inf" else ast.literal_eval(node)
