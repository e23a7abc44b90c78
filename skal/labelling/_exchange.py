# SPDX-License-Identifier: BSD-3-Clause
"""Labels in other formats, from and to a labelling folder; nobody needs the page for that."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from skal._core.tasks import CLASSIFICATION, MULTILABEL, REGRESSION
from skal._files.json_text import format_json, parse_json
from skal._files.spreadsheet import format_table
from skal._files.whole import read_regular, write_result
from skal.exceptions import InvalidParameterError, SampleError, SkalError, how_to_install, shorten
from skal.labelling._answer_form import AnswerForm, write_cell
from skal.labelling._formats import (
    Said,
    read_coco,
    read_label_studio,
    read_label_studio_table,
    write_coco,
    write_label_studio,
)
from skal.labelling._options import find_labels
from skal.labelling._settings import check_classes, chosen_columns, read_doubts, read_settings, write_settings
from skal.labelling._sources import Source, open_source, read_columns, read_pairs, resolve
from skal.labelling._studio._annotations import is_table
from skal.labelling._words import FORMATS
from skal.loop import FinalLabels
from skal.loop._journal import COLUMNS, Journal, make_event
from skal.loop._saves import read_final

_TEXTS = ("id", "label", "time", "annotator", "source")
_TYPES = dict.fromkeys(_TEXTS, "string") | {
    "round": "Int64",
    "doubt": "Float64",
    "probability": "Float64",
}  # also where all are missing
_IN_WORDS = ("text", "table")  # kinds of samples that files of labels bring along
SEPARATORS = {"csv": ",", "tsv": "\t"}
_TABLES = tuple(f".{name}" for name in SEPARATORS)


def export_labels(
    folder: Any, to: str = "csv", *, prefix: str = "", safe_csv: bool = False, rest: Iterable[dict[str, Any]] = ()
) -> str:
    """The labels of a folder as text in another format.

    Parameters
    ----------
    folder : path
        Of ``skal label``, or the checkpoint of an :class:`skal.ActiveLearningClassifier`.
    to : {"csv", "tsv", "jsonl", "label-studio", "coco-classification"}, default="csv"
        The format.
    prefix : str, default=""
        What to put before every file name, such as "/data/local-files/?d=" for Label Studio.
    safe_csv : bool, default=False
        Put an apostrophe before whatever a spreadsheet could take for a formula, in CSV and TSV;
        :func:`import_labels` takes it away again.
    rest : iterable of dict, default=()
        What a model says of other samples: ``id``, ``label``, ``source`` ("model") and ``probability``. They are marked
        as such: :func:`import_labels` takes them for no labels.

    Returns
    -------
    str
        The content of a file, without labels an empty one. Write it with ``encoding="utf-8"`` and, where ids or texts
        hold half of a surrogate pair, ``errors="surrogatepass"``.

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
    if safe_csv and to not in SEPARATORS:
        remedy = "Leave it out: no spreadsheet runs what is in JSON."
        raise InvalidParameterError.for_parameter("export_labels", "safe_csv", "False for JSON", safe_csv, remedy)
    settings = read_settings(Path(folder))
    form, classes = AnswerForm.of(settings), settings.get("classes", [])
    predicted = list(rest)
    rows = [*labelled_rows(Path(folder)), *predicted]
    if to == "coco-classification":
        return format_json(write_coco(rows, settings.get("classes", []), prefix), indent=1)
    doubt = ["doubt"] if any("doubt" in row for row in rows) else []
    columns, source = [*COLUMNS, *doubt, *(["probability"] if predicted else [])], _in_words(settings)
    if to == "label-studio":
        kind = "text" if settings.get("kind") in _IN_WORDS else "image"
        texts = None if source is None else dict(zip(source.ids, _texts_of(source) or [], strict=True))
        if kind == "text" and texts is None and rows:
            raise SampleError(
                f"Label Studio's tasks hold the texts, so their file must be there. Got {settings.get('source')}, "
                "which cannot be read. Put it back, or export as csv."
            )
        names = classes if form.task == MULTILABEL else None
        numbers = form.task == REGRESSION
        return format_json(write_label_studio(rows, kind, prefix, texts, names, numbers=numbers), indent=1)
    rows = [row | {"label": form.show(row["label"], classes)} for row in rows]
    if source is not None:
        names, contents = _fields(source, rows)
        columns[1:1] = names
        rows = [row | content for row, content in zip(rows, contents, strict=True)]
    if to in SEPARATORS:
        cells = ([write_cell(row.get(name)) for name in columns] for row in rows)
        return format_table(columns, cells, separator=SEPARATORS[to], safe=safe_csv)
    return "".join(format_json({name: row.get(name) for name in columns}) + "\n" for row in rows)


