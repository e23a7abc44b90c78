"""Projects, servers and pages for the tests of labelling."""

import json
import os
import re
import signal
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from queue import Queue
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

import skal
from skal.cli import main
from skal.labelling._label import as_source
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._server import LabelServer

from ..support.processes import READY

DIGITS = load_digits()
CLASSES = [str(i) for i in range(10)]
PATIENCE = 600.0  # seconds, on a busy machine; nothing waits longer than it must
SHOWN = ("doing", "error", "labelled", "rounds", "audit", "check", "final", "refused")  # of a status that does not come


def truth(key):
    """The label of ``digit-0123``."""
    return str(DIGITS.target[int(key.split("-")[1])])


def make_project(folder, n=300, classes=CLASSES, model="linear", **settings):
    source = as_source(DIGITS.images[:n] / 16, [f"digit-{i:04d}" for i in range(n)], None)
    return Project(source, classes, choose_model(source, model=model), folder, **({"query_size": 10} | settings))


@pytest.fixture
def project(tmp_path):
    with make_project(tmp_path / "labels") as found:
        yield found


class Client:
    """Talks to a server as a page would."""

    def __init__(self, address):
        self.address = urlsplit(address)
        self.root = self.address.path

    def request(self, method, path, body=None, headers=None):
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        known = {"Host": f"127.0.0.1:{self.address.port}"} | ({"Content-Type": "application/json"} if data else {})
        with closing(HTTPConnection("127.0.0.1", self.address.port, timeout=PATIENCE)) as connection:
            connection.putrequest(method, path, skip_host=True)
            for name, value in (known | (headers or {})).items():
                if value is not None:
                    connection.putheader(name, value)
            if data is not None and "Content-Length" not in (headers or {}):
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def call(self, method, client="test", **given):
        status, _, data = self.request("POST", f"{self.root}api/{method}", {"client": client} | given)
        assert status == 200, data
        return json.loads(data)


@contextmanager
def label_page(X, classes, folder, **settings):
    """A client of the page that ``skal.label`` serves; "Finish" is pressed at the end, and gives it a ``result``.

    With a linear model unless another one is named: a pre-trained network takes a while for a few pictures, too.
    """
    ready, results, settings = Queue(), [], {"model": "linear"} | settings

    def run():
        try:
            results.append(skal.label(X, classes, folder=folder, browser=ready.put, notebook=False, **settings))
        except BaseException as error:
            ready.put(error)

    thread = threading.Thread(target=run)
    thread.start()
    address = ready.get(timeout=PATIENCE)
    if isinstance(address, BaseException):
        raise address
    client = Client(address)
    try:
        yield client
    finally:
        client.call("finish")
        thread.join(PATIENCE)
    (client.result,) = results


def wait_for_status(client, condition=lambda status: True):
    """The page's status when nothing is being done, nor due, and a condition holds."""
    end = time.monotonic() + PATIENCE
    while True:
        status = client.call("status")
        if status["doing"] is None and condition(status):
            return status
        assert time.monotonic() < end, json.dumps({key: status[key] for key in SHOWN})
        time.sleep(0.02)


def wait_for_training(client, rounds=1):
    """Until so many trainings have ended, and none runs; gives the page's status."""
    status = wait_for_status(client, lambda status: status["rounds"] >= rounds)
    assert status["error"] is None
    return status


def work(client, n, truth):
    """Label n samples, whose truth a function of the item gives; gives what was said, by id."""
    said = {}
    while len(said) < n:
        items = client.call("next", n=min(200, n - len(said)))["items"]
        assert items
        by_label = {}
        for item in items:
            by_label.setdefault(truth(item), []).append(item["id"])
        for label, keys in by_label.items():
            client.call("answer", ids=keys, label=label)
        said |= {key: label for label, keys in by_label.items() for key in keys}
    return said


def digits_page(folder, n=300, classes=CLASSES, **settings):
    """The page of :func:`make_project`, as ``skal.label`` serves it."""
    ids = [f"digit-{i:04d}" for i in range(n)]
    settings = {"query_size": 10} | settings
    return label_page(DIGITS.images[:n] / 16, classes, folder, ids=ids, **settings)


@pytest.fixture
def server(project):
    found = LabelServer(project)
    thread = found.start()
    yield found
    found.stop()
    thread.join(PATIENCE)


@pytest.fixture
def client(server):
    return Client(server.address)


def run_command(arguments, without, out, err):
    """What the copy does: the command line, with its streams in a pipe and a file."""
    os.dup2(out.fileno(), 1)
    os.dup2(os.open(err, os.O_WRONLY), 2)
    sys.stdout.reconfigure(line_buffering=True)
    sys.modules[without] = None
    sys.exit(main(arguments))


class Command:
    """``skal label`` in a process of its own, as if some package were not installed if so wanted."""

    def __init__(self, err, *arguments, without="nothing"):
        out, writing = READY.Pipe(duplex=False)
        self._err = err
        err.touch()
        arguments = ["label", *map(str, arguments), "--no-browser"]
        self.process = READY.Process(target=run_command, args=(arguments, without, writing, err))
        self.process.start()
        writing.close()
        self._out = os.fdopen(os.dup(out.fileno()), encoding="utf-8")
        out.close()
        self.lines, self.address = [], None
        for line in self._out:
            self.lines.append(line)
            match = re.search(r"http://\S+", line)
            if match:
                self.address = match[0]
                break

    def interrupt(self):
        """As Ctrl+C does."""
        os.kill(self.process.pid, signal.SIGINT)

    def kill(self):
        """As kill -9 does."""
        self.process.kill()
        self.process.join(PATIENCE)

    def end(self):
        """Wait for the end, and give everything that it has printed."""
        self.lines += self._out
        self.process.join(PATIENCE)
        return self.process.exitcode, "".join(self.lines), self._err.read_text("utf-8")

    def close(self):
        """End it if it still runs."""
        self.kill()
        self.process.close()
        self._out.close()


@pytest.fixture
def command(tmp_path_factory):
    """Starts commands, and ends those that still run."""
    folder = tmp_path_factory.mktemp("printed")
    with ExitStack() as started:

        def start(*arguments, **settings):
            err = folder / str(len(list(folder.iterdir())))
            return started.enter_context(closing(Command(err, *arguments, **settings)))

        yield start


@pytest.fixture(scope="session")
def page(tmp_path_factory):
    """One browser for all tests: it takes longer to start than most of them."""
    from benchmarks._label_page import MISSING, WHY, Page

    if MISSING:
        pytest.skip(WHY)
    found = Page(tmp_path_factory.mktemp("profile"))
    yield found
    found.close()


def draw_pictures(folder):
    """24 small pictures in two colours, in two sub-folders."""
    rng = np.random.default_rng(0)
    for i in range(24):
        colour = "red" if i % 2 else "blue"
        place = folder / colour
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 80, size=(40, 30, 3), dtype=np.uint8)
        pixels[:, :, 0 if colour == "red" else 2] += 150
        Image.fromarray(pixels).save(place / f"{i:02d}.{'png' if i % 3 else 'jpg'}")
    return folder


@pytest.fixture
def image_folder(tmp_path):
    return draw_pictures(tmp_path / "pictures")
