# SPDX-License-Identifier: BSD-3-Clause
"""The folder of a run: how the run goes on from its journal, with the help of a cache.

The journal says which labels there are. Everything else (weights, scores, generators, open questions) is in the cache,
and is computed again where the cache is missing.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from skal._core.containers import n_rows
from skal._core.identity import object_digest
from skal.exceptions import CheckpointError, MissingSamplesWarning, SkalWarning, shorten
from skal.loop._cache_files import CacheFiles
from skal.loop._choice import random_states
from skal.loop._heldout import SOURCE
from skal.loop._ids import SampleIds
from skal.loop._journal import Journal
from skal.loop._labels import resume_dtype
from skal.loop._lock import FolderLock
from skal.loop._progress import LoopState
from skal.loop._rules import Rules
from skal.loop._trainer import Trainer

# these change how a run is shown, or how fast it is, but not its result
_NOT_COMPARED = {"callbacks", "checkpoint"}
_NOWHERE_COMPARED = {"verbose", "n_jobs", "folder"}


class RunFolder:
    """Journal, lock and cache of one run.

    Make it before anything is drawn from a ``random_state`` that is a generator: its state is one of the parameters.

    Parameters
    ----------
    rules : Rules
    params : dict
        Every parameter of the run, at every depth: ``classifier.get_params()``.

    Attributes
    ----------
    journal : Journal
    ids : SampleIds
        After ``open``.
    """

    def __init__(self, rules: Rules, params: dict[str, Any]) -> None:
        self.rules, self.path = rules, Path(rules.checkpoint)
        self.journal = Journal(self.path)
        self._lock = None if rules.readonly else FolderLock(self.path)
        self._cache = CacheFiles(self.path / "cache")
        self.describe(params)

    def describe(self, params: dict[str, Any]) -> None:
        """Note the parameters of the run, at every depth."""
        self._params = describe_params(params)
        if self.rules.eval_set is not None:
            parts = [[type(X), n_rows(X)] if isinstance(X, Dataset) else X for X in self.rules.eval_set]
            self._params["eval_set"] = str(object_digest(parts))

    def release(self) -> None:
        """Let others write to the folder."""
        if self._lock is not None:
            self._lock.release()

    def hold(self) -> None:
        """Take the lock again, should it have been released."""
        if self._lock is not None:
            self._lock.acquire()

    def content(
        self, state: LoopState, trainer: Trainer, strategy: Any, *, trained: bool
    ) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Everything that a save writes: the state, and the network if it has been trained since."""
        positions = state.positions()
        content = {
            "parameters": self._params,
            "progress": state.to_cache(),
            "ids": [list(pair) for pair in zip(positions, self.ids.of(positions), strict=True)],
            "n_samples": len(self.ids),
            "n_events": self.journal.n_events,
            "strategy": strategy.get_state() if hasattr(strategy, "get_state") else None,
            "generators": [_generator_state(generator) for generator in _generators(strategy, trainer.estimator)],
        }
        return content, trainer.network_state() if trained else None

    def save(self, content: dict[str, Any], network: dict[str, Any] | None) -> None:
        """Write to the cache; slow, and free of anything that may change meanwhile. A full disk is said, no more."""
        if self._lock is None:
            return
        self._lock.acquire()
        try:
            self._cache.write(content, network)
            self._lock.touch()
        except OSError as error:
            warnings.warn(
                f"The cache in {self.path} could not be written ({error.strerror or error}). No label is lost; a later "
                "start may have to train again.",
                SkalWarning,
                stacklevel=2,
            )

    def open(self, trainer: Trainer, strategy: Any, seed: int) -> LoopState:
        """The state of the run; trainer and strategy are put back to where they were.

        With the same data and parameters everything is as it was, bit for bit; otherwise the run goes on from its
        labels.
        """
        self.hold()
        self.journal.read()
        content, network = self._read_cache()
        self.ids = SampleIds(self.rules.X, self.rules.ids, self.path / "cache", readonly=self.rules.readonly)
        self._check_contents()
        first = int(self.rules.initial_size == 0)  # without initial labels there is no round 0
        if content is not None:
            state = LoopState(**content["progress"])
        elif self.journal.known:
            state = rebuild_progress(self.journal, self.ids, seed, first)
        else:
            state = LoopState(seed=seed, round=first)
        changed = [] if content is None else self._changes(content, state)
        self._take_labels(state)
        if changed:
            state.notes = [*state.notes, f"changed: {', '.join(changed)}"]
        if "random_state" in changed:
            state.seed = seed
        if (changed or content is None) and state.history:
            state.stop_reason = self.rules.stop_reason(state)
        same = {part: not any(name.startswith(part) for name in changed) for part in ("estimator", "query_strategy")}
        trainer.resume(state, network, same=same["estimator"])
        if content is not None and all(same.values()):
            if content["strategy"] is not None:
                strategy.set_state(content["strategy"])
            for generator, kept in zip(_generators(strategy, trainer.estimator), content["generators"], strict=False):
                _set_generator_state(generator, kept)
        return state

    def _read_cache(self) -> tuple[Any, Any]:
        try:
            found = self._cache.read() or (None, None)
        except ValueError as error:
            warnings.warn(
                f"The cache in {self.path} cannot be used ({error}). No label is lost; scores and weights are computed "
                "again from labels.jsonl.",
                SkalWarning,
                stacklevel=6,  # the caller of fit or start
            )
            return None, None
        if found[0] is not None and self.journal.n_events < found[0]["n_events"]:
            warnings.warn(
                f"{self.journal.path} has {self.journal.n_events} lines, and had {found[0]['n_events']} when the cache "
                "was written. The session goes on with the labels that are there; if they are too few, restore the "
                "file from a copy.",
                SkalWarning,
                stacklevel=6,  # the caller of fit or start
            )
        return found

    def _changes(self, content: dict[str, Any], state: LoopState) -> list[str]:
        """What differs from the run in the folder; the state is moved to the samples' places of now."""
        ours, theirs = self._params, content["parameters"]
        differing = sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))
        within = {name.rpartition("__")[0] for name in differing}  # the part says it better than the whole
        changed = [name for name in differing if name not in within]
        found = {old: self.ids.position(key) for old, key in content["ids"]}
        new = {old: position for old, position in found.items() if position is not None}
        n_moved = sum(old != position for old, position in new.items())
        if len(new) < len(found) or n_moved or content["n_samples"] != len(self.ids):
            n_samples = f"{len(self.ids)} samples instead of {content['n_samples']}"
            changed.append(f"the pool ({n_samples}, {n_moved} of those in use in another place)")
            state.move(new)
        return changed

    def _take_labels(self, state: LoopState) -> None:
        """Let the journal say which samples are labelled and declined, wherever they stand now."""
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
        state.answers = {position: known[key]["label"] for key, position in there.items()}
        state.n_changes = self.journal.n_changes
        state.label_dtype = resume_dtype(state.labels, state.label_dtype)
        if not state.audit:  # without a cache the journal alone knows which labels were held out
            state.audit = [position for key, position in there.items() if known[key].get("source") == SOURCE]

    def _check_contents(self) -> None:
        """Refuse content that changed under a given id."""
        if self.ids.by_content:
            return
        known = self.journal.known.items()  # a declined sample says nothing about its content
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


