# SPDX-License-Identifier: BSD-3-Clause
"""A project of Label Studio, read and written through its API."""

from __future__ import annotations

import re
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

from skal._core.identity import digest_bytes
from skal.exceptions import SampleError
from skal.labelling._sources import ImageFolder, Source, TextTable
from skal.labelling._sources._images import SUFFIXES
from skal.labelling._studio._annotations import Answer, Control, answers_of, read_control
from skal.labelling._studio._client import StudioClient, StudioError, split_address

SCORE = "skal_score"
VIEW = "skal: what to label next"
SAMPLING = "Uncertainty sampling"  # hands out the lowest score, and to nobody what another person has open
_HIDDEN = (  # columns that push the samples out of the window
    "inner_id completed_at cancelled_annotations annotators annotations_results annotations_ids predictions_score "
    "predictions_model_versions predictions_results file_upload storage_filename created_at updated_at updated_by "
    "avg_lead_time draft_exists allow_skip"
)
_STORAGE = ("s3", "gs", "azure-blob")  # what Label Studio fetches itself, with keys that it alone has
_TRIES = 10  # at one look, for pictures that could not be had before
_IN_A_ROW = 3  # failures after which a host is left alone until the next look
_OURS = re.compile(r"skal-\d+-next")  # the model version of predictions that say what to label next


