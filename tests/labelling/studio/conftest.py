"""A small server that replays answers of Label Studio 1.23.2, good and bad."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks._label_studio import choice

from .record import TEXTS

RECORDED = Path(__file__).parent / "recorded_1_23_2"
TOKEN = "1" * 40
USERS = [{"id": 1, "email": "one@skal.test"}, {"id": 2, "email": "two@skal.test"}]


class Replay(ThreadingHTTPServer):
    """Answers as the recorded server did; ``troubles`` come first: a status, or None for a lost connection."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.troubles, self.seen, self.views, self.predictions = [], [], [], []
        self.moved, self.queries = {}, []
        self.files = {}  # pictures by their paths: bytes, or a status, or None for a lost connection
        self.settings = {"id": 1, "sampling": "Sequential sampling", "model_version": None}
        self.tasks = json.loads((RECORDED / "texts.json").read_text())
        self.config = TEXTS
        self.url = f"http://127.0.0.1:{self.server_address[1]}"

    def answer(self, method, path, body):
        if path == "/api/token/refresh":
            return {"access": f"short-{len(self.seen)}"}
        if path == "/api/users":
            return USERS
        if path.endswith("/export"):
            return self.tasks
        if path.endswith("/import/predictions"):
            numbers = range(len(self.seen), len(self.seen) + len(body))
            new = [each | {"id": 1000 * number} for each, number in zip(body, numbers, strict=True)]
            self.predictions += new
            for each in new:
                next(task for task in self.tasks if task["id"] == each["task"])["predictions"].append(each["id"])
            return {"created": len(body)}
        if path.endswith("/model-versions/"):
            self.predictions = [each for each in self.predictions if each["model_version"] != body["model_version"]]
            return 0
        if path.startswith("/api/projects/"):
            self.settings |= body or {}
            return self.settings | {"label_config": self.config}
        if path == "/api/predictions/":
            return self.predictions
        if path.startswith("/api/predictions/"):
            self.predictions = [each for each in self.predictions if str(each["id"]) != path.split("/")[3]]
            return None
        if path == "/api/dm/views/":
            if method == "POST":
                self.views.append({"id": 7} | body)
                return self.views[-1]
            return self.views
        task = next(task for task in self.tasks if path == f"/api/tasks/{task['id']}/")
        task["data"] = body["data"]
        return task


class Handler(BaseHTTPRequestHandler):
    def handle_any(self):
        size = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        path = self.path.split("?")[0]
        self.server.seen.append((self.command, path, self.headers.get("Authorization")))
        self.server.queries.append(self.path.partition("?")[2])
        trouble = self.server.troubles.pop(0) if self.server.troubles else 200
        if path in self.server.files:
            content = self.server.files[path]
            trouble = 200 if isinstance(content, bytes) else content
        if trouble is None:
            self.close_connection = True
            return
        if trouble == 200 and path in self.server.files:
            data = self.server.files[path]
        else:
            found = self.server.answer(self.command, path, body) if trouble == 200 else {"detail": "no"}
            data = json.dumps(found).encode()
        if path in self.server.moved:
            self.send_response(302)
            self.send_header("Location", self.server.moved[path])
            self.end_headers()
            return
        self.send_response(trouble)
        if trouble == 429:
            self.send_header("Retry-After", "7")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = handle_any  # noqa: N815

    def log_message(self, *args):
        pass


@contextmanager
def serve_replay():
    with Replay() as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield found
        found.shutdown()
        thread.join()


@pytest.fixture
def server():
    with serve_replay() as found:
        yield found


@pytest.fixture
def away():
    """Another host, which has pictures."""
    with serve_replay() as found:
        yield found


def annotation(task, number, who, *labels, **more):
    """Annotate a task, with as many choices as are given."""
    result = [choice("mood", "words", *labels)] if labels else []
    when = {"created_at": "2026-11-18T18:00:00Z", "updated_at": "2026-11-18T18:00:00Z", "lead_time": 1.0}
    task["annotations"].append({"id": number, "completed_by": who, "result": result} | when | more)
