"""What samples may be after a kill: an independent reading of the journal, and what a session says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

State = Any  # of a sample: its label (never 0), False if it was declined, None if it is open
Allowed = dict[str, list[State]]  # by id, as text: the states that a sample may be in


def journal_states(folder: Path) -> tuple[dict[str, State], set[str]]:
    """An independent reading of the journal: the state of every sample that was ever mentioned, and the classes."""
    states: dict[str, State] = {}
    columns: list[str] = []
    classes = set()
    path = folder / "labels.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    for line in lines:
        event = json.loads(line)
        if event["event"] == "class":
            classes.add(event["class"])
        elif event["event"] == "columns":
            columns = event["columns"]
        else:
            label = event["label"]
            if columns and label is not None:
                label = [name for name, holds in zip(columns, label, strict=True) if holds]
            states[str(event["id"])] = {"label": label, "declined": False, "open": None}[event["event"]]
    return states, classes


def is_label(state: State) -> bool:
    """Whether a sample has a label, which may be a row of no classes at all."""
    return state is not None and state is not False


def check_states(found: dict[str, State], allowed: Allowed) -> None:
    """Every sample must be in a state that it may be in."""
    for key in found.keys() | allowed.keys():
        if found.get(key) not in allowed.get(key, [None]):
            raise AssertionError(f"sample {key} is {found.get(key)!r}, and may be {allowed.get(key)}")


def session_states(state: Any, ids: Any) -> dict[str, State]:
    """The states that a session knows."""
    known = {str(ids[i]): label for i, label in zip(state.labelled, state.labels, strict=True)}
    return known | {str(ids[i]): False for i in state.declined}


def with_and_without_cache(folder: Path) -> list[Path]:
    """The folder, and one that has its journal alone."""
    alone = folder / "alone"
    shutil.rmtree(alone, ignore_errors=True)
    alone.mkdir(parents=True)
    if (folder / "labels.jsonl").exists():
        shutil.copy(folder / "labels.jsonl", alone)
    return [folder, alone]
