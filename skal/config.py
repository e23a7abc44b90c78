# SPDX-License-Identifier: BSD-3-Clause
"""How to compute: settings of the thread, as in scikit-learn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["config_context", "get_config", "set_config"]

_DEFAULTS: dict[str, Any] = {"batch_size": 256, "max_memory": None, "n_jobs": None, "progress": False}
_LOCAL = threading.local()


def get_config() -> dict[str, Any]:
    """A copy of the settings of this thread."""
    return dict(getattr(_LOCAL, "settings", _DEFAULTS))


def set_config(**settings: Any) -> None:
    """Change settings of this thread."""
    _LOCAL.settings = get_config() | settings


@contextmanager
def config_context(**settings: Any) -> Iterator[None]:
    """Change settings inside of a ``with`` block."""
    before = get_config()
    set_config(**settings)
    try:
        yield
    finally:
        _LOCAL.settings = before
