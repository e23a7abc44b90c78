# SPDX-License-Identifier: BSD-3-Clause
"""The page over HTTP: for this machine alone, unless a team needs it and the way is encrypted."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from skal._files.json_text import parse_json
from skal.exceptions import SampleError, SkalError, how_to_install
from skal.labelling._access import Access
from skal.labelling._api import call
from skal.labelling._connections import PATIENCE, count_allowed, limit_connections
from skal.labelling._options import Door
from skal.labelling._project import Project
from skal.labelling._requests import Guard, answer_json

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
        0 takes the last one if it is free, or else any.
    door : Door or None, default=None
        Where to listen and how people come there; by default this machine alone.
    patience : float, default=20.0
        Seconds until a request must be complete.

    Attributes
    ----------
    address : str
        What to open in a browser; in a team, for the one who decides.
    links : dict from person to str
        The addresses of a team.
    finished : bool
        Whether somebody has pressed "Finish".
    """

    def __init__(
        self, project: Project, port: int = 0, *, door: Door | None = None, patience: float = PATIENCE
    ) -> None:
        try:
            import uvicorn
        except ImportError as error:
            raise SkalError(f"The page needs Starlette and uvicorn. Got {error}. {how_to_install('label')}") from error
        self.project, self._patience, self.finished = project, patience, False
        door = Door() if door is None else door
        self._access = Access(project.folder, project.team.people)
        self._socket = _bind(door.host, port, self._access.port)
        self.port = self._socket.getsockname()[1]
        self._access.keep_port(self.port)
        self._origins = door.origins(self.port)
        self.links = {name: f"{self._origins[0]}/{token}/" for name, token in self._access.tokens.items()}
        self.address = self.links[project.team.decider or ""]
        most = count_allowed()
        config = uvicorn.Config(
            self._app(),
            http=limit_connections(patience, most),
            ws="none",
            lifespan="off",
            log_level="error",  # strangers' mistakes are not the user's
            access_log=False,
            timeout_keep_alive=60,
            ssl_certfile=door.certificate,
            ssl_keyfile=door.key,
            backlog=most,  # connections that wait until one can be closed
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

    def finish(self) -> None:
        """The project is at its end: stop."""
        self.finished = True
        self.stop()

    def stop(self) -> None:
        """Answer what has been asked, and end."""
        self._server.should_exit = True

    def _app(self) -> Any:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response
        from starlette.routing import Route

        def page(request: Any) -> Any:
            name = request.path_params.get("name") or "index.html"
            files = {path.name: path for path in PAGE.iterdir() if path.suffix in _TYPES}
            if name not in files:
                return answer_json({"error": "There is no such page."}, 404)
            return Response(
                files[name].read_bytes(),
                media_type=f"{_TYPES[files[name].suffix]}; charset=utf-8",
                headers={"Cache-Control": "no-cache"},
            )

        def picture(request: Any) -> Any:
            size = request.query_params.get("size", "")
            pixels = min(int(size), _MOST_PIXELS) if size.isdecimal() and len(size) < 10 and int(size) > 0 else None
            try:
                data, kind = self.project.picture(request.query_params.get("id", ""), pixels)
            except SampleError as error:
                return answer_json({"error": str(error)}, 404)
            return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=600"})

        def final(request: Any) -> Any:
            data = self.project.ending.final().to_json().encode("utf-8", "surrogatepass")
            name = "attachment; filename=final.json"
            return Response(data, media_type="application/json", headers={"Content-Disposition": name})

        async def api(request: Any) -> Any:
            try:
                given = parse_json(await asyncio.wait_for(request.body(), self._patience) or b"{}")
            except ValueError:
                return answer_json({"error": "What is sent must be JSON."}, 400)
            except (asyncio.TimeoutError, ClientDisconnect):
                why = f"A request must be complete within {self._patience:g} seconds. Send it again."
                return answer_json({"error": why}, 408, {"Connection": "close"})
            try:  # in a thread: writing to the disk must not hold up the others
                method, person = request.path_params["method"], request.scope["person"]
                return answer_json(await run_in_threadpool(call, self.project, method, given, self.finish, person))
            except SkalError as error:
                return answer_json({"error": str(error)}, 400)

        root = "/{secret}"
        routes = [
            Route(f"{root}/", page, methods=["GET"]),
            Route(f"{root}/picture", picture, methods=["GET"]),
            Route(f"{root}/final.json", final, methods=["GET"]),
            Route(f"{root}/api/{{method}}", api, methods=["POST"]),
            Route(f"{root}/{{name}}", page, methods=["GET"]),
        ]
        return Guard(Starlette(routes=routes), self._access, self._origins)


def _bind(host: str, port: int, last: int) -> socket.socket:
    """A socket that listens; without a wish for a port, at the last one if that is free."""
    if port == 0 and last:
        with suppress(SkalError):
            return _bind(host, last, 0)
    try:
        found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, port))
            found.listen(128)  # another process could still take the port until somebody listens
        except (OSError, OverflowError):
            found.close()
            raise
    except (OSError, OverflowError) as error:
        raise SkalError(
            f"The port must be free, and the host an address of this machine. Got {host}, {port}: {error}. Choose "
            "another one, or leave --port out to take any."
        ) from error
    return found
