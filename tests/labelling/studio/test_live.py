"""The real Label Studio, which SKAL_LABEL_STUDIO names (ENV/bin/label-studio), as ``nox -s label_studio`` has it."""

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks._label_studio import SERVER, TOKEN, WHY, StudioServer, choice, picture_config
from benchmarks.label_studio_pictures import open_view, press_label, sign_in, submit
from skal.labelling._studio._backend import serve_backend
from skal.labelling._studio._client import StudioClient, StudioError
from skal.labelling._studio._studio_project import SCORE, VIEW, StudioProject
from skal.labelling._studio._sync import StudioSync

from .record import TEXTS, picture

pytestmark = pytest.mark.skipif(not SERVER, reason=WHY)
PICTURES = picture_config("colour", ["red", "blue"])


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pictures on the disk of the server's machine."""
    folder = tmp_path_factory.mktemp("files")
    for i in range(6):
        (folder / f"p{i}.png").write_bytes(picture(("red", "blue")[i % 2]))
    return folder


@pytest.fixture(scope="module")
def studio(tmp_path_factory, files):
    """Its administrator allows local files, and models and webhooks on the same machine."""
    allowed = {"LOCAL_FILES_SERVING_ENABLED": "true", "LOCAL_FILES_DOCUMENT_ROOT": str(files.parent)}
    allowed |= {"ML_BLOCK_LOCAL_IP": "false", "SSRF_PROTECTION_ENABLED": "false"}
    server = StudioServer(tmp_path_factory.mktemp("label-studio"), **allowed)
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
    handed = studio.next_task(number, VIEW)
    assert str(handed["id"]) == best
    assert handed["data"][SCORE] == 1.0
    assert studio.next_task(number)["id"] == handed["id"]
    mood = {int(key): "good" if "sunny" in task["data"]["text"] else "bad" for key, task in sync.snapshot.tasks.items()}
    done = {}
    for _ in range(12):
        task = studio.next_task(number)["id"]
        done[task] = studio.annotate(task, "mood", mood[task], "words")["id"]
    assert sync.look()["labels"] == 12
    assert sync.look()["labels"] == 0
    assert {row.id: row.label for row in sync.project.labels().itertuples()} == {str(t): mood[t] for t in done}
    assert set(sync.project.labels()["annotator"]) == {"one@skal.test"}
    assert sync.project.worker.wait_until_idle()
    sync.look()
    predicted = studio.call("GET", f"/api/predictions/?project={number}")
    assert predicted
    assert {each["model_version"] for each in predicted} == {f"{sync.version}-next"}
    heldout = {ids[i] for i in sync.project.rounds.session.state.audit}
    assert {str(each["task"]) for each in predicted} == {ids[i] for i in sync.project.rounds.session.state.asked}
    assert {str(each["task"]) for each in predicted if not each["result"]} <= heldout
    assert not heldout.intersection(str(each["task"]) for each in predicted if each["result"])
    first, second, third = list(done)[:3]
    other = "bad" if mood[first] == "good" else "good"
    studio.call("PATCH", f"/api/annotations/{done[first]}/", {"result": [choice("mood", "words", other)]})
    studio.call("DELETE", f"/api/annotations/{done[second]}/")
    studio.call("DELETE", f"/api/tasks/{third}/")
    fourth = next(t for t in mood if t not in done)
    studio.annotate(fourth, "mood", None, "words", was_cancelled=True)
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
    sync.close()


