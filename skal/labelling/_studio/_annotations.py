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
    choices : tuple of str
        What was chosen in the control; empty if nothing was.
    cancelled : bool
        Whether it was skipped.
    """

    task: Any
    annotation: int | None
    author: str | None
    time: str | None
    lead_time: float | None
    choices: tuple[str, ...]
    cancelled: bool = False


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
    classes = [str(each.get("alias") or each.get("value", "")) for each in part.iter("Choice")]
    return Control(
        chosen,
        to_name,
        about.tag.lower(),
        about.get("value", "")[1:],
        tuple(classes),
        part.get("choice", "single") == "multiple",
    )


def control_names(tasks: Iterable[dict[str, Any]]) -> list[str]:
    """The names of all controls with choices in an export as JSON."""
    parts = (part for task in tasks for each in task["annotations"] for part in each["result"])
    return sorted({part["from_name"] for part in parts if part.get("type") == "choices"})


def answers_of(task: dict[str, Any], control: str, authors: dict[int, str] | None = None) -> list[Answer]:
    """All annotations of a task of an export as JSON, in the order of their numbers."""
    found = []
    for each in sorted(task["annotations"], key=lambda each: each.get("id") or 0):
        parts = [part for part in each["result"] if part.get("from_name") == control and part["type"] == "choices"]
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
                tuple(choice for part in parts for choice in part["value"]["choices"]),
                bool(each.get("was_cancelled")),
            )
        )
    return found


_BOOKKEEPING = ("id", "annotator", "annotation_id", "created_at", "updated_at", "lead_time")  # of JSON-MIN and tables
_SAMPLE = ("skal_id", "image", "text")
_OURS = ("skal_label", "skal_score")


def is_table(names: Iterable[str]) -> bool:
    """Whether columns are those of Label Studio's CSV, TSV or JSON-MIN."""
    return set(names) >= set(_BOOKKEEPING)


def sample_key(data: dict[str, Any]) -> Any:
    """What a task is about: our id, or its picture or text; None if that cannot be told."""
    named = next((data[name] for name in _SAMPLE if data.get(name) is not None), None)
    texts = [value for name, value in data.items() if isinstance(value, str) and name not in _OURS]
    return named if named is not None or len(texts) != 1 else texts[0]


def read_rows(rows: Sequence[dict[str, Any]], control: str | None) -> list[Answer]:
    """All answers of an export in JSON-MIN, CSV or TSV, in which a field is named after its control.

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
    for row in rows:
        if row["annotation_id"] in (None, ""):
            continue
        data = {name: cell for name, cell in row.items() if name not in (*_BOOKKEEPING, field)}
        key = sample_key(data)
        if key is None:
            raise SampleError(f"A row must have an image or a text. Got {shorten(data)}. Export it as JSON.")
        number, lead = row["annotation_id"], row["lead_time"]
        found.append(
            Answer(
                key,
                int(number),
                f"user {row['annotator']}",
                row["updated_at"] or None,
                None if lead in (None, "") else float(lead),
                _choices(row.get(field)),
            )
        )
    return sorted(found, key=lambda answer: answer.annotation or 0)


def _choices(cell: Any) -> tuple[str, ...]:
    """The choices of a field: one as it is, several as an object, in tables as text."""
    if isinstance(cell, str) and cell.startswith('{"choices":'):
        with suppress(ValueError):
            cell = parse_json(cell.encode())
    if isinstance(cell, dict):
        return tuple(cell["choices"])
    return () if cell in (None, "") else (str(cell),)


@dataclass(frozen=True)
class Decision:
    """What several answers come to.

    Attributes
    ----------
    label : str or None
    author : str or None
        All who said so.
    declined : bool
        Whether everybody has skipped it.
    disagreement : str or None
        What was said, if there is no majority.
    """

    label: str | None = None
    author: str | None = None
    declined: bool = False
    disagreement: str | None = None


def decide(answers: Sequence[Answer]) -> Decision:
    """The majority of the answers; none if as many say something else.

    The last answer of an author counts. Whoever skips a task has no vote unless all do.

    Examples
    --------
    >>> one = Answer(1, 1, "ada", None, None, ("cat",))
    >>> two = Answer(1, 2, "bob", None, None, ("dog",))
    >>> decide([one]).label, decide([one, two]).disagreement
    ('cat', 'ada: cat, bob: dog')
    """
    last = {(answer.author or f"annotation {answer.annotation}"): answer for answer in answers}
    votes = {author: answer.choices[0] for author, answer in last.items() if answer.choices and not answer.cancelled}
    several = [answer for answer in last.values() if len(answer.choices) > 1 and not answer.cancelled]
    if several:
        raise SampleError(
            f"Every answer must be one choice. Got {shorten(list(several[0].choices))} for task {several[0].task} by "
            f'{several[0].author}. Set choice="single" in the label config, or name another control.'
        )
    if not votes:
        return Decision(declined=any(answer.cancelled for answer in last.values()))
    (label, n), *others = Counter(votes.values()).most_common()
    if others and others[0][1] == n:
        return Decision(disagreement=", ".join(f"{author}: {said}" for author, said in sorted(votes.items())))
    return Decision(label, ", ".join(sorted(author for author, said in votes.items() if said == label)))
