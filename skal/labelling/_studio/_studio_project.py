# SPDX-License-Identifier: BSD-3-Clause
"""A project of Label Studio, read and written through its API."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from skal.exceptions import SampleError
from skal.labelling._sources import ImageFolder, Source, TextTable
from skal.labelling._sources._images import SUFFIXES
from skal.labelling._studio._annotations import Answer, Control, answers_of, read_control
from skal.labelling._studio._client import StudioClient, StudioError

SCORE = "skal_score"
VIEW = "skal: what to label next"
MODEL_PREFIX = "skal-"


@dataclass(frozen=True)
class Snapshot:
    """A project at one moment.

    Attributes
    ----------
    control : Control
    tasks : dict from key to task
        In the order of their numbers; the key is what the sample is known by in our folder.
    authors : dict from number to str
    """

    control: Control
    tasks: dict[str, dict[str, Any]]
    authors: dict[int, str]

    def answers(self, key: str) -> list[Answer]:
        """All annotations of a task."""
        return answers_of(self.tasks[key], self.control.name, self.authors)

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be read anew when it changes: the samples, the control and the classes."""
        contents = tuple((key, str(task["data"].get(self.control.field))) for key, task in self.tasks.items())
        return self.control, contents


class StudioProject:
    """One project of a server.

    Parameters
    ----------
    client : StudioClient
    number : int
    control : str or None, default=None
        The name of the ``Choices`` control, if there are several.
    """

    def __init__(self, client: StudioClient, number: int, control: str | None = None) -> None:
        self.client, self.number, self._control = client, number, control

    def read(self) -> Snapshot:
        """All tasks with their annotations, in one request, so that none is missed while others come and go."""
        settings = self.client.call("GET", f"api/projects/{self.number}")
        control = read_control(settings["label_config"], self._control)
        if control.multiple:
            raise SampleError(
                f'The control {control.name!r} must have choice="single". Got choice="multiple": several choices '
                "for one sample are not supported here. Name another control with --control NAME."
            )
        users = self.client.call("GET", "api/users")
        authors = {user["id"]: user.get("email") or user.get("username") or f"user {user['id']}" for user in users}
        how = {"exportType": "JSON", "download_all_tasks": "true", "interpolate_key_frames": "false"}
        found = self.client.call("GET", f"api/projects/{self.number}/export", **how)
        tasks = sorted(found, key=lambda task: int(task["id"]))
        if not tasks:
            raise SampleError(f"Project {self.number} must have tasks. Got none. Import some in Label Studio.")
        return Snapshot(control, {_key(task, control): task for task in tasks}, authors)

    def open_source(self, snapshot: Snapshot, folder: Path, size: int = 32) -> Source:
        """The samples: texts as they are in the tasks, pictures fetched once and kept in the folder."""
        field = snapshot.control.field
        missing = [str(task["id"]) for task in snapshot.tasks.values() if not isinstance(task["data"].get(field), str)]
        if missing:
            raise SampleError(
                f"Every task must have {field!r} as a text, which the label config names. Got tasks without it: "
                f"{', '.join(missing[:10])}. Delete them in Label Studio."
            )
        if snapshot.control.kind == "text":
            return TextTable([task["data"][field] for task in snapshot.tasks.values()], list(snapshot.tasks))
        pictures = folder / "pictures"
        pictures.mkdir(parents=True, exist_ok=True)
        for path in pictures.iterdir():
            if path.name not in snapshot.tasks:
                path.unlink()
        for key, task in snapshot.tasks.items():
            if not (pictures / key).exists():
                try:
                    data = self.client.fetch(task["data"][field])
                except StudioError as error:
                    if error.status in (None, 401):
                        raise
                    data = b""  # a picture that is not there cannot be read, and is not asked for
                part = pictures / f"{key}.part"
                part.write_bytes(data)
                part.replace(pictures / key)
        return ImageFolder(pictures, size=size, cache=folder)

    def write_scores(self, snapshot: Snapshot, scores: dict[str, float]) -> int:
        """Let the tasks have these scores, and all others none; how many were changed."""
        changed = 0
        for key, task in snapshot.tasks.items():
            wanted = scores.get(key)
            if task["data"].get(SCORE) == wanted:
                continue
            data = {name: value for name, value in task["data"].items() if name != SCORE}
            data |= {} if wanted is None else {SCORE: wanted}
            try:
                self.client.call("PATCH", f"api/tasks/{task['id']}/", {"data": data})
            except StudioError as error:
                if error.status != 404:  # deleted meanwhile
                    raise
            changed += 1
        return changed

    def order_view(self) -> int:
        """Make the view that is ordered by the scores, or put it right; its number."""
        ordering = [f"-tasks:data.{SCORE}"]
        data = {
            "title": VIEW,
            "ordering": ordering,
            "columnsDisplayType": {f"tasks:data.{SCORE}": "Number"},
            "filters": {"conjunction": "and", "items": []},
        }
        for view in self.client.call("GET", "api/dm/views/", project=self.number):
            found = view["data"]
            if found.get("title") == VIEW:
                if found.get("ordering") != ordering:
                    self.client.call("PATCH", f"api/dm/views/{view['id']}/", {"data": found | data})
                return int(view["id"])
        made = self.client.call("POST", "api/dm/views/", {"project": self.number, "data": data})
        return int(made["id"])

    def write_predictions(self, snapshot: Snapshot, said: dict[str, tuple[str, float]], version: str) -> None:
        """Let tasks have what the model says, under its version; older ones of ours go."""
        found = self.client.call("GET", "api/predictions/", project=self.number)  # an export has their numbers only
        ours = [each for each in found if str(each.get("model_version")).startswith(MODEL_PREFIX)]
        wanted = {int(snapshot.tasks[key]["id"]): value for key, value in said.items()}
        fresh = {each["task"]: each["id"] for each in ours if each["model_version"] == version}
        for each in ours:
            if each["task"] not in wanted or fresh.get(each["task"]) != each["id"]:
                self.client.call("DELETE", f"api/predictions/{each['id']}/")
        for task, (label, sure) in wanted.items():
            if task not in fresh:
                body = {"task": task, "result": [self.result(snapshot.control, label)], "score": sure}
                self.client.call("POST", "api/predictions/", body | {"model_version": version})

    @staticmethod
    def result(control: Control, label: str) -> dict[str, Any]:
        """A label as Label Studio has it."""
        value = {"choices": [label]}
        return {"from_name": control.name, "to_name": control.to_name, "type": "choices", "value": value}


def _key(task: dict[str, Any], control: Control) -> str:
    """What a task is known by in our folder: its number, for a picture with the suffix of its file."""
    if control.kind == "text":
        return str(task["id"])
    address = urlsplit(str(task["data"].get(control.field, "")))
    found = re.search(r"\.\w+$", unquote(address.query or address.path).lower())
    suffix = found[0] if found is not None and found[0] in SUFFIXES else ".png"
    return f"{task['id']}{suffix}"
