# SPDX-License-Identifier: BSD-3-Clause
"""What annotators said, as Label Studio has it: every annotation with its author, and what they come to together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from skal._files.json_text import parse_json
from skal.exceptions import SampleError, shorten


@dataclass(frozen=True)
class Answer:
    """One annotation of one task.

    Attributes
    ----------
    task : int or str
        The task's number; in our folder the sample's id.
    annotation : int or None
        Its number; None if the format has none.
    author : str or None
    time : str or None
        When it was changed last.
    lead_time : float or None
        Seconds that it took.
    choices : tuple of str, or of one float
        What was chosen in the control, or the number there; empty if nothing was.
    cancelled : bool
        Whether it was skipped.
    touched : bool
        Whether it says anything about the control; one that says "none of them" does.
    """

    task: Any
    annotation: int | None
    author: str | None
    time: str | None
    lead_time: float | None
    choices: tuple[Any, ...]
    cancelled: bool = False
    touched: bool = True


@dataclass(frozen=True)
class Control:
    """A ``Choices`` control of a label config.

    Attributes
    ----------
    name, to_name : str
    kind : str
        "image" or "text": what it is about.
    field : str
        Where a task has that.
    classes : list of str
    multiple : bool
        Whether several may be chosen.
    """

    name: str
    to_name: str
    kind: str
    field: str
    classes: tuple[str, ...]
    multiple: bool


def read_control(config: str, name: str | None = None) -> Control:
    """The control that is asked for, or the only one.

    Examples
    --------
    >>> read_control('<View><Text name="t" value="$words"/><Choices name="c" toName="t"><Choice value="a"/></Choices>'
    ...              '</View>')
    Control(name='c', to_name='t', kind='text', field='words', classes=('a',), multiple=False)
    """
    try:
        root = ElementTree.fromstring(config)
    except ElementTree.ParseError as error:
        raise SampleError(f"The label config must be XML. Got {error}. Repair it in Label Studio.") from error
    controls = {part.get("name", ""): part for part in root.iter("Choices")}
    chosen = name if name is not None else next(iter(controls), "") if len(controls) == 1 else ""
    if chosen not in controls:
        expected = f"one of {sorted(controls)}" if controls else "a Choices control of the label config"
        raise SampleError(
            f"The control must be {expected}. Got {name!r}, in a config with {len(controls)} Choices controls. "
            "Name it with --control NAME."
        )
    part = controls[chosen]
    to_name = part.get("toName", "")
    about = next((each for each in root.iter() if each.get("name") == to_name and each is not part), None)
    if about is None or about.tag not in ("Image", "Text") or not about.get("value", "").startswith("$"):
        got = "nothing" if about is None else about.tag
        raise SampleError(
            f"The control {chosen!r} must be about an Image or a Text with a value such as $image. Got {got}. "
            "Name another control with --control NAME."
        )
    if about.get("valueType", about.get("valuetype")) == "url":
        raise SampleError(
            f'The texts of the control {chosen!r} must be in the tasks. Got addresses of texts (valueType="url"). '
            "Import the texts themselves, or name another control with --control NAME."
        )
    classes = [str(each.get("alias") or each.get("value", "")) for each in part.iter("Choice")]
    return Control(
        chosen,
        to_name,
        about.tag.lower(),
        about.get("value", "")[1:],
        tuple(classes),
        part.get("choice", "single") == "multiple",
    )


_READ = {"choices", "number"}  # types of controls


def find_control(tasks: Iterable[dict[str, Any]], name: str | None) -> str | None:
    """The control that is asked for, or the only one with choices or numbers; None if there is none.

    An export as JSON has no label config: a control is there if an annotation has answered it.
    """
    parts = (part for task in tasks for each in task["annotations"] for part in each["result"])
    kinds: dict[str, set[str]] = {}
    for part in parts:
        if part["type"] != "relation":
            kinds.setdefault(part["from_name"], set()).add(part["type"])
    usable = sorted(control for control, types in kinds.items() if types <= _READ)
    there = [f"{control} ({', '.join(sorted(types))})" for control, types in sorted(kinds.items())]
    if not kinds or name in usable:
        return name
    if name is not None or not usable:
        raise SampleError(
            f"The control must be one with choices or numbers that annotations have answered: {usable or 'none is'}. "
            f"Got {shorten(name) if name is not None else 'none'} in a file with the controls {', '.join(there)}. "
            f"{'Say --control NAME.' if usable else 'Export a project with such a control.'}"
        )
    if len(usable) > 1:
        raise SampleError(f"The control must be named if there are several. Got {usable}. Say --control NAME.")
    return usable[0]


def answers_of(task: dict[str, Any], control: str, authors: dict[int, str] | None = None) -> list[Answer]:
    """All annotations of a task of an export as JSON, in the order of their numbers."""
    found = []
    for each in sorted(task["annotations"], key=lambda each: each.get("id") or 0):
        parts = [part for part in each["result"] if part.get("from_name") == control and part["type"] in _READ]
        by = each.get("completed_by")
        number = by.get("id") if isinstance(by, dict) else by
        author = by.get("email") if isinstance(by, dict) else (authors or {}).get(number, None)  # type: ignore[arg-type]
        found.append(
            Answer(
                task.get("id"),
                each.get("id"),
                author or (None if number is None else f"user {number}"),
                each.get("updated_at") or each.get("created_at"),
                each.get("lead_time"),
                tuple(said for part in parts for said in _read_value(part["value"])),
                bool(each.get("was_cancelled")),
                bool(parts),
            )
        )
    return found


def _read_value(value: dict[str, Any]) -> list[Any]:
    return [float(value["number"])] if "number" in value else list(value["choices"])


_BOOKKEEPING = ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time")  # of JSON-MIN and tables
_SAMPLE = ("skal_id", "image", "text")
_OURS = ("skal_label", "skal_classes", "skal_score")


def is_table(names: Iterable[str]) -> bool:
    """Whether columns are those of Label Studio's CSV, TSV or JSON-MIN."""
    return set(names) >= set(_BOOKKEEPING)


