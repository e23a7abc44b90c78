# SPDX-License-Identifier: BSD-3-Clause
"""Settings that say how to compute, not what to choose; one set of them for each thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["config_context", "get_config", "set_config"]

_DEFAULTS: dict[str, Any] = {"batch_size": 256, "max_memory": None, "n_jobs": None, "progress": False}
_local = threading.local()


def get_config() -> dict[str, Any]:
    """The settings of this thread."""
    return dict(getattr(_local, "settings", _DEFAULTS))


def set_config(**settings: Any) -> None:
    """Change settings of this thread."""
    _local.settings = get_config() | settings


@contextmanager
def config_context(**settings: Any) -> Iterator[None]:
    """Other settings inside a block."""
    before = get_config()
    set_config(**settings)
    try:
        yield
    finally:
        _local.settings = before
