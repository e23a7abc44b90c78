# SPDX-License-Identifier: BSD-3-Clause
"""Labels as other programs write and read them: Label Studio's tasks, and COCO for classification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from skal.exceptions import InvalidParameterError

MODEL = "model"  # the source of a label that nobody has given
Row = dict[str, Any]  # of the journal's frame: id, label, time and more
Pair = tuple[Any, Any]  # id and label


def write_coco(rows: Sequence[Row], classes: Iterable[Any], prefix: str) -> dict[str, Any]:
    """Images, categories and annotations; ids and labels that are not texts are kept beside their names."""
    if any(isinstance(row["label"], list) for row in rows):
        raise InvalidParameterError(
            "The labels of coco-classification must be one class each. Got rows of numbers. Export them as csv, jsonl "
            "or label-studio."
        )
    labels = list(dict.fromkeys([*classes, *(row["label"] for row in rows)]))
    number = {label: i for i, label in enumerate(labels, start=1)}
    return {
        "images": [
            {"id": i, "file_name": f"{prefix}{row['id']}", "skal_id": row["id"]} for i, row in enumerate(rows, start=1)
        ],
        "categories": [{"id": i, "name": str(label)} | _original(label) for label, i in number.items()],
        "annotations": [
            {"id": i, "image_id": i, "category_id": number[row["label"]]} | _score(row)
            for i, row in enumerate(rows, start=1)
        ],
    }


def read_coco(content: dict[str, Any]) -> list[Pair]:
    """(id, label) of every annotation; what has a score is a model's."""
    images = {image["id"]: image.get("skal_id", image["file_name"]) for image in content["images"]}
    names = {category["id"]: category.get("skal_label", category["name"]) for category in content["categories"]}
    return [
        (images[each["image_id"]], names[each["category_id"]]) for each in content["annotations"] if "score" not in each
    ]


def write_label_studio(
    rows: Sequence[Row], kind: str, prefix: str, texts: dict[str, str] | None
) -> list[dict[str, Any]]:
    """One task for each label: a choice, a number, or for several labels at once all choices that hold."""
    tasks, numbers = [], any(isinstance(row["label"], float) and row["label"] % 1 for row in rows)
    for number, row in enumerate(rows, start=1):
        key, label = row["id"], row["label"]
        value = (texts or {}).get(str(key), "") if kind == "text" else f"{prefix}{key}"
        result = {"from_name": "label", "to_name": kind} | _value(label, numbers)
        data = {kind: value, "skal_id": key} | _original(label)
        if row.get("source") == MODEL:
            said = {"annotations": [], "predictions": [{"result": [result], "model_version": "skal"} | _score(row)]}
        else:
            said = {"annotations": [{"result": [result], "created_at": row.get("time")}]}
        tasks.append({"id": number, "data": data} | said)
    return tasks


def _value(label: Any, numbers: bool) -> dict[str, Any]:
    """What Label Studio has of a label; a row of zeros and ones is the names of the columns that hold."""
    if numbers and not isinstance(label, (list, str)):
        return {"type": "number", "value": {"number": label}}
    choices = [str(i) for i, holds in enumerate(label) if holds] if isinstance(label, list) else [str(label)]
    return {"type": "choices", "value": {"choices": choices}}


def read_label_studio(tasks: list[dict[str, Any]]) -> list[Pair]:
    """(id, label) of every task that has been labelled, in the format JSON or JSON-MIN."""
    return [pair for task in tasks for pair in _of_task(task)]


def _of_task(task: dict[str, Any]) -> list[Pair]:
    data = task.get("data", task)
    key = next((data[name] for name in ("skal_id", "image", "text") if data.get(name) is not None), None)
    if "annotations" in task:
        done = [each for each in task["annotations"] if not each.get("was_cancelled") and each["result"]]
        parts = [part for each in done for part in each["result"]]
        numbers = [part["value"]["number"] for part in parts if part["type"] == "number"]
        if numbers and key is not None:
            return [(key, float(numbers[-1]))]
        choices = [part["value"]["choices"] for part in parts if part["type"] == "choices"]
    else:
        choices = [[task["choice"]]] if task.get("choice") is not None else []
    if not choices:
        return []
    if key is None:
        raise KeyError("a labelled task without image or text")
    original = data.get("skal_label")
    if isinstance(original, list):
        return [(key, [int(str(i) in choices[-1]) for i in range(len(original))])]
    label = choices[-1][0]
    return [(key, original if original is not None and str(original) == label else label)]


def _score(row: Row) -> dict[str, Any]:
    """How sure a model is; nothing for a label that somebody gave."""
    return {"score": row["probability"]} if row.get("source") == MODEL else {}


def _original(label: Any) -> dict[str, Any]:
    """What to keep of a label that is not a text."""
    return {} if isinstance(label, str) else {"skal_label": label}
