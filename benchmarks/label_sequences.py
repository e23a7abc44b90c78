"""Random sequences of what can be done to a labelling project, compared with a model in memory.

``python -m benchmarks.label_sequences --examples 1000`` lets hypothesis make up the sequences: ask, tell, tell a part,
relabel, add, decline, undecline, start again with a pool that is reordered, shrunk or grown, with another batch size,
from ``labels.jsonl`` alone, with labels in y; a second session and a second process that try to write. After every step
each label must be at its sample, in the session and in the file.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sklearn.dummy import DummyClassifier

from benchmarks._kill_states import journal_states
from skal import ActiveLearningClassifier
from skal.exceptions import CheckpointError, MissingSamplesWarning

N = 30
NAMES = ["ant", "bee", "cow"]
X_ALL = np.arange(2.0 * N).reshape(N, 2)
LABELS = st.sampled_from(NAMES)


@cache
def keys() -> list[str]:
    """The ids that a session gives to all samples."""
    with tempfile.TemporaryDirectory() as folder:
        loop = ActiveLearningClassifier(DummyClassifier(), n_rounds=None, checkpoint=folder)
        with loop.start(X_ALL) as session:
            return session.ids.tolist()


class LabelMachine(RuleBasedStateMachine):
    """A project, and what should be in it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.labels: dict[int, str] = {}
        self.declined: set[int] = set()
        self.given_ids = False
        self.size = 2

    @initialize(rows=st.permutations(range(N)), given_ids=st.booleans())
    def begin(self, rows: list[int], given_ids: bool) -> None:
        self.given_ids = given_ids
        self.rows = rows[: N - 3]
        self.open()

    def open(self, y: Any = None) -> None:
        loop = ActiveLearningClassifier(
            DummyClassifier(),
            "random_sampling",
            initial="random",
            n_initial=3,
            query_size=self.size,
            n_rounds=None,
            classes=NAMES,
            checkpoint=self.folder,
            random_state=0,
        )
        self.session = loop.start(X_ALL[self.rows], y, ids=self.ids(self.rows) if self.given_ids else None)

    def ids(self, rows: list[int]) -> list[Any]:
        return [f"file {i}" if self.given_ids else keys()[i] for i in rows]

    def some(self, data: Any, samples: Any) -> list[int]:
        samples = sorted(samples)
        return data.draw(st.lists(st.sampled_from(samples), min_size=1, max_size=3, unique=True)) if samples else []

    # --- what can be done

    @rule(data=st.data(), end_round=st.booleans(), part=st.booleans())
    def tell(self, data: Any, end_round: bool, part: bool) -> None:
        asked = self.session.ask().tolist()
        asked = asked[: len(asked) // 2] if part else asked
        if not len(self.session.ask()):
            return
        answers = {position: data.draw(st.none() | LABELS) for position in asked}
        self.session.tell(answers, end_round=end_round)
        for position, label in answers.items():
            self.take(self.rows[position], label)

    def take(self, i: int, label: str | None) -> None:
        self.labels.pop(i, None)
        self.declined.discard(i)
        if label is None:
            self.declined.add(i)
        else:
            self.labels[i] = label

    @rule(data=st.data())
    def relabel(self, data: Any) -> None:
        chosen = self.some(data, set(self.labels) & set(self.rows))
        labels = {i: data.draw(LABELS) for i in chosen}
        self.session.relabel(dict(zip(self.ids(chosen), labels.values(), strict=True)))
        self.labels.update(labels)

    @rule(data=st.data())
    def add(self, data: Any) -> None:
        chosen = self.some(data, set(self.rows) - set(self.labels))
        labels = {i: data.draw(LABELS) for i in chosen}
        self.session.add(dict(zip(self.ids(chosen), labels.values(), strict=True)))
        for i, label in labels.items():
            self.take(i, label)

    @rule(data=st.data())
    def decline(self, data: Any) -> None:
        chosen = self.some(data, self.rows)
        self.session.decline(self.ids(chosen))
        for i in chosen:
            self.take(i, None)

    @rule(data=st.data())
    def undecline(self, data: Any) -> None:
        chosen = self.some(data, self.declined & set(self.rows))
        self.session.undecline(self.ids(chosen))
        self.declined -= set(chosen)

    @rule(rows=st.permutations(range(N)), n_rows=st.integers(N // 2, N), size=st.integers(1, 4), alone=st.booleans())
    def start_again(self, rows: list[int], n_rows: int, size: int, alone: bool) -> None:
        """With another pool and another batch size, and perhaps from the journal alone."""
        self.session.close()
        if alone:
            shutil.rmtree(self.folder / "cache", ignore_errors=True)
            (self.folder / "lock").unlink()
        if self.labels and not set(rows[:n_rows]) & set(self.labels):
            n_rows = N  # a pool without any of the labelled samples is refused
        self.rows, self.size = rows[:n_rows], size
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MissingSamplesWarning)
            self.open()

    @precondition(lambda self: len(self.labels) < N)
    @rule(data=st.data())
    def start_with_labels(self, data: Any) -> None:
        self.session.close()
        path = self.folder / "labels.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        earlier = {event["id"] for event in map(json.loads, lines) if event["event"] == "label"}
        never = [i for i in self.rows if self.ids([i])[0] not in earlier]
        new = {i: data.draw(LABELS) for i in self.some(data, never)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MissingSamplesWarning)
            self.open([new.get(i) for i in self.rows])
        for i, label in new.items():
            self.take(i, label)

    @rule()
    def another_session(self) -> None:
        with pytest.raises(CheckpointError, match="this process"):
            self.open()

    @rule()
    def another_process(self) -> None:
        child = os.fork()
        if child == 0:
            try:
                self.open()
            except CheckpointError as error:
                os._exit(0 if f"process {os.getppid()} " in str(error) else 1)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

    # --- what must hold

    @invariant()
    def every_label_is_at_its_sample(self) -> None:
        if not hasattr(self, "session"):
            return
        state, rows = self.session.state, self.rows
        there = {rows[p]: label for p, label in zip(state.labelled, state.labels, strict=True)}
        assert there == {i: label for i, label in self.labels.items() if i in rows}
        assert {rows[p] for p in state.declined} == self.declined & set(rows)
        assert self.session.ids.tolist() == self.ids(rows)
        asked = {rows[p] for p in state.open_questions()}
        assert not asked & (set(self.labels) | self.declined)
        frame = self.session.labels()
        expected = {key: self.labels[i] for i, key in enumerate(self.ids(list(range(N)))) if i in self.labels}
        assert dict(zip(frame["id"], frame["label"], strict=True)) == expected
        assert {key: state for key, state in journal_states(self.folder)[0].items() if state} == expected

    def teardown(self) -> None:
        if hasattr(self, "session"):
            self.session.close()
        shutil.rmtree(self.folder)


def run(n_examples: int, n_steps: int = 15) -> None:
    """Try ``n_examples`` sequences."""
    run_state_machine_as_test(
        LabelMachine,
        settings=settings(
            max_examples=n_examples,
            stateful_step_count=n_steps,
            deadline=None,
            database=None,
            derandomize=True,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        ),
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=15)
    options = parser.parse_args(arguments)
    run(options.examples, options.steps)
    print(f"{options.examples} sequences of up to {options.steps} operations agree with the model")


if __name__ == "__main__":
    main()
