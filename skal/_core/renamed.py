# SPDX-License-Identifier: BSD-3-Clause
"""Parameters of strategies that had another name: the old one works for a while, and says what to use."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

# old name, new name, what makes a value of today of an old one; deprecated in 0.1.0, to go in 0.3.0
_RENAMED = [("verbose", "progress", bool)]


def with_new_names(owner: str, params: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The parameters under their names of today; each old name gives a FutureWarning.

    Parameters
    ----------
    owner : str
        What has the parameters, for the warning.
    params : dict
        By name, as the user wrote them.
    known : collection of str
        The names of today. A strategy that has the old one itself is left alone.

    Returns
    -------
    dict
        A new one where something had to change.

    Examples
    --------
    >>> with_new_names("Margin", {"subset": 5}, ["subset", "progress"])
    {'subset': 5}
    """
    for old, new, convert in _RENAMED:
        if old in params and new in known and old not in known:
            warnings.warn(
                f"The {old!r} parameter of {owner} is now called {new!r}, and will go in skal 0.3. "
                f"Use {new}={convert(params[old])!r}.",
                FutureWarning,
                stacklevel=3,
            )
            params = {name: value for name, value in params.items() if name != old} | {new: convert(params[old])}
    return params


def taking_old_names(init: Callable[..., None]) -> Callable[..., None]:
    """An ``__init__`` that takes the old names of its parameters, too. Its signature has the new ones alone."""
    known = inspect.signature(init).parameters
    if not any(new in known and old not in known for old, new, _ in _RENAMED):
        return init

    @wraps(init)
    def __init__(self: Any, *args: Any, **params: Any) -> None:  # noqa: N807 (it takes the other's place)
        init(self, *args, **with_new_names(type(self).__name__, params, known))

    return __init__