def sample_key(data: dict[str, Any]) -> Any:
    """What a task is about: our id, or its picture or text."""
    named = next((data[name] for name in _SAMPLE if data.get(name) is not None), None)
    texts = [value for name, value in data.items() if isinstance(value, str) and name not in _OURS]
    if named is None and len(texts) != 1:
        raise SampleError(
            f"A labelled task must name its sample in one of the fields {list(_SAMPLE)}, or have one field with a text "
            f"alone. Got {shorten(data)}. Rename the field that has the sample in the file."
        )
    return texts[0] if named is None else named


def read_rows(rows: Sequence[dict[str, Any]], control: str | None) -> list[tuple[dict[str, Any], list[Answer]]]:
    """Data and answer of every row of an export in JSON-MIN, CSV or TSV, in which a field is named after its control.

    Label Studio leaves skipped annotations and predictions out of these formats.
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    if rows and not is_table(names):
        raise SampleError(
            f"An export of Label Studio must have the fields {list(_BOOKKEEPING)}. Got {shorten(names)}. Export it as "
            "JSON, JSON-MIN, CSV or TSV."
        )
    others = [name for name in names if name not in (*_BOOKKEEPING, *_SAMPLE, *_OURS)]
    if control is None and len(others) != 1 and rows:
        raise SampleError(f"The control must be named if there are several fields. Got {others}. Say --control NAME.")
    if control is not None and rows and control not in others:
        raise SampleError(f"The control must be one of {others}. Got {control!r}. Say --control NAME.")
    field, found = control or next(iter(others), ""), []
    for row in sorted(rows, key=lambda row: int(row["annotation_id"] or 0)):
        if row["annotation_id"] in (None, ""):
            continue
        data = {name: cell for name, cell in row.items() if name not in (*_BOOKKEEPING, field)}
        number, lead, said = int(row["annotation_id"]), row["lead_time"], _read_cell(row.get(field), field)
        answer = Answer(
            row["id"],
            number,
            f"user {row['annotator']}",
            row["updated_at"] or None,
            None if lead in (None, "") else float(lead),
            said or (),
            touched=said is not None,
        )
        found.append((data | {name: parse_text(data[name]) for name in _OURS if name in data}, [answer]))
    return found


def _read_cell(cell: Any, control: str) -> tuple[Any, ...] | None:
    """What a field says: one choice as it is, all else as objects, in tables as JSON; None for nothing."""
    if cell in (None, ""):
        return None
    if isinstance(cell, str) and not cell.startswith(("[", '{"choices":')):
        return (cell,)
    parts = parse_text(cell)
    found: list[Any] = []
    for part in parts if isinstance(parts, list) else [parts]:
        if not isinstance(part, (str, dict)):
            return (str(cell),)  # a class that looks like JSON
        if isinstance(part, dict) and not _READ.intersection(part):
            raise SampleError(
                f"The control {control!r} must be one with choices or numbers. Got {shorten(part)}. Name another one "
                "with --control NAME."
            )
        found += _read_value(part) if isinstance(part, dict) else [part]
    return tuple(found)


def parse_text(cell: Any) -> Any:
    """What a text stands for if it is JSON; anything else as it is."""
    with suppress(ValueError):
        return parse_json(cell.encode()) if isinstance(cell, str) else cell
    return cell


@dataclass(frozen=True)
class Decision:
    """What several answers come to.

    Attributes
    ----------
    label : str, float, tuple of str, or None
    author : str or None
        All who said so.
    declined : bool
        Whether everybody has skipped it.
    disagreement : str or None
        What was said, if there is no majority.
    unclear : str or None
        Who has chosen several where one is wanted, and what; then there is no label.
    """

    label: Any = None
    author: str | None = None
    declined: bool = False
    disagreement: str | None = None
    unclear: str | None = None


def decide(answers: Sequence[Answer], *, several: bool = False) -> Decision:
    """The majority of the answers; none if as many say something else.

    The last answer of an author counts. Whoever skips a task has no vote unless all do. With ``several`` a vote is for
    all choices together, and may be for none of them.

    Examples
    --------
    >>> one = Answer(1, 1, "ada", None, None, ("cat",))
    >>> two = Answer(1, 2, "bob", None, None, ("dog",))
    >>> decide([one]).label, decide([one, two]).disagreement
    ('cat', 'ada: cat, bob: dog')
    """
    last = {
        (answer.author or f"annotation {answer.annotation}"): answer
        for answer in answers
        if answer.touched or answer.cancelled
    }
    given = {
        author: tuple(sorted(set(answer.choices)))
        for author, answer in last.items()
        if not answer.cancelled and (several or answer.choices)
    }
    if not given:
        return Decision(declined=any(answer.cancelled for answer in last.values()))
    words = {author: " and ".join(map(str, said)) or "none" for author, said in given.items()}
    unclear = [f"{author}: {words[author]}" for author, said in given.items() if len(said) > 1 and not several]
    if unclear:
        return Decision(unclear=", ".join(unclear))
    (most, n), *others = Counter(given.values()).most_common()
    if others and others[0][1] == n:
        return Decision(disagreement=", ".join(f"{author}: {words[author]}" for author in sorted(given)))
    by = ", ".join(sorted(author for author, said in given.items() if said == most))
    return Decision(most if several else most[0], by)
