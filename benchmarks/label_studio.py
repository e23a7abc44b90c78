"""Does active learning inside Label Studio pay, and is anything lost?

``python -m benchmarks.label_studio accuracy [--seeds 5] [--kept FILE]`` uploads 500 pictures of CIFAR-10 to a real
Label Studio. Two automatic annotators press "Label All Tasks" by turns, through the API, each with an account of their
own, and give the right answers, 150 in all. The tasks come in Label Studio's own order, sequential or uniform, or in
that of ``skal label-studio``, which runs beside it with its defaults. The annotators wait whenever they have given 20
answers until skal has chosen again, as people who take their time would find it. A linear classifier on features of a
frozen network is then trained on the answers, and judged on new pictures.

``python -m benchmarks.label_studio kills [--kills 20] [--restarts 3]`` lets both annotators label and correct
themselves while skal is killed and started again, and Label Studio too, and compares every answer with the journal.

``$SKAL_LABEL_STUDIO`` names the program, as in ``nox -s label_studio``; data is read from ``$SKAL_DATA_HOME``
(cifar10_sub.npz, cifar10_features.npz). With ``--kept`` every run that is done is a line of the file, and the same call
goes on from there.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np

import skal
from benchmarks._kept import Kept
from benchmarks._label_studio import SERVER, TOKEN, WHY, Person, StudioServer, choice, picture_config
from benchmarks._measure import markdown
from benchmarks.label_hand import CHOICE, Task
from skal.cli import main as skal_command
from skal.labelling._models import linear_on_embeddings
from skal.labelling._studio._annotations import decide
from skal.labelling._studio._client import StudioClient
from skal.labelling._studio._studio_project import StudioProject
from skal.labelling._studio._sync import StudioSync

N_PICTURES, N_LABELS, QUERY = 500, 150, 20
CHECKPOINTS = (50, 100, 150)
ARMS = {"sequential": "Sequential sampling", "uniform": "Uniform sampling", "skal": None}
SETTING = "CIFAR-10 pictures"
PATIENCE = 1800.0  # seconds, on a busy machine


def name_of(task: dict[str, Any]) -> str:
    """The file that a task was uploaded as: Label Studio puts something random before it."""
    return str(task["data"]["image"]).rsplit("-", 1)[-1]


def make_project(server: StudioServer, task: Task) -> int:
    """A project with the pictures, in the order of their names, which is random."""
    number = server.make_project(picture_config("class", task.classes), [])
    names = sorted(task.truth)
    for first in range(0, len(names), 50):
        server.upload(number, {name: (task.source / name).read_bytes() for name in names[first : first + 50]})
    return number


class Command:
    """``skal label-studio``, in a process of its own; what it says goes into a file beside its folder.

    It is forked from a process that has imported everything, since imports take most of a short life.
    """

    def __init__(self, url: str, number: int, out: Path, *more: str) -> None:
        forks = get_context("forkserver")
        forks.set_forkserver_preload([__name__, "skal.labelling._label", "skal.labelling._studio._backend"])
        words = ["label-studio", "--url", url, "--project", str(number), "--out", str(out), *more]
        self.process = forks.Process(target=run_skal, args=(words, f"{out}.log"))
        self.process.start()

    def wait_for(self, condition: Callable[[], Any]) -> Any:
        """Wait until a condition holds; gives what it gave."""
        end = time.monotonic() + PATIENCE
        while not (found := condition()):
            if not self.process.is_alive() or time.monotonic() > end:
                raise RuntimeError(f"skal label-studio: nothing came, exit code {self.process.exitcode}")
            time.sleep(1)
        return found

    def interrupt(self) -> None:
        """Ctrl-C, and wait for the end."""
        os.kill(int(self.process.pid or 0), signal.SIGINT)
        self.process.join(PATIENCE)

    def kill(self) -> None:
        """As kill -9 does."""
        self.process.kill()
        self.process.join()


def run_skal(words: list[str], log: str) -> None:
    """The command, with its words in a file; Ctrl-C ends it, also where the benchmark runs in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["LABEL_STUDIO_API_KEY"] = TOKEN
    with Path(log).open("a", encoding="utf-8") as file, redirect_stdout(file), redirect_stderr(file):
        sys.exit(skal_command(words))