def rebuild_progress(journal: Journal, ids: SampleIds, seed: int, first: int) -> LoopState:
    """The rounds that a journal tells of, without scores; the labels are yet to be put in."""
    state, lines = LoopState(seed=seed), list(journal.known.values())
    n_labelled = 0
    for round in sorted({line["round"] for line in lines}):
        here = [(ids.position(line["id"]), line["label"]) for line in lines if line["round"] == round]
        labelled = [index for index, label in here if label is not None and index is not None]
        n_labelled += len(labelled)
        row = {"round": round, "n_labelled": n_labelled, "indices": labelled}
        row |= {"declined": [index for index, label in here if label is None and index is not None]}
        row |= {"metrics": None, "train_score": None, "seconds_fit": 0.0, "seconds_query": 0.0}
        state.history.append(row | {"note": "from labels.jsonl alone"})
    state.round = max([first - 1, *(row["round"] for row in state.history)]) + 1
    return state


def describe_params(params: dict[str, Any]) -> dict[str, str]:
    """A digest of every parameter of a loop that bears on its result, the same in another process."""
    params = {name: value for name, value in _leave_out(params).items() if name not in _NOT_COMPARED}
    return {name: object_digest(_parts(value)) or type(value).__name__ for name, value in params.items()}


def _leave_out(params: Mapping[str, Any]) -> dict[str, Any]:
    """Without parameters that bear on no result, and the attributes that skorch lists among a net's parameters."""
    names = (name for name in params if name.split("__")[-1] not in _NOWHERE_COMPARED and not name.startswith("_"))
    return {name: params[name] for name in sorted(names)}


def _parts(value: Any) -> Any:
    """Estimators as their classes and parameters, generators as their states, at every depth."""
    if hasattr(value, "get_params") and not isinstance(value, type):
        return [type(value), _parts(_leave_out(value.get_params(deep=False)))]
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return _generator_state(value)
    if isinstance(value, (list, tuple)):
        return [_parts(part) for part in value]
    return {key: _parts(part) for key, part in value.items()} if isinstance(value, dict) else value


def _generators(*objects: Any) -> list[Any]:
    """The generators that were given as ``random_state``."""
    values = (value for part in objects for _, value in random_states(part))
    return [value for value in values if isinstance(value, (np.random.Generator, np.random.RandomState))]


def _generator_state(generator: Any) -> Any:
    is_new = isinstance(generator, np.random.Generator)
    return generator.bit_generator.state if is_new else generator.get_state(legacy=False)


def _set_generator_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)
