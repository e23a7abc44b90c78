"""Results that are measured once: a line of a file each, so that what was stopped goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Kept:
    """What has been measured, by key.

    Parameters
    ----------
    path : Path or None
        A file of JSON lines, read now and added to; None keeps nothing beyond this process.

    Examples
    --------
    >>> from benchmarks._kept import Kept
    >>> kept = Kept(None)
    >>> kept("one", lambda: 1), kept("one", lambda: 2)
    (1, 1)
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._known: dict[str, Any] = {}
        if path is not None and path.exists():
            lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
            self._known = {line["key"]: line["value"] for line in lines}

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def __getitem__(self, key: str) -> Any:
        return self._known[key]

    def __call__(self, key: str, measure: Callable[[], Any]) -> Any:
        """What ``measure`` gives, now or in an earlier run."""
        if key not in self._known:
            start = time.perf_counter()
            self._known[key] = measure()
            if self.path is not None:
                seconds = round(time.perf_counter() - start, 1)
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, "value": self._known[key], "seconds": seconds}) + "\n")
        return self._known[key]

    def values(self) -> list[Any]:
        """Everything that has been measured."""
        return list(self._known.values())
