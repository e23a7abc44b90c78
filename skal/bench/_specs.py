"""Strategies by name: ``badge``, ``random``, ``dynamic_al(gamma=inf)``."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np
from sklearn.base import clone

from skal import strategies
from skal.base import QueryStrategy
from skal.exceptions import InvalidParameterError

__all__ = ["describe", "make_strategy", "seeded", "split_specs"]


def _classes() -> dict[str, type[QueryStrategy]]:
    functions = {name: getattr(strategies, name) for name in strategies.__all__}
    known = {name: function.strategy for name, function in functions.items() if hasattr(function, "strategy")}
    # ALBL keeps state and has no function
    return known | {"random": strategies.RandomSampling, "albl": strategies.ALBL}


def split_specs(text: str) -> list[str]:
    """Cut a list at its commas, but not inside parentheses.

    Examples
    --------
    >>> split_specs("random, npc(search='greedy', n_candidates=9),badge")
    ['random', "npc(search='greedy', n_candidates=9)", 'badge']
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def make_strategy(spec: str) -> QueryStrategy:
    """Make the strategy that a text names, with its parameters if it has any.

    Examples
    --------
    >>> make_strategy("dynamic_al(gamma=inf, batch='top')")
    DynamicAL(gamma=inf)
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
            f"A strategy of a benchmark must be written as a name, or as name(parameter=value). Got {spec!r} instead. "
            "Write for example 'badge' or 'dynamic_al(gamma=0)'."
        ) from None
    known = _classes()
    if name not in known:
        raise InvalidParameterError(
            f"The strategies of a benchmark must be among {', '.join(sorted(known))}. Got {name!r} instead. "
            "Pass a mapping of names to objects to run strategies of your own."
        )
    allowed = inspect.signature(known[name]).parameters
    if unknown := sorted(set(params) - set(allowed)):
        raise InvalidParameterError(
            f"The parameters of {name} must be among {', '.join(allowed)}. Got {', '.join(unknown)} instead. "
            f"See the documentation of {known[name].__name__}."
        )
    return known[name](**params)


def _value(node: ast.expr) -> Any:
    return math.inf if isinstance(node, ast.Name) and node.id == "inf" else ast.literal_eval(node)


def seeded(strategy: QueryStrategy, label: str, seed: int, defaults: Mapping[str, Any]) -> QueryStrategy:
    """A copy for one run: its own random numbers, and the run's defaults for what it leaves open.

    The numbers depend on the label too, so that two copies of one strategy under different names are two draws.
    """
    strategy = clone(strategy)
    params = strategy.get_params(deep=False)
    if "random_state" in params and params["random_state"] is None:
        # a generator, not an integer: the draws then differ from round to round
        strategy.set_params(random_state=np.random.default_rng([seed, crc32(label.encode())]))
    standard = inspect.signature(type(strategy)).parameters
    for name, value in defaults.items():
        if name in params and params[name] == standard[name].default:
            strategy.set_params(**{name: value})
    return strategy


def describe(strategy: QueryStrategy) -> str:
    """A strategy's repr without its generator, whose repr has an address in it that no two processes share."""
    strategy = clone(strategy)
    if "random_state" in strategy.get_params(deep=False):
        strategy.set_params(random_state=None)
    return repr(strategy)
