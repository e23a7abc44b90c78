"""Every request that must be refused is, and what is served is what it says."""

import errno
import json
import os
import shutil
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import skal
from skal.exceptions import SkalError
from skal.labelling._notebook import cell
from skal.labelling._server import LabelServer

from .conftest import CLASSES, label_page, make_project, truth


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """One for the whole file: what is refused changes nothing."""
    with make_project(tmp_path_factory.mktemp("labels")) as found:
        yield found


@pytest.fixture(scope="module")
def server(project):
    found = LabelServer(project)
    thread = found.start()
    yield found
    found.stop()
    thread.join(120)


def error(answer):
    return answer[0], json.loads(answer[2])["error"]


def test_the_page_and_its_parts_are_served(client):
    for name, kind in [("", "text/html"), ("main.js", "text/javascript"), ("style.css", "text/css")]:
        status, headers, data = client.request("GET", client.root + name)
        assert status == 200
        assert headers["content-type"].startswith(kind)
        assert data
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_nothing_is_fetched_from_outside():
    for path in (Path(skal.__file__).parent / "labelling" / "_page").iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, path
        assert "https:" not in text, path
        assert "innerHTML" not in text, path


def test_it_listens_on_this_machine_alone(client):
    """No other address of this machine answers, not even another one of the loopback's."""
    with socket.socket() as other, pytest.raises(ConnectionRefusedError):
        other.connect(("127.0.0.2", client.address.port))


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/api/status", "/main.js", "//api/status", "/%2e%2e/"])
def test_a_request_without_the_token_is_refused(path, client):
    for method in ("GET", "POST"):
        status, why = error(client.request(method, path, {} if method == "POST" else None))
        assert status == 403
        assert "secret" in why


def test_a_token_that_is_nearly_right_is_refused(client):
    for root in (client.root[:-2] + "/", client.root[:-1] + "x/", client.root.upper(), client.root.lower()):
        if root != client.root:
            assert client.request("GET", root)[0] == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "[::1]:{port}", None]
)
def test_another_host_is_refused(host, client):
    host = host and host.format(port=client.address.port)
    answer = client.request("GET", client.root, headers={"Host": host})
    if host is None:
        assert answer[0] in (400, 403)  # HTTP itself forbids it
    else:
        assert error(answer)[0] == 403
        assert "127.0.0.1 or localhost" in error(answer)[1]


def test_localhost_is_this_machine(client):
    assert client.request("GET", client.root, headers={"Host": f"localhost:{client.address.port}"})[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}"])
