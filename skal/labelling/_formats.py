# SPDX-License-Identifier: BSD-3-Clause
"""Labels as other programs write and read them: Label Studio's tasks, and COCO for classification."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from skal.exceptions import InvalidParameterError, SampleError, shorten
from skal.labelling._studio._annotations import Answer, answers_of, decide, find_control, read_rows, sample_key

MODEL = "model"  # the source of a label that nobody has given
Row = dict[str, Any]  # of the journal's frame: id, label, time and more
Pair = tuple[Any, Any]  # id and label


class Said(NamedTuple):
    """A sample, its label, every answer that the label is made of, and the one that won.

    Without a label everybody has skipped it.
    """

    key: Any
    label: Any
    answers: Sequence[Answer] = ()
    choices: Sequence[Any] = ()


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
    tasks, numbers = [], numbers or any(isinstance(row["label"], float) for row in rows)
    for number, row in enumerate(rows, start=1):
        key, label = row["id"], row["label"]
        value = (texts or {}).get(str(key), "") if kind == "text" else f"{prefix}{key}"
        result = {"from_name": "label", "to_name": kind} | _value(label, numbers, names)
        data = {kind: value, "skal_id": key} | _original(label)
        if isinstance(label, list) and names is not None:  # which of them are not known, the choices cannot say
            data["skal_classes"] = list(names)
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
        The name of the control. There must be one only if none is named.
    several : list of str or None, default=None
        The classes of which a sample may have several at once, if it may.
    """
    if not all("annotations" in task for task in tasks):
        return _decide_all(read_rows(tasks, control), several)
    name = find_control(tasks, control) or ""
    return _decide_all([(task["data"], answers_of(task, name)) for task in tasks], several)


def read_label_studio_table(
    columns: dict[str, list[Any]], control: str | None = None, several: Sequence[str] | None = None
) -> list[Said]:
    """The same from the columns of an export in CSV or TSV."""
    rows = [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]
    rows = [{name: cell for name, cell in row.items() if name != "skal_id" or cell} for row in rows]  # not all are ours
    return _decide_all(read_rows(rows, control), several)


def _decide_all(tasks: Iterable[tuple[dict[str, Any], Sequence[Answer]]], several: Sequence[str] | None) -> list[Said]:
    """One label for each sample; refused by name where there is no majority, or more than one choice."""
    by_key: dict[Any, tuple[dict[str, Any], list[Answer]]] = {}
    for data, answers in tasks:
        said = [answer for answer in answers if answer.touched or answer.cancelled]
        if said:
            by_key.setdefault(sample_key(data), (data, []))[1].extend(said)
    found, split, unclear = [], [], []
    for key, (data, said) in by_key.items():
        is_number = any(isinstance(choice, float) for answer in said for choice in answer.choices)
        wanted = several is not None or isinstance(data.get("skal_label"), list)
        each = decide(said, several=wanted and not is_number)
        split += [f"{key} ({each.disagreement})"] if each.disagreement is not None else []
        unclear += [f"{key} ({each.unclear})"] if each.unclear is not None else []
        if each.label is not None:
            choices = each.label if isinstance(each.label, tuple) else (each.label,)
            found.append(Said(key, _restore(each.label, data, several), said, choices))
        elif each.declined:
            found.append(Said(key, None, said))
    if unclear:
        raise SampleError(
            f"Every answer must be one choice. Got several at {len(unclear)} samples: {shorten(unclear)}. Import them "
            "into a folder of skal label --task multilabel, or name another control."
        )
    if split:
        raise SampleError(
            f"Annotators must agree, or most of them. Got as many for another label at {len(split)} samples: "
            f"{shorten(split)}. Let one more person label these, or delete annotations."
        )
    return found


def _restore(label: Any, data: dict[str, Any], several: Sequence[str] | None) -> Any:
    """A label as it was when we wrote the task, if the answer is still that; otherwise as the answer has it.

    A row of zeros and ones may have classes of which nobody knew whether they hold: these stay unknown.
    """
    original = data.get("skal_label")
    if not isinstance(label, tuple):
        return original if original is not None and str(original) == str(label) else label
    if not isinstance(original, list):
        return list(label)
    names = data.get("skal_classes") or [str(i) for i in range(len(original))]
    row = dict(zip(names, original, strict=True))
    unknown: set[str] = set()
    if {name for name, holds in row.items() if holds == 1} == set(label):
        unknown = {name for name, holds in row.items() if holds == -1}
    if several is not None and not unknown:
        return list(label)
    classes = names if several is None else several
    strangers = sorted({*label, *unknown}.difference(classes))
    if strangers:
        raise SampleError(f"Every choice must be one of {list(classes)}. Got {strangers}. Leave these tasks out.")
    return [-1 if name in unknown else int(name in label) for name in classes]


def _score(row: Row) -> dict[str, Any]:
    """How sure a model is of one class; nothing for several labels, or for a label that somebody gave."""
    given = row.get("source") != MODEL or isinstance(row["probability"], list)
    return {} if given else {"score": row["probability"]}


def _original(label: Any) -> dict[str, Any]:
    """What to keep of a label that is not a text."""
    return {} if isinstance(label, str) else {"skal_label": label}
