"""Whatever comes over the wire gets an answer in the four hundreds or is closed, and the server goes on."""

import json
import socket
import sys
from contextlib import ExitStack
from itertools import islice

import numpy as np
import pytest

from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._server import LabelServer
from skal.labelling._sources import ArraySource

from ..support.processes import READY
from .conftest import PATIENCE, Client, label_page

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
        thread.join(PATIENCE)


@pytest.fixture
def hasty(impatient):
    """Before and after every test the server must answer; half a second may be short on a busy machine."""

    def answers():
        return impatient.request("POST", f"{impatient.root}api/status", {})[0] == 200

    assert any(answers() for _ in range(20))
    yield impatient
    assert any(answers() for _ in range(20))


def connect(client):
    return socket.create_connection(("127.0.0.1", client.address.port), timeout=PATIENCE)


def read(connection):
    """What comes until the other side closes; not more than it could send in reason."""
    return b"".join(islice(iter(lambda: connection.recv(1 << 16), b""), 1000))


def send(client, data):
    """What comes back for some bytes."""
    with connect(client) as connection:
        connection.sendall(data)
        return read(connection)


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


def test_numbers_without_end(client, hasty):
    long = "9" * 5000
    for given in ({"n": float("inf")}, {"n": float("nan")}, {"n": 1e300}, {"client": "me", "n": 10**4000}):
        assert answer_to(client, given, "next")[0] == 400
    assert client.request("GET", f"{client.root}picture?id=x&size={long}")[0] == 404
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


def test_half_of_a_request_is_closed_after_a_time(hasty):
    """All of them at once: each is waited for."""
    first = head(hasty, "", method="GET")[:-2]
    post = head(hasty, "api/status", "Content-Type: application/json", "Content-Length: 500")
    late, bad = b"HTTP/1.1 408", b"HTTP/1.1 400"
    parts = [(b"", b""), (b"G", late), (first, late), (first + b"X-Long: " + b"x" * 5000, late), (post + b"{", late)]
    parts += [(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 3 + b"\r\n\r\n", bad)]
    parts += [(b"GET / HTTP/1.1\r\n\r\n", bad), (b"x" * 66_000, bad)]
    with ExitStack() as stack:
        connections = []
        for part, _ in parts:  # sent at once: on a busy machine half a second may pass between two lines
            connections.append(stack.enter_context(connect(hasty)))
            connections[-1].sendall(part)
        for connection, (part, status) in zip(connections, parts, strict=True):
            found = read(connection)
            assert found.startswith(status), part
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

    def answer_to_half_a_request():
        """Nothing where the connection had waited for too long already, as on a busy machine."""
        with connect(hasty) as connection:
            connection.sendall(first)
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
            try:
                connection.sendall(first[:30])
                return read(connection)
            except OSError:
                return b""

    assert send(hasty, first + first[:30]).startswith(b"HTTP/1.1 200")
    assert any(b"HTTP/1.1 408" in answer_to_half_a_request() for _ in range(20))


def test_more_connections_than_allowed(client):
    """The oldest that does not ask makes room, and whoever asks is answered."""
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(client)) for _ in range(150)]
        (item,) = client.call("next", n=1)["items"]
        client.call("answer", id=item["id"], label="a")
        client.call("undo")
        assert len(idle) == 150


def serve_with_few_descriptors(folder, writing):
    """What another process does."""
    import resource

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    source = ArraySource(ROWS, ids=IDS)
    with Project(source, ["a", "b"], choose_model(source), folder) as project:
        server = LabelServer(project, patience=2.0)
        writing.send(server.address)
        server.run()


@pytest.mark.skipif(sys.platform == "win32", reason="descriptors cannot be bounded there")
def test_more_connections_than_descriptors(tmp_path):
    reading, writing = READY.Pipe(duplex=False)
    process = READY.Process(target=serve_with_few_descriptors, args=(tmp_path, writing))
    process.start()
    writing.close()
    try:
        client = Client(reading.recv())
        with ExitStack() as stack:
            for _ in range(70):
                stack.enter_context(connect(client))
            (item,) = client.call("next", n=1)["items"]  # all of them are still open
            client.call("answer", id=item["id"], label="a")
        assert client.call("status")["labelled"] == 1
        client.call("finish")
        process.join(PATIENCE)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()
        process.close()
        reading.close()


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