def test_two_people_never_get_the_same_task(studio, tmp_path):
    """ "Label All Tasks" gives both what skal has chosen, and remembers who has what."""
    number = studio.make_project(TEXTS, make_texts(40))
    people = {name: studio.person(name) for name in ("ada", "bob")}
    sync = open_sync(studio, number, tmp_path)
    ids = sync.project.source.ids
    mood = {int(key): "good" if "sunny" in task["data"]["text"] else "bad" for key, task in sync.snapshot.tasks.items()}
    done = {}
    for _ in range(4):
        sync.look()
        assert sync.project.worker.wait_until_idle()
        sync.look()  # there may be another choice by now
        asked = {int(ids[i]) for i in sync.project.rounds.questions()}
        assert len(asked) >= 10  # two batches: nobody waits while the next one is chosen
        for _ in range(3):
            handed = {name: person.next_task(number)["id"] for name, person in people.items()}
            assert len(set(handed.values())) == 2
            assert asked.issuperset(handed.values())
            for name, task in handed.items():
                people[name].annotate(task, "mood", mood[task], "words")
                done[str(task)] = mood[task], f"{name}@skal.test"
    sync.look()
    labels = {row.id: (row.label, row.annotator) for row in sync.project.labels().itertuples()}
    assert labels == done
    assert len(done) == 24
    task = next(int(key) for key, (_, author) in done.items() if author == "ada@skal.test")
    other = "bad" if mood[task] == "good" else "good"
    people["bob"].annotate(task, "mood", other, "words")
    sync.look()
    assert sync.disagreements == {str(task): f"ada@skal.test: {mood[task]}, bob@skal.test: {other}"}
    studio.annotate(task, "mood", other, "words")
    sync.look()
    assert not sync.disagreements
    (row,) = [row for row in sync.project.labels().itertuples() if row.id == str(task)]
    assert (row.label, row.annotator) == (other, "bob@skal.test, one@skal.test")
    sync.close()


def test_both_buttons_in_a_browser(studio, page, tmp_path):
    """What a person gets who presses them is skal's choice, in its order."""
    number = studio.make_project(TEXTS, make_texts(30))
    sync = open_sync(studio, number, tmp_path, predictions=True)
    assert sync.project.worker.wait_until_idle()
    sync.look()
    asked = [int(sync.project.source.ids[i]) for i in sync.project.rounds.questions()]
    sign_in(page, studio)
    open_view(page, studio, number)
    assert press_label(page, as_displayed=True) == asked[0]
    open_view(page, studio, number)
    assert press_label(page, as_displayed=False) == asked[0]
    assert submit(page, "good") == asked[1]
    assert submit(page, "bad") == asked[2]
    assert sync.look()["labels"] == 2
    labels = {int(row.id): (row.label, row.annotator) for row in sync.project.labels().itertuples()}
    assert labels == {asked[0]: ("good", "one@skal.test"), asked[1]: ("bad", "one@skal.test")}
    times = [answer.lead_time for key in sync.snapshot.tasks for answer in sync.snapshot.answers(key)]
    assert all(seconds > 0 for seconds in times)
    sync.close()


def test_predictions_that_people_chose_stay(studio, tmp_path):
    number = studio.make_project(TEXTS, make_texts(12))
    first = studio.tasks(number)[0]["id"]
    theirs = {"task": first, "result": [choice("mood", "words", "good")], "score": 0.9, "model_version": "theirs"}
    studio.call("POST", "/api/predictions/", theirs)
    studio.call("PATCH", f"/api/projects/{number}/", {"model_version": "theirs"})
    sync = open_sync(studio, number, tmp_path)
    assert sync.project.worker.wait_until_idle()
    sync.look()
    assert "“Label All Tasks” goes by the predictions of theirs" in sync.describe()
    found = studio.call("GET", f"/api/projects/{number}")
    assert (found["model_version"], found["sampling"]) == ("theirs", "Sequential sampling")
    studio.call("PATCH", f"/api/projects/{number}/", {"model_version": ""})
    sync.look()
    assert studio.call("GET", f"/api/projects/{number}")["model_version"] == "skal-0-next"
    assert "theirs" in {each["model_version"] for each in studio.call("GET", f"/api/predictions/?project={number}")}
    sync.close()


class Bucket(SimpleHTTPRequestHandler):
    """A web server that is enough of S3: every bucket is there."""

    def do_HEAD(self):
        self.send_response(200)
        self.end_headers()


