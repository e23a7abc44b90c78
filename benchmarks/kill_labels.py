"""Kill labelling projects at random moments, and look whether every label is where it was put.

``python -m benchmarks.kill_labels --kills 200 [--only KIND] [--out FILE]`` labels in two ways, and kills with SIGKILL:

- in Python: forked processes use ``fit``, an oracle, ``ask`` and ``tell``, ``relabel``, ``add``, ``decline`` (also of
  labelled samples, which takes the label back) and ``undecline``; a label is undone by these two, and a class added by
  a label of it. Each has another pool (reordered, with samples missing or added) and other parameters than the one
  before; some are two at a time on one folder;
- over HTTP: a forked process serves the labelling page, and this one answers, corrects, declines, takes answers back
  and adds classes; the pool grows from start to start. The labels are of pictures or of texts.

Both with a linear model and with a network, which are trained meanwhile; with one class for each sample, with several
at once (named in another order at every start over HTTP), and with numbers.

Every process says what it is about to do, and that it was confirmed. After each kill an independent reading of
``labels.jsonl`` is compared with that record, and so is a session that starts again, with the cache and without it.

``python -m benchmarks.kill_labels --team`` lets three automatic hands label one project at once, each over a link of
its own, until all have given as many answers as two hours take (20 a minute), while the server is killed and started
again. Every confirmed answer must be in the journal with its author, and no other.

With ``--out`` every project that is done is a line of the file, and the same call goes on from there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import select
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from skorch import NeuralNetClassifier, NeuralNetRegressor

from benchmarks._kill_page import kill_http
from benchmarks._kill_states import (
    Allowed,
    State,
    check_states,
    is_label,
    journal_states,
    session_states,
    with_and_without_cache,
)
from benchmarks._kill_team import run_team
from benchmarks._measure import markdown
from skal import ActiveLearningClassifier, ActiveLearningRegressor
from skal.exceptions import CheckpointError, SkalWarning
from skal.loop import _active_loop
from skal.nets import MLP

N = 120
NAMES = ["ant", "bee", "cow"]
X_ALL = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
KINDS = ("python, linear", "http, texts", "python, several labels", "http, several labels", "python, network")
KINDS += ("http, linear", "python, numbers", "http, numbers", "http, network")
COUNTS = ("projects", "kills", "trainings", "confirmed", "corrected", "undone", "taken back", "declined", "undeclined")
COUNTS += ("added", "classes added", "refused")
OUTPUTS = 64  # of a network: as many classes as a project may come to


class Record:
    """What is about to be done to samples, and what was confirmed."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def say(self, what: str, states: dict[str, State], operation: str = "") -> None:
        os.write(self.pipe, (json.dumps([what, operation, list(states.items())]) + "\n").encode())


def take_record(lines: list[Any], allowed: Allowed, counts: Counter[str]) -> None:
    """Let a record say in which states samples may be."""
    for what, operation, states in lines:
        if what.startswith("failed"):
            raise AssertionError(what)
        counts["refused"] += what == "refused"
        if what == "done" and states:
            counts["confirmed"] += len(states)
            counts[operation] += len(states)
        counts["trainings"] += what == "trained"
        for key, value in states:
            allowed[key] = [value] if what == "done" else [*allowed.get(key, [None]), value]


def truth(kind: str, i: int) -> Any:
    """The first label of a sample."""
    if "numbers" in kind:
        return float(X_ALL[i, 0])
    return (X_ALL[i, :3] > 0).astype(int).tolist() if "several" in kind else NAMES[int(X_ALL[i].argmax()) % 3]


def make_pool(kind: str, rng: random.Random) -> tuple[Any, list[int]]:
    """Most of the samples, in any order, and which they are."""
    rows = rng.sample(range(N), rng.randint(N - 12, N))
    return (pd.DataFrame(X_ALL[rows], index=rows, columns=list("abcd")) if "linear" in kind else X_ALL[rows]), rows


def make_estimator(kind: str, rng: random.Random) -> Any:
    """A linear model or a network, with parameters that differ from process to process."""
    several, numbers = "several" in kind, "numbers" in kind
    if "linear" in kind or ((several or numbers) and rng.random() < 0.5):
        classifier = LogisticRegression(C=rng.choice([1.0, 2.0]))
        return Ridge() if numbers else MultiOutputClassifier(classifier) if several else classifier
    loss = torch.nn.BCEWithLogitsLoss if several else torch.nn.CrossEntropyLoss
    return (NeuralNetRegressor if numbers else NeuralNetClassifier)(
        MLP,
        module__n_features=4,
        module__n_classes=1 if numbers else 3 if several else OUTPUTS,
        module__hidden=(rng.choice([4, 8]),),
        lr=rng.choice([0.1, 0.01]),
        criterion=torch.nn.MSELoss if numbers else loss,
        max_epochs=1,
        train_split=None,
        verbose=0,
    )