@dataclass(frozen=True)
class Snapshot:
    """A project at one moment.

    Attributes
    ----------
    control : Control
    tasks : dict from key to task
        In the order of their numbers; the key is what the sample is known by in our folder.
    authors : dict from number to str
    version : str or None, default=None
        Which predictions the project goes by.
    """

    control: Control
    tasks: dict[str, dict[str, Any]]
    authors: dict[int, str]
    version: str | None = None

    @property
    def follows_us(self) -> bool:
        """Whether the project goes by our predictions or by none; what people have chosen there stays."""
        return not self.version or _OURS.fullmatch(self.version) is not None

    def is_handed_out(self, version: str) -> bool:
        """Whether "Label All Tasks" goes by our predictions of this version, or must not."""
        return not self.follows_us or self.version == f"{version}-next"

    def answers(self, key: str) -> list[Answer]:
        """All annotations of a task."""
        return answers_of(self.tasks[key], self.control.name, self.authors)

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be read anew when it changes: the samples, the control and the classes."""
        contents = tuple((key, str(task["data"].get(self.control.field))) for key, task in self.tasks.items())
        return self.control, contents


@dataclass(frozen=True)
class Next:
    """A task that is to be labelled next.

    Attributes
    ----------
    place : float
        From 0, the first, to 1.
    guess : {"label", "probability"} or None
        What the model says of it, if people are to see that.
    """

    place: float
    guess: dict[str, Any] | None


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
        return Snapshot(control, {_key(task, control): task for task in tasks}, authors, settings.get("model_version"))

    def fetch_pictures(self, snapshot: Snapshot, folder: Path, before: dict[str, str]) -> dict[str, str]:
        """Fetch the pictures that are not in the folder yet; which cannot be had, and why.

        Nothing is kept of a picture that does not come. ``before`` are those that did not come the last time: some of
        them are asked for once more, without patience.
        """
        self._check_fields(snapshot)
        if snapshot.control.kind == "text":
            return {}
        pictures = folder / "pictures"
        pictures.mkdir(parents=True, exist_ok=True)
        there = {path.name for path in pictures.iterdir()}
        for name in there.difference(snapshot.tasks):
            (pictures / name).unlink()
        n_failed: dict[str, int] = {}  # of each host, in a row
        failed: dict[str, str] = {}
        left = {key: before[key] for key in before if key in snapshot.tasks and key not in there}
        for key in [*(key for key in snapshot.tasks if key not in there and key not in before), *left]:
            address = self._address(snapshot.tasks[key], snapshot.control.field)
            host = split_address(address).netloc or self.client.url
            if n_failed.get(host, 0) >= _IN_A_ROW or (key in before and len(failed) >= _TRIES):
                left.setdefault(key, f"{host} does not answer.")
                continue
            left.pop(key, None)
            try:
                data = self.client.fetch(address, wait=key not in before and host not in n_failed)
            except StudioError as error:
                if error.status in (None, 401) and self.client.has_files_at(address):
                    raise  # Label Studio itself is away, or refuses the token
                if error.status is None or error.status == 429 or error.status >= 500:
                    n_failed[host] = n_failed.get(host, 0) + 1
                failed[key] = str(error)
                continue
            n_failed.pop(host, None)
            part = pictures / f"{key}.part"
            part.write_bytes(data)
            part.replace(pictures / key)
        return left | failed  # the next look begins with those that this one has left

    def _address(self, task: dict[str, Any], field: str) -> str:
        """Where a picture is; what is in a storage comes through Label Studio, which has the keys."""
        address = str(task["data"][field])
        if split_address(address).scheme not in _STORAGE:
            return address
        query = urlencode({"fileuri": urlsafe_b64encode(address.encode()).decode()})
        return f"{self.client.url}tasks/{task['id']}/resolve/?{query}"

    def _check_fields(self, snapshot: Snapshot) -> None:
        field = snapshot.control.field
        missing = [str(task["id"]) for task in snapshot.tasks.values() if not isinstance(task["data"].get(field), str)]
        if missing:
            raise SampleError(
                f"Every task must have {field!r} as a text, which the label config names. Got tasks without it: "
                f"{', '.join(missing[:10])}. Delete them in Label Studio."
            )

    def open_source(self, snapshot: Snapshot, folder: Path, size: int, missing: dict[str, str]) -> Source:
        """The samples: texts as they are in the tasks, pictures that have come."""
        if snapshot.control.kind == "text":
            field = snapshot.control.field
            return TextTable([task["data"][field] for task in snapshot.tasks.values()], list(snapshot.tasks))
        if len(missing) == len(snapshot.tasks):
            raise SampleError(
                f"The pictures of the tasks must be there. Got none of {len(missing)}: {next(iter(missing.values()))} "
                "Look at their addresses in Label Studio."
            )
        return ImageFolder(folder / "pictures", size=size, cache=folder)

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
        """Make the view that is ordered by the scores, or put its order right; its number."""
        ordering = [f"-tasks:data.{SCORE}"]
        for view in self.client.call("GET", "api/dm/views/", project=self.number):
            found = view["data"]
            if found.get("title") == VIEW:
                if found.get("ordering") != ordering:
                    self.client.call("PATCH", f"api/dm/views/{view['id']}/", {"data": found | {"ordering": ordering}})
                return int(view["id"])
        is_open = {"filter": "filter:tasks:completed_at", "operator": "empty", "value": True, "type": "Datetime"}
        data = {
            "title": VIEW,
            "ordering": ordering,
            "columnsDisplayType": {f"tasks:data.{SCORE}": "Number"},
            "filters": {"conjunction": "and", "items": [is_open]},
            "hiddenColumns": {"explore": [f"tasks:{name}" for name in _HIDDEN.split()], "labeling": []},
        }
        made = self.client.call("POST", "api/dm/views/", {"project": self.number, "data": data})
        return int(made["id"])

    def write_next(self, snapshot: Snapshot, tasks: dict[str, Next], version: str) -> None:
        """Let "Label All Tasks" hand out these tasks, the first one first, and each to one person.

        Label Studio hands out what has a prediction with the project's model version, the lowest score first. So a
        task gets a prediction whose score is its place, and which says nothing unless there is a guess.
        """
        path, mark = f"api/projects/{self.number}/", f"{version}-next"
        wanted = {}
        for key, each in tasks.items():
            result = []
            if each.guess is not None:
                result = [self.result(snapshot.control, each.guess["label"]) | {"score": each.guess["probability"]}]
            task = int(snapshot.tasks[key]["id"])
            wanted[task] = {"task": task, "score": round(each.place, 6), "model_version": mark, "result": result}
        known = self.client.call("GET", "api/predictions/", project=self.number)  # an export has their numbers only
        ours = [each for each in known if _OURS.fullmatch(each.get("model_version") or "")]
        kept: set[int] = set()
        stale = []
        for each in ours:
            if each["task"] not in kept and _says(each) == _says(wanted.get(each["task"])):
                kept.add(each["task"])
            elif each["model_version"] == mark:
                stale.append(each["id"])
        new = [body for task, body in wanted.items() if task not in kept]
        if new:
            self.client.call("POST", f"{path}import/predictions", new)
        if snapshot.follows_us:  # a version must have predictions before a project may go by it
            self.client.call("PATCH", path, {"model_version": mark, "sampling": SAMPLING})
        for number in stale:
            self.client.call("DELETE", f"api/predictions/{number}/")
        for older in sorted({each["model_version"] for each in ours} - {mark}):
            self.client.call("DELETE", f"{path}model-versions/", {"model_version": older})

    @staticmethod
    def result(control: Control, label: str) -> dict[str, Any]:
        """A label as Label Studio has it."""
        value = {"choices": [label]}
        return {"from_name": control.name, "to_name": control.to_name, "type": "choices", "value": value}


def _says(prediction: dict[str, Any] | None) -> Any:
    """Version, score and choices of a prediction, to compare what was wanted with what is there."""
    if prediction is None:
        return None
    choices = [part["value"]["choices"] for part in prediction["result"]]
    return prediction["model_version"], round(float(prediction["score"] or 0), 6), choices


def _key(task: dict[str, Any], control: Control) -> str:
    """What a task is known by in our folder: its number, for a picture with its address and the suffix of its file."""
    if control.kind == "text":
        return str(task["id"])
    whole = str(task["data"].get(control.field, ""))
    address = split_address(whole)
    found = re.search(r"\.\w+$", unquote(address.query or address.path).lower())
    suffix = found[0] if found is not None and found[0] in SUFFIXES else ".png"
    return f"{task['id']}-{digest_bytes(whole.encode()).hex()[:8]}{suffix}"  # another address is another picture
