# SPDX-License-Identifier: BSD-3-Clause
"""Label Studio's protocol for models: it asks for predictions, and tells of annotations as they come."""

from __future__ import annotations

import socket
import threading
from typing import Any

import numpy as np

from skal._core.containers import take_rows
from skal.exceptions import SkalError, how_to_install
from skal.labelling._studio._sync import StudioSync


def predict_tasks(sync: StudioSync, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the model says of tasks: a prediction each, an empty one where it cannot say or must not.

    A held-out task gets none: a suggestion would bias the label that measures accuracy.
    """
    project, snapshot = sync.project, sync.snapshot
    keys = {task["id"]: key for key, task in snapshot.tasks.items()}
    predictor, heldout = project.rounds.predictor, set(project.rounds.session.state.audit)
    can_say = predictor is not None and hasattr(predictor.estimator, "predict_proba")
    found: list[dict[str, Any]] = []
    for task in tasks:
        key = keys.get(task["id"]) if isinstance(task.get("id"), int) else None
        position = None if key is None else project.rounds.position(key)
        if predictor is None or not can_say or position is None or position in heldout:
            found.append({"result": [], "score": 0.0, "model_version": sync.version})
            continue
        proba = predictor.predict_proba(take_rows(project.model.X, np.array([position])))[0]
        best = int(proba.argmax())
        label = str(predictor.names[best])
        # Label Studio takes no class that its config has no longer
        result = [sync.studio.result(snapshot.control, label)] if label in snapshot.control.classes else []
        found.append({"result": result, "score": float(proba[best]), "model_version": sync.version})
    return found


def backend_app(sync: StudioSync) -> Any:
    """A Starlette app with ``/health``, ``/setup``, ``/predict``, ``/versions``, ``/train`` and ``/webhook``."""
    try:
        from starlette.applications import Starlette
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError as error:
        raise SkalError(f"The backend needs Starlette. Got {error}. {how_to_install('label')}") from error

    async def health(request: Any) -> Any:
        return JSONResponse({"status": "UP", "model_class": "skal"})

    async def setup(request: Any) -> Any:  # the token that comes along is not needed, and not kept
        return JSONResponse({"model_version": sync.version})

    async def versions(request: Any) -> Any:
        return JSONResponse({"versions": [sync.version]})

    async def predict(request: Any) -> Any:
        try:
            tasks = [dict(task) for task in (await request.json())["tasks"]]
        except (ValueError, KeyError, TypeError) as error:
            words = (
                f"The body must be JSON with a list of tasks. Got {type(error).__name__}. Send what Label Studio does."
            )
            return JSONResponse({"detail": words}, status_code=400)
        results = await run_in_threadpool(predict_tasks, sync, tasks)
        return JSONResponse({"results": results, "model_version": sync.version})

    async def look(request: Any) -> Any:
        sync.wake.set()
        return JSONResponse({"status": "ok"})

    gets = {"/": health, "/health": health, "/versions": versions}
    posts = {"/setup": setup, "/predict": predict, "/train": look, "/webhook": look}
    routes = [Route(path, run, methods=["GET"]) for path, run in gets.items()]
    return Starlette(routes=[*routes, *(Route(path, run, methods=["POST"]) for path, run in posts.items())])


def serve_backend(sync: StudioSync, port: int) -> tuple[Any, int]:
    """Serve it on this machine, in a thread.

    Parameters
    ----------
    sync : StudioSync
    port : int
        0 takes any that is free.

    Returns
    -------
    server : uvicorn.Server
        Its ``should_exit`` ends it.
    port : int
    """
    import uvicorn

    place = socket.socket()
    place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        place.bind(("127.0.0.1", port))
    except OSError as error:
        place.close()
        raise SkalError(f"The backend must have a free port. Got {port}: {error.strerror}. Choose another.") from error
    config = uvicorn.Config(backend_app(sync), log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, args=([place],), name="skal-backend", daemon=True).start()
    return server, place.getsockname()[1]
