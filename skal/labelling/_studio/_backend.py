# SPDX-License-Identifier: BSD-3-Clause
"""Label Studio's protocol for models: it asks for predictions, and tells of annotations as they come."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from skal._core.containers import take_rows
from skal.exceptions import SkalError
from skal.labelling._studio._sync import StudioSync


def predict_tasks(sync: StudioSync, tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the model says of tasks: a prediction each, an empty one where it cannot say or must not.

    A held-out task gets none: a suggestion would bias the label that measures accuracy.
    """
    project, snapshot = sync.project, sync.snapshot
    keys = {int(task["id"]): key for key, task in snapshot.tasks.items()}
    predictor, heldout = project.rounds.predictor, set(project.rounds.session.state.audit)
    found: list[dict[str, Any]] = []
    for task in tasks:
        key = keys.get(int(task["id"]))
        position = None if key is None else project.rounds.position(key)
        if predictor is None or position is None or position in heldout:
            found.append({"result": [], "score": 0.0, "model_version": sync.version})
            continue
        proba = predictor.predict_proba(take_rows(project.model.X, np.array([position])))[0]
        best = int(proba.argmax())
        result = sync.studio.result(snapshot.control, str(predictor.names[best]))
        found.append({"result": [result], "score": float(proba[best]), "model_version": sync.version})
    return found


def backend_app(sync: StudioSync) -> Any:
    """A Starlette app with ``/health``, ``/setup``, ``/predict`` and ``/webhook``."""
    try:
        from starlette.applications import Starlette
        from starlette.responses import JSONResponse
        from starlette.routing import Route
    except ImportError as error:
        raise SkalError(f"The backend needs Starlette. Got {error}. Run: pip install 'skal-learn[label]'") from error

    async def health(request: Any) -> Any:
        return JSONResponse({"status": "UP", "model_class": "skal"})

    async def setup(request: Any) -> Any:
        return JSONResponse({"model_version": sync.version})

    async def predict(request: Any) -> Any:
        body = await request.json()
        return JSONResponse({"results": predict_tasks(sync, body["tasks"]), "model_version": sync.version})

    async def webhook(request: Any) -> Any:
        sync.wake.set()
        return JSONResponse({"status": "ok"})

    paths = {"/": health, "/health": health}
    posts = {"/setup": setup, "/predict": predict, "/webhook": webhook}
    routes = [Route(path, run, methods=["GET"]) for path, run in paths.items()]
    return Starlette(routes=[*routes, *(Route(path, run, methods=["POST"]) for path, run in posts.items())])


def serve_backend(sync: StudioSync, port: int, host: str = "127.0.0.1") -> Any:
    """Serve it in a thread; gives uvicorn's server, whose ``should_exit`` ends it."""
    import uvicorn

    config = uvicorn.Config(backend_app(sync), host=host, port=port, log_level="error", lifespan="off", ws="none")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, name="skal-backend", daemon=True).start()
    return server