def make_loop(kind: str, folder: Path, rng: random.Random) -> ActiveLearningClassifier | ActiveLearningRegressor:
    """A loop with parameters that differ from process to process."""
    strategies = ["lcmd", "random_sampling"] if "numbers" in kind else ["margin", "random_sampling", "entropy"]
    return (ActiveLearningRegressor if "numbers" in kind else ActiveLearningClassifier)(
        make_estimator(kind, rng),
        rng.choice(strategies),
        n_initial=6,
        initial="random",
        query_size=rng.choice([2, 3]),
        n_rounds=None,
        checkpoint=folder,
        random_state=rng.randrange(3),
    )


def label_in_python(kind: str, folder: Path, seed: int, record: Record) -> None:
    """Label until somebody kills us."""
    rng = random.Random(seed)
    X, rows = make_pool(kind, rng)
    loop = make_loop(kind, folder, rng)
    mode = rng.choice(["fit", "oracle", "session", "session", "session"])
    with loop.start(X) as session:
        ids, labelled = (
            [str(key) for key in session.ids],
            dict(zip(session.state.labelled, session.state.labels, strict=True)),
        )
        if mode == "session":
            while not session.done:
                operate(kind, session, rows, rng, record)
            return
    said: dict[str, State] = {}

    def answer(indices: np.ndarray, samples: Any) -> list[Any]:
        record.say("done", said, "told")  # asked again: the last answer has been taken
        said.clear()
        labels = [truth(kind, rows[i]) if mode == "fit" or rng.random() < 0.9 else None for i in indices]
        said.update({ids[i]: False if label is None else label for i, label in zip(indices, labels, strict=True)})
        record.say("about", said)
        return labels

    if mode == "fit":
        y = np.array([labelled.get(position, truth(kind, i)) for position, i in enumerate(rows)])
        # in this process alone: how fit reads y
        _active_loop.label_reader = lambda *_: lambda at, _: y[at] if set(at) <= set(labelled) else answer(at, _)
        loop.fit(X, y)
    else:
        loop.fit(X, oracle=answer)


