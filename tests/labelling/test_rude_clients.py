"""Whatever comes over the wire gets an answer in the four hundreds or is closed, and the server goes on."""

import json
import socket
import subprocess
import sys
from contextlib import ExitStack
from itertools import islice

import numpy as np
import pytest

from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._server import LabelServer
from skal.labelling._sources import ArraySource

from .conftest import Client, label_page

ROWS, IDS = np.arange(40.0).reshape(20, 2), [f"row {i}" for i in range(20)]


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """A client of the page as it is."""
    with label_page(ROWS, ["a", "b"], tmp_path_factory.mktemp("labels"), ids=IDS) as client:
        yield client


@pytest.fixture
def client(patient):
    """Before and after every test the server must answer as ever."""
    assert patient.call("status")["samples"] == 20
    yield patient
    assert patient.call("status")["samples"] == 20


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """A server that waits half a second for the rest of a request, in the place of twenty."""
    source = ArraySource(ROWS, ids=IDS)
    with Project(source, ["a", "b"], choose_model(source), tmp_path_factory.mktemp("labels")) as project:
        server = LabelServer(project, patience=0.5)
        thread = server.start()
        yield Client(server.address)
        server.stop()
        thread.join(120)


@pytest.fixture
def hasty(impatient):
    assert impatient.call("status")["samples"] == 20
    yield impatient
    assert impatient.call("status")["samples"] == 20


def send(client, data):
    """What comes back for some bytes, until the other side closes; not more than it could send in reason."""
    with socket.create_connection(("127.0.0.1", client.address.port), timeout=30) as connection:
        connection.sendall(data)
        return b"".join(islice(iter(lambda: connection.recv(1 << 16), b""), 1000))


def head(client, path, *lines, method="POST"):
    first = [f"{method} {client.root}{path} HTTP/1.1", f"Host: 127.0.0.1:{client.address.port}"]
    return "\r\n".join([*first, *lines, "", ""]).encode()


def answer_to(client, body, method="status"):
    status, _, data = client.request("POST", f"{client.root}api/{method}", body)
    return status, json.loads(data)["error"]


@pytest.mark.parametrize(
    "body",
    [b"[" * 60_000, b'{"a":' * 12_000, b"[" * 30_000 + b"]" * 30_000, b'{"n": ' + b"9" * 5000 + b"}", b"-" * 5000],
)
@pytest.mark.parametrize("method", ["next", "answer", "gallery", "add_class"])
def test_json_that_cannot_be_read(body, method, client):
    assert answer_to(client, body, method)[0] == 400


def test_numbers_without_end(hasty):
    long = "9" * 5000
    for given in ({"n": float("inf")}, {"n": float("nan")}, {"n": 1e300}, {"client": "me", "n": 10**4000}):
        assert answer_to(hasty, given, "next")[0] == 400
    assert hasty.request("GET", f"{hasty.root}picture?id=x&size={long}")[0] == 404
    for length in (long, "-1", "1e5", "0x10", "٣", "1, 2", ""):
        length = length.encode().decode("latin-1")
        lines = ["Content-Type: application/json", f"Content-Length: {length}"]
        data = "\r\n".join(head(hasty, "api/status").decode().split("\r\n")[:2] + lines + ["", ""]).encode("latin-1")
        assert send(hasty, data + b"{}").startswith(b"HTTP/1.1 4"), length


@pytest.mark.parametrize("name", ["\ud800", "x\udfff", "\udc80y"])
def test_half_of_a_character_is_no_class(name, client):
    before = client.call("status")["classes"]
    status, why = answer_to(client, {"client": "me", "name": name}, "add_class")
    assert status == 400
    assert "UTF-8" in why
    assert answer_to(client, {"client": "me", "id": "row 1", "label": name}, "answer")[0] == 400
    assert answer_to(client, {"client": "me", "id": name, "label": "a"}, "answer")[0] == 400
    assert client.call("status")["classes"] == before
    assert client.call("next", client=name)["items"]  # who asks may be called as it likes


@pytest.mark.parametrize(
    "cell", [["a"], ["a", "b", "a"], [], ["a", 1], ["a", None], "ab", {"a": "b"}, 3, [["a"], ["b"]]]
)
def test_a_cell_is_two_classes(cell, client):
    status, why = answer_to(client, {"cell": cell}, "gallery")
    assert status == 400
    assert "'cell'" in why
    assert client.call("gallery", cell=["a", "no class"])["total"] == 0


