"""Kill labelling projects at random moments, and look whether every label is where it was put.

``python -m benchmarks.kill_labels --kills 200`` forks processes that label by ``fit``, an oracle, ``ask`` and ``tell``,
``relabel``, ``add``, ``decline`` and ``undecline``. Each has another pool (reordered, with samples missing) and other
parameters (strategy, estimator, batch size) than the one before; some are two at a time on one folder. Each writes into
a pipe what it is about to say, and that it has been said; after SIGKILL the labels are compared with that record, from
all files and from ``labels.jsonl`` alone.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from skorch import NeuralNetClassifier

from skal import ActiveLearningClassifier
from skal.exceptions import CheckpointError, SkalWarning
from skal.loop import _classifier
from skal.loop._identity import digests
from skal.loop._journal import Journal
from skal.nets import MLP

N = 120
NAMES = ["ant", "bee", "cow"]
X_ALL = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
KEYS: dict[str, list[Any]] = {"frame": list(range(N)), "array": digests(X_ALL)}


def truth(i: int) -> str:
    """The first label of a sample."""
    return NAMES[int(X_ALL[i].argmax()) % 3]


def pool(kind: str, rng: random.Random) -> tuple[Any, list[int]]:
    """Most of the samples, in any order, and which they are."""
    rows = rng.sample(range(N), rng.randint(N - 12, N))
    return (pd.DataFrame(X_ALL[rows], index=rows, columns=list("abcd")) if kind == "frame" else X_ALL[rows]), rows


def make_loop(kind: str, folder: Path, rng: random.Random) -> ActiveLearningClassifier:
    """A loop with parameters that differ from process to process."""
    net = NeuralNetClassifier(
        MLP,
        module__n_features=4,
        module__n_classes=3,
        module__hidden=(rng.choice([4, 8]),),
        lr=rng.choice([0.1, 0.01]),
        criterion=torch.nn.CrossEntropyLoss,
        max_epochs=1,
        train_split=None,
        verbose=0,
    )
    linear = LogisticRegression(C=rng.choice([1.0, 2.0]))
    return ActiveLearningClassifier(
        linear if kind == "frame" or rng.random() < 0.5 else net,
        rng.choice(["margin", "random_sampling", "entropy"]),
        n_initial=6,
        initial="random",
        query_size=rng.choice([2, 3]),
        n_rounds=None,
        classes=NAMES,
        checkpoint=folder,
        random_state=rng.randrange(3),
    )


class Record:
    """What a process says of its labels: ``about`` to be written, and ``done``."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def say(self, what: str, labels: dict[int, Any]) -> None:
        os.write(self.pipe, (json.dumps([what, sorted(labels.items())]) + "\n").encode())


def work(kind: str, folder: Path, seed: int, record: Record) -> None:
    """Label until somebody kills us."""
    rng = random.Random(seed)
    X, rows = pool(kind, rng)
    loop = make_loop(kind, folder, rng)
    mode = rng.choice(["fit", "oracle", "session", "session"])
    journal = Journal(folder)
    journal.read()
    known = {KEYS[kind].index(key): line["label"] for key, line in journal.known.items() if line["label"] is not None}
    said: dict[int, Any] = {}

    def answer(indices: np.ndarray, samples: Any) -> list[Any]:
        record.say("done", said.copy())  # asked again: the last answer has been taken
        said.clear()
        said.update({rows[i]: truth(rows[i]) if mode == "fit" or rng.random() < 0.9 else None for i in indices})
        record.say("about", said)
        return [said[rows[i]] for i in indices]

    if mode == "fit":
        y = np.array([known.get(i, truth(i)) for i in rows])
        # in this process alone: how fit reads y
        _classifier.label_reader = lambda *_: lambda at, _: y[at] if set(at) <= labelled else answer(at, _)
        labelled = {position for position, i in enumerate(rows) if i in known}
        loop.fit(X, y)
    elif mode == "oracle":
        loop.fit(X, oracle=answer)
    else:
        with loop.start(X) as session:
            while not session.done:
                label(session, rows, rng, record)


