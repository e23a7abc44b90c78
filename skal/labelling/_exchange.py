# SPDX-License-Identifier: BSD-3-Clause
"""Labels in other formats, from and to a labelling folder; nobody needs the page for that."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from skal.exceptions import CheckpointError, InvalidParameterError, SampleError, SkalError, shorten
from skal.labelling._settings import read_settings, write_settings
from skal.labelling._sources import Source, known_labels, open_source, resolve
from skal.loop._journal import FILE, Journal, make_event
from skal.loop._lock import FolderLock

FORMATS = ("csv", "jsonl", "label-studio", "coco-classification")


def export_labels(folder: Any, to: str = "csv", *, prefix: str = "") -> str:
    """The labels of a folder as text in another format.

    Parameters
    ----------
    folder : path
        Of ``skal label``, or the checkpoint of an :class:`skal.ActiveLearningClassifier`.
    to : {"csv", "jsonl", "label-studio", "coco-classification"}, default="csv"
        The format.
    prefix : str, default=""
        What to put before every file name, such as "/data/local-files/?d=" for Label Studio.

    Returns
    -------
    str
        The content of a file.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearningClassifier
    >>> from skal.labelling import export_labels
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     loop = ActiveLearningClassifier(LogisticRegression(), n_rounds=None, checkpoint=folder)
    ...     with loop.start(np.eye(4), ids=list("abcd")) as session:
    ...         session = session.add({"a": "cat", "c": "dog"})
    ...     [line.split(",")[:2] for line in export_labels(folder).splitlines()]
    [['id', 'label'], ['a', 'cat'], ['c', 'dog']]
    """
    if to not in FORMATS:
        raise InvalidParameterError.for_parameter(
            "export_labels", "to", f"one of {FORMATS}", to, "Choose one of these."
        )
    journal = _journal(Path(folder))
    frame, settings = journal.frame(), read_settings(Path(folder))
    texts = _texts(settings)
    if to in ("csv", "jsonl"):
        if texts is not None:
            frame.insert(1, "text", [texts.get(str(key), "") for key in frame["id"]])
        if to == "csv":
            text: str = frame.to_csv(index=False)
            return text
        rows = ({name: _plain(value) for name, value in row.items()} for row in frame.to_dict("records"))
        return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    pairs = [(str(row["id"]), str(row["label"]), row) for row in frame.to_dict("records")]
    if to == "coco-classification":
        return json.dumps(_coco(pairs, settings, prefix), indent=1, ensure_ascii=False)
    return json.dumps(_label_studio(pairs, settings, prefix, texts), indent=1, ensure_ascii=False)


def import_labels(folder: Any, path: Any, *, overwrite: bool = False) -> dict[str, int]:
    """Put labels from a file into a folder of ``skal label``; on the disk when this returns.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    path : path
        Label Studio's JSON, or a CSV or JSONL file with the columns ``id`` and ``label``.
    overwrite : bool, default=False
        Whether labels that differ replace those that are there. Otherwise such a file is refused as a whole.

    Returns
    -------
    dict of int
        How many labels are ``new``, ``changed`` and ``same``.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skal.labelling import export_labels, import_labels
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "known.csv")
    ...     size = file.write_text("id,label\\na.jpg,cat\\n")
    ...     import_labels(folder, file), export_labels(folder).splitlines()[1].split(",")[:2]
    ({'new': 1, 'changed': 0, 'same': 0}, ['a.jpg', 'cat'])
    """
    place, file = Path(folder), Path(path)
    settings = read_settings(place)
    source = _source(settings)
    found = _read_labels(file, None if source is None else list(source.ids))
    lock = FolderLock(place)
    lock.acquire()
    try:
        journal = Journal(place).read()
        known = {str(key): line["label"] for key, line in journal.known.items() if line["label"] is not None}
        other = {key: label for key, label in found.items() if known.get(key, label) != label}
        if other and not overwrite:
            raise InvalidParameterError(
                f"The labels in {file} must be those of {place}, where samples have one. Got others for "
                f"{shorten(sorted(other))}. Nothing was imported; say --overwrite to take the file's."
            )
        new = {key: label for key, label in found.items() if key not in known}
        positions = {} if source is None else {key: i for i, key in enumerate(source.ids)}
        journal.append(
            make_event(
                "label",
                key,
                label,
                round=max([0, *(line["round"] for line in journal.known.values())]),
                source="imported",
                content=None if source is None else source.ids.digest(positions[key]),
            )
            for key, label in (new | other).items()
        )
        classes = [*settings.get("classes", []), *sorted({*new.values(), *other.values()})]
        if settings:
            write_settings(place, settings | {"classes": list(dict.fromkeys(classes))})
    finally:
        lock.release()
    return {"new": len(new), "changed": len(other), "same": len(found) - len(new) - len(other)}


def _journal(folder: Path) -> Journal:
    if not (folder / FILE).exists() and not read_settings(folder):
        raise CheckpointError(
            f"{folder} must be a folder with labels. Got one without {FILE}. Name the --out folder of skal label."
        )
    return Journal(folder).read()


def _source(settings: dict[str, Any]) -> Source | None:
    """The samples, if they are still where they were."""
    if settings.get("source") is None or not Path(settings["source"]).exists():
        return None
    return open_source(settings["source"], text=settings.get("text"))


def _texts(settings: dict[str, Any]) -> dict[str, str] | None:
    if settings.get("kind") != "text":
        return None
    try:
        source = _source(settings)
    except SkalError:
        return None
    return None if source is None else {key: source.text(i) for i, key in enumerate(source.ids)}


def _plain(value: Any) -> Any:
    return None if pd.isna(value) else value.item() if hasattr(value, "item") else value


def _coco(pairs: Iterable[tuple[str, str, Any]], settings: dict[str, Any], prefix: str) -> dict[str, Any]:
    pairs = list(pairs)
    names = list(dict.fromkeys([*settings.get("classes", []), *(label for _, label, _ in pairs)]))
    number = {name: i for i, name in enumerate(names, start=1)}
    return {
        "images": [{"id": i, "file_name": prefix + key} for i, (key, _, _) in enumerate(pairs, start=1)],
        "categories": [{"id": i, "name": name} for name, i in number.items()],
        "annotations": [
            {"id": i, "image_id": i, "category_id": number[label]} for i, (_, label, _) in enumerate(pairs, start=1)
        ],
    }


def _label_studio(
    pairs: Iterable[tuple[str, str, Any]], settings: dict[str, Any], prefix: str, texts: dict[str, str] | None
) -> list[dict[str, Any]]:
    kind = "text" if settings.get("kind") == "text" else "image"
    if kind == "text" and texts is None:
        raise SampleError(
            f"Label Studio's tasks hold the texts, so their file must be there. Got {settings.get('source')}, which "
            "cannot be read. Put it back, or export as csv."
        )
    tasks = []
    for number, (key, label, row) in enumerate(pairs, start=1):
        value = (texts or {}).get(key, "") if kind == "text" else prefix + key
        result = {"from_name": "label", "to_name": kind, "type": "choices", "value": {"choices": [label]}}
        tasks.append(
            {
                "id": number,
                "data": {kind: value, "skal_id": key},
                "annotations": [{"result": [result], "created_at": _plain(row.get("time"))}],
            }
        )
    return tasks


def _read_labels(path: Path, ids: list[str] | None) -> dict[str, str]:
    """Labels by id; with ``ids`` those of others are refused."""
    if path.suffix.lower() != ".json":
        return known_labels(path, ids)
    try:
        tasks = json.loads(path.read_text(encoding="utf-8"))
        found = dict(pair for task in tasks for pair in _of_task(task))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise SampleError(
            f"{path} must be Label Studio's JSON: a list of tasks with 'data' and 'annotations'. "
            f"Got {type(error).__name__}: {error}. Export it as JSON or JSON-MIN."
        ) from error
    return resolve(path, found.items(), ids)


def _of_task(task: dict[str, Any]) -> list[tuple[str, str]]:
    """(id, label) of one task, in the format JSON or JSON-MIN; nothing if it has not been labelled."""
    data = task.get("data", task)
    key = data.get("skal_id") or data.get("image") or data.get("text")
    if "annotations" in task:
        done = [each for each in task["annotations"] if not each.get("was_cancelled") and each["result"]]
        choices = [part["value"]["choices"] for each in done for part in each["result"] if part["type"] == "choices"]
    else:
        choices = [[task["choice"]]] if task.get("choice") else []
    return [(str(key), str(choices[-1][0]))] if choices else []
