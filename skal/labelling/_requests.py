# SPDX-License-Identifier: BSD-3-Clause
"""Who may talk to the page: people with a secret, from the page itself."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from skal.labelling._access import Access

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


def refusal(scope: dict[str, Any], person: str | None, origins: Iterable[str]) -> tuple[int, str] | None:
    """Why a request is refused, with its status; None if it may pass.

    Parameters
    ----------
    scope : dict
        Of ASGI.
    person : str or None
        Whose secret is in the address; None if it is nobody's.
    origins : iterable of str
        Where the page may be: scheme, host and port.

    Examples
    --------
    >>> scope = {"path": "/secret/", "method": "GET", "headers": [(b"host", b"127.0.0.1:8000")]}
    >>> refusal(scope, "ann", ["http://127.0.0.1:8000"]) is None, refusal(scope, None, ["http://127.0.0.1:8000"])
    (True, (403, 'The address must hold a valid secret. Open the address that skal label printed.'))
    """
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    known = set(origins)
    if headers.get("host") not in {_host(origin) for origin in known}:  # somebody else's page may be behind that name
        names = " or ".join(sorted({urlsplit(origin).hostname or "" for origin in known}))
        return 403, f"The page must be asked for at {names}. Open the address that skal label printed."
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and origin not in known:
        return 403, "Requests must come from the page itself. This one came from another origin."
    if site not in (None, "same-origin", "none"):
        return 403, "Requests must come from the page itself. This one came from another site."
    if person is None:
        return 403, "The address must hold a valid secret. Open the address that skal label printed."
    if "upgrade" in headers:
        return 400, "The page speaks HTTP alone. There are no websockets."
    if scope["method"] == "POST":
        if headers.get("content-type", "").split(";")[0].strip() != "application/json":
            return 415, "What is sent must be JSON. There are no uploads."
        length = headers.get("content-length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > MAX_BODY:
            return 413, f"What is sent must say its length, and be at most {MAX_BODY} bytes. There are no uploads."
    return None


def _host(origin: str) -> str:
    return origin.split("://", 1)[1]


def secret_of(path: str) -> str:
    """The secret in a path.

    Examples
    --------
    >>> secret_of("/secret/api/next"), secret_of("")
    ('secret', '')
    """
    return path.split("/")[1] if path.startswith("/") else ""


class Guard:
    """ASGI middleware that refuses what :func:`refusal` refuses, and adds headers that forbid everything else.

    Parameters
    ----------
    app : ASGI application
        Finds the person who asks in the scope's ``"person"``.
    access : Access
    origins : list of str
    """

    def __init__(self, app: Any, access: Access, origins: list[str]) -> None:
        self.app, self.access, self.origins = app, access, origins

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        person = self.access.person(secret_of(scope["path"]))
        why = refusal(scope, person, self.origins)
        if why is not None:
            await answer_json({"error": why[1]}, why[0], _HEADERS)(scope, receive, send)
            return
        scope["person"] = person or None

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message = message | {"headers": [*message["headers"], *own]}
            await send(message)

        await self.app(scope, receive, send_with_headers)