def test_there_are_no_websockets(client):
    lines = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAA"]
    for path in ("", "api/status", "ws"):
        found = send(client, head(client, path, *lines, "Connection: close", method="GET"))
        assert found.startswith(b"HTTP/1.1 400")
        assert b"no websockets" in found


@pytest.mark.parametrize(
    ("part", "status"),
    [
        (lambda client: b"", b""),
        (lambda client: b"G", b"HTTP/1.1 408"),
        (lambda client: head(client, "", method="GET")[:-2], b"HTTP/1.1 408"),
        (lambda client: head(client, "", method="GET")[:-2] + b"X-Long: " + b"x" * 5000, b"HTTP/1.1 408"),
        (
            lambda client: head(client, "api/status", "Content-Type: application/json", "Content-Length: 500") + b"{",
            b"HTTP/1.1 408",
        ),
        (lambda client: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 3 + b"\r\n\r\n", b"HTTP/1.1 400"),
        (lambda client: b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        (lambda client: b"x" * 66_000, b"HTTP/1.1 400"),
    ],
)
def test_half_of_a_request_is_closed_after_a_time(part, status, hasty):
    found = send(hasty, part(hasty))
    assert found.startswith(status)
    assert status or not found


def test_one_byte_after_the_other_is_not_waited_for_longer(hasty):
    request = head(hasty, "", method="GET")
    with socket.create_connection(("127.0.0.1", hasty.address.port), timeout=0.1) as connection:
        found = b""
        for byte in request * 10:
            try:
                connection.sendall(bytes([byte]))
                found += connection.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                break
            if found:
                break
    assert found.startswith(b"HTTP/1.1 408") or not found  # closed long before the end of the request


def test_a_second_request_on_a_connection_may_not_stay_half_either(hasty):
    first = head(hasty, "icon.svg", method="GET")
    found = send(hasty, first + first[:30])
    assert found.startswith(b"HTTP/1.1 200")
    with socket.create_connection(("127.0.0.1", hasty.address.port), timeout=30) as connection:
        connection.sendall(first)
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
        connection.sendall(first[:30])
        rest = b"".join(islice(iter(lambda: connection.recv(1 << 16), b""), 1000))
    assert b"HTTP/1.1 408" in rest


def test_more_connections_than_allowed(client):
    """The oldest that does not ask makes room, and whoever asks is answered."""
    with ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", client.address.port))) for _ in range(150)]
        (item,) = client.call("next", n=1)["items"]
        client.call("answer", id=item["id"], label="a")
        client.call("undo")
        assert len(idle) == 150


SERVER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
import numpy as np
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._server import LabelServer
from skal.labelling._sources import ArraySource
source = ArraySource(np.arange(40.0).reshape(20, 2), ids=[f"row {i}" for i in range(20)])
with Project(source, ["a", "b"], choose_model(source), sys.argv[1]) as project:
    server = LabelServer(project, patience=2.0)
    print(server.address, flush=True)
    server.run()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors cannot be bounded there")
def test_more_connections_than_descriptors(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        client = Client(process.stdout.readline().strip())
        with ExitStack() as stack:
            for _ in range(70):
                stack.enter_context(socket.create_connection(("127.0.0.1", client.address.port), timeout=60))
            (item,) = client.call("next", n=1)["items"]  # all of them are still open
            client.call("answer", id=item["id"], label="a")
        assert client.call("status")["labelled"] == 1
        client.call("finish")
        assert process.wait(180) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_an_id_may_be_as_long_as_a_request(tmp_path):
    long = ["x" * 10_000, "y" * 10_000]
    with label_page(ROWS[:2], ["a", "b"], tmp_path, ids=long) as client:
        (item,) = client.call("next", n=1)["items"]
        client.call("answer", id=item["id"], label="a")
        client.call("answer", ids=long, label="b")
        client.call("next", n=1, shown=long)
        assert {line["id"]: line["label"] for line in client.call("gallery")["items"]} == dict.fromkeys(long, "b")
        assert client.call("undo")["item"]["id"] in long
        assert answer_to(client, {"name": long[0]}, "add_class")[0] == 400
        assert answer_to(client, {"id": "z" * 10_000, "label": "a"}, "answer")[0] == 400
