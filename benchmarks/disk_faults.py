"""Let every operation on the disk fail once while labels are given, and count what becomes of the labels.

``python -m benchmarks.disk_faults``. A session in Python and the project behind a page are labelled, corrected,
declined and undone, again and again; the first operation on the disk fails in the first round, the second in the next,
until all have failed: with a full disk, with a broken one, and with a write that is cut short. A fault must be refused
in words with nothing changed, and the same call must then work, or it must be in what may be lost; afterwards all
labels are there.
"""

from __future__ import annotations

import argparse
import errno
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.dummy import DummyClassifier

from benchmarks._failing_disk import Disk
from benchmarks._measure import markdown
from skal import ActiveLearningClassifier
from skal.exceptions import CheckpointError, SkalWarning
from skal.labelling._label import as_source
from skal.labelling._models import choose_model
from skal.labelling._project import Project

KINDS = ("a session", "the page")
FAULTS = {"full": errno.ENOSPC, "broken": errno.EIO, "a short write": 0}
OUTCOMES = ("refused, then taken", "in what may be lost")
BAD = ("changed though refused", "refused again", "other labels", "foreign error")
X = np.arange(80.0).reshape(40, 2)
IDS = [f"sample {i}" for i in range(40)]
Labels = dict[str, Any]  # by id, None for what is declined


def open_folder(kind: str, folder: Path) -> Any:
    """A session, or the project behind a page, which trains nothing."""
    if kind == "the page":
        source = as_source(X, IDS, None)
        return Project(source, ["a", "b"], choose_model(source, model="linear"), folder, query_size=1000)
    loop = ActiveLearningClassifier(
        DummyClassifier(), "random_sampling", n_initial=4, n_rounds=None, checkpoint=folder, random_state=0
    )
    return loop.start(X, ids=IDS)


def read(kind: str, opened: Any) -> tuple[Labels, list[str]]:
    """What is labelled and declined, and the classes of a page."""
    state = (opened.rounds.session if kind == "the page" else opened).state
    return {IDS[i]: label for i, label in state.answers.items()}, list(getattr(opened, "classes", []))


def changes(kind: str, opened: Any) -> Iterator[tuple[Callable[[], Any], Labels]]:
    """Calls, and what holds after each; samples that are "open" again hold nothing."""
    if kind == "the page":
        yield lambda: opened.answer(IDS[0], "a"), {IDS[0]: "a"}
        yield lambda: opened.answer(IDS[1:4], "b"), dict.fromkeys(IDS[1:4], "b")
        yield lambda: opened.answer(IDS[0], "b"), {IDS[0]: "b"}
        yield lambda: opened.add_class("c"), {}
        yield lambda: opened.answer(IDS[4], None, declined=True), {IDS[4]: None}
        yield lambda: opened.answer(IDS[1], "c"), {IDS[1]: "c"}
        yield lambda: opened.undo(), {IDS[1]: "b"}
        return
    asked = opened.ask().tolist()
    yield (
        lambda: opened.tell(["a", "b", "a", None], asked),
        {IDS[i]: x for i, x in zip(asked, "aba", strict=False)} | {IDS[asked[3]]: None},
    )
    yield lambda: opened.relabel({IDS[asked[0]]: "b"}), {IDS[asked[0]]: "b"}
    free = [i for i in range(40) if i not in asked]
    yield lambda: opened.add({IDS[free[0]]: "c", IDS[free[1]]: "a"}), {IDS[free[0]]: "c", IDS[free[1]]: "a"}
    yield lambda: opened.decline([IDS[free[2]], IDS[asked[0]]]), dict.fromkeys([IDS[free[2]], IDS[asked[0]]])
    yield lambda: opened.undecline([IDS[free[2]]]), {IDS[free[2]]: "open"}


def meet(kind: str, folder: Path, disk: Disk, at: int, code: int) -> str:
    """What becomes of the operation number ``at``."""
    outcome, holds = "in what may be lost", {}
    try:
        with disk.fail(at, code):
            try:
                opened = open_folder(kind, folder)
            except CheckpointError:
                outcome, opened = "refused, then taken", open_folder(kind, folder)
            for call, told in changes(kind, opened):
                before = read(kind, opened)
                try:
                    call()
                except CheckpointError:
                    if read(kind, opened) != before:
                        return "changed though refused"
                    outcome = "refused, then taken"
                    call()
                holds = {key: label for key, label in (holds | told).items() if label != "open"}
                if read(kind, opened)[0] != holds:
                    return "other labels"
            opened.close()
        again = open_folder(kind, folder)
        found, classes = read(kind, again)
        again.close()
    except CheckpointError:
        return "refused again"
    except Exception as error:
        print(f"{kind}, operation {at}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return "foreign error"
    return outcome if found == holds and (kind != "the page" or "c" in classes) else "other labels"


def run(kind: str, code: int) -> Counter[str]:
    """Counts of what became of every operation."""
    counts: Counter[str] = Counter()
    root, patch = Path(tempfile.mkdtemp()), pytest.MonkeyPatch()
    disk, at = Disk(patch), 1
    while True:
        outcome = meet(kind, root / str(at), disk, at, code)
        if disk.count < at:  # all that happens in one piece of work has failed
            break
        counts[outcome] += 1
        at += 1
    shutil.rmtree(root)
    return counts


def main(arguments: list[str] | None = None) -> int:
    """Print the counts; 1 if a label was lost, or a fault was not said in words."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.disk_faults", description=__doc__.splitlines()[0])
    parser.parse_args(arguments)
    warnings.simplefilter("ignore", SkalWarning)
    counts = {f"{kind}: {name}": run(kind, code) for kind in KINDS for name, code in FAULTS.items()}
    counts["all"] = sum(counts.values(), Counter())
    rows = [[name, found.total(), *(found[outcome] for outcome in (*OUTCOMES, *BAD))] for name, found in counts.items()]
    print(markdown(["the disk under", "faults", *OUTCOMES, *BAD], rows))
    return int(any(counts["all"][outcome] for outcome in BAD))


if __name__ == "__main__":
    sys.exit(main())