@contextmanager
def serve(folder, kind=SimpleHTTPRequestHandler):
    """Another server, which has pictures."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(kind, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_pictures_by_url_from_local_files_and_uploaded(studio, files, tmp_path):
    number = studio.make_project(PICTURES, [])
    storage = {"project": number, "path": str(files), "use_blob_urls": True}
    studio.call("POST", "/api/storages/localfiles/", storage)
    with serve(files) as away:
        local = [{"image": f"/data/local-files/?d={files.name}/p{i}.png"} for i in (0, 1)]
        studio.call(
            "POST", f"/api/projects/{number}/import", [*local, *({"image": f"{away}/p{i}.png"} for i in (2, 3))]
        )
        studio.upload(number, {f"p{i}.png": (files / f"p{i}.png").read_bytes() for i in (4, 5)})
        sync = open_sync(studio, number, tmp_path)
        assert sync.project.worker.wait_until_idle()
        assert not sync.project.source.unreadable()
        found = [(tmp_path / "pictures" / key).read_bytes() for key in sync.snapshot.tasks]
        assert not sync.missing
        assert found == [(files / f"p{i}.png").read_bytes() for i in range(6)]
        sync.look()
        for i, task in enumerate(studio.tasks(number)):
            studio.annotate(task["id"], "colour", ("red", "blue")[i % 2])
        assert sync.look()["labels"] == 6
        assert [row.label for row in sync.project.labels().itertuples()] == ["red", "blue"] * 3
        sync.close()


@pytest.mark.parametrize("presign", [True, False])
def test_pictures_in_a_storage(presign, studio, files, tmp_path):
    """Label Studio has the keys: it hands out the picture, or an address that is good for some minutes."""
    number = studio.make_project(PICTURES, [])
    with serve(files.parent, Bucket) as s3:
        keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
        storage = {
            "project": number,
            "bucket": files.name,
            "s3_endpoint": s3,
            "presign": presign,
            "use_blob_urls": True,
        }
        studio.call("POST", "/api/storages/s3/", storage | keys)
        tasks = [{"image": f"s3://{files.name}/p{i}.png"} for i in range(4)]
        studio.call("POST", f"/api/projects/{number}/import", [*tasks, {"image": "s3://another/p0.png"}])
        sync = open_sync(studio, number, tmp_path)
        assert sync.project.worker.wait_until_idle()
        found = [(tmp_path / "pictures" / key).read_bytes() for key in list(sync.snapshot.tasks)[:4]]
        assert found == [(files / f"p{i}.png").read_bytes() for i in range(4)]
        assert ["HTTP 404" in why for why in sync.missing.values()] == [True]
        assert not sync.project.source.unreadable()
        sync.look()
        sync.close()


def test_a_backbone(studio, files, tmp_path):
    """The command with a frozen network of one's own: features once, for pictures that Label Studio has."""
    own = "from pathlib import Path\nimport numpy as np\n\n\ndef colour(images):\n"
    own += "    with Path(__file__).with_name('notes').open('a') as file:\n        file.write('x' * len(images))\n"
    own += "    return np.stack([np.asarray(image.resize((1, 1)), dtype=np.float32).ravel() for image in images])\n"
    (tmp_path / "own.py").write_text(own)
    number = studio.make_project(PICTURES, [])
    studio.upload(number, {f"p{i}.png": picture((40 * (i % 2) + i, 0, 90 - i)) for i in range(30)})
    project = StudioProject(StudioClient(studio.url, TOKEN), number)
    for _ in range(2):
        options = {"backbone": f"{tmp_path / 'own.py'}:colour", "query_size": 5, "say": lambda text: None}
        sync = StudioSync(project, tmp_path / "out", **options)
        assert sync.project.worker.wait_until_idle()
        sync.look()
        for key, task in list(sync.snapshot.tasks.items())[:20]:
            if not sync.snapshot.answers(key):
                studio.annotate(task["id"], "colour", ("red", "blue")[task["id"] % 2])
        sync.look()
        assert sync.project.worker.wait_until_idle()
        assert sync.version == "skal-20"
        assert sync.project.model.words.endswith("own.py:colour")
        sync.close()
    assert len((tmp_path / "notes").read_text()) == 30


