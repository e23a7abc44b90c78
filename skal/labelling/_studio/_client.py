# SPDX-License-Identifier: BSD-3-Clause
"""Label Studio's API over HTTP: with a token, with patience for a server that is busy or away."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import SplitResult, quote, unquote, urlencode, urljoin, urlsplit
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    UnknownHandler,
)

from skal._files.json_text import parse_json
from skal.exceptions import SkalError, shorten

TOKEN = "LABEL_STUDIO_API_KEY"  # the name of the environment variable, as Label Studio's own SDK has it
_SAFE = "%/:=&?~#+!$,;'@()*[]"  # what an address may have as it is; spaces and umlauts it may not
_LEGACY = re.compile(r"[0-9a-f]{40}")
_BUSY = (429, 500, 502, 503, 504)
_LONGEST = 30.0  # seconds between two attempts
_ERRORS = HTTPDefaultErrorHandler, HTTPErrorProcessor
_REFUSED = 429, 503  # nothing was done: a request that creates something may be repeated, too


def split_address(address: str) -> SplitResult:
    """The parts of an address, all empty if it is none: a task may have anything there."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")


class StudioError(SkalError):
    """Label Studio has refused a request, or cannot be reached.

    Attributes
    ----------
    status : int or None
        Of HTTP; None if there was no answer.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class StudioClient:
    """One server and one token.

    Parameters
    ----------
    url : str
        Where Label Studio is.
    token : str
        A personal access token, or a legacy token.
    patience : float, default=60.0
        Seconds to go on trying while the server is busy or cannot be reached.
    sleep : callable, default=time.sleep
    """

    def __init__(
        self, url: str, token: str, *, patience: float = 60.0, sleep: Callable[[float], Any] = time.sleep
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise StudioError(f"The url must be an address of Label Studio. Got {url!r}. Pass http://localhost:8080.")
        self.url = url.rstrip("/") + "/"
        self._token, self._patience, self._sleep = token.strip(), patience, sleep
        self._access: str | None = None  # a short-lived one, which a personal access token is good for
        self._opener = OpenerDirector()
        for handler in (ProxyHandler, UnknownHandler, HTTPHandler, HTTPSHandler, *_ERRORS, _SameServer):
            self._opener.add_handler(handler())  # none for files of this machine: a task may name anything

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """What the API answers, as JSON.

        Parameters
        ----------
        method : str
        path : str
            Below the server's address, without a slash before it.
        body : JSON, optional
        **query
            What stands behind the question mark.
        """
        address = self.url + path + (f"?{urlencode(query)}" if query else "")
        data = self._request(method, address, None if body is None else json.dumps(body).encode(), self._patience, True)
        return parse_json(data) if data.strip() else None

    def fetch(self, address: str, *, wait: bool = True) -> bytes:
        """What a task names: of Label Studio's own files with the token, of any other place without.

        Parameters
        ----------
        address : str
            Of http or https, or a path of Label Studio.
        wait : bool, default=True
            Whether to be patient.
        """
        with suppress(ValueError):  # an address that cannot be read has no scheme
            address = quote(urljoin(self.url, address), safe=_SAFE)
        if split_address(address).scheme not in ("http", "https"):
            raise StudioError(
                f"A picture must be at an address of http or https, or in Label Studio. Got {shorten(address)}. Import "
                "it anew.",
                400,
            )
        try:
            own = self.has_files_at(address)
            return self._request("GET", address, None, self._patience if wait else 0.0, own)
        except StudioError as error:
            if error.status == 401 and own:
                raise
            got = "no answer" if error.status is None else f"HTTP {error.status}"
            place = address.split("?")[0]
            raise StudioError(f"{place} must be a picture. Got {got}. Look at it.", error.status) from error

    def has_files_at(self, address: str) -> bool:
        """Whether Label Studio serves the files of tasks there: no task gets an answer of its API with our token."""
        there, own = split_address(urljoin(self.url, address)), urlsplit(self.url)
        path = unquote(there.path)
        places = tuple(f"{start}{place}/" for start in ("/", own.path) for place in ("data", "tasks"))
        return there[:2] == own[:2] and path.startswith(places) and ".." not in path

    def _request(self, method: str, address: str, data: bytes | None, patience: float, own: bool) -> bytes:
        waited, delay, renewed = 0.0, 1.0, False
        while True:
            try:
                return self._once(method, address, data, own)
            except HTTPError as error:
                with error:
                    said = error.read(500).decode("utf-8", "replace")
                status: int | None = error.code
                if error.code == 401 and own and self._access is not None and not renewed:
                    self._access, renewed = None, True  # it has run out
                    continue
                again = error.code in (_REFUSED if method == "POST" else _BUSY)
                asked = error.headers.get("Retry-After", "")
                pause = float(asked) if asked.isdigit() else delay
                why = f"HTTP {error.code}: {said}"
            except (URLError, HTTPException, OSError) as error:
                status, again, pause, why = None, method != "POST", delay, str(getattr(error, "reason", error))
            pause = min(pause, _LONGEST)
            if not again or waited + pause > patience:
                raise _failure(method, address, status, why)
            self._sleep(pause)
            waited, delay = waited + pause, min(2 * delay, _LONGEST)

    def _once(self, method: str, address: str, data: bytes | None, own: bool) -> bytes:
        headers = {"Content-Type": "application/json"} if data is not None else {}
        if own:  # nobody else gets the token
            headers["Authorization"] = self._authorization()
        with self._opener.open(Request(address, data, headers, method=method), timeout=60) as answer:
            content: bytes = answer.read()
        return content

    def _authorization(self) -> str:
        if _LEGACY.fullmatch(self._token):
            return f"Token {self._token}"
        if self._access is None:
            data = json.dumps({"refresh": self._token}).encode()
            ask = Request(f"{self.url}api/token/refresh", data, {"Content-Type": "application/json"})
            with self._opener.open(ask, timeout=60) as answer:
                self._access = str(parse_json(answer.read())["access"])
        return f"Bearer {self._access}"


class _SameServer(HTTPRedirectHandler):
    """Follow a redirection, but let no other server have the token."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        if new is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            new.remove_header("Authorization")
        return new


def _failure(method: str, address: str, status: int | None, why: str) -> StudioError:
    place = f"{method} {address.split('?')[0]}"
    if status == 401:
        return StudioError(
            f"Label Studio must accept the token in {TOKEN}. Got {why} for {place}. Copy the token from Account & "
            "Settings, and check that the organisation allows tokens of its kind.",
            status,
        )
    if status in (403, 404):
        return StudioError(
            f"The project must be there for the owner of the token. Got {why} for {place}. Check --project.", status
        )
    remedy = "Check the address, and that Label Studio runs." if status is None else "Look at Label Studio's log."
    return StudioError(f"Label Studio must answer {place}. Got {why}. {remedy}", status)
