"""Pictures of tasks, from hosts that are well and from others."""

import json
from base64 import urlsafe_b64decode
from urllib.parse import parse_qs

import pytest

from benchmarks._label_studio import picture_config
from skal.cli import main
from skal.exceptions import SampleError
from skal.labelling._studio._client import StudioClient, StudioError
from skal.labelling._studio._studio_project import StudioProject
from skal.labelling._studio._sync import StudioSync

from .conftest import TOKEN, annotation
from .record import picture

COLOURS = ("red", "blue", "green", "black", "white")


def put(server, addresses):
    """Let the project have pictures at these addresses, and everybody be in a good mood."""
    server.config = picture_config("mood", ["good", "bad"])
    server.tasks = [
        {"id": i, "annotations": [], "predictions": [], "data": {"image": address}}
        for i, address in enumerate(addresses, start=1)
    ]
    for task in server.tasks:
        annotation(task, 100 + task["id"], 1, "good")


def paint(host, n=4):
    """Pictures on a host; their addresses."""
    host.files = {f"/p{i}.png": picture(COLOURS[i]) for i in range(n)}
    return [f"{host.url}{path}" for path in host.files]


def start(server, folder, patience=0.0, say=lambda text: None):
    client = StudioClient(server.url, TOKEN, patience=patience, sleep=lambda seconds: None)
    return StudioSync(StudioProject(client, 1), folder, model="linear", query_size=2, say=say)


def kept(folder):
    """The pictures in the folder, by the numbers of their tasks."""
    return {int(path.name.split("-")[0]): path.read_bytes() for path in sorted((folder / "pictures").iterdir())}


def labelled(sync):
    return sorted(int(row.id.split("-")[0]) for row in sync.project.labels().itertuples())


@pytest.mark.parametrize("trouble", [503, 403, 404, 429, 401, None])
def test_nothing_is_kept_of_a_picture_that_does_not_come(trouble, server, away, tmp_path):
    """The others go on without it; it comes when its host is well, and nothing of its task was lost."""
    put(server, paint(away))
    away.files["/p0.png"] = trouble
    sync = start(server, tmp_path)
    assert sync.look()["annotations"] == 4
    assert labelled(sync) == list(kept(tmp_path)) == [2, 3, 4]
    (key,) = sync.missing
    assert f"{away.url}/p0.png" in sync.missing[key]
    assert key in sync.describe()
    away.files["/p0.png"] = picture("red")
    assert sync.look()["labels"] == 1
    assert labelled(sync) == [1, 2, 3, 4]
    assert not sync.missing
    assert sync.look() == {"annotations": 0, "labels": 0, "scores": 0}
    sync.close()


def test_a_restart_asks_again(server, away, tmp_path):
    put(server, paint(away))
    away.files["/p0.png"] = 503
    start(server, tmp_path).close()
    away.files["/p0.png"] = picture("red")
    sync = start(server, tmp_path)
    sync.look()
    assert labelled(sync) == [1, 2, 3, 4]
    sync.close()


def test_another_address_is_another_picture(server, away, tmp_path):
    addresses = paint(away, 5)
    put(server, addresses[:4])
    sync = start(server, tmp_path)
    sync.look()
    server.tasks[0]["data"]["image"] = addresses[4]
    sync.look()
    assert kept(tmp_path)[1] == away.files["/p4.png"]
    assert labelled(sync) == [1, 2, 3, 4]
    sync.close()


@pytest.mark.parametrize(
    "address", ["file:///etc/hostname", "ftp://x/y.png", "data:image/png;base64,AA", "memory:y.png", "http://[y.png"]
)
def test_only_the_web_and_label_studio_are_asked(address, server, away, tmp_path):
    put(server, [*paint(away), address])
    sync = start(server, tmp_path)
    sync.look()
    assert labelled(sync) == list(kept(tmp_path)) == [1, 2, 3, 4]
    ((key, why),) = sync.missing.items()
    assert key.startswith("5-")
    assert "http or https" in why
    sync.close()


def test_addresses_with_spaces_and_umlauts(server, away, tmp_path):
    away.files = {"/%C3%BCber%20all.png": picture("red"), "/a%20b.png": picture("blue")}
    server.files = {"/data/local-files/": picture("white")}
    put(server, [f"{away.url}/über all.png", f"{away.url}/a%20b.png", "/data/local-files/?d=grün/a b.png"])
    sync = start(server, tmp_path)
    assert list(kept(tmp_path).values()) == [*away.files.values(), picture("white")]
    assert "d=gr%C3%BCn/a%20b.png" in server.queries
    sync.close()


