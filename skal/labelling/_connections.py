# SPDX-License-Identifier: BSD-3-Clause
"""Connections that do not ask, ask for ever, or are too many: they are closed, and the server goes on."""

from __future__ import annotations

import json
from typing import Any

MOST = 100  # connections; a browser has at most six of them per tab
PATIENCE = 20.0  # seconds until a request must be complete
_PHRASES = {400: "Bad Request", 408: "Request Timeout", 429: "Too Many Requests"}
_TOO_MANY = "There are too many connections. Close some of them."


def count_allowed() -> int:
    """The number of connections that may be open: few enough to leave descriptors for files.

    Examples
    --------
    >>> 0 < count_allowed() <= MOST
    True
    """
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except (ImportError, OSError):  # Windows
        return MOST
    return MOST if soft == resource.RLIM_INFINITY else max(1, min(MOST, soft // 8))


def limit_connections(patience: float, most: int) -> Any:
    """uvicorn's protocol for one connection, with a bound on its time and on how many there are.

    Parameters
    ----------
    patience : float
        Seconds until the head of a request must have come.
    most : int
        Where there would be more connections, the one that has waited longest without a request is closed.

    Returns
    -------
    class
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    waiting: dict[Any, None] = {}  # connections without a request under way, the oldest first

    class Connection(H11Protocol):
        _timer: Any = None
        _has_begun = _is_one_too_many = False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()
            if len(self.connections) > most:
                idle = next((each for each in waiting if each is not self and not each.is_busy()), None)
                self._is_one_too_many = idle is None
                if idle is not None:
                    idle.give_up(429, _TOO_MANY)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_waiting()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return
            self._has_begun = True
            if self._is_one_too_many:
                self.give_up(429, _TOO_MANY)
                return
            try:
                super().data_received(data)
            except Exception:  # of a header that nobody can read
                self.give_up(400, "What is sent must be HTTP.")
            if self.is_busy():
                self._stop_waiting()
            elif not self.transport.is_closing():
                self._wait()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._has_begun = bool(self.conn.trailing_data[0])
            if self.transport.is_closing() or self.is_busy():
                return
            if self._has_begun:  # with a part of the next request
                self._wait()
            else:
                waiting[self] = None  # for the next request, not for ever: uvicorn sees to that

        def give_up(self, status: int, why: str) -> None:
            """Say why, unless nobody has asked, and close."""
            if self._has_begun:
                body = json.dumps({"error": why}).encode()
                head = f"HTTP/1.1 {status} {_PHRASES[status]}\r\ncontent-type: application/json\r\n"
                head += f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
                self.transport.write(head.encode() + body)
            self._stop_waiting()
            self.transport.close()

        def is_busy(self) -> bool:
            """True if an answer is under way."""
            return self.cycle is not None and not self.cycle.response_complete

        def _wait(self) -> None:
            if self._timer is None:
                waiting[self] = None
                self._timer = self.loop.call_later(patience, self._end_waiting)

        def _stop_waiting(self) -> None:
            waiting.pop(self, None)
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _end_waiting(self) -> None:
            self.give_up(408, f"A request must be complete within {patience:g} seconds. Send it again.")

    return Connection
