# SPDX-License-Identifier: BSD-3-Clause
"""Labels as other programs write and read them: Label Studio's tasks, and COCO for classification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from skal.exceptions import InvalidParameterError, SampleError, shorten
from skal.labelling._studio._annotations import Answer, answers_of, control_names, decide, read_rows, sample_key

MODEL = "model"  # the source of a label that nobody has given
Row = dict[str, Any]  # of the journal's frame: id, label, time and more
Pair = tuple[Any, Any]  # id and label


class Said(NamedTuple):
    """A sample, its label, and every answer that the label is made of."""

    key: Any
    label: Any
    answers: list[Answer]


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
    rows: Sequence[Row],
    kind: str,
    prefix: str,
    texts: dict[str, str] | None,
    names: Sequence[str] | None = None,
    *,
    numbers: bool = False,
) -> list[dict[str, Any]]:
    """One task for each label: a choice, a number, or for several labels at once the ``names`` of those that hold."""
    tasks, numbers = [], numbers or any(isinstance(row["label"], float) and row["label"] % 1 for row in rows)
    for number, row in enumerate(rows, start=1):
        key, label = row["id"], row["label"]
        value = (texts or {}).get(str(key), "") if kind == "text" else f"{prefix}{key}"
        result = {"from_name": "label", "to_name": kind} | _value(label, numbers, names)
        data = {kind: value, "skal_id": key} | _original(label)
        if row.get("source") == MODEL:
            said = {"annotations": [], "predictions": [{"result": [result], "model_version": "skal"} | _score(row)]}
        else:
            said = {"annotations": [{"result": [result], "created_at": row.get("time")}]}
        tasks.append({"id": number, "data": data} | said)
    return tasks


def _value(label: Any, numbers: bool, names: Sequence[str] | None) -> dict[str, Any]:
    """What Label Studio has of a label; of a row of zeros and ones the names, or numbers, of the columns that hold."""
    if numbers and not isinstance(label, (list, str)):
        return {"type": "number", "value": {"number": label}}
    choices = [str(label)]
    if isinstance(label, list):
        choices = [str(i) if names is None else names[i] for i, holds in enumerate(label) if holds == 1]
    return {"type": "choices", "value": {"choices": choices}}


def read_label_studio(
    tasks: list[dict[str, Any]], control: str | None = None, several: Sequence[str] | None = None
) -> list[Said]:
    """What every labelled task of an export in JSON or JSON-MIN says, and who says so.

    Parameters
    ----------
    tasks : list of dict
    control : str or None, default=None
        The name of the ``Choices`` control. There must be one only if none is named.
    several : list of str or None, default=None
        The classes of which a sample may have several at once, if it may.
    """
    if not all("annotations" in task for task in tasks):
        return _decide_all(read_rows(tasks, control))
    named = control or _only_control(control_names(tasks))
    found = []
    for task in tasks:
        key = sample_key(task["data"])
        done = [each for each in task["annotations"] if not each.get("was_cancelled")]
        numbers = {part["value"]["number"] for each in done for part in each["result"] if part["type"] == "number"}
        original = task["data"].get("skal_label")
        answers = answers_of(task, named) if named is not None else []
        given = [answer.choices for answer in answers if not answer.cancelled]
        if (numbers or any(given)) and key is None:
            raise KeyError("a labelled task without image or text")
        if numbers:
            found.append(Said(key, float(_one(key, numbers)), []))
        elif several is not None and given:
            found.append(Said(key, list(_one(key, {tuple(sorted(choices)) for choices in given})), []))
        elif isinstance(original, list) and given:  # of which no choice at all is a row of zeros
            rows = {tuple(int(str(i) in choices) for i in range(len(original))) for choices in given}
            found.append(Said(key, list(_one(key, rows)), []))
        else:
            found += [
                said._replace(label=original) if original is not None and str(original) == said.label else said
                for said in _decide_all([replace(answer, task=key) for answer in answers])
            ]
    return found


def read_label_studio_table(columns: dict[str, list[Any]], control: str | None = None) -> list[Said]:
    """The same from the columns of an export in CSV or TSV."""
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    return _decide_all(read_rows(rows, control))


def _decide_all(answers: Sequence[Answer]) -> list[Said]:
    """One label for each sample; refused by name where there is no majority."""
    by_key: dict[Any, list[Answer]] = {}
    for answer in answers:
        by_key.setdefault(answer.task, []).append(answer)
    decided = {key: decide(said) for key, said in by_key.items()}
    split = [f"{key} ({each.disagreement})" for key, each in decided.items() if each.disagreement is not None]
    if split:
        raise SampleError(
            f"Annotators must agree, or most of them. Got as many for another label at {len(split)} samples: "
            f"{shorten(split)}. Let one more person label these, or delete annotations."
        )
    return [Said(key, each.label, by_key[key]) for key, each in decided.items() if each.label is not None]


def _only_control(names: list[str]) -> str | None:
    if len(names) > 1:
        raise SampleError(f"The control must be named if there are several. Got {names}. Say --control NAME.")
    return names[0] if names else None


def _one(key: Any, values: set[Any]) -> Any:
    if len(values) > 1:
        raise SampleError(f"Annotators must agree. Got {sorted(values)} for {shorten(key)}. Delete all but one.")
    return next(iter(values))


def _score(row: Row) -> dict[str, Any]:
    """How sure a model is of one class; nothing for several labels, or for a label that somebody gave."""
    given = row.get("source") != MODEL or isinstance(row["probability"], list)
    return {} if given else {"score": row["probability"]}


def _original(label: Any) -> dict[str, Any]:
    """What to keep of a label that is not a text."""
    return {} if isinstance(label, str) else {"skal_label": label}
