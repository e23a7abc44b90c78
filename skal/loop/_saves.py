# SPDX-License-Identifier: BSD-3-Clause
"""The cache of a run: how the run goes on from its journal without computing everything again.

The journal says which labels there are. Everything else (weights, scores, generators, open questions) is in ``cache/``,
which anybody may delete at any moment. ``state.json`` says how far the rounds have come, and ``network-….safetensors``
holds the network that it names. Both carry a checksum: a file that is damaged, or was never written to its end, is as
good as none. Reading them runs no code.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from torch.utils.data import Dataset

from skal._core.containers import n_rows
from skal._core.identity import object_digest
from skal._core.tasks import CLASSIFICATION
from skal._files.json_text import format_json, from_json, parse_json, to_json
from skal._files.whole import read_regular, replace_file
from skal.exceptions import CheckpointError, MissingSamplesWarning, SkalWarning, shorten
from skal.loop._choice import random_states
from skal.loop._fitting import Trainer
from skal.loop._heldout import SOURCE
from skal.loop._ids import SampleIds
from skal.loop._journal import Journal
from skal.loop._labels import resume_dtype
from skal.loop._progress import LoopState
from skal.loop._row_labels import read_rows
from skal.loop._rules import Rules
from skal.models._network_file import NETWORK, content_sum, pack_network, unpack_network

_FINAL = "final.json"
_STATE = "state.json"
_FORMAT = 1
_HEAD = b'{"sum": "%s", "content": '
_HEAD_LENGTH = len(_HEAD % (b"0" * 32))
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
        self.journal = Journal(self.path, readonly=rules.readonly)
        self._cache = CacheFiles(self.path / "cache")
        self._final: dict[str, Any] | None = None  # what we know to be written
        self.describe(params)

    def describe(self, params: dict[str, Any]) -> None:
        """Note the parameters of the run, at every depth."""
        self._params = describe_params(params)
        if self.rules.eval_set is not None:
            parts = [[type(X), n_rows(X)] if isinstance(X, Dataset) else X for X in self.rules.eval_set]
            self._params["eval_set"] = str(object_digest(parts))

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
        """Write to the cache, which is slow, but reads nothing that may change. A full disk causes only a warning."""
        if self.rules.readonly:
            return
        self.journal.hold()
        try:
            self._cache.write(content, network)
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
        self.journal.hold()
        self.journal.read()
        content, network = self._read_cache()
        self.ids = SampleIds(self.rules.X, self.rules.ids, self.path / "cache", readonly=self.rules.readonly)
        known = self.journal.known.items()  # a declined sample says nothing about its content
        self.ids.check_contents(
            {key: line["content"] for key, line in known if line["label"] is not None and "content" in line}
        )
        first = int(self.rules.initial_size == 0)  # without initial labels there is no round 0
        if content is not None:
            state = LoopState(**content["progress"])
        elif self.journal.known:
            lines = self.journal.known.values()
            told = [(line["round"], self.ids.position(line["id"]), line["label"]) for line in lines]
            state = LoopState.rebuild(seed, first, told)
        else:
            state = LoopState(seed=seed, round=first)
        changed = [] if content is None else self._changes(content, state)
        self._take_labels(state, lost=content is None)
        kept = read_final(self.path)
        if kept is not None and state.final is not None and kept["certificate"] == state.final["certificate"]:
            self._final = state.final  # samples that are not here now stay in the file
        if changed:
            state.look, state.audited = 0, []  # an audit judges one model
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

    def save_final(self, final: dict[str, Any] | None) -> None:
        """Write what the model has labelled, and the certificate, to ``final.json``: they are no cache."""
        if final is None or final == self._final:
            return
        pairs = list(zip(self.ids.of(final["positions"]), final["labels"], strict=True))
        text = format_json({"certificate": final["certificate"], "labels": pairs})
        try:
            replace_file(self.path / _FINAL, text.encode())
        except OSError as error:
            raise CheckpointError(
                f"The certificate must be written to {self.path / _FINAL}. Got an error of the disk: "
                f"{error.strerror or error}. All labels are written. Make room or look at the disk, and go on: it is "
                "tried again."
            ) from error
        self._final = final

    def _read_final(self) -> dict[str, Any] | None:
        kept = read_final(self.path)
        if kept is None:
            return None
        there = [(self.ids.position(key), label) for key, label in kept["labels"]]
        pairs = [(position, label) for position, label in there if position is not None]
        labels = [label for _, label in pairs]
        return {"certificate": kept["certificate"], "positions": [i for i, _ in pairs], "labels": labels}

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
        """Name what differs from the run in the folder; the state is moved to the samples' present positions."""
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

    def _take_labels(self, state: LoopState, *, lost: bool) -> None:
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
        if self.rules.task == CLASSIFICATION:
            state.label_dtype = resume_dtype(state.labels, state.label_dtype)
        else:
            state.label_dtype = read_rows(self.rules.owner, state.labels, self.rules.task)[1]
        if lost:  # without a cache the journal alone knows which labels were held out, and how probable that was
            state.audit = [position for key, position in there.items() if known[key].get("source") == SOURCE]
            state.chances = {i: known[key]["chance"] for key, i in there.items() if "chance" in known[key]}
            state.n_audits = len({line["round"] for line in known.values() if line.get("source") == "audit"})
            state.final = self._read_final()


