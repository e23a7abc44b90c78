# SPDX-License-Identifier: BSD-3-Clause
"""A folder that always holds one whole state, whenever the process is killed.

Every save writes new files, flushes them to the disk, and then replaces ``manifest.json``, which names the files of the
current state and their hashes, in one step. Whatever the manifest does not name is left over and removed by the next
save. Files are JSON and safetensors: reading them runs no code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save

from skal._version import __version__
from skal.exceptions import CheckpointError, shorten

_MANIFEST = "manifest.json"
_OUR_FILES = re.compile(r"\d{6}-(state\.json|network\.json|network\.safetensors)|manifest\.json\.new")
_FORMAT = 3
_READABLE = (1, 2, 3)  # the first had neither ids nor a journal of labels, the second no stopping criteria
_OF_FIRST_SAVE = "000001-"


class CheckpointFolder:
    """The folder.

    Parameters
    ----------
    folder : path
        Made if it is not there. Files of others in it are left alone.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     CheckpointFolder(folder).save({"round": 1}, {"weight": torch.ones(2)})
    ...     CheckpointFolder(folder).load()
    ({'round': 1}, {'weight': tensor([1., 1.])})
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._files: dict[str, dict[str, Any]] = {}  # of the current state, by what they hold
        self._number = 0
        self.format = _FORMAT

    def load(self) -> tuple[Any, Any] | None:
        """State and network of the last save, None if there was none."""
        while (self.folder / _MANIFEST).exists():
            number = self._read_manifest()["number"]
            try:
                return self._load()
            except CheckpointError:
                # somebody who only looks may meet a save: the files of the last one are gone, those of the next there
                if self._read_manifest()["number"] == number:
                    raise
        self._check_fresh()
        return None

    def _load(self) -> tuple[Any, Any]:
        manifest = self._read_manifest()
        self._files, self._number, self.format = manifest["files"], manifest["number"], manifest["format"]
        content = {part: self._read(file) for part, file in self._files.items()}
        network = None
        if "network.json" in content:
            network = from_json(content["network.json"], load(content["network.safetensors"]))
        return from_json(content["state.json"], {}), network

    def save(self, state: Any, network: Any = None) -> None:
        """Write a state; the network only if it has changed (None keeps the last one)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check_ours()
        number = self._number + 1
        content = {"state.json": to_json(state, {})}
        if network is not None:
            tensors: dict[str, torch.Tensor] = {}
            content["network.json"] = to_json(network, tensors)
            content["network.safetensors"] = save(tensors)
        files = self._files | {part: self._write(number, part, data) for part, data in content.items()}
        manifest = {"format": _FORMAT, "skal": __version__, "number": number, "files": files}
        manifest["digest"] = _digest(manifest)
        new = self.folder / f"{_MANIFEST}.new"
        _write_synced(new, json.dumps(manifest, indent=1).encode())
        sync_folder(self.folder)  # the files named must be there before the manifest that names them
        os.replace(new, self.folder / _MANIFEST)
        self._number = number  # not before: without a manifest there are files of number 1 alone
        sync_folder(self.folder)
        self._files = files
        self._remove_leftovers()

    def _check_ours(self) -> None:
        """Refuse to write over a save that we have not seen."""
        found = self._read_manifest()["number"] if (self.folder / _MANIFEST).exists() else 0
        if found != self._number:
            raise CheckpointError(
                f"The checkpoint in {self.folder} must be as this session left it (save {self._number}). Got save "
                f"{found}: somebody else has written to it. Nothing was written; start again to go on from there."
            )

    def _check_fresh(self) -> None:
        """Without a manifest there can be what a first save, broken off, has left: anything later had a manifest."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        if any(_OUR_FILES.fullmatch(name) and not name.startswith((_OF_FIRST_SAVE, _MANIFEST)) for name in names):
            raise self._damaged(_MANIFEST, "it is not there, but states of a run are")

    def _write(self, number: int, part: str, data: bytes) -> dict[str, Any]:
        name = f"{number:06d}-{part}"
        _write_synced(self.folder / name, data)
        return {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def _read(self, file: dict[str, Any]) -> bytes:
        try:
            data: bytes = (self.folder / file["name"]).read_bytes()
        except OSError as error:
            raise self._damaged(file["name"], f"it cannot be read ({error})") from error
        if hashlib.sha256(data).hexdigest() != file["sha256"]:
            raise self._damaged(file["name"], f"its {len(data)} bytes are not the {file['bytes']} that were written")
        return data

    def _read_manifest(self) -> dict[str, Any]:
        try:
            manifest: dict[str, Any] = json.loads((self.folder / _MANIFEST).read_bytes())
            digest, version = manifest.pop("digest"), manifest["format"]
            names = [file["name"] for file in manifest["files"].values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(_MANIFEST, "it is not a whole manifest") from error
        if version not in _READABLE:
            raise CheckpointError(
                f"The checkpoint in {self.folder} must be of format 1 to {_FORMAT}. Got {version!r} instead. "
                f"It was written by skal {manifest.get('skal')}: use that, or start again in another folder."
            )
        if digest != _digest(manifest) or not all(_OUR_FILES.fullmatch(name) for name in names):
            raise self._damaged(_MANIFEST, "its content is not what was written")
        return manifest

    def _damaged(self, name: str, what: str) -> CheckpointError:
        return CheckpointError(
            f"The checkpoint in {self.folder} must be as it was written. Got a damaged file {name}: {what}. "
            "Restore the folder from a copy, or delete every file in it but labels.jsonl: the session is then rebuilt "
            "from its labels."
        )

    def _remove_leftovers(self) -> None:
        current = {file["name"] for file in self._files.values()}
        for path in self.folder.iterdir():
            if _OUR_FILES.fullmatch(path.name) and path.name not in current:
                path.unlink(missing_ok=True)


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _write_synced(path: Path, data: bytes) -> None:
    path.unlink(missing_ok=True)  # left over from a save that broke off, or a link that somebody has put there
    with open(path, "xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # a folder cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def to_json(tree: Any, tensors: dict[str, torch.Tensor]) -> bytes:
    """The tree as JSON, its tensors moved to ``tensors``.

    Examples
    --------
    >>> tensors = {}
    >>> data = to_json({"betas": (0.9, 0.99), 0: torch.ones(2)}, tensors)
    >>> from_json(data, tensors)
    {'betas': (0.9, 0.99), 0: tensor([1., 1.])}
    """
    return json.dumps(_in_types_of_json(tree, tensors)).encode()


def from_json(data: bytes, tensors: Mapping[str, torch.Tensor]) -> Any:
    """The reverse of :func:`to_json`."""

    def restored(part: dict[str, Any]) -> Any:  # called for the innermost parts first
        if "__tensor__" in part:
            return tensors[part["__tensor__"]]
        if "__array__" in part:
            return np.array(part["__array__"], dtype=part["dtype"])
        if "__dict__" in part:
            return dict(part["__dict__"])
        return tuple(part["__tuple__"]) if "__tuple__" in part else part

    return json.loads(data, object_hook=restored)


def _in_types_of_json(tree: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(tree, torch.Tensor):
        key = str(len(tensors))
        # a copy of its own: safetensors refuses tensors that share memory, as tied weights do
        tensors[key] = tree.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"__tensor__": key}
    if isinstance(tree, np.ndarray) and tree.dtype.kind in "iufbU":
        return {"__array__": tree.tolist(), "dtype": tree.dtype.str}
    if isinstance(tree, np.generic):
        return tree.item()
    inner = partial(_in_types_of_json, tensors=tensors)
    if isinstance(tree, Mapping):
        if all(isinstance(key, str) and not key.startswith("__") for key in tree):
            return {key: inner(value) for key, value in tree.items()}
        return {"__dict__": [[inner(key), inner(value)] for key, value in tree.items()]}
    if isinstance(tree, tuple):
        return {"__tuple__": [inner(value) for value in tree]}
    if isinstance(tree, list):
        return [inner(value) for value in tree]
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise CheckpointError(
        f"A checkpoint must hold numbers, strings and tensors alone. Got a {type(tree).__name__} ({shorten(tree)}) in "
        "the state of the network, its optimizer or the strategy. Leave it out of the state, or run without checkpoint."
    )