def operate(kind: str, session: Any, rows: list[int], rng: random.Random, record: Record) -> None:
    """One operation of a session."""
    state, ids = session.state, session.ids
    one_class = "several" not in kind and "numbers" not in kind
    operations = ["told", "told", "part", "corrected", "added", "declined", "taken back"]
    operations += ["classes added"] * one_class
    operation = rng.choice([*operations, "undeclined", "undone"])
    if operation in ("told", "part"):
        asked = session.ask()
        asked = asked if operation == "told" else asked[: max(1, len(asked) // 2)]
        labels = {int(i): truth(kind, rows[i]) if rng.random() < 0.9 else None for i in asked}
    elif operation == "corrected":
        chosen = rng.sample(state.labelled, min(2, len(state.labelled)))
        labels = {int(i): truth(kind, rng.randrange(N)) for i in chosen}
    else:
        known = {*state.labelled, *state.declined}
        chosen = [i for i in range(len(rows)) if i not in known]
        of = {"undeclined": state.declined, "taken back": state.labelled, "undone": state.labelled}
        chosen = of.get(operation, chosen)
        chosen = rng.sample(chosen, min(1 if operation == "classes added" else 2, len(chosen)))
        new = {"added": lambda i: truth(kind, i), "classes added": lambda _: f"class {len(set(state.labels))}"}
        new = new.get(operation)
        labels = {int(i): None if new is None else new(rows[i]) for i in chosen}
    if not labels:
        return
    verbs = {"corrected": session.relabel, "added": session.add, "classes added": session.add}
    nothing = None if operation == "undeclined" else False
    states = {str(ids[i]): nothing if label is None else label for i, label in labels.items()}
    record.say("about", states)
    if operation in ("told", "part"):
        n_rounds = len(state.history)
        session.tell(labels, end_round=operation == "told" or rng.random() < 0.5)
        record.say("trained" if len(session.state.history) > n_rounds else "waits", {})
    elif operation in verbs:
        verbs[operation]({ids[i]: label for i, label in labels.items()})
    elif operation == "undeclined":
        session.undecline([ids[i] for i in labels])
    else:
        session.decline([ids[i] for i in labels])
    if operation == "undone":  # a label, as the page undoes it: taken back, and the sample may be asked for again
        record.say("done", states)
        states = dict.fromkeys(states)
        record.say("about", states)
        session.undecline([ids[i] for i in labels])
    record.say("done", states, operation)


def fork(work: Callable[[Record], None]) -> tuple[int, int]:
    """A process that does some work, and the pipe that it speaks into."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    os.close(reading)
    record = Record(writing)
    try:
        work(record)
        record.say("finished", {})
    except CheckpointError as error:
        record.say("refused" if "Only one session" in str(error) else f"failed: {traceback.format_exc()}", {})
    except BaseException:
        record.say(f"failed: {traceback.format_exc()}", {})
    os._exit(0)


def read_lines(pipe: int, n: float = math.inf, seconds: float = 30) -> bytes:
    """What was written, up to so many lines; and no more than comes within a time, unless all is wanted."""
    data, end = b"", time.monotonic() + seconds
    while data.count(b"\n") < n and (n == math.inf or select.select([pipe], [], [], max(0, end - time.monotonic()))[0]):
        if not (part := os.read(pipe, 1 << 12)):
            break
        data += part
    return data


def kill_python(kind: str, folder: Path, rng: random.Random, allowed: Allowed, counts: Counter[str]) -> None:
    """Label in Python, kill, and compare."""
    seeds = [rng.randrange(10**9) for _ in range(rng.choice([1, 1, 1, 2]))]
    processes = [fork(lambda record, seed=seed: label_in_python(kind, folder, seed, record)) for seed in seeds]
    # the moment depends on what has been done, so that a busy machine is killed in its work, too
    n_lines, pause = rng.choice([0, 1, 2, 3, 5, 8, 13, 21, 34]), rng.uniform(0.0, 0.3)
    begun = [read_lines(pipe, n_lines) for _, pipe in processes]
    time.sleep(pause)
    for (process, pipe), data in zip(processes, begun, strict=True):
        os.kill(process, signal.SIGKILL)
        counts["kills"] += os.WIFSIGNALED(os.waitpid(process, 0)[1])
        data += read_lines(pipe)
        os.close(pipe)
        take_record([json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()], allowed, counts)
    found, _ = journal_states(folder)
    check_states(found, allowed)
    X, _ = make_pool(kind, rng)
    for place in with_and_without_cache(folder):
        session = make_loop(kind, place, rng).start(X, readonly=True)
        there = {str(key) for key in session.ids}
        expected = {key: state for key, state in found.items() if state is not None and key in there}
        assert session_states(session.state, session.ids) == expected, place
        labels = session.labels()
        assert {str(key): label for key, label in zip(labels["id"], labels["label"], strict=True)} == {
            key: state for key, state in found.items() if is_label(state)
        }
        session.close()


def run_project(kind: str, seed: int, n_kills: int) -> Counter[str]:
    """Kill one project so often, or until most of it is labelled, and count."""
    rng, counts = random.Random(seed), Counter(projects=1)
    folder = Path(tempfile.mkdtemp())
    allowed: Allowed = {}
    kill = kill_http if kind.startswith("http") else kill_python
    try:
        while counts["kills"] < n_kills and sum(is_label(states[-1]) for states in allowed.values()) < 0.7 * N:
            kill(kind, folder, rng, allowed, counts)
            found, _ = journal_states(folder)
            allowed.clear()
            allowed.update({key: [state] for key, state in found.items()})
    except BaseException:
        print(f"{kind}, seed {seed}: the folder is {folder}")
        raise
    shutil.rmtree(folder)
    return counts


def run(
    n_kills: int, seed: int = 0, out: Path | None = None, per_project: int = 12, kinds: Sequence[str] = KINDS
) -> dict[str, Counter[str]]:
    """Kill so often, by turns in each way, and give the counts; projects in the file count too."""
    torch.set_num_threads(1)
    import_module("torch._dynamo")  # takes seconds, in which a forked server would only be killed
    warnings.simplefilter("ignore", SkalWarning)
    done = [json.loads(line) for line in out.read_text().splitlines()] if out is not None and out.exists() else []
    totals: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    for line in done:
        totals[line["kind"]].update(line["counts"])
    number = len(done)
    while (left := n_kills - sum(counts["kills"] for counts in totals.values())) > 0:
        kind = kinds[number % len(kinds)]
        counts = run_project(kind, seed + number, min(left, per_project))
        totals[kind].update(counts)
        number += 1
        if out is not None:
            with out.open("a") as file:
                file.write(json.dumps({"kind": kind, "counts": counts}) + "\n")
    return totals


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-project", type=int, default=12, help="kills of one project, at most")
    parser.add_argument("--only", choices=KINDS, help="one kind of project alone")
    parser.add_argument("--out", type=Path, help="a file to go on from")
    parser.add_argument("--team", action="store_true", help="three hands at once, and kills of their server")
    parser.add_argument("--answers", type=int, default=2400, help="of each hand of a team")
    parser.add_argument("--pause", type=float, default=8.0, help="seconds between two kills of a team's server")
    options = parser.parse_args(arguments)
    if options.team:
        found = run_team(options.answers, options.pause, options.seed)
        print(markdown(["three hands at once", "number"], [[name, round(value)] for name, value in found.items()]))
        print("Every confirmed answer is in the journal with its author, and no other.")
        return
    kinds = KINDS if options.only is None else (options.only,)
    totals = run(options.kills, options.seed, options.out, options.per_project, kinds)
    if len(kinds) > 1:
        totals["all"] = sum(totals.values(), Counter())
    rows = [[kind, *(counts[name] for name in COUNTS)] for kind, counts in totals.items()]
    print(markdown(["labelled", *COUNTS], rows))
    print("No confirmed label was lost, none came back, none is at another sample.")


if __name__ == "__main__":
    main()
