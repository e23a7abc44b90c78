# SPDX-License-Identifier: BSD-3-Clause
"""Settings that say how to compute, not what to choose: batch size, memory, workers, progress bars.

As in scikit-learn, every thread has settings of its own, which begin as the defaults. Code that hands work to another
thread or process passes the settings on: ``config_context(**settings)`` around the work, with ``settings`` from
:func:`get_config` in the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from skal.validation import Choice, Integer, check_n_jobs, parse_memory

__all__ = ["config_context", "get_config", "set_config"]

_DEFAULTS: dict[str, Any] = {"batch_size": 256, "max_memory": None, "n_jobs": None, "progress": False}
_UNCHANGED: Any = type("unchanged", (), {"__repr__": lambda self: "unchanged"})()
_local = threading.local()


def get_config() -> dict[str, Any]:
    """The settings of this thread.

    Returns
    -------
    dict
        A copy, with the keys ``batch_size``, ``max_memory``, ``n_jobs`` and ``progress``.

    Examples
    --------
    >>> import skal
    >>> skal.get_config()
    {'batch_size': 256, 'max_memory': None, 'n_jobs': None, 'progress': False}
    """
    return dict(getattr(_local, "settings", _DEFAULTS))


def set_config(
    *,
    batch_size: int = _UNCHANGED,
    max_memory: int | str | None = _UNCHANGED,
    n_jobs: int | None = _UNCHANGED,
    progress: bool = _UNCHANGED,
) -> None:
    """Change settings of this thread, for all queries to come.

    Parameters
    ----------
    batch_size : int, default=256
        Samples per network pass, at most. It changes no result beyond rounding.
    max_memory : int, str or None, default=None
        Bound on the working memory of a query, such as ``"2GB"``. None is no bound: strategies then work with 1 GB
        where they can choose.
    n_jobs : int or None, default=None
        Workers that share the passes over the pool, as in joblib: None is 1, or what ``joblib.parallel_config`` says;
        -1 is all processors.
    progress : bool, default=False
        Whether long passes show a bar.

    See Also
    --------
    config_context : Change settings inside a ``with`` block.

    Examples
    --------
    >>> import skal
    >>> skal.set_config(batch_size=64)
    >>> skal.get_config()["batch_size"]
    64
    >>> skal.set_config(batch_size=256)
    """
    given = {"batch_size": batch_size, "max_memory": max_memory, "n_jobs": n_jobs, "progress": progress}
    changes = {name: value for name, value in given.items() if value is not _UNCHANGED}
    if "batch_size" in changes:
        Integer(1).check("set_config", "batch_size", batch_size)
    if "n_jobs" in changes:
        check_n_jobs("set_config", n_jobs)
    if "progress" in changes:
        Choice(True, False, remedy="Use True to see bars.").check("set_config", "progress", progress)
    parse_memory("set_config", "max_memory", changes.get("max_memory"))
    _local.settings = get_config() | changes


@contextmanager
def config_context(**settings: Any) -> Iterator[None]:
    """Change settings of this thread inside a ``with`` block.

    Parameters
    ----------
    **settings
        Those of :func:`set_config`.

    Yields
    ------
    None
        Nothing: strategies find the settings by themselves.

    Examples
    --------
    >>> import skal
    >>> with skal.config_context(max_memory="500MB", n_jobs=2):
    ...     skal.get_config()["n_jobs"]
    2
    """
    before = get_config()
    set_config(**settings)
    try:
        yield
    finally:
        _local.settings = before
