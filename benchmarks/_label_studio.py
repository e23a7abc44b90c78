"""A real Label Studio on this machine, with its own database, and people who label in it through its API."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterable
from contextlib import closing
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

RELEASE = "1.23.2"
SERVER = os.environ.get("SKAL_LABEL_STUDIO")  # ENV/bin/label-studio
WHY = "Label Studio is not installed; nox -s label_studio installs it"
OWNER, PASSWORD, TOKEN = "one@skal.test", "skal-test-1", "1" * 40
PICTURES = """<View>
  <Image name="image" value="$image" width="{width}"/>
  <Choices name="{name}" toName="image">{choices}</Choices>
</View>"""


def picture_config(name: str, classes: Iterable[str], width: str = "100%") -> str:
    """A label config with one control about pictures."""
    return PICTURES.format(name=name, width=width, choices="".join(f'<Choice value="{each}"/>' for each in classes))


def choice(control: str, to_name: str, *choices: str) -> dict[str, Any]:
    """A part of an annotation's result."""
    return {"from_name": control, "to_name": to_name, "type": "choices", "value": {"choices": list(choices)}}


class Person:
    """Somebody with an account, who talks to the API with a token."""

    def __init__(self, url: str, token: str) -> None:
        self.url, self.token = url, token

    def call(self, method: str, path: str, body: Any = None, raw: bool = False, kind: str = "application/json") -> Any:
        """What the API answers."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Token {self.token}", "Content-Type": kind}
        try:
            with urlopen(Request(self.url + path, data, headers, method=method), timeout=120) as answer:
                content = answer.read()
        except HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error
        return content if raw else json.loads(content or b"null")

    def make_project(self, config: str, tasks: list[dict[str, Any]], **more: Any) -> int:
        """The number of a new project."""
        number = int(self.call("POST", "/api/projects", {"title": "test", "label_config": config} | more)["id"])
        if tasks:
            self.call("POST", f"/api/projects/{number}/import", tasks)
        return number

    def upload(self, project: int, files: dict[str, bytes]) -> Any:
        """Import pictures as files."""
        head = 'Content-Disposition: form-data; name="file{}"; filename="{}"\r\nContent-Type: image/png\r\n\r\n'
        parts = [
            b"--x\r\n" + head.format(place, name).encode() + data + b"\r\n"
            for place, (name, data) in enumerate(files.items())
        ]
        body = b"".join(parts) + b"--x--\r\n"
        return self.call("POST", f"/api/projects/{project}/import", body, kind="multipart/form-data; boundary=x")

    def tasks(self, project: int) -> list[dict[str, Any]]:
        """All tasks, by their numbers."""
        found = self.call("GET", f"/api/projects/{project}/export?exportType=JSON&download_all_tasks=true")
        return sorted(found, key=lambda task: task["id"])

    def next_task(self, project: int, view: str | None = None) -> dict[str, Any]:
        """What "Label All Tasks" hands out; or "Label Tasks As Displayed" in a view, whose order goes along."""
        path, body = f"/api/dm/actions?id=next_task&project={project}", {}
        if view is not None:
            views = self.call("GET", f"/api/dm/views/?project={project}")
            (found,) = [each for each in views if each["data"].get("title") == view]
            path, body = f"{path}&tabID={found['id']}", {name: found["data"][name] for name in ("ordering", "filters")}
        task: dict[str, Any] = self.call("POST", path, body)
        return task

    def annotate(self, task: int, control: str, label: str | None, to_name: str = "image", **more: Any) -> Any:
        """Submit an annotation; without a label an empty one."""
        result = [choice(control, to_name, label)] if label else []
        return self.call("POST", f"/api/tasks/{task}/annotations/", {"result": result} | more)


class StudioServer(Person):
    """A server with its own database, which can be stopped and started again; and its owner.

    Parameters
    ----------
    folder : path
    **settings
        Variables of Label Studio's environment.
    """

    def __init__(self, folder: Path, **settings: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.settings = folder, settings
        super().__init__(f"http://127.0.0.1:{self.port}", TOKEN)
        assert SERVER is not None, WHY
        database = folder / "label_studio.sqlite3"
        empty = Path(SERVER).parents[1] / "skal-empty.sqlite3"  # making one takes most of the first start
        if empty.exists():
            shutil.copy(empty, database)
        self.start()
        if not empty.exists():
            part = empty.with_suffix(".part")
            with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(part)) as target:
                source.backup(target)
            part.replace(empty)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        quiet = {"LATEST_VERSION_CHECK": "0", "COLLECT_ANALYTICS": "0", "SENTRY_DSN": "", "FRONTEND_SENTRY_DSN": ""}
        command = [str(SERVER), "start", "--no-browser", "--data-dir", str(self.folder), "--internal-host", "127.0.0.1"]
        command += ["-p", str(self.port), "--username", OWNER, "--password", PASSWORD]
        command += ["--user-token", TOKEN, "--enable-legacy-api-token", "--log-level", "ERROR"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | quiet | self.settings,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while True:
            try:
                with urlopen(f"{self.url}/api/version", timeout=10) as answer:
                    release = json.loads(answer.read())["release"]
                assert release == RELEASE, release
                return
            except (URLError, OSError):
                if self.process.poll() is not None:
                    raise RuntimeError((self.folder / "log").read_text()[-2000:]) from None
                time.sleep(0.5)

    def stop(self) -> None:
        """End it as kill -9 does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def person(self, name: str) -> Person:
        """Somebody else with an account, who signs up or in, as a person does, and copies the token."""
        email, known = f"{name}@skal.test", {user["email"] for user in self.call("GET", "/api/users")}
        page = f"{self.url}/user/{'login' if email in known else 'signup'}/"
        browser = build_opener(HTTPCookieProcessor(CookieJar()))
        with browser.open(page, timeout=60) as answer:
            found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', answer.read().decode())
        assert found is not None, page
        form = {"csrfmiddlewaretoken": found[1], "email": email, "password": f"skal-test-{name}"}
        browser.open(page, urlencode(form).encode(), timeout=60).close()
        with browser.open(f"{self.url}/api/current-user/token", timeout=60) as answer:
            return Person(self.url, json.loads(answer.read())["token"])