def run(server: StudioServer, arm: str, seed: int) -> dict[str, Any]:
    """Accuracy on new pictures by the number of answers."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        task = Task(SETTING, N_PICTURES, seed, folder)
        number = make_project(server, task)
        people = [server.person("ada"), server.person("bob")]
        command, version, out = None, None, folder / "out"
        if ARMS[arm] is not None:
            server.call("PATCH", f"/api/projects/{number}/", {"sampling": ARMS[arm]})
        else:
            command = Command(server.url, number, out)

        def changed() -> str | None:
            found = server.call("GET", f"/api/projects/{number}")["model_version"]
            return found if found and found != version else None

        done: list[str] = []
        try:
            while len(done) < N_LABELS:
                if command is not None and len(done) % QUERY == 0:
                    version = command.wait_for(changed)
                handed = [person.next_task(number) for person in people]
                for person, each in zip(people, handed, strict=True):
                    name = name_of(each)
                    person.annotate(each["id"], "class", task.truth[name])
                    done.append(name)
            if len(set(done)) != N_LABELS:
                raise RuntimeError(f"{N_LABELS - len(set(done))} tasks were handed out twice")
            found: dict[str, Any] = {"accuracy": judge(done, task, seed)}
            if command is not None:
                journal = out / "labels.jsonl"
                command.wait_for(lambda: _n_labels(journal) == N_LABELS)
                command.interrupt()
                model = skal.load_model(out / "model")
                X, y = _test_features(task)
                found["kept model"] = float((model.classes_[model.estimator_.predict(X)] == y).mean())
        finally:
            if command is not None:
                command.kill()
            server.call("DELETE", f"/api/projects/{number}/")
    return found


def _n_labels(journal: Path) -> int:
    lines = map(json.loads, journal.read_text(encoding="utf-8").splitlines())
    return len({line["id"] for line in lines if line["event"] == "label"})


def judge(names: Sequence[str], task: Task, seed: int) -> dict[str, float]:
    """What a linear classifier on stored features reaches after the first answers, by their number."""
    rows = np.random.default_rng(seed).permutation(CHOICE)[:N_PICTURES]  # as the task draws them
    with np.load(_data("cifar10_features")) as data:
        X = data["X_train"][[rows[int(name.removesuffix(".png"))] for name in names]].astype(np.float32)
    y, (X_test, y_test) = np.array([task.truth[name] for name in names]), _test_features(task)
    return {str(n): float(linear_on_embeddings().fit(X[:n], y[:n]).score(X_test, y_test)) for n in CHECKPOINTS}


def _test_features(task: Task) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.random.default_rng(0).permutation(len(_stored("X_test")))[: len(task.y_test)]  # as the task draws them
    return _stored("X_test")[chosen].astype(np.float32), task.y_test


def _stored(name: str) -> np.ndarray:
    with np.load(_data("cifar10_features")) as data:
        found: np.ndarray = data[name]
    return found


def accuracy(start: Callable[[], StudioServer], seeds: int, kept: Kept) -> None:
    """Print accuracies by the number of answers."""
    results: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for seed in range(seeds):
        for arm in ARMS:
            results[arm].append(kept(f"{arm}, {seed}", lambda a=arm, s=seed: run(start(), a, s)))
            print(arm, seed, results[arm][-1], file=sys.stderr, flush=True)
    rows = []
    for arm, found in results.items():
        scores = np.array([[100 * each["accuracy"][str(n)] for n in CHECKPOINTS] for each in found])
        against = scores[:, -1] - 100 * np.array([each["accuracy"]["150"] for each in results["uniform"]])
        better = f"{(against > 0).sum()} of {seeds}" if arm != "uniform" else ""
        rows.append([arm, *map(_cell, scores.T), f"{against.mean():+.1f}" if better else "", better])
    headers = ["order", *(f"{n} labels" for n in CHECKPOINTS), "against uniform, at 150", "seeds better"]
    print(markdown(headers, rows))


def _cell(scores: np.ndarray) -> str:
    return f"{scores.mean():.1f} ({scores.min():.1f} … {scores.max():.1f})"


class Hand(threading.Thread):
    """An annotator who labels at a person's pace, errs in one of ten, corrects that, and waits for a lost server.

    Both take their tasks from one ``budget``, so that there is work left for every kill, however slow the machine.

    Attributes
    ----------
    said : dict from annotation to (task, label)
        What Label Studio has confirmed last.
    """

    def __init__(
        self, person: Person, project: int, task: Task, seed: int, stop: threading.Event, budget: threading.Semaphore
    ) -> None:
        super().__init__()
        self.person, self.project, self.task, self.stop, self.budget = person, project, task, stop, budget
        self.rng, self.said = np.random.default_rng(seed), dict[int, tuple[int, str]]()

    def run(self) -> None:
        while not self.stop.wait(float(self.rng.uniform(0.5, 3))):
            if not self.budget.acquire(timeout=1):
                continue
            try:
                self.label()
            except (URLError, OSError, RuntimeError) as error:  # the server is away, or all tasks are taken
                if isinstance(error, RuntimeError) and ": 404 " not in str(error):
                    raise
                self.budget.release()
                self.stop.wait(2)

    def label(self) -> None:
        """Answer the next task; perhaps wrongly, and then again."""
        handed = self.person.next_task(self.project)
        right = self.task.truth[name_of(handed)]
        first = str(self.rng.choice(self.task.classes)) if self.rng.random() < 0.1 else right
        made = self.person.annotate(handed["id"], "class", first)
        self.said[made["id"]] = handed["id"], first
        if first != right:
            self.stop.wait(1)
            body = {"result": [choice("class", "image", right)]}
            self.person.call("PATCH", f"/api/annotations/{made['id']}/", body)
            self.said[made["id"]] = handed["id"], right


def kills(server: StudioServer, n_kills: int, n_restarts: int) -> dict[str, int]:
    """How many answers were given, and how many of them are not in the journal as they were given."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        task, out, stop = Task(SETTING, N_PICTURES, 0, folder), folder / "out", threading.Event()
        number = make_project(server, task)
        budget = threading.Semaphore(0)
        hands = [Hand(server.person(name), number, task, i, stop, budget) for i, name in enumerate(("ada", "bob"))]

        def n_said() -> int:
            return sum(len(hand.said) for hand in hands)

        def wait_for_answers(n: int, more: int) -> int:
            """Wait until there are so many more; how many there are."""
            end = time.monotonic() + PATIENCE
            while n_said() < n + more:
                if time.monotonic() > end:
                    raise RuntimeError(f"{n_said()} answers, and no more come")
                time.sleep(0.2)
            return n_said()

        for hand in hands:
            hand.start()
        restarts = set(np.linspace(0, n_kills, n_restarts + 2)[1:-1].astype(int).tolist())
        try:
            for i in range(n_kills):
                before = _n_looks(out)
                command = Command(server.url, number, out, "--model", "linear", "--every", "1", "--predictions")
                if i % 4:  # every fourth is killed at the start
                    command.wait_for(lambda n=before: _n_looks(out) > n)
                budget.release(N_PICTURES // n_kills)
                n = wait_for_answers(n_said(), int(rng.integers(1, 5)))  # amid the work, not before or after it
                if i in restarts:
                    server.stop()
                    time.sleep(float(rng.uniform(1, 5)))
                    server.start()
                    n = wait_for_answers(n, int(rng.integers(1, 5)))
                command.kill()
                print(f"kill {i + 1}: {n} answers, {_n_looks(out)} looks", file=sys.stderr, flush=True)
        finally:
            stop.set()
            for hand in hands:
                hand.join()
        said = {number: each for hand in hands for number, each in hand.said.items()}
        found = {"kills of skal": n_kills, "restarts of Label Studio": len(restarts), "looks with news": _n_looks(out)}
        return found | compare(server, number, out, said)


def _n_looks(out: Path) -> int:
    """How often the command has said how far it is, which it does at the first look and whenever something is new."""
    log = Path(f"{out}.log")
    return log.read_text(encoding="utf-8").count(" labelled. ") if log.exists() else 0


def compare(server: StudioServer, number: int, out: Path, said: dict[int, tuple[int, str]]) -> dict[str, int]:
    """Answers that were confirmed, against Label Studio, and Label Studio against the journal."""
    project = StudioProject(StudioClient(server.url, TOKEN), number)
    sync = StudioSync(project, out, model="linear", say=lambda text: None)
    try:
        sync.look()
        there = {
            a.annotation: (a.task, a.choices[0]) for key in sync.snapshot.tasks for a in sync.snapshot.answers(key)
        }
        kept = {row["annotation"]: (row["task"], row["choices"][0]) for row in sync.record.known.values()}
        wanted = {key: decide(sync.snapshot.answers(key)) for key in sync.snapshot.tasks}
        expected = {key: (each.label, each.author) for key, each in wanted.items() if each.label is not None}
        labels = {row.id: (row.label, row.annotator) for row in sync.project.labels().itertuples()}
    finally:
        sync.close()
    return {
        "confirmed answers": len(said),
        "tasks with a label": len(expected),
        "answers missing in Label Studio": sum(there.get(key) != value for key, value in said.items()),
        "answers missing in annotations.jsonl": sum(kept.get(key) != value for key, value in there.items()),
        "labels missing or other in the journal": sum(labels.get(key) != value for key, value in expected.items()),
        "labels in the journal alone": len(set(labels) - set(expected)),
    }


def _data(name: str) -> Path:
    return Path(os.environ.get("SKAL_DATA_HOME", "")) / f"{name}.npz"


def open_server(stack: ExitStack) -> StudioServer:
    """A server for all runs, which ends with the stack."""
    missing = [name for name in ("cifar10_sub", "cifar10_features") if not _data(name).exists()]
    if missing or not SERVER:
        raise SystemExit(f"{', '.join(missing)} is not in $SKAL_DATA_HOME" if missing else WHY)
    folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
    server = StudioServer(Path(folder))
    stack.callback(server.stop)
    return server


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.label_studio", description=__doc__.split("\n")[0])
    parser.add_argument("what", nargs="?", choices=("accuracy", "kills"), default="accuracy")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--restarts", type=int, default=3)
    parser.add_argument("--kept", type=Path, default=None)
    options = parser.parse_args(arguments)
    kept = Kept(options.kept)
    with ExitStack() as stack:
        start = cache(lambda: open_server(stack))  # not before a run that has not been kept
        if options.what == "accuracy":
            accuracy(start, options.seeds, kept)
        else:
            n, m = options.kills, options.restarts
            found = kept(f"{n} kills, {m} restarts amid work", lambda: kills(start(), n, m))
            print(markdown(list(found), [list(found.values())]))


if __name__ == "__main__":
    main()