def read_final(folder: Path) -> dict[str, Any] | None:
    """The ``certificate``, and as ``labels`` pairs of id and label by the model; None without a certificate."""
    try:
        kept = parse_json(read_regular(folder / _FINAL))
    except (OSError, ValueError):
        return None
    return kept if isinstance(kept, dict) and kept.keys() >= {"certificate", "labels"} else None


def describe_params(params: dict[str, Any]) -> dict[str, str]:
    """A digest of every parameter that affects a loop's result, the same in another process."""
    params = {name: value for name, value in _leave_out(params).items() if name not in _NOT_COMPARED}
    return {name: object_digest(_parts(value)) or type(value).__name__ for name, value in params.items()}


def _leave_out(params: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out parameters that affect no result, and attributes that skorch lists among a net's parameters."""
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


class CacheFiles:
    """The files.

    Parameters
    ----------
    folder : path
        Made if it is not there. Files of others in it are left alone.

    Examples
    --------
    >>> import tempfile
    >>> import torch
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     CacheFiles(Path(folder)).write({"round": 1}, {"weight": torch.ones(2)})
    ...     CacheFiles(Path(folder)).read()
    ({'round': 1}, {'weight': tensor([1., 1.])})
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._network: str | None = None  # the file of the network that belongs to the state

    def read(self) -> tuple[Any, Any] | None:
        """State and network of the last write, None if there was none; ValueError if a file is damaged."""
        for attempt in range(3):
            try:
                return self._read()
            except FileNotFoundError as error:
                # a reader may meet a writer: the network that the state names has just been replaced
                if attempt == 2:
                    raise ValueError(f"{error.filename} is missing") from error
            except (OSError, KeyError, TypeError, SafetensorError) as error:
                raise ValueError(f"{type(error).__name__}: {error}") from error
        return None

    def _read(self) -> tuple[Any, Any] | None:
        path = self.folder / _STATE
        if not path.exists():
            return None
        data = read_regular(path)
        body = data[_HEAD_LENGTH:-1]
        if data != _HEAD % _sum(body) + body + b"}":
            raise ValueError(f"{_STATE} is damaged")
        content = from_json(body, {})
        if content["format"] != _FORMAT:
            raise ValueError(f"its format is {content['format']!r}, not {_FORMAT}")
        name, network = content["network"], None
        if name is not None:
            if not NETWORK.fullmatch(name):
                raise ValueError(f"{_STATE} names a file that is not its own")
            network = unpack_network(name, read_regular(self.folder / name))
        self._network = name
        return content["state"], network

    def write(self, state: Any, network: Any = None) -> None:
        """Replace the state, and the network if one is given."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = self._network
        if network is not None:
            name, data = pack_network(network)
            replace_file(self.folder / name, data, sync=False)
        body = to_json({"format": _FORMAT, "network": name, "state": state}, {})
        replace_file(self.folder / _STATE, _HEAD % _sum(body) + body + b"}", sync=False)
        self._network = name
        for path in self.folder.iterdir():
            if NETWORK.fullmatch(path.name.removesuffix(".new")) and path.name != name:
                path.unlink(missing_ok=True)


def _sum(data: bytes) -> bytes:
    return content_sum(data).encode()