def import_labels(folder: Any, path: Any, *, overwrite: bool = False, control: str | None = None) -> dict[str, int]:
    """Put labels from a file into a folder of ``skal label``; on the disk when this returns.

    Parameters
    ----------
    folder : path
        Made if it is not there.
    path : path
        What Label Studio exports as JSON, JSON-MIN, CSV or TSV, COCO's JSON, or a CSV, TSV or JSONL file with the
        columns ``id`` and ``label``. Every answer of Label Studio's annotators is written beside the label, with its
        author, time and lead time; where as many say something else, the file is refused. What everybody has skipped is
        declined.
    overwrite : bool, default=False
        Whether labels that differ replace those that are there. Otherwise such a file is refused as a whole.
    control : str, optional
        The name of Label Studio's ``Choices`` or ``Number`` control, if there are several.

    Returns
    -------
    dict of int
        How many labels are ``new``, ``changed`` and ``same``; and if there are any, how many of these have got ``with
        more answers``, and how many samples are ``declined``, which everybody has skipped.

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
    form, named = AnswerForm.of(settings), settings.get("classes", [])
    said = _read_said(file, control, named if form.task == MULTILABEL else None)
    pairs = [(each.key, each.label) for each in said if each.label is not None]
    skipped = [(each.key, "") for each in said if each.label is None]
    answers = {str(each.key): each for each in said}
    journal = Journal(place)
    journal.hold()
    try:
        journal.read()
        if form.task == MULTILABEL:
            journal.name_columns(named)
        if source is not None or settings:  # there ids and labels are texts
            pairs = [(str(key), form.parse(label, named)) for key, label in pairs]
        elif file.suffix.lower() in _TABLES and not _kinds_of_labels(journal) - {list, float}:
            pairs = _read_numbers(pairs)
        ids, texts = (None, None) if source is None else (source.ids, _texts_of(source))
        called: dict[Any, list[Any]] = {}
        found = resolve(file, _match(pairs, journal), ids, texts, called)
        known = {key: line["label"] for key, line in journal.known.items() if line["label"] is not None}
        other = {key: label for key, label in found.items() if known.get(key, label) != label}
        if other and not overwrite:
            raise InvalidParameterError(
                f"The labels in {file} must be those of {place}, where samples have one. Got others for "
                f"{shorten(list(other))}. Nothing was imported; say --overwrite to take the file's."
            )
        new = {key: label for key, label in found.items() if key not in known}
        rows = {
            key: _merge(journal.known.get(key, {}), [answers[str(n)] for n in called[key]], found[key]) for key in found
        }
        by_people = {key for key, each in rows.items() if any(row["annotator"] for row in each.get("answers", ()))}
        more = {key: known[key] for key in found if key in by_people and key not in new | other}
        declined = [key for key in resolve(file, _match(skipped, journal), ids, texts) if key not in found]
        declined = [key for key in declined if key not in journal.known]
        classes = []
        if settings and form.task == CLASSIFICATION:
            classes = check_classes(dict.fromkeys([*named, *sorted({*new.values(), *other.values()})]), strip=False)
        positions = {} if source is None else {key: i for i, key in enumerate(source.ids)}
        content = dict.fromkeys(found) if source is None else {key: source.ids.digest(positions[key]) for key in found}
        round = max([0, *(line["round"] for line in journal.known.values())])
        lines = {key: journal.known[key] for key in more}  # a label that stays is still of its round and source
        journal.append(
            make_event(
                "label",
                key,
                label,
                round=lines.get(key, {}).get("round", round),
                source=lines.get(key, {}).get("source", "imported"),
                content=content[key],
                **rows[key],
            )
            for key, label in (new | other | more).items()
        )
        journal.append(make_event("declined", key, round=round, source="imported") for key in declined)
        if settings and form.task == CLASSIFICATION:
            write_settings(place, settings | {"classes": classes})
    finally:
        journal.release()
    counts = {"new": len(new), "changed": len(other), "same": len(found) - len(new) - len(other)}
    beside = {"with more answers": len(more), "declined": len(declined)}
    return counts | {what: n for what, n in beside.items() if n}


def export_final(folder: Any) -> str:
    """The whole data set as one JSON object: who labelled what, and the certificate.

    Parameters
    ----------
    folder : path
        Of ``skal label``, or the checkpoint of an :class:`skal.ActiveLearningClassifier`.

    Returns
    -------
    str
        With ``certificate`` (None if none was granted), ``counts`` and ``labels``, whose ``by`` is "people" or "model".
        Labels by people replace those of the model.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from skal.labelling import export_final, import_labels
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "known.csv").write_text("id,label\\na.jpg,cat\\n")
    ...     _ = import_labels(folder, Path(folder, "known.csv"))
    ...     export_final(folder)[:22]
    '{"certificate": null, '
    """
    people = {row["id"]: row for row in labelled_rows(Path(folder))}
    kept = read_final(Path(folder)) or {"certificate": None, "labels": []}
    rows = [(row["id"], row["label"], "people", row["annotator"]) for row in people.values()]
    rows += [(key, label, "model", None) for key, label in kept["labels"] if key not in people]
    return FinalLabels.of(rows, kept["certificate"]).to_json()


def labelled_rows(folder: Path) -> list[dict[str, Any]]:
    """What the journal of a project says of each labelled sample."""
    lines = _journal(folder).known.values()
    rows = [{name: line.get(name) for name in COLUMNS} for line in lines if line["label"] is not None]
    doubts = read_doubts(folder)
    for row in rows if doubts else ():  # of the label that holds now, or none
        doubt = doubts.get(str(row["id"]), {})
        row["doubt"] = 1 - doubt["probability"] if doubt.get("label") == str(row["label"]) else None
    return rows


def export_parquet(folder: Any, path: Any, rest: Iterable[dict[str, Any]] = ()) -> None:
    """The labels of a folder as a parquet file, which Hugging Face ``datasets`` reads.

    Parameters
    ----------
    folder : path
        Of ``skal label``.
    path : path
        The file.
    rest : iterable of dict, default=()
        As for :func:`export_labels`.
    """
    settings = read_settings(Path(folder))
    frame = pd.DataFrame([*labelled_rows(Path(folder)), *rest], columns=[*COLUMNS, "doubt", "probability"])
    keys, source = frame["id"].astype(str), _in_words(settings)
    types = dict(_TYPES)
    if source is not None:
        names, contents = _fields(source, frame.to_dict("records"))
        for place, name in enumerate(names, start=1):
            frame.insert(place, name, [content[name] for content in contents])
            types |= {name: "string"} if any(isinstance(cell, str) for cell in frame[name]) else {}
    elif settings.get("kind") == "image" and Path(str(settings.get("source"))).is_dir():
        frame.insert(1, "image", [str(Path(settings["source"], key)) for key in keys])
    try:
        data = frame.astype(types).to_parquet(None, engine="pyarrow", index=False)
    except ImportError as error:
        raise SkalError(
            f"Parquet needs pyarrow. Got an installation without it. {how_to_install('parquet')}"
        ) from error
    write_result(Path(path), data)


def _journal(folder: Path) -> Journal:
    """The journal of a project, which may have no labels yet."""
    find_labels(folder)
    return Journal(folder).read()


def _source(settings: dict[str, Any]) -> Source | None:
    """The samples, if they are still where they were."""
    if settings.get("source") is None or not Path(settings["source"]).exists():
        return None
    return open_source(settings["source"], **chosen_columns(settings))


def _in_words(settings: dict[str, Any]) -> Source | None:
    """Texts or rows, if that is what the samples are and they can be read."""
    if settings.get("kind") not in _IN_WORDS:
        return None
    try:
        return _source(settings)
    except SkalError:
        return None


def _fields(source: Source, rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[dict[str, Any]]]:
    """What the samples of some labels are, by columns that are named otherwise than those of labels."""
    positions = {key: position for position, key in enumerate(source.ids)}
    names = {name: f"{name}_" if name in _TYPES else name for name in source.fields(0)}
    gone = dict.fromkeys(names, "" if source.kind == "text" else None)
    found = (source.fields(positions[key]) if (key := str(row["id"])) in positions else gone for row in rows)
    return list(names.values()), [{names[name]: cell for name, cell in content.items()} for content in found]


def _texts_of(source: Source) -> list[str] | None:
    return [source.text(position) for position in range(len(source))] if source.kind in _IN_WORDS else None


def _read_said(path: Path, control: str | None, several: list[str] | None) -> list[Said]:
    """The label of every line, task or annotation of a file, and who has said so."""
    if path.suffix.lower() != ".json":
        columns = read_columns(path)
        if is_table(columns):
            return read_label_studio_table(columns, control, several)
        return [Said(key, label) for key, label in read_pairs(path)]
    try:
        content = parse_json(read_regular(path))
        if isinstance(content, dict):
            return [Said(key, label) for key, label in read_coco(content)]
        return read_label_studio(content, control, several)
    except SampleError as error:
        raise SampleError(f"{path} cannot be taken as it is. {error}") from error
    except OSError as error:
        raise SampleError(
            f"{path} must be a file that can be read. Got: {error.strerror or error}. Check the path."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise SampleError(
            f"{path} must be Label Studio's JSON (a list of tasks with 'data' and 'annotations') or COCO's (an object "
            f"with 'images', 'categories' and 'annotations'). Got {type(error).__name__}: {shorten(str(error))}. "
            "Export it as one of these."
        ) from error


def _merge(line: dict[str, Any], said: list[Said], label: Any) -> dict[str, Any]:
    """What an event says of the answers that a label is made of; nothing if the journal's line says it.

    Answers by people whom the file does not have stay.
    """
    rows: list[dict[str, Any]] = [
        {"annotator": each.author, "label": list(each.choices), "time": each.time, "lead_time": each.lead_time}
        | ({"cancelled": True} if each.cancelled else {})
        for one in said
        for each in one.answers
    ]
    before, people = line.get("answers", []), {row["annotator"] for row in rows}
    rows = [row for row in before if row["annotator"] not in people] + rows
    if rows == before:
        return {}
    last = {row["annotator"]: row for row in rows}.values()
    won = [sorted(one.choices) for one in said]
    agree = [row["annotator"] for row in last if not row.get("cancelled") and sorted(row["label"]) in won]
    own = line.get("annotator") if not before and line.get("label") == label else None  # has said so in our folder
    return {"annotator": ", ".join(filter(None, dict.fromkeys([own, *agree]))) or None, "answers": rows}


def _match(pairs: list[tuple[Any, Any]], journal: Journal) -> list[tuple[Any, Any]]:
    """Pairs with ids and labels of the journal's kinds: 7 and not "7", if it knows a 7, or other numbers alone."""
    keys, labels = list(journal.known), list(journal.classes)
    by_text = {str(key): key for key in keys}, {str(label): label for label in labels}
    kinds = _kind(keys), _kind(labels)

    def like(value: Any, own: dict[str, Any], kind: type) -> Any:
        if str(value) in own:
            return own[str(value)]
        if kind is bool:
            return {"True": True, "False": False}.get(str(value), value)
        try:
            return kind(value) if kind in (int, float) and str(kind(value)) == str(value) else value
        except ValueError:
            return value

    return [(like(key, by_text[0], kinds[0]), like(label, by_text[1], kinds[1])) for key, label in pairs]


def _kinds_of_labels(journal: Journal) -> set[type]:
    return {type(line["label"]) for line in journal.known.values() if line["label"] is not None}


def _read_numbers(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Pairs of a table with rows or numbers for labels, if all can be nothing else: classes are no fractions."""
    if not all(isinstance(label, str) for _, label in pairs):  # Label Studio's tables are read by its controls
        return pairs
    try:
        said = [parse_json(label) for _, label in pairs]
    except ValueError:
        return pairs
    are_numbers = all(type(label) in (int, float) and math.isfinite(label) for label in said)
    if are_numbers and any(label % 1 for label in said):
        return [(key, float(label)) for (key, _), label in zip(pairs, said, strict=True)]
    are_rows = all(isinstance(label, list) and label and {type(x) for x in label} <= {int, float} for label in said)
    return [(key, label) for (key, _), label in zip(pairs, said, strict=True)] if are_rows else pairs


def _kind(values: list[Any]) -> type:
    kinds = {type(value) for value in values}
    return kinds.pop() if len(kinds) == 1 else str
