"""The client and the live loop against a small server that replays answers of Label Studio 1.23.2, good and bad."""

import pytest

from skal.cli import main
from skal.exceptions import SampleError
from skal.labelling._studio._client import StudioClient, StudioError
from skal.labelling._studio._studio_project import SCORE, StudioProject
from skal.labelling._studio._sync import StudioSync

from .conftest import TOKEN, USERS, annotation
from .record import CONFIG, TEXTS


@pytest.mark.parametrize(
    ("troubles", "pauses"),
    [
        ([503, 500, 502], [1.0, 2.0, 4.0]),
        ([429], [7.0]),
        ([None, None], [1.0, 2.0]),
        ([504, 429, None], [1.0, 7.0, 4.0]),
    ],
)
def test_back_off(server, troubles, pauses):
    waited = []
    server.troubles = list(troubles)
    assert StudioClient(server.url, TOKEN, sleep=waited.append).call("GET", "api/users") == USERS
    assert waited == pauses


def test_patience_ends(server):
    waited = []
    server.troubles = [503] * 100
    with pytest.raises(StudioError, match="HTTP 503") as caught:
        StudioClient(server.url, TOKEN, patience=10, sleep=waited.append).call("GET", "api/users")
    assert caught.value.status == 503
    assert sum(waited) <= 10


def test_what_creates_something_is_not_repeated_unless_it_was_refused(server):
    client = StudioClient(server.url, TOKEN, sleep=lambda seconds: None)
    server.troubles = [None]
    with pytest.raises(StudioError):
        client.call("POST", "api/dm/views/", {"data": {}})
    assert len(server.seen) == 1
    server.troubles = [429]
    client.call("POST", "api/dm/views/", {"data": {}})
    assert len(server.views) == 1


def test_401_names_the_variable(server):
    server.troubles = [401]
    with pytest.raises(StudioError, match="LABEL_STUDIO_API_KEY") as caught:
        StudioClient(server.url, TOKEN).call("GET", "api/users")
    assert caught.value.status == 401
    assert TOKEN not in str(caught.value)
    assert len(server.seen) == 1


def test_a_personal_token_is_renewed(server):
    client = StudioClient(server.url, "personal")
    server.troubles = [200, 401]
    assert client.call("GET", "api/users") == USERS
    sent = [authorization for _, path, authorization in server.seen if path == "/api/users"]
    assert len(sent) == 2
    assert sent[0] != sent[1]
    assert all(each.startswith("Bearer short-") for each in sent)


def test_no_token_no_address(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("LABEL_STUDIO_API_KEY", raising=False)
    command = ["label-studio", "--url", "localhost", "--project", "1", "--out", str(tmp_path)]
    assert main(command) == 1  # before the token: both are wrong
    assert "http://localhost:8080" in capsys.readouterr().err
    command[2] = "http://localhost"
    assert main(command) == 2
    assert "LABEL_STUDIO_API_KEY" in capsys.readouterr().err


def test_configs_that_do_not_fit_are_refused(server):
    server.config = CONFIG
    client = StudioClient(server.url, TOKEN)
    with pytest.raises(SampleError, match=r"\['animal', 'colours'\].*--control"):
        StudioProject(client, 1).read()
    with pytest.raises(SampleError, match=r"'colours' must have choice=.single"):
        StudioProject(client, 1, "colours").read()
    assert StudioProject(client, 1, "animal").read().control.classes == ("cat", "dog")


def labels(sync):
    return {int(row.id): row.label for row in sync.project.labels().itertuples()}


def test_the_journal_follows(server, tmp_path):
    """Recorded tasks, then every change that may come; a second look changes nothing, nor does a new start."""
    waited = []
    client = StudioClient(server.url, TOKEN, patience=10, sleep=waited.append)

    def start():
        options = {"model": "linear", "query_size": 2, "say": lambda text: None}
        return StudioSync(StudioProject(client, 1), tmp_path, **options)

    sync = start()
    assert sync.project.worker.wait_until_idle()
    assert sync.look() == {"annotations": 3, "labels": 3, "scores": 1}
    assert labels(sync) == {7: "good", 8: "bad", 9: "good"}
    assert sync.project.worker.wait_until_idle()
    sync.look()  # there may be another choice by now
    assert sync.look() == {"annotations": 0, "labels": 0, "scores": 0}
    assert server.tasks[3]["data"][SCORE] is not None
    (said,) = server.predictions  # of the only one that is asked for; it says nothing but its place
    assert (said["task"], said["result"]) == (10, [])
    assert server.settings["model_version"] == said["model_version"]
    assert server.settings["sampling"] == "Uncertainty sampling"
    first, second, third, fourth = server.tasks
    annotation(first, 20, 2, "bad")  # a tie
    second["annotations"].clear()
    third["annotations"][0]["result"][0]["value"]["choices"] = ["bad"]
    annotation(fourth, 21, 1, was_cancelled=True)
    server.troubles = [500, None]
    assert sync.look()["labels"] == 4
    assert waited == [1.0, 2.0]
    assert labels(sync) == {9: "bad"}
    assert sync.disagreements == {"7": "one@skal.test: good, two@skal.test: bad"}
    assert "disagree" in sync.describe()
    assert sync.project.rounds.known["10"]["event"] == "declined"
    annotation(first, 22, 3, "bad")  # the majority
    del server.tasks[1]
    server.tasks.append({"id": 11, "annotations": [], "predictions": [], "data": {"text": "a new one"}})
    server.config = TEXTS.replace('value="bad"/>', 'value="bad"/><Choice value="so"/>')
    annotation(server.tasks[-1], 23, 1, "so")
    assert sync.look()["labels"] == 2
    assert labels(sync) == {7: "bad", 9: "bad", 11: "so"}
    assert sync.project.classes == ["good", "bad", "so"]
    server.tasks[1]["annotations"][0]["id"] = 9
    kept = server.tasks.pop(1)
    assert sync.look()["labels"] == 1
    assert labels(sync) == {7: "bad", 11: "so"}
    server.tasks.insert(1, kept)
    sync.look()
    server.troubles = [503] * 20
    with pytest.raises(StudioError, match="503"):
        sync.look()
    server.troubles = []
    sync.close()
    with (tmp_path / "annotations.jsonl").open("ab") as file:
        file.write(b'{"half": ')  # a kill in the middle of a line
    lines = (tmp_path / "labels.jsonl").read_bytes()
    sync = start()
    assert sync.look()["labels"] == 0
    assert (tmp_path / "labels.jsonl").read_bytes() == lines
    assert labels(sync) == {7: "bad", 9: "bad", 11: "so"}
    assert len(sync.record.known) == 6
    sync.close()
    assert TOKEN not in "".join(p.read_text(errors="replace") for p in tmp_path.rglob("*") if p.is_file())
