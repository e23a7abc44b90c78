"""Damage folders of labels at random, and look whether any label is another one, or gone without a word.

``python -m benchmarks.damage_folders [--folders 3000] [--seed 0] [--out FILE]``. Six folders are made, with labels,
corrections, undone labels and declined samples: of a session with a linear model, of one with a network, and of the
labelling page with one class each, with several at once, with numbers, and with the answers of two people. One file of
a copy is then damaged or gone, as disks, file systems and editors do it, and the copy is opened again, with its classes
in another order. It must be refused in words, or have the labels that were told; those of an earlier moment, if the end
of the journal is lost, only with a warning. With ``--out`` every folder that is done is a line of the file, and the
same call goes on from there.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from skorch import NeuralNetClassifier

from benchmarks._kept import Kept
from benchmarks._measure import markdown
from skal import ActiveLearningClassifier
from skal.exceptions import SkalError, SkalWarning
from skal.labelling._answer_form import AnswerForm
from skal.labelling._label import as_source
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._team import Team
from skal.nets import MLP

OUTCOMES = ("refused", "all labels", "earlier ones, with a warning")
BAD = ("earlier ones, silently", "other labels", "foreign error")
X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
NAMES = ["a", "b", "c"]
PEOPLE = ["ann", "ben"]
FORMS = {"page, several labels": AnswerForm("multilabel"), "page, numbers": AnswerForm("regression")}
KINDS = ("session, linear", "session, network", "page", *FORMS, "page, two people")
Labels = dict[str, Any]  # by id, or by id and person


def start(kind: str, folder: Path, readonly: bool = True) -> Any:
    """A session on a folder."""
    net = NeuralNetClassifier(MLP(4, 3), criterion=torch.nn.CrossEntropyLoss, max_epochs=1, train_split=None, verbose=0)
    loop = ActiveLearningClassifier(
        net if "network" in kind else LogisticRegression(),
        "margin",
        n_initial=6,
        query_size=4,
        n_rounds=None,
        classes=NAMES,
        checkpoint=folder,
        random_state=0,
    )
    return loop.start(X, ids=[f"sample {i}" for i in range(len(X))], readonly=readonly)


def open_page(kind: str, folder: Path, classes: Sequence[str]) -> Project:
    """The project behind a page, which trains nothing unless it is started."""
    source = as_source(X, [f"sample {i}" for i in range(len(X))], None)
    settings = {"form": FORMS.get(kind), "team": Team(PEOPLE, 1.0) if "people" in kind else None}
    return Project(source, classes, choose_model(source, model="linear"), folder, query_size=4, **settings)


def say(kind: str, i: int) -> Any:
    """The i-th answer."""
    if "numbers" in kind:
        return i / 4
    return NAMES[: i % 4] if "several" in kind else NAMES[i % 3]


def make(kind: str, folder: Path) -> None:
    """A folder with everything that may happen to labels."""
    if kind.startswith("page"):
        with open_page(kind, folder, NAMES) as project:
            for i in range(12):
                for k, person in enumerate(PEOPLE if project.team else [None]):
                    (item,) = project.next(f"{person}", 1, person=person)
                    project.answer(item["id"], say(kind, i + k * (i % 5 == 0)), client=f"{person}", person=person)
                    if i % 4 == 3:
                        project.undo(f"{person}", person=person)
            if project.team:
                project.decide(project.rounds.journal.disputes()[0], "b", person="ann")
            project.worker.wait_until_idle()
        return
    with start(kind, folder, readonly=False) as session:
        for _ in range(4):
            session.tell({int(i): "abc"[int(i) % 3] for i in session.ask()})
        ids = [session.ids[i] for i in session.state.labelled]
        session.relabel({ids[0]: "c", ids[1]: "b"})
        session.decline(ids[2:5])
        session.undecline(ids[3:5])
        session.ask()


def read(kind: str, folder: Path) -> Labels:
    """The labels that whoever opens the folder finds."""
    opened = open_page(kind, folder, NAMES[::-1]) if kind.startswith("page") else start(kind, folder)
    try:
        frame = opened.labels()
        if "people" in kind:
            answers, decided = opened.rounds.journal.answers, opened.rounds.journal.decided
            said = {f"{key}, {who}": event["label"] for key, each in answers.items() for who, event in each.items()}
            return said | {key: event["label"] for key, event in decided.items()}
        labels = [opened.form.show(label, opened.classes) if "several" in kind else label for label in frame["label"]]
        return dict(zip(frame["id"].astype(str), labels, strict=True))
    finally:
        opened.close()


def moments(folder: Path) -> list[Labels]:
    """The labels after every event of the journal, by a reading of its own; the last are those that hold."""
    found: list[Labels] = [{}]
    names: list[str] = []
    for line in (folder / "labels.jsonl").read_text().splitlines():
        event = json.loads(line)
        names = event.get("columns", names)
        key, label = event["id"], event["label"]
        key = f"{key}, {event['annotator']}" if event["event"] in ("answer", "withdrawn") else key
        label = [name for name, holds in zip(names, label, strict=True) if holds] if isinstance(label, list) else label
        others = {other: held for other, held in found[-1].items() if other != key}
        found.append(others | ({key: label} if event["event"] in ("label", "answer") else {}))
    return found


def damages(rng: random.Random) -> dict[str, Callable[[bytes], bytes | None]]:
    """What may happen to the bytes of a file; None if it is gone."""

    def place(data: bytes) -> int:
        return rng.randrange(len(data) + 1)

    def replace(data: bytes, new: Callable[[int], bytes], longest: int) -> bytes:
        begin, size = place(data), rng.randint(1, longest)
        return data[:begin] + new(min(size, len(data) - begin)) + data[begin + size :]

    return {
        "a bit turned": lambda data: replace(data, lambda n: bytes([1 << rng.randrange(8)] * n), 1),
        "a few bytes of chance": lambda data: replace(data, rng.randbytes, 8),
        "a digit or letter changed": lambda data: replace(data, lambda n: rng.choice(b"0123abc").to_bytes() * n, 1),
        "a block of zeros": lambda data: replace(data, bytes, 512),
        "a block that is missing": lambda data: replace(data, lambda n: b"", 512),
        "a block from elsewhere": lambda data: replace(data, lambda n: data[(k := place(data)) : k + n], 512),
        "cut short": lambda data: data[: place(data)],
        "more at the end": lambda data: data + rng.randbytes(rng.randint(1, 64)),
        "empty": lambda data: b"",
        "gone": lambda data: None,
    }


def open_damaged(kind: str, folder: Path, told: list[Labels]) -> tuple[str, str]:
    """One of OUTCOMES, and the words of an error."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = read(kind, folder)
        except SkalError:
            return "refused", ""
        except Exception as error:
            return "foreign error", f"{type(error).__name__}: {error}"
    if found == told[-1]:
        return "all labels", ""
    if found not in told:
        return "other labels", ""
    warned = any(issubclass(warning.category, SkalWarning) for warning in caught)
    return ("earlier ones, with a warning" if warned else "earlier ones, silently"), ""