def test_another_origin_is_refused(origin, client):
    headers = {"Origin": origin.format(port=client.address.port)}
    for method, body in (("GET", None), ("POST", {})):
        status, why = error(client.request(method, f"{client.root}api/status", body, headers))
        assert status == 403
        assert "another origin" in why
    own = {"Origin": f"http://127.0.0.1:{client.address.port}"}
    assert client.request("POST", f"{client.root}api/status", {}, own)[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_is_refused(site, client):
    status, why = error(client.request("GET", client.root, headers={"Sec-Fetch-Site": site}))
    assert (status, "another site" in why) == (403, True)
    assert client.request("GET", client.root, headers={"Sec-Fetch-Site": "none"})[0] == 200


def test_uploads_there_are_none(client):
    path = f"{client.root}api/answer"
    for kind in ("multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "text/plain", ""):
        assert error(client.request("POST", path, b"x=1", {"Content-Type": kind}))[0] == 415
    assert error(client.request("POST", path, b" " * (64 * 1024 + 1)))[0] == 413
    assert client.request("PUT", path, {})[0] == 405
    assert client.request("GET", path)[0] == 405
    assert client.request("POST", client.root, {})[0] == 405


def test_a_body_without_a_length_is_refused(client):
    headers = {"Content-Length": None, "Transfer-Encoding": "chunked"}
    assert client.request("POST", f"{client.root}api/status", b"2\r\n{}\r\n0\r\n\r\n", headers)[0] == 413


def test_samples_are_served_by_id_alone(image_folder, tmp_path):
    (tmp_path / "secret.png").write_bytes(b"secret")
    with label_page(image_folder, ["red", "blue"], tmp_path / "out") as client:
        status, headers, data = client.request("GET", f"{client.root}picture?id=red/01.png")
        assert (status, headers["content-type"]) == (200, "image/png")
        assert data == (image_folder / "red" / "01.png").read_bytes()
        for key in (
            "../secret.png",
            "red/../red/01.png",
            str(image_folder / "red/01.png"),
            "",
            "red%2f..%2f..%2fsecret.png",
        ):
            assert client.request("GET", f"{client.root}picture?id={key}")[0] == 404, key
        for name in (
            "../_server.py",
            "%2e%2e/_server.py",
            "..%2f_server.py",
            "_server.py",
            "labels.jsonl",
            "etc/passwd",
        ):
            assert client.request("GET", client.root + name)[0] in (403, 404), name


def test_a_corrupt_image_is_told_and_skipped(image_folder, tmp_path):
    (image_folder / "aaa.png").write_bytes(b"nothing")
    with label_page(image_folder, ["red", "blue"], tmp_path / "out") as client:
        status, why = error(client.request("GET", f"{client.root}picture?id=aaa.png&size=100"))
        assert status == 404
        assert "aaa.png must be an image" in why
        assert client.call("status")["unreadable"] == ["aaa.png"]
        assert "aaa.png" not in [item["id"] for item in client.call("next", n=100)["items"]]


def test_pictures_are_as_small_as_asked_for(image_folder, tmp_path):
    Image.new("RGB", (800, 400), "red").save(image_folder / "large.png")
    with label_page(image_folder, ["red", "blue"], tmp_path / "out") as client:
        small = client.request("GET", f"{client.root}picture?id=large.png&size=100")[2]
        whole = client.request("GET", f"{client.root}picture?id=large.png")[2]
        (tmp_path / "small").write_bytes(small)
        with Image.open(tmp_path / "small") as image:
            assert image.size == (100, 50)
        assert whole == (image_folder / "large.png").read_bytes()
        for size in ("-1", "abc", "0", "1e9", ""):
            assert client.request("GET", f"{client.root}picture?id=large.png&size={size}")[0] == 200


@pytest.mark.parametrize(
    ("method", "given", "message"),
    [
        ("answer", {"id": "digit-0001", "label": "cat"}, "Add the class first"),
        ("answer", {"id": "nobody", "label": "1"}, "id of a sample"),
        ("answer", {"id": 5, "label": "1"}, "a text"),
        ("answer", {"label": "1"}, "a text"),
        ("answer", {"id": "digit-0001", "label": ["1"]}, "a text"),
        ("next", {"n": -1}, "an integer"),
        ("next", {"n": 10**6}, "an integer"),
        ("next", {"n": True}, "an integer"),
        ("next", {"client": None}, "a text"),
        ("next", {"client": "x" * 5000}, "a text"),
        ("gallery", {"offset": "3"}, "an integer"),
        ("add_class", {"name": ""}, "not empty"),
        ("add_class", {"name": "3"}, "distinct"),
        ("explode", {}, "one of next"),
    ],
)
def test_bad_calls_get_a_sentence(method, given, message, client):
    before = client.call("status")["labelled"]
    status, why = error(client.request("POST", f"{client.root}api/{method}", {"client": "me"} | given))
    assert status == 400
    assert message in why
    assert client.call("status")["labelled"] == before


@pytest.mark.parametrize("body", [b"{", b"[]", b"3", b"\xff\xfe"])
def test_what_is_no_object_gets_a_sentence(body, client):
    assert error(client.request("POST", f"{client.root}api/next", body))[0] == 400


def test_text_is_data_and_nothing_else(tmp_path):
    nasty = "<script>alert(1)</script> & \"quotes\" 'too' \u2028 {{x}}"
    with label_page([nasty, "plain"], ["a", "b"], tmp_path) as client:
        status, headers, data = client.request("POST", f"{client.root}api/next", {"client": "me"})
        assert status == 200
        assert headers["content-type"] == "application/json"
        assert nasty in [item["text"] for item in json.loads(data)["items"]]
        assert client.call("add_class", name="<b>bold</b>")["classes"][-1] == "<b>bold</b>"


def test_a_port_in_use_is_refused(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        said = rf"The port must be free.* Got 127\.0\.0\.1, {port}.*leave --port out"
        with pytest.raises(SkalError, match=said), label_page(np.eye(3), ["a", "b"], tmp_path, port=port):
            pass
    said = "'port' parameter of label must be"
    with pytest.raises(SkalError, match=said), label_page(np.eye(3), ["a", "b"], tmp_path, port=10**6):
        pass


def test_several_tabs_at_once_lose_nothing(client, project):
    """A short version of python -m benchmarks.label_load."""
    said, errors = {}, []

    def tab(name):
        try:
            for _ in range(40):
                (item,) = client.call("next", client=name, n=1)["items"]
                client.call("answer", client=name, id=item["id"], label=truth(item["id"]))
                said[item["id"]] = name
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=tab, args=(f"tab {k}",)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(said) == 160  # no two tabs had the same sample
    lines = [json.loads(line) for line in (project.folder / "labels.jsonl").read_text().splitlines()]
    assert {line["id"]: line["label"] for line in lines} == {key: truth(key) for key in said}
    assert len(lines) == 160


def test_numbers_are_shown_as_text(tmp_path):
    with label_page(np.arange(6.0).reshape(2, 3), ["a", "b"], tmp_path) as client:
        assert sorted(item["text"] for item in client.call("next", n=5)["items"]) == ["0, 1, 2", "3, 4, 5"]


def test_an_extra_that_is_missing_is_named(project, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SkalError, match=r"pip install '\.\[label\]'"):
        LabelServer(project)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(SkalError, match=r"pip install '\.\[notebook\]'"):
        cell(project)


# --- the journal decides


def test_an_undone_label_stays_undone_after_a_kill(tmp_path):
    """Label 8, let it train, take one back, and kill: the folder is copied as a kill would leave it."""
    out, killed = tmp_path / "out", tmp_path / "killed"
    with make_project(out, query_size=8) as project:
        keys = [item["id"] for item in project.next("me", 8)]
        for key in keys:
            project.answer(key, truth(key), client="me")
        assert project.worker.wait_until_idle()
        assert project.undo("me")["id"] == keys[-1]
        shutil.copytree(out, killed)
    (killed / "lock").unlink()
    again = make_project(killed, query_size=8)
    assert sorted(again.labels()["id"]) == sorted(keys[:-1])
    assert again.status()["labelled"] == len(again.rounds.session.state.labelled) == 7
    assert keys[-1] in {again.source.ids[i] for i in again.rounds.pool()}
    again.close()


def test_a_full_disk_is_told_in_words_and_the_next_answer_works(client, project, monkeypatch):
    first, second, third = [item["id"] for item in client.call("next", n=3)["items"]]
    client.call("answer", id=first, label="1")
    assert project.worker.wait_until_idle()
    before = (project.folder / "labels.jsonl").read_bytes()
    n_labelled, n_declined = (client.call("status")[name] for name in ("labelled", "declined"))
    real, journal = os.write, (project.folder / "labels.jsonl").stat().st_ino

    def full(descriptor, data):
        if os.fstat(descriptor).st_ino != journal:  # the server writes to itself
            return real(descriptor, data)
        real(descriptor, bytes(data)[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    calls = [("answer", {"id": second, "label": "2"}), ("undo", {}), ("add_class", {"name": "eleven"})]
    calls += [("answer", {"id": third, "declined": True})]
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        for method, given in calls:
            status, _, data = client.request("POST", f"{client.root}api/{method}", {"client": "test"} | given)
            assert status == 400
            assert "No space left on device. Nothing was changed." in json.loads(data)["error"]
        assert (project.folder / "labels.jsonl").read_bytes() == before
    assert client.call("status")["labelled"] == n_labelled
    for method, given in calls:
        client.call(method, **given)
    status = client.call("status")
    assert [each["name"] for each in status["classes"]][-1] == "eleven"
    assert status["labelled"] == n_labelled  # the second answer was taken back
    assert status["declined"] == n_declined + 1


def test_a_class_never_vanishes(tmp_path):
    """It is in the journal before anything else knows it: neither the settings nor the cache are needed."""
    project = make_project(tmp_path)
    (tmp_path / "project.json").unlink()
    (tmp_path / "project.json").mkdir()  # settings cannot be written
    assert project.add_class("eleven")[-1] == "eleven"
    project.close()
    (tmp_path / "project.json").rmdir()
    shutil.rmtree(tmp_path / "cache")
    again = make_project(tmp_path)
    assert again.classes == [*CLASSES, "eleven"]
    again.answer("digit-0001", "eleven")
    again.close()
