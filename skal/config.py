# SPDX-License-Identifier: BSD-3-Clause
"""How to compute: settings that hold for everything in this thread, as in scikit-learn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_DEFAULTS: dict[str, Any] = {"batch_size": 256, "max_memory": None, "n_jobs": None, "progress": False}
_UNCHANGED: Any = object()
_local = threading.local()


def _settings() -> dict[str, Any]:
    if not hasattr(_local, "settings"):
        _local.settings = dict(_DEFAULTS)
    found: dict[str, Any] = _local.settings
    return found


def get_config() -> dict[str, Any]:
    """The settings of this thread."""
    return dict(_settings())


def set_config(
    *,
    batch_size: Any = _UNCHANGED,
    max_memory: Any = _UNCHANGED,
    n_jobs: Any = _UNCHANGED,
    progress: Any = _UNCHANGED,
) -> None:
    """Change settings of this thread."""
    given = {"batch_size": batch_size, "max_memory": max_memory, "n_jobs": n_jobs, "progress": progress}
    _settings().update({name: value for name, value in given.items() if value is not _UNCHANGED})


@contextmanager
def config_context(**settings: Any) -> Iterator[None]:
    """Other settings inside a block."""
    before = get_config()
    set_config(**settings)
    try:
        yield
    finally:
        set_config(**before)
