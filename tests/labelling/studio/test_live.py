"""The real Label Studio, which SKAL_LABEL_STUDIO names (ENV/bin/label-studio), as ``nox -s label_studio`` has it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from skal.labelling._studio._backend import predict_tasks
from skal.labelling._studio._client import StudioClient, StudioError
from skal.labelling._studio._studio_project import SCORE, VIEW, StudioProject
from skal.labelling._studio._sync import StudioSync

from .record import TEXTS, choice, make_call, picture, upload

SERVER = os.environ.get("SKAL_LABEL_STUDIO")
pytestmark = pytest.mark.skipif(not SERVER, reason="Label Studio is not installed; nox -s label_studio installs it")
TOKEN = "1" * 40
PICTURES = """<View><Image name="image" value="$image"/>
<Choices name="colour" toName="image"><Choice value="red"/><Choice value="blue"/></Choices></View>"""


class Studio:
    """A server with its own database, which can be stopped and started again."""

    def __init__(self, folder):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.folder, self.url = folder, f"http://127.0.0.1:{self.port}"
        self.call = make_call(self.url, TOKEN)
        self.start()

    def start(self):
        options = {"LATEST_VERSION_CHECK": "0", "COLLECT_ANALYTICS": "0", "SENTRY_DSN": "", "FRONTEND_SENTRY_DSN": ""}
        command = [SERVER, "start", "--no-browser", "--data-dir", str(self.folder), "--internal-host", "127.0.0.1"]
        command += ["-p", str(self.port), "--username", "one@skal.test", "--password", "skal-test-1"]
        command += ["--user-token", TOKEN, "--enable-legacy-api-token", "--log-level", "ERROR"]
        with (self.folder / "log").open("ab") as log:
            how = {"env": os.environ | options, "stdout": log, "stderr": log, "start_new_session": True}
            self.process = subprocess.Popen(command, cwd=self.folder, **how)
        while True:
            try:
                with urlopen(f"{self.url}/api/version", timeout=10) as answer:
                    assert json.loads(answer.read())["release"] == "1.23.2"
                return
            except (URLError, OSError):
                assert self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
                time.sleep(0.5)

    def stop(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def make_project(self, config, tasks):
        number = self.call("POST", "/api/projects", {"title": "test", "label_config": config})["id"]
        if tasks:
            self.call("POST", f"/api/projects/{number}/import", tasks)
        return number

    def next_task(self, number):
        """What "Label Tasks As Displayed" of the view hands out: the request has its order."""
        views = self.call("GET", f"/api/dm/views/?project={number}")
        (view,) = [each for each in views if each["data"].get("title") == VIEW]
        path = f"/api/dm/actions?id=next_task&project={number}&tabID={view['id']}"
        return self.call("POST", path, {"ordering": view["data"]["ordering"]})

    def annotate(self, task, control, label, to_name="words", **more):
        result = [choice(control, to_name, label)] if label else []
        return self.call("POST", f"/api/tasks/{task}/annotations/", {"result": result} | more)


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    server = Studio(tmp_path_factory.mktemp("label-studio"))
    yield server
    server.stop()


def open_sync(studio, number, folder, **options):
    project = StudioProject(StudioClient(studio.url, TOKEN), number)
    return StudioSync(project, folder, model="linear", query_size=5, say=lambda text: None, **options)


def make_texts(n):
    return [{"text": f"{'sunny warm bright' if i % 2 else 'rain cold dark'} number {i}"} for i in range(n)]


def test_texts(studio, tmp_path):
    """Handed out in our order, annotated, changed, skipped, deleted and added: the journal follows."""
    number = studio.make_project(TEXTS, make_texts(30))
    sync = open_sync(studio, number, tmp_path, predictions=True)
    assert sync.project.worker.wait_until_idle()
    assert sync.look()["scores"] > 0
    ids = sync.project.source.ids
    best = ids[sync.project.rounds.questions()[0]]
    handed = studio.next_task(number)
    assert str(handed["id"]) == best
    assert handed["data"][SCORE] == 1.0
    mood = {int(key): "good" if "sunny" in task["data"]["text"] else "bad" for key, task in sync.snapshot.tasks.items()}
    done = {}
    for _ in range(12):
        task = studio.next_task(number)["id"]
        done[task] = studio.annotate(task, "mood", mood[task])["id"]
    assert sync.look()["labels"] == 12
    assert sync.look()["labels"] == 0
    assert {row.id: row.label for row in sync.project.labels().itertuples()} == {str(t): mood[t] for t in done}
    assert set(sync.project.labels()["annotator"]) == {"one@skal.test"}
    assert sync.project.worker.wait_until_idle()
    sync.look()
    predicted = studio.call("GET", f"/api/predictions/?project={number}")
    assert predicted
    assert {each["model_version"] for each in predicted} == {sync.version}
    heldout = {ids[i] for i in sync.project.rounds.session.state.audit}
    assert not heldout.intersection(str(each["task"]) for each in predicted)
    first, second, third = list(done)[:3]
    other = "bad" if mood[first] == "good" else "good"
    studio.call("PATCH", f"/api/annotations/{done[first]}/", {"result": [choice("mood", "words", other)]})
    studio.call("DELETE", f"/api/annotations/{done[second]}/")
    studio.call("DELETE", f"/api/tasks/{third}/")
    fourth = next(t for t in mood if t not in done)
    studio.annotate(fourth, "mood", None, was_cancelled=True)
    studio.call("POST", f"/api/projects/{number}/import", make_texts(3))
    sync.look()
    labels = {row.id: row.label for row in sync.project.labels().itertuples()}
    assert labels[str(first)] == other
    assert str(second) not in labels
    assert sync.project.rounds.known[str(fourth)]["label"] is None
    assert len(sync.project.source) == 32
    assert str(third) not in sync.project.source.ids
    lines = [json.loads(line) for line in (tmp_path / "annotations.jsonl").read_text().splitlines()]
    assert {line["annotation"] for line in lines if line["gone"]} == {done[second], done[third]}
    config = TEXTS.replace("</Choices>", '<Choice value="so"/></Choices>')
    studio.call("PATCH", f"/api/projects/{number}/", {"label_config": config})
    sync.look()
    assert sync.project.classes == ["good", "bad", "so"]
    (said,) = predict_tasks(sync, [{"id": next(t for t in mood if str(t) not in heldout and t != third)}])
    assert said["result"][0]["value"]["choices"][0] in ("good", "bad")
    sync.close()


def test_uploaded_pictures_and_a_restart(studio, tmp_path):
    number = studio.make_project(PICTURES, [])
    for i in range(8):
        upload(studio.call, number, f"p{i}.png", picture(("red", "blue")[i % 2]))
    sync = open_sync(studio, number, tmp_path)
    assert sync.project.source.kind == "image"
    assert not sync.project.source.unreadable()
    assert sync.project.worker.wait_until_idle()
    sync.look()
    task = studio.next_task(number)["id"]
    studio.annotate(task, "colour", "red", "image")
    studio.stop()
    sync.studio.client._patience = 0.0
    with pytest.raises(StudioError, match="Check the address"):
        sync.look()
    studio.start()
    assert sync.look()["labels"] == 1
    sync.close()


def test_kills(studio, tmp_path):
    """skal is killed at any moment; what was annotated is in the journal in the end, once."""
    number = studio.make_project(TEXTS, make_texts(20))
    command = [sys.executable, "-m", "skal.cli", "label-studio", "--url", studio.url, "--project", str(number)]
    command += ["--out", str(tmp_path / "out"), "--model", "linear", "--query-size", "3", "--every", "0.2"]
    tasks = [task["id"] for task in studio.call("GET", f"/api/tasks?project={number}&page_size=100")["tasks"]]
    for i, seconds in enumerate((6.0, 7.5, 9.0)):
        process = subprocess.Popen(command, env=os.environ | {"LABEL_STUDIO_API_KEY": TOKEN}, stdout=subprocess.DEVNULL)
        start = time.monotonic()
        for task in tasks[4 * i : 4 * i + 4]:
            studio.annotate(task, "mood", "good" if task % 2 else "bad")
        time.sleep(max(0.0, seconds - (time.monotonic() - start)))
        process.kill()
        process.wait()
    sync = open_sync(studio, number, tmp_path / "out")
    sync.look()
    labels = {int(row.id): row.label for row in sync.project.labels().itertuples()}
    assert labels == {task: "good" if task % 2 else "bad" for task in tasks[:12]}
    assert len(sync.record.known) == 12
    sync.close()


def test_wrong_token(studio):
    with pytest.raises(StudioError, match="LABEL_STUDIO_API_KEY") as caught:
        StudioProject(StudioClient(studio.url, "2" * 40), 1).read()
    assert caught.value.status == 401