def label(session: Any, rows: list[int], rng: random.Random, record: Record) -> None:
    """One operation of a session."""
    state, ids = session.state, session.ids
    open_now = {i for i, value in state.told} if state.phase == "answer" else set()
    free = [i for i in range(len(rows)) if i not in {*state.labelled, *state.declined, *open_now}]
    operation = rng.choice(["tell", "tell", "part", "relabel", "add", "decline", "undecline"])
    if operation in ("tell", "part"):
        asked = session.ask()
        asked = asked if operation == "tell" else asked[: max(1, len(asked) // 2)]
        labels = {int(i): truth(rows[i]) if rng.random() < 0.9 else None for i in asked}
    elif operation == "relabel":
        labels = {int(i): rng.choice(NAMES) for i in rng.sample(state.labelled, min(2, len(state.labelled)))}
    else:
        chosen = free if operation != "undecline" else state.declined
        chosen = rng.sample(chosen, min(2, len(chosen)))
        labels = {int(i): truth(rows[i]) if operation == "add" else None for i in chosen}
    if not labels:
        return
    changes = {rows[i]: value for i, value in labels.items()}
    record.say("about", changes)
    if operation in ("tell", "part"):
        session.tell(labels, end_round=operation == "tell" or rng.random() < 0.5)
    elif operation in ("relabel", "add"):
        getattr(session, operation)({ids[i]: value for i, value in labels.items()})
    else:
        getattr(session, operation)([ids[i] for i in labels])
    record.say("done", changes)


def start_process(kind: str, folder: Path, seed: int) -> tuple[int, int]:
    """A process that labels, and the pipe that it speaks into."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    os.close(reading)
    record = Record(writing)
    try:
        work(kind, folder, seed, record)
        record.say("finished", {})
    except CheckpointError as error:
        record.say("refused" if "Only one session" in str(error) else f"failed: {traceback.format_exc()}", {})
    except BaseException:
        record.say(f"failed: {traceback.format_exc()}", {})
    os._exit(0)


def read_all(pipe: int) -> list[Any]:
    """Every whole line that was written."""
    data = b""
    while part := os.read(pipe, 1 << 16):
        data += part
    os.close(pipe)
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def check(kind: str, folder: Path, allowed: dict[int, set[Any]], rng: random.Random) -> dict[int, Any]:
    """Compare what is in the folder, and what a session makes of it, with what was said; gives the labels."""
    journal = Journal(folder)
    journal.read()
    found = {KEYS[kind].index(key): line["label"] for key, line in journal.known.items()}
    for i in range(N):
        if found.get(i) not in allowed.get(i, {None}):
            raise AssertionError(f"sample {i} has the label {found.get(i)!r}, not one of {allowed.get(i)}")
    X, rows = pool(kind, rng)
    alone = Path(tempfile.mkdtemp())
    if (folder / "labels.jsonl").exists():
        shutil.copy(folder / "labels.jsonl", alone)
    for place in (folder, alone):
        state = make_loop(kind, place, rng).start(X, readonly=True).state
        there = dict(zip(state.labelled, state.labels, strict=True))
        there |= {i: value for i, value in state.told if value is not None and state.phase == "answer"}
        expected = {p: found[i] for p, i in enumerate(rows) if found.get(i) is not None}
        assert there == expected, (place, set(there.items()) ^ set(expected.items()))
    shutil.rmtree(alone)
    return found


def run(n_kills: int, seed: int = 0) -> dict[str, int]:
    """Kill so often, and count what happened."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", SkalWarning)
    rng = random.Random(seed)
    counts = dict.fromkeys(("kills", "labels", "operations", "refused writers", "projects"), 0)
    parent = Path(tempfile.mkdtemp())
    while counts["kills"] < n_kills:
        kind, folder = rng.choice(["frame", "array"]), parent / str(counts["projects"])
        counts["projects"] += 1
        allowed: dict[int, set[Any]] = {}
        found: dict[int, Any] = {}
        while len(found) < 0.7 * N and counts["kills"] < n_kills:
            processes = [start_process(kind, folder, rng.randrange(10**9)) for _ in range(rng.choice([1, 1, 1, 2]))]
            time.sleep(rng.uniform(0.0, 0.8))
            lines = []
            for process, pipe in processes:
                os.kill(process, signal.SIGKILL)
                _, status = os.waitpid(process, 0)
                counts["kills"] += os.WIFSIGNALED(status)
                lines.append(read_all(pipe))
            for what, changes in (line for part in lines for line in part):
                if what.startswith("failed"):
                    raise AssertionError(what)
                counts["refused writers"] += what == "refused"
                counts["operations"] += what == "done" and bool(changes)
                for i, value in changes:
                    allowed[i] = {value} if what == "done" else allowed.get(i, {None}) | {value}
            found = check(kind, folder, allowed, rng)
            allowed = {i: {value} for i, value in found.items()}
        counts["labels"] += sum(value is not None for value in found.values())
    shutil.rmtree(parent)
    return counts


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    counts = run(options.kills, options.seed)
    print(", ".join(f"{number} {name}" for name, number in counts.items()) + ": no label lost, none at another sample")


if __name__ == "__main__":
    main()
