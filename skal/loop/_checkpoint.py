# SPDX-License-Identifier: BSD-3-Clause
"""What is kept of a run in its folder, and how the run goes on from there."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from skal.exceptions import CheckpointError, MissingSamplesWarning, shorten
from skal.loop._audit import SOURCE
from skal.loop._config import LoopConfig
from skal.loop._fingerprint import describe_params, fingerprint_data, generator_state, without_own_paths
from skal.loop._folder import CheckpointFolder
from skal.loop._identity import SampleIds, says_everything
from skal.loop._journal import Journal, entry
from skal.loop._labels import read_labels
from skal.loop._lock import FolderLock
from skal.loop._selection import random_states
from skal.loop._state import LoopState
from skal.loop._trainer import Trainer


class RunCheckpoint:
    """Labels, ids and saved states of one run; without a folder, labels and ids alone.

    Make it before anything is drawn from a ``random_state`` that is a generator: its state is a part of the
    configuration.

    Parameters
    ----------
    config : LoopConfig
    params : dict
        Every parameter of the run, at every depth: ``classifier.get_params()``.

    Attributes
    ----------
    journal : Journal
        The labels: what it says holds.
    ids : SampleIds
        After ``restore``.
    lock : FolderLock or None
    """

    def __init__(self, config: LoopConfig, params: dict[str, Any]) -> None:
        self.config = config
        path = None if config.checkpoint is None else Path(config.checkpoint)
        self.path, self.journal = path, Journal(path)
        self.lock = None if path is None or config.readonly else FolderLock(path)
        self.folder = None if path is None else CheckpointFolder(path)
        self.fingerprint = (
            {}
            if path is None
            else {
                "data": fingerprint_data(config.X),
                "eval_set": fingerprint_data(dict(zip("Xy", config.eval_set or (), strict=False))),
            }
        )
        self.describe(params)

    def describe(self, params: dict[str, Any]) -> None:
        """Note the parameters of the run, at every depth."""
        if self.path is not None:
            self.fingerprint["parameters"] = describe_params(params)

    def write(self, entries: Iterable[dict[str, Any]]) -> None:
        """Put labels into the journal."""
        if self.lock is not None:
            self.lock.acquire()
        self.journal.append(entries)

    def save(self, state: LoopState, trainer: Trainer, strategy: Any, *, trained: bool) -> None:
        """Write everything; the network only if it has been trained since."""
        self.write_content(*self.content(state, trainer, strategy, trained=trained))

    def write_content(self, content: dict[str, Any], network: Any) -> None:
        """Write what :meth:`content` gave; slow, and free of anything that may change meanwhile."""
        if self.folder is not None and self.lock is not None:
            self.lock.acquire()
            self.folder.save(content, network)
            self.lock.touch()

    def content(
        self, state: LoopState, trainer: Trainer, strategy: Any, *, trained: bool
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """What a save writes: state and network; nothing where nothing is written."""
        if self.folder is None or self.lock is None:
            return {}, None
        positions = state.positions()
        content = {
            "fingerprint": self.fingerprint,
            "state": asdict(state),
            "ids": [list(pair) for pair in zip(positions, self.ids.of(positions), strict=True)],
            "n_samples": len(self.ids),
            "journal": self.journal.n_entries,
            "strategy": strategy.get_state() if hasattr(strategy, "get_state") else None,
            "generators": [generator_state(generator) for generator in _generators(strategy, trainer.estimator)],
        }
        return content, trainer.network_state() if trained else None

    def restore(self, trainer: Trainer, strategy: Any, seed: int) -> LoopState | None:
        """Put trainer and strategy back to where they were, and give the state; None if nothing was kept yet.

        What the journal says holds, wherever the samples stand now. With the same data and parameters everything is as
        it was, bit for bit; otherwise the run goes on from its labels.
        """
        if self.folder is None:
            self.ids = SampleIds(self.config.X, self.config.ids)
            return None
        if self.lock is not None:
            self.lock.acquire()
        loaded = self.folder.load()
        self.journal.read()
        content, network = loaded or (None, None)
        changed = {} if content is None else self._changes(self._as_today(content))
        self._find_ids(content, changed)
        if content is None and self.journal.n_entries == 0:
            return None
        if content is None:
            state = rebuilt_state(self.journal, self.ids, seed, int(self.config.initial_size == 0))
        else:
            state = self._state(content, changed)
        self._check_contents()
        state = self._as_journal_says(state)
        names = [name for part in changed.values() for name in part]
        if names:
            state.notes = [*state.notes, f"changed: {', '.join(names)}"]
        if "random_state" in names:
            state.seed = seed
        if (names or content is None) and state.history:
            state.stop_reason = self.config.stop_reason(state)
        same = {part: not any(name.startswith(part) for name in names) for part in ("estimator", "query_strategy")}
        trainer.start(state, network, same=same["estimator"])
        if content is not None and all(same.values()):
            self._restore_strategy(content, trainer, strategy)
        return state

    def _restore_strategy(self, content: dict[str, Any], trainer: Trainer, strategy: Any) -> None:
        if content["strategy"] is not None:
            strategy.set_state(content["strategy"])
        for generator, kept in zip(_generators(strategy, trainer.estimator), content["generators"], strict=False):
            _set_generator_state(generator, kept)

    def _find_ids(self, content: dict[str, Any] | None, changed: dict[str, list[str]]) -> None:
        data = self.fingerprint["data"]
        self._unchanged = content is not None and "data" not in changed and says_everything(data)
        asked = [position for position, _ in (content or {}).get("ids", []) if position < self.config.n_samples]
        self.ids = SampleIds(
            self.config.X,
            self.config.ids,
            self.path,
            fingerprint=data,
            asked=asked,
            readonly=self.config.readonly,
        )

    def _state(self, content: dict[str, Any], changed: dict[str, list[str]]) -> LoopState:
        """The state that was saved, at the samples' places of now."""
        assert self.folder is not None
        if self.folder.format == 1:
            return self._state_of_format_1(content, changed)
        state = LoopState(**content["state"])
        if self.journal.n_entries < content["journal"]:
            raise CheckpointError(
                f"{self.journal.path} must hold the {content['journal']} entries that were written. Got "
                f"{self.journal.n_entries} instead. Restore the file from a copy, or delete every other file in the "
                "folder to go on with the labels that it has."
            )
        found = {position: self.ids.position(key) for position, key in content["ids"]}
        new = {old: position for old, position in found.items() if position is not None}
        gone = [key for old, key in content["ids"] if old not in new]
        moved = sum(old != position for old, position in new.items())
        if gone or moved or content["n_samples"] != len(self.ids):
            n_samples = f"{len(self.ids)} samples instead of {content['n_samples']}"
            changed.setdefault("data", []).append(f"the pool ({n_samples}, {moved} of those in use in another place)")
            state = state.at_positions(new)
        return state

    def _state_of_format_1(self, content: dict[str, Any], changed: dict[str, list[str]]) -> LoopState:
        """Of a folder in which samples are known by their positions alone: its labels go into the journal."""
        if "data" in changed:
            raise CheckpointError(
                f"The checkpoint in {self.path} must be of the same data. Got one that differs in "
                f"{shorten(changed['data'])}. It was written by an older skal, which knew samples by their positions: "
                "pass the data that the run was started with once, or another folder."
            )
        state = LoopState(**content["state"], fitted=content["fitted"])
        if content["fitted"] is not None and self.config.network:
            seen = state.label_array()[: content["fitted"]["n_labelled"]]
            numbered = seen.dtype.kind in "iufb" and seen.min() >= 0
            _, first = np.unique(seen, return_index=True)
            by_rule = self.config.classes is not None or numbered
            state.names = None if by_rule else seen[np.sort(first)].tolist()  # outputs as they were first seen
        if self.journal.n_entries == 0:
            self.journal = Journal(None) if self.config.readonly else self.journal
            labels = [*zip(state.labelled, state.labels, strict=True), *((index, None) for index in state.declined)]
            labels += [(index, value) for index, value in state.told if state.phase == "answer"]
            keys = self.ids.of([index for index, _ in labels])
            self.journal.append(
                entry(key, label, round=0, source=None, declined=True if label is None else None)
                for key, (_, label) in zip(keys, labels, strict=True)
            )
        return state

    def _as_journal_says(self, state: LoopState) -> LoopState:
        known = self.journal.known
        places = {key: self.ids.position(key) for key in known}
        gone = [key for key, position in places.items() if position is None and known[key]["label"] is not None]
        n_labels = sum(line["label"] is not None for line in known.values())
        if gone and len(gone) == n_labels:
            raise CheckpointError(
                f"The samples must be those that the labels in {self.journal.path} belong to. "
                f"Got none of its {n_labels} labelled samples, such as {shorten(gone[:3])}. "
                "Pass the data, in the same type, and the ids that the run was started with, or another folder."
            )
        if gone:
            warnings.warn(
                f"{len(gone)} of {n_labels} labelled samples are no longer in X: {shorten(gone)}. Their labels stay in "
                f"{self.journal.path}, and are used again when the samples are back.",
                MissingSamplesWarning,
                stacklevel=7,  # the caller of fit or start
            )
        there = {key: position for key, position in places.items() if position is not None}
        answers = [(position, known[key]["label"], known[key]["label"] is None) for key, position in there.items()]
        said = {index for index, _, _ in answers}
        told = [index for index, value in state.told if value is None and state.phase == "answer"]
        answers += [(index, None, False) for index in [*state.declined, *told] if index not in said]
        if not state.audit:  # without a saved state the journal alone knows what was held out
            state.audit = [position for key, position in there.items() if known[key].get("source") == SOURCE]
        state = state.with_answers(answers)
        if state.label_dtype is None and state.labels + [value for _, value in state.told]:
            values = state.labels + [value for _, value in state.told]
            state.label_dtype = read_labels(values)[1]
        return state

    def _check_contents(self) -> None:
        """Refuse content that changed under a given id."""
        if self._unchanged or self.ids.by_content:
            return
        known = self.journal.known.items()  # what was declined says nothing about the content
        kept = {key: line["content"] for key, line in known if "content" in line and line["label"] is not None}
        places = {key: self.ids.position(key) for key in kept}
        there = {key: position for key, position in places.items() if position is not None}
        found = dict(zip(there, self.ids.contents(there.values()), strict=True))
        other = [key for key in there if found[key] not in (None, kept[key])]
        if other:
            raise CheckpointError(
                f"The samples must be the same under the same id. Got other content for {len(other)} labelled samples: "
                f"{shorten(other)}. Pass the samples that were labelled, or give changed ones an id of their own."
            )

    def _as_today(self, content: dict[str, Any]) -> dict[str, Any]:
        """The fingerprint of a checkpoint, in the words that would be used today."""
        ours, theirs = self.fingerprint["parameters"], without_own_paths(content["fingerprint"]["parameters"])
        # the default used to be random; a checkpoint of that time has asked for its first samples, and has no "start"
        if "start" not in content["state"] and (theirs["initial"], ours["initial"]) == ("'random'", "'auto'"):
            theirs["initial"] = ours["initial"]
        theirs.setdefault("stop", "None")  # there were no stopping criteria
        fingerprint: dict[str, Any] = content["fingerprint"] | {"parameters": theirs}
        return fingerprint

    def _changes(self, found: dict[str, Any]) -> dict[str, list[str]]:
        """What differs from the run in the folder: its data, its eval_set, its parameters."""
        changes = {}
        for what, ours in self.fingerprint.items():
            theirs = found[what]
            differing = sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))
            if differing:
                names = {"data": ["the data"], "eval_set": ["eval_set"]}
                within = {name.rpartition("__")[0] for name in differing}  # the part says it better than the whole
                changes[what] = names.get(what, [name for name in differing if name not in within])
        return changes


def rebuilt_state(journal: Journal, ids: SampleIds, seed: int, first: int) -> LoopState:
    """The state that a journal tells of: its rounds, without scores; the labels are yet to be put in."""
    state, lines = LoopState(seed=seed), list(journal.known.values())
    n_labelled = 0
    for round in sorted({line["round"] for line in lines}):
        here = [(ids.position(line["id"]), line["label"]) for line in lines if line["round"] == round]
        labelled = [index for index, label in here if label is not None and index is not None]
        n_labelled += len(labelled)
        state.history.append(
            {
                "round": round,
                "n_labelled": n_labelled,
                "indices": labelled,
                "declined": [index for index, label in here if label is None and index is not None],
                "metrics": None,
                "train_score": None,
                "seconds_fit": 0.0,
                "seconds_query": 0.0,
                "note": "from labels.jsonl alone",
            }
        )
    state.round = max([first - 1, *(row["round"] for row in state.history)]) + 1
    return state


def _generators(*objects: Any) -> list[Any]:
    """The generators that were given as ``random_state``."""
    values = (value for part in objects for _, value in random_states(part))
    return [value for value in values if isinstance(value, (np.random.Generator, np.random.RandomState))]


def _set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