def damage_one(whole: Path, kind: str, told: list[Labels], rng: random.Random) -> list[str]:
    """Damage a copy of a folder: the file, without the digest in its name, the outcome, and how and why."""
    damaged = whole.with_name("damaged")
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(whole, damaged)
    files = sorted(path for path in damaged.rglob("*") if path.is_file() and path.name != "lock")
    file = damaged / "labels.jsonl" if rng.random() < 0.5 else rng.choice(files)
    how, damage = rng.choice(list(damages(rng).items()))
    before = file.read_bytes()
    after = damage(before)
    if after is None:
        file.unlink()
    else:
        file.write_bytes(b"" if after == before else after)
    outcome, said = open_damaged(kind, damaged, told)
    return [re.sub("-[0-9a-f]{32}", "", str(file.relative_to(damaged))), outcome, f"{how} {said}"]


def run(n_folders: int, seed: int, kept: Kept) -> tuple[dict[str, Counter[str]], dict[str, Counter[str]]]:
    """Counts of what became of damaged files, by file and by kind of folder; what must not be is printed."""
    counts: dict[str, Counter[str]] = {}
    by_kind: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    root = Path(tempfile.mkdtemp())
    told = {}
    for kind in KINDS:
        make(kind, root / kind)
        told[kind] = moments(root / kind)
        assert read(kind, root / kind) == told[kind][-1]
    for number in range(n_folders):
        kind, rng = KINDS[number % len(KINDS)], random.Random(seed + number)
        name, outcome, how = kept(f"seed {seed + number}", lambda k=kind, r=rng: damage_one(root / k, k, told[k], r))
        counts.setdefault(name, Counter())[outcome] += 1
        by_kind[kind][outcome] += 1
        if outcome in BAD:
            print(f"{outcome}: folder {number} ({kind}), {name}, {how}", file=sys.stderr, flush=True)
    shutil.rmtree(root)
    return counts, by_kind


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the counts; 1 if a label was another one, or gone without a word."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.damage_folders", description=__doc__.splitlines()[0])
    parser.add_argument("--folders", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file to go on from")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    by_file, by_kind = run(options.folders, options.seed, Kept(options.out))
    counts = dict(sorted(by_file.items())) | {f"all of: {kind}": count for kind, count in by_kind.items()}
    counts["all"] = sum(by_file.values(), Counter())
    rows = [
        [name, sum(count.values()), *(count[outcome] for outcome in (*OUTCOMES, *BAD))]
        for name, count in counts.items()
    ]
    print(markdown(["damaged file", "folders", *OUTCOMES, *BAD], rows))
    return int(any(counts["all"][outcome] for outcome in BAD))


if __name__ == "__main__":
    sys.exit(main())