def test_a_restart(studio, tmp_path):
    number = studio.make_project(TEXTS, make_texts(8))
    sync = open_sync(studio, number, tmp_path)
    assert sync.project.worker.wait_until_idle()
    sync.look()
    studio.annotate(studio.next_task(number)["id"], "mood", "good", "words")
    studio.stop()
    sync.studio.client._patience = 0.0
    with pytest.raises(StudioError, match="Check the address"):
        sync.look()
    studio.start()
    assert sync.look()["labels"] == 1
    sync.close()


def test_as_a_backend(studio, tmp_path):
    """Label Studio connects to it, asks it for predictions, starts a training, and tells it of an annotation."""
    number = studio.make_project(TEXTS, make_texts(30))
    sync = open_sync(studio, number, tmp_path)
    tasks = [int(key) for key in sync.snapshot.tasks]
    for task in tasks[:10]:
        studio.annotate(task, "mood", "good" if task % 2 else "bad", "words")
    sync.look()
    assert sync.project.worker.wait_until_idle()
    sync.look()
    server, port = serve_backend(sync, 0)
    try:
        url = f"http://127.0.0.1:{port}"
        model = studio.call("POST", "/api/ml", {"project": number, "url": url, "title": "skal"})
        assert model["readable_state"] == "Connected"
        (model,) = studio.call("GET", f"/api/ml?project={number}")
        assert model["model_version"] == sync.version
        studio.call(
            "POST",
            f"/api/dm/actions?id=retrieve_tasks_predictions&project={number}",
            {"selectedItems": {"all": True, "excluded": []}},
        )
        predicted = studio.call("GET", f"/api/predictions/?project={number}")
        theirs = {each["task"]: each for each in predicted if each["model_version"] == sync.version}
        assert set(theirs) == set(tasks)
        ids = sync.project.source.ids
        heldout = {int(ids[i]) for i in sync.project.rounds.session.state.audit}
        assert {task for task, each in theirs.items() if not each["result"]} == heldout
        assert all(
            each["result"][0]["value"]["choices"][0] in ("good", "bad")
            for task, each in theirs.items()
            if task not in heldout
        )
        sync.look()
        assert len(studio.call("GET", f"/api/predictions/?project={number}")) == len(predicted)  # they stay
        sync.wake.clear()
        studio.call("POST", f"/api/ml/{model['id']}/train", {})
        assert sync.wake.wait(20)
        sync.wake.clear()
        hook = {"project": number, "url": f"{url}/webhook", "send_for_all_actions": True, "send_payload": True}
        studio.call("POST", "/api/webhooks/", hook)
        studio.annotate(tasks[20], "mood", "good", "words")
        assert sync.wake.wait(20)
    finally:
        server.should_exit = True
        sync.close()


def test_kills(studio, tmp_path):
    """skal is killed at any moment; what was annotated is in the journal in the end, once."""
    number = studio.make_project(TEXTS, make_texts(20))
    command = [sys.executable, "-m", "skal.cli", "label-studio", "--url", studio.url, "--project", str(number)]
    command += ["--out", str(tmp_path / "out"), "--model", "linear", "--query-size", "3", "--every", "0.2"]
    tasks = [task["id"] for task in studio.tasks(number)]
    for i, seconds in enumerate((6.0, 7.5, 9.0)):
        process = subprocess.Popen(command, env=os.environ | {"LABEL_STUDIO_API_KEY": TOKEN}, stdout=subprocess.DEVNULL)
        start = time.monotonic()
        for task in tasks[4 * i : 4 * i + 4]:
            studio.annotate(task, "mood", "good" if task % 2 else "bad", "words")
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
