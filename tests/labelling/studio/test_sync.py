"""The loop and the backend on recorded tasks, with every trouble that people and servers make."""

import pytest
from starlette.testclient import TestClient

from skal.exceptions import SampleError
from skal.labelling._studio._backend import backend_app
from skal.labelling._studio._client import StudioClient, StudioError
from skal.labelling._studio._studio_project import StudioProject
from skal.labelling._studio._sync import StudioSync

from .conftest import TOKEN, annotation
from .record import TEXTS


def start(server, folder, say=lambda text: None):
    client = StudioClient(server.url, TOKEN, patience=0.0, sleep=lambda seconds: None)
    return StudioSync(StudioProject(client, 1), folder, model="linear", query_size=2, say=say)


@pytest.fixture
def running(server, tmp_path):
    """A loop, the list of what it says, and what is called at every word."""
    said, calls = [], []

    def say(text):
        said.append(text)
        for call in list(calls):
            call(text)

    sync = start(server, tmp_path, say)
    yield sync, said, calls
    sync.close()


def test_a_server_that_is_busy_is_waited_for(server, running):
    sync, said, calls = running
    server.troubles = [503, 429, None]
    calls.append(lambda text: sync.stop() if "labelled" in text else None)
    sync.run(0.001)
    assert [("The next attempt" in text, "labelled" in text) for text in said] == [(True, False)] * 3 + [(False, True)]
    assert said[-1].startswith("3 of 4 labelled")
    assert len(sync.project.labels()) == 3


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_ends_it(status, server, running):
    sync, said, _ = running
    server.troubles = [status]
    with pytest.raises(StudioError) as caught:
        sync.run(0.001)
    assert caught.value.status == status
    assert not said


def test_a_config_that_does_not_fit_is_waited_for(server, running):
    """Somebody may put it right."""
    sync, said, calls = running
    server.config = "<View/>"

    def repair(text):
        server.config = TEXTS
        if "labelled" in text:
            sync.stop()

    calls.append(repair)
    sync.run(0.001)
    assert "Choices control" in said[0]
    assert "The next attempt" in said[0]
    assert said[-1].startswith("3 of 4 labelled")


def test_two_choices_leave_one_task_out(server, tmp_path):
    """It is named; the others go on, and it comes back when it is put right."""
    annotation(server.tasks[3], 90, 1, "good", "bad")
    sync = start(server, tmp_path)
    assert sync.look()["labels"] == 3
    assert sync.unclear == {"10": "one@skal.test: bad and good"}
    assert "10: one@skal.test: bad and good" in sync.describe()
    server.tasks[3]["annotations"].clear()
    annotation(server.tasks[3], 91, 1, "good")
    assert sync.look()["labels"] == 1
    assert not sync.unclear
    sync.close()


def test_addresses_of_texts_are_refused(server, tmp_path):
    server.config = TEXTS.replace('value="$text"', 'value="$text" valueType="url"')
    with pytest.raises(SampleError, match="addresses of texts"):
        start(server, tmp_path)


def test_the_backend(server, tmp_path):
    """What Label Studio asks, and what nobody should send."""
    sync = start(server, tmp_path)
    sync.look()
    assert sync.project.worker.wait_until_idle()
    sync.look()
    client = TestClient(backend_app(sync))
    assert client.get("/health").json()["status"] == "UP"
    assert client.post("/setup", json={"project": "1"}).json() == {"model_version": sync.version}
    assert client.get("/versions").json() == {"versions": [sync.version]}
    stranger = {"id": 99, "data": {"text": "not in the project"}}
    found = client.post("/predict", json={"tasks": [*server.tasks, stranger, {}]}).json()
    assert len(found["results"]) == 6
    heldout = {sync.project.source.ids[i] for i in sync.project.rounds.session.state.audit}
    for task, each in zip(server.tasks, found["results"], strict=False):
        assert (each["result"] == []) == (str(task["id"]) in heldout)
        assert all(part["value"]["choices"][0] in ("good", "bad") for part in each["result"])
    assert [each["result"] for each in found["results"][4:]] == [[], []]
    for body in (b"x", b"{}", b"[]", b'{"tasks": 3}', b'{"tasks": [3]}'):
        answer = client.post("/predict", content=body)
        assert answer.status_code == 400
        assert "a list of tasks" in answer.json()["detail"]
    assert client.post("/predict", json={"tasks": [{"id": [1]}]}).json()["results"][0]["result"] == []
    for path in ("/train", "/webhook"):
        sync.wake.clear()
        assert client.post(path, json={}).status_code == 200
        assert sync.wake.is_set()
    sync.close()
