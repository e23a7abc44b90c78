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
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from skal._version import __version__
from skal.exceptions import CheckpointError
from skal.loop._tree import join, split

__all__ = ["Checkpoint"]

_MANIFEST = "manifest.json"
_OWN = re.compile(r"\d{6}-(state\.json|network\.json|network\.safetensors)|manifest\.json\.new")
_FORMAT = 1
_FIRST = "000001-"


class Checkpoint:
    """The folder.

    Parameters
    ----------
    folder : path
        Made if it is not there. Files of others in it are left alone.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Checkpoint(folder).save({"round": 1}, {"weight": torch.ones(2)})
    ...     Checkpoint(folder).load()
    ({'round': 1}, {'weight': tensor([1., 1.])})
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._files: dict[str, dict[str, Any]] = {}  # of the current state, by what they hold
        self._number = 0

    def load(self) -> tuple[Any, Any] | None:
        """State and network of the last save, None if there was none."""
        if not (self.folder / _MANIFEST).exists():
            self._check_fresh()
            return None
        manifest = self._read_manifest()
        self._files, self._number = manifest["files"], manifest["number"]
        content = {part: self._read(file) for part, file in self._files.items()}
        network = None
        if "network.json" in content:
            network = join(json.loads(content["network.json"]), load(content["network.safetensors"]))
        return join(json.loads(content["state.json"]), {}), network

    def save(self, state: Any, network: Any = None) -> None:
        """Write a state; the network only if it has changed (None keeps the last one)."""
        self.folder.mkdir(parents=True, exist_ok=True)
        number = self._number + 1
        content = {"state.json": _to_json(split(state, {}))}
        if network is not None:
            tensors: dict[str, torch.Tensor] = {}
            content["network.json"] = _to_json(split(network, tensors))
            content["network.safetensors"] = save(tensors)
        files = self._files | {part: self._write(number, part, data) for part, data in content.items()}
        manifest = {"format": _FORMAT, "skal": __version__, "number": number, "files": files}
        manifest["digest"] = _digest(manifest)
        new = self.folder / f"{_MANIFEST}.new"
        _write_through(new, json.dumps(manifest, indent=1).encode())
        _flush_folder(self.folder)  # the files named must be there before the manifest that names them
        os.replace(new, self.folder / _MANIFEST)
        self._number = number  # not before: without a manifest there are files of number 1 alone
        _flush_folder(self.folder)
        self._files = files
        self._remove_leftovers()

    def _check_fresh(self) -> None:
        """Without a manifest there can be what a first save, broken off, has left: anything later had a manifest."""
        names = [path.name for path in self.folder.iterdir()] if self.folder.is_dir() else []
        if any(_OWN.fullmatch(name) and not name.startswith((_FIRST, _MANIFEST)) for name in names):
            raise CheckpointError(self._damaged(_MANIFEST, "it is not there, but states of a run are"))

    def _write(self, number: int, part: str, data: bytes) -> dict[str, Any]:
        name = f"{number:06d}-{part}"
        _write_through(self.folder / name, data)
        return {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}

    def _read(self, file: dict[str, Any]) -> bytes:
        path = self.folder / file["name"]
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(self._damaged(file["name"], f"it cannot be read ({error})")) from error
        if len(data) != file["bytes"]:
            raise CheckpointError(self._damaged(file["name"], f"it has {len(data)} bytes, not {file['bytes']}"))
        if hashlib.sha256(data).hexdigest() != file["sha256"]:
            raise CheckpointError(self._damaged(file["name"], "its content is not what was written"))
        return data

    def _read_manifest(self) -> dict[str, Any]:
        try:
            manifest = json.loads((self.folder / _MANIFEST).read_bytes())
            digest, version = manifest.pop("digest"), manifest["format"]
            names = [file["name"] for file in manifest["files"].values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(self._damaged(_MANIFEST, "it is not a whole manifest")) from error
        if version != _FORMAT:
            raise CheckpointError(
                f"The checkpoint in {self.folder} must be of format {_FORMAT}. Got {version!r} instead. It was written "
                f"by skal {manifest.get('skal')}: use that, or start again in another folder."
            )
        if digest != _digest(manifest) or not all(_OWN.fullmatch(name) for name in names):
            raise CheckpointError(self._damaged(_MANIFEST, "its content is not what was written"))
        return manifest

    def _damaged(self, name: str, what: str) -> str:
        return (
            f"The checkpoint in {self.folder} must be as it was written. Got a damaged file {name}: {what}. "
            "Restore the folder from a copy, or delete it to start again."
        )

    def _remove_leftovers(self) -> None:
        current = {file["name"] for file in self._files.values()}
        for path in self.folder.iterdir():
            if _OWN.fullmatch(path.name) and path.name not in current:
                path.unlink(missing_ok=True)


def _to_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _write_through(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # a folder cannot be opened there
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
