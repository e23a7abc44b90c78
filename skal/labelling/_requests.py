# SPDX-License-Identifier: BSD-3-Clause
"""Who may talk to the page: this machine, with the token of this start, from the page itself."""

from __future__ import annotations

import hmac
import json
from typing import Any

MAX_BODY = 64 * 1024
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def answer_json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Any:
    """A response of Starlette; in ASCII, since a path may hold what UTF-8 cannot."""
    from starlette.responses import Response

    data = json.dumps(content, allow_nan=False).encode()
    return Response(data, status, headers, "application/json")


def refusal(scope: dict[str, Any], token: str, port: int) -> tuple[int, str] | None:
    """Why a request is refused, with its status; None if it may pass.

    Parameters
    ----------
    scope : dict
        Of ASGI.
    token : str
    port : int

    Examples
    --------
    >>> scope = {"path": "/secret/", "method": "GET", "headers": [(b"host", b"127.0.0.1:8000")]}
    >>> refusal(scope, "secret", 8000) is None, refusal(scope, "other", 8000)
    (True, (403, 'The address must hold the token of this start. Open the address that skal label printed.'))
    """
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
    if headers.get("host") not in hosts:  # another name for this machine: somebody else's page may be behind it
        return 403, "The page must be asked for at 127.0.0.1 or localhost. Open the address that skal label printed."
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin not in {f"http://{host}" for host in hosts}:
        return 403, "Requests must come from the page itself. This one came from another origin."
    if site not in (None, "same-origin", "none"):
        return 403, "Requests must come from the page itself. This one came from another site."
    given = scope["path"].split("/")[1] if scope["path"].startswith("/") else ""
    if not hmac.compare_digest(given.encode(), token.encode()):
        return 403, "The address must hold the token of this start. Open the address that skal label printed."
    if "upgrade" in headers:
        return 400, "The page speaks HTTP alone. There are no websockets."
    if scope["method"] == "POST":
        if headers.get("content-type", "").split(";")[0].strip() != "application/json":
            return 415, "What is sent must be JSON. There are no uploads."
        length = headers.get("content-length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > MAX_BODY:
            return 413, f"What is sent must say its length, and be at most {MAX_BODY} bytes. There are no uploads."
    return None


class Guard:
    """ASGI middleware that refuses what :func:`refusal` refuses, and adds headers that forbid everything else.

    Parameters
    ----------
    app : ASGI application
    token : str
    port : int
    """

    def __init__(self, app: Any, token: str, port: int) -> None:
        self.app, self.token, self.port = app, token, port

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        why = refusal(scope, self.token, self.port)
        if why is not None:
            await answer_json({"error": why[1]}, why[0], _HEADERS)(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = message | {"headers": [*message["headers"], *own]}
            await send(message)

        await self.app(scope, receive, send_with_headers)
