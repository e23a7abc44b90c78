# SPDX-License-Identifier: BSD-3-Clause
"""The strategies of a benchmark: a list of them as text, and copies with random numbers of their own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any
from zlib import crc32

import numpy as np
from sklearn.base import clone

from skal.base import QueryStrategy


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


def seeded(strategy: Any, label: str, seed: int, defaults: Mapping[str, Any]) -> Any:
    """A copy for one run: its own random numbers, and the run's defaults for what it leaves open.

    The numbers depend on the label too, so that two copies of one strategy under different names are two draws. A
    plain function has nothing to copy; the run seeds NumPy's and torch's generators for it.
    """
    if not isinstance(strategy, QueryStrategy):
        return strategy
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


def describe(strategy: Any) -> str:
    """A strategy's repr without its generator, whose repr has an address in it that no two processes share."""
    if not isinstance(strategy, QueryStrategy):
        return f"{getattr(strategy, '__module__', '')}.{getattr(strategy, '__qualname__', type(strategy).__name__)}"
    strategy = clone(strategy)
    if "random_state" in strategy.get_params(deep=False):
        strategy.set_params(random_state=None)
    return repr(strategy)