def test_a_redirection_to_a_file_of_this_machine_is_not_followed(server, away, tmp_path):
    secret = tmp_path / "secret.png"
    secret.write_bytes(picture("red"))
    away.moved = {"/p0.png": secret.as_uri()}
    put(server, paint(away))
    sync = start(server, tmp_path / "out")
    assert list(kept(tmp_path / "out")) == [2, 3, 4]
    sync.close()


@pytest.mark.parametrize("address", ["s3://bucket/a b.png", "gs://bucket/a.png", "azure-blob://box/a.png"])
def test_storages_are_asked_through_label_studio(address, server, away, tmp_path):
    put(server, [*paint(away), address])
    server.files["/tasks/5/resolve/"] = picture("white")
    sync = start(server, tmp_path)
    assert kept(tmp_path)[5] == picture("white")
    ((query, seen),) = [(q, s) for q, s in zip(server.queries, server.seen, strict=True) if "resolve" in s[1]]
    assert urlsafe_b64decode(parse_qs(query)["fileuri"][0]).decode() == address
    assert seen[2] == f"Token {TOKEN}"
    sync.close()


def test_who_gets_the_token(server, away, tmp_path):
    """Label Studio, for files; no other host, and no task gets an answer of the API with it."""
    files = ["/data/upload/1/a.png", f"{server.url}/data/local-files/", "/api/users", "/data/../api/users"]
    server.files = dict.fromkeys(("/data/upload/1/a.png", "/data/local-files/"), picture("red"))
    put(server, [*paint(away), *files])
    sync = start(server, tmp_path)
    assert {authorization for *_, authorization in away.seen} == {None}
    token = f"Token {TOKEN}"
    for path in server.files:
        assert [authorization for _, asked, authorization in server.seen if asked == path] == [token]
    asked = [authorization for _, path, authorization in server.seen if path == "/api/users"]
    assert asked == [token, None, None]  # the first one is ours
    sync.close()


def test_a_host_that_is_down_is_left_alone_until_the_next_look(server, away, tmp_path):
    paths = [f"/data/upload/1/{i}.png" for i in range(4)]
    server.files = {path: picture(COLOURS[i]) for i, path in enumerate(paths)}
    put(server, [*paths, *(f"{away.url}/{i}.png" for i in range(30))])
    away.files = {f"/{i}.png": 503 for i in range(30)}
    sync = start(server, tmp_path)
    assert len(away.seen) == 3
    assert len(sync.missing) == 30
    sync.look()
    assert labelled(sync) == [1, 2, 3, 4]
    assert len({path for _, path, _ in away.seen}) == 6  # others than before
    away.files["/0.png"] = away.files["/29.png"] = picture("white")
    for _ in range(10):
        sync.look()
    assert len(labelled(sync)) == 6
    sync.close()


def test_a_host_that_is_not_there(server, away, tmp_path):
    put(server, [*paint(away), "http://127.0.0.1:1/a.png"])
    sync = start(server, tmp_path)
    assert ["no answer" in why for why in sync.missing.values()] == [True]
    sync.close()


def test_pictures_that_are_nowhere_are_asked_for_by_turns(server, away, tmp_path):
    paths = [f"/gone{i}.png" for i in range(25)]
    put(server, [*paint(away), *(f"{away.url}{path}" for path in paths)])
    away.files |= dict.fromkeys(paths, 404)
    sync = start(server, tmp_path)
    for _ in range(3):
        before = len(away.seen)
        sync.look()
        assert len(away.seen) == before + 10
    assert {path for _, path, _ in away.seen[-25:]} == set(paths)
    away.files |= dict.fromkeys(paths, picture("white"))
    sync.look()
    assert not sync.missing
    assert len(labelled(sync)) == 29
    sync.close()


def test_no_picture_at_all(server, tmp_path, monkeypatch, capsys):
    put(server, ["http://127.0.0.1:1/a.png", "memory:b"])
    with pytest.raises(SampleError, match=r"127\.0\.0\.1:1/a\.png"):
        start(server, tmp_path / "one")
    server.tasks = server.tasks[1:]
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", TOKEN)
    assert main(["label-studio", "--url", server.url, "--project", "1", "--out", str(tmp_path / "two")]) == 1
    assert "memory:b" in capsys.readouterr().err


def test_label_studio_away_is_no_missing_picture(server, tmp_path):
    """A look that cannot go on says so, and the next one does."""
    server.files = {f"/data/upload/1/p{i}.png": picture(COLOURS[i]) for i in range(4)}
    put(server, list(server.files))
    server.files["/data/upload/1/p3.png"] = None
    with pytest.raises(StudioError):
        start(server, tmp_path)
    server.files["/data/upload/1/p3.png"] = picture("black")
    sync = start(server, tmp_path)
    sync.look()
    assert labelled(sync) == [1, 2, 3, 4]
    assert json.loads((tmp_path / "annotations.jsonl").read_text().splitlines()[0])["author"] == "one@skal.test"
    sync.close()
