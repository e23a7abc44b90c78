"""Label over HTTP as a page does, kill the server, and compare."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sklearn.datasets import load_digits

from benchmarks._kill_states import (
    Allowed,
    State,
    check_states,
    is_label,
    journal_states,
    session_states,
    with_and_without_cache,
)
from skal.labelling._answer_form import AnswerForm
from skal.labelling._label import as_source
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._server import LabelServer

DIGITS = load_digits()
TEXTS = ["a good day " * 3, "a bad day " * 3, "no day at all " * 2]
CLASSES = ["0", "1", "2"]


def make_project(kind: str, folder: Path, n: int) -> Project:
    """A project on so many digits, or texts."""
    samples = [f"{TEXTS[i % 3]} {i}" for i in range(n)] if "texts" in kind else DIGITS.images[:n] / 16
    source = as_source(samples, [f"digit-{i}" for i in range(n)], None)
    model = choose_model(source, model="network" if "network" in kind else "linear")
    if "numbers" in kind:
        return Project(source, [], model, folder, query_size=8, form=AnswerForm("regression"))
    form = AnswerForm("multilabel") if "several" in kind else None
    classes = CLASSES if form is None or n % 40 else CLASSES[::-1]
    return Project(source, classes, model, folder, query_size=8, form=form)


class Page:
    """Answers as a page does; every call is confirmed by the server, or else it may or may not have happened."""

    def __init__(
        self, kind: str, address: str, rng: random.Random, allowed: Allowed, classes: set[str], pipe: int
    ) -> None:
        self.kind, self.url, self.rng, self.allowed, self.classes = kind, urlsplit(address), rng, allowed, classes
        self.pipe = pipe  # gets a byte for every change
        self.maybe: set[str] = set()  # classes that may have been added
        self.stack: list[tuple[str, State]] = []
        self.connection = HTTPConnection("127.0.0.1", self.url.port, timeout=30)

    def call(self, method: str, **given: Any) -> Any:
        body, headers = json.dumps({"client": "killer"} | given), {"Content-Type": "application/json"}
        self.connection.request("POST", f"{self.url.path}api/{method}", body, headers)
        answer = self.connection.getresponse()
        data = json.loads(answer.read())
        assert answer.status == 200, data
        return data

    def change(self, counts: Counter[str], operation: str, key: str, state: State, method: str, **given: Any) -> None:
        """One call that changes a sample."""
        before = self.allowed.get(key, [None])
        self.allowed[key] = [*before, state]
        self.call(method, **given)
        self.allowed[key] = [state]
        counts["confirmed"] += 1
        counts[operation] += 1
        os.write(self.pipe, b".")
        if method == "answer":
            self.stack.append((key, before[-1]))

    def label(self) -> Any:
        """Any label."""
        if "numbers" in self.kind:
            return self.rng.uniform(1, 9)
        if "several" in self.kind:
            order = self.call("status")["classes"]  # as the page shows them
            return [each["name"] for each in order if self.rng.random() < 0.5]
        return self.rng.choice([*CLASSES, *sorted(self.classes)])

    def work(self, counts: Counter[str]) -> None:
        """Label until nobody answers."""
        one_class = "several" not in self.kind and "numbers" not in self.kind
        operations = ["told"] * 6 + ["corrected", "undone", "undone", "declined"] + ["class"] * one_class
        while True:
            operation = self.rng.choice(operations)
            if operation == "class":
                name = f"class {len(self.classes | self.maybe)}"
                self.maybe.add(name)
                assert name in self.call("add_class", name=name)["classes"]
                self.classes.add(name)
                counts["classes added"] += 1
            elif operation == "undone":
                if self.stack:
                    key, state = self.stack.pop()
                    self.change(counts, "undone", key, state, "undo")
            else:
                labelled = [key for key, states in self.allowed.items() if len(states) == 1 and is_label(states[0])]
                items = [] if operation == "corrected" else self.call("next", n=2)["items"]
                if items or labelled:
                    key = items[0]["id"] if items else self.rng.choice(labelled)
                    label = None if operation == "declined" else self.label()
                    given = {"id": key, "label": label, "declined": label is None}
                    self.change(counts, operation, key, False if label is None else label, "answer", **given)


def serve(kind: str, folder: Path, n: int, pipe: int) -> None:
    """The child: serves the page until it is killed."""
    project = make_project(kind, folder, n)
    server = LabelServer(project)
    project.start()
    os.write(pipe, f"{server.address}\n".encode())
    server.run()


def wait_for_bytes(pipe: int, n: int, seconds: float = 30) -> None:
    """Until so many bytes have come, or for a time."""
    end = time.monotonic() + seconds
    while n > 0 and select.select([pipe], [], [], max(0, end - time.monotonic()))[0]:
        n -= len(os.read(pipe, n))


def kill_http(kind: str, folder: Path, rng: random.Random, allowed: Allowed, counts: Counter[str]) -> None:
    """Label over HTTP, kill, and compare."""
    n = 60 + 20 * counts["kills"]  # samples are added from start to start
    reading, writing = os.pipe()
    server = os.fork()
    if server == 0:
        os.close(reading)
        try:
            warnings.simplefilter("ignore")
            serve(kind, folder, n, writing)
        except BaseException:
            os.write(writing, traceback.format_exc().encode())
        os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        address = pipe.readline().strip()
        assert address.startswith("http"), address + pipe.read()
        done, changes = os.pipe()
        # the moment depends on what has been done, so that a busy machine is killed in its work, too
        n_changes, pause = rng.choice([0, 1, 2, 3, 5, 8, 13, 21, 34]), rng.uniform(0.0, 0.3)
        killer = os.fork()
        if killer == 0:
            wait_for_bytes(done, n_changes)
            time.sleep(pause)
            os.kill(server, signal.SIGKILL)
            os._exit(0)
        _, written = journal_states(folder)
        page = Page(kind, address, rng, allowed, set(written), changes)
        with suppress(OSError, HTTPException):  # it is dead
            page.work(counts)
        os.waitpid(killer, 0)
        os.close(done)
        os.close(changes)
        counts["kills"] += os.WIFSIGNALED(os.waitpid(server, 0)[1])
    found, classes = journal_states(folder)
    check_states(found, allowed)
    assert page.classes <= classes <= page.classes | page.maybe, (page.classes, classes)
    for place in with_and_without_cache(folder):
        project = make_project(kind, place, n)
        session, status = project.rounds.session, project.status()
        shown = {
            key: project.form.show(label, project.classes)
            for key, label in session_states(session.state, session.ids).items()
        }
        assert shown == {key: state for key, state in found.items() if state is not None}, place
        counts["trainings"] = max(counts["trainings"], status["rounds"])  # of the project so far
        assert status["labelled"] == sum(map(is_label, found.values()))
        assert status["declined"] == sum(state is False for state in found.values())
        assert classes <= {each["name"] for each in status["classes"]}, place
        free = {f"digit-{i}" for i in project.rounds.pool()}
        assert free == {f"digit-{i}" for i in range(n) if found.get(f"digit-{i}") is None}
        project.close()
