# SPDX-License-Identifier: BSD-3-Clause
"""The page over HTTP, for this machine alone."""

from __future__ import annotations

import json
import secrets
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from skal.exceptions import SampleError, SkalError
from skal.labelling._api import call
from skal.labelling._project import Project
from skal.labelling._requests import Guard

PAGE = Path(__file__).parent / "_page"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_MOST_PIXELS = 4096
# A label waits for the interpreter's lock several times; by default a training may keep it for 5 ms each time.
_SWITCH = 0.0005


class LabelServer:
    """Serves a project at an address with a secret in it.

    Parameters
    ----------
    project : Project
    port : int, default=0
        0 takes any that is free.

    Attributes
    ----------
    address : str
        What to open in a browser.
    """

    def __init__(self, project: Project, port: int = 0) -> None:
        try:
            import uvicorn
        except ImportError as error:
            raise SkalError(
                f"The page needs Starlette and uvicorn. Got {error}. Run: pip install 'skal-learn[label]'"
            ) from error
        self.project = project
        self._socket = _bind(port)
        self.port = self._socket.getsockname()[1]
        self.token = secrets.token_urlsafe(24)
        self.address = f"http://127.0.0.1:{self.port}/{self.token}/"
        config = uvicorn.Config(
            self._app(), log_level="warning", access_log=False, lifespan="off", timeout_keep_alive=60
        )
        self._server = uvicorn.Server(config)

    def run(self) -> None:
        """Serve until Ctrl-C, or until somebody is finished."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(_SWITCH)
        try:
            self._server.run(sockets=[self._socket])
        finally:
            sys.setswitchinterval(before)
            self._socket.close()

    def start(self) -> threading.Thread:
        """Serve in a thread."""
        thread = threading.Thread(target=self.run, name="skal-page", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Answer what has been asked, and end."""
        self._server.should_exit = True

    def _app(self) -> Any:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse, Response
        from starlette.routing import Route

        def page(request: Any) -> Response:
            name = request.path_params.get("name") or "index.html"
            files = {path.name: path for path in PAGE.iterdir() if path.suffix in _TYPES}
            if name not in files:
                return JSONResponse({"error": "There is no such page."}, status_code=404)
            return Response(
                files[name].read_bytes(),
                media_type=f"{_TYPES[files[name].suffix]}; charset=utf-8",
                headers={"Cache-Control": "no-cache"},
            )

        def picture(request: Any) -> Response:
            size = request.query_params.get("size", "")
            pixels = min(int(size), _MOST_PIXELS) if size.isdecimal() and int(size) > 0 else None
            try:
                data, kind = self.project.picture(request.query_params.get("id", ""), pixels)
            except SampleError as error:
                return JSONResponse({"error": str(error)}, status_code=404)
            return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=600"})

        async def api(request: Any) -> Response:
            from starlette.concurrency import run_in_threadpool

            try:
                given = json.loads(await request.body() or b"{}")
            except ValueError:
                return JSONResponse({"error": "What is sent must be JSON."}, status_code=400)
            try:  # in a thread: writing to the disk must not hold up the others
                method = request.path_params["method"]
                return JSONResponse(await run_in_threadpool(call, self.project, method, given, self.stop))
            except SkalError as error:
                return JSONResponse({"error": str(error)}, status_code=400)

        root = f"/{self.token}"
        routes = [
            Route(f"{root}/", page, methods=["GET"]),
            Route(f"{root}/picture", picture, methods=["GET"]),
            Route(f"{root}/api/{{method}}", api, methods=["POST"]),
            Route(f"{root}/{{name}}", page, methods=["GET"]),
        ]
        return Guard(Starlette(routes=routes), self.token, self.port)


def _bind(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind(("127.0.0.1", port))
        found.listen(128)  # another process could still take the port until somebody listens
    except (OSError, OverflowError) as error:
        found.close()
        raise SkalError(
            f"The port must be free. Got {port}: {error}. Choose another one, or leave --port out to take any."
        ) from error
    return found
