# SPDX-License-Identifier: BSD-3-Clause
"""What a saved model says of every sample of a source, in a file that grows by whole parts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from skal._files.spreadsheet import format_table
from skal._files.whole import replace_file
from skal.exceptions import CheckpointError, InvalidParameterError, SampleError
from skal.labelling._options import find_model
from skal.labelling._settings import read_settings
from skal.labelling._sources import ImageFolder, Source, read_columns
from skal.models import SavedModel, SavedRegressor, load_model

_PART = 256  # samples that are written at once


class Prediction(NamedTuple):
    """A model's prediction for one sample.

    Attributes
    ----------
    position : int
    label : the most probable class, a number, or a row of them
    probability : float, list or None
        That of the class, or of each of several labels; None if the model has none.
    cells : list
        What a table says of it, see :func:`columns_of`.
    """

    position: int
    label: Any
    probability: Any
    cells: list[Any]


Model = SavedModel | SavedRegressor


def columns_of(model: Model, names: Sequence[str] | None = None) -> list[str]:
    """The columns of a table of predictions; ``names`` are those of several labels, which a model only counts."""
    if not hasattr(model, "classes_"):
        n_targets = len(model.card_["trained_on"].get("lowest", [0]))
        return ["id", "number"] if n_targets == 1 else ["id", *(f"number_{k}" for k in range(n_targets))]
    if model.card_["task"] == "multilabel":
        kinds = ("label", "probability") if hasattr(model, "predict_proba") else ("label",)
        return ["id", *(f"{kind}_{name}" for name in names or model.classes_ for kind in kinds)]
    return ["id", "class", "probability", "second_class", "second_probability"]


def project_model(project: Any, trusted: Iterable[str] = ()) -> Model:
    """The model of a labelling folder, or one that was saved elsewhere."""
    return load_model(find_model(project), trusted=trusted)


def predict_parts(
    model: Model,
    source: Source,
    rows: Sequence[int],
    unreadable: dict[int, str],
    features: np.ndarray | None = None,
) -> Iterator[list[Prediction]]:
    """Predictions of some samples, part by part.

    Parameters
    ----------
    model : SavedModel or SavedRegressor
    source : Source
    rows : list of int
        Positions of the samples.
    unreadable : dict from position to reason
        Gets the files that could not be read.
    features : (n, d) array or None
        Of all samples, for a model that takes these.
    """
    if features is None and isinstance(source, ImageFolder) and model.features_ is None:
        raise InvalidParameterError(
            f"The model must be one for pictures. Got one that takes {model.card_['takes']}. Pass --features with a "
            "row for each picture, or another model."
        )
    parts = (list(rows[start : start + _PART]) for start in range(0, len(rows), _PART))
    return (_predict(model, source, part, unreadable, features) for part in parts)


def write_predictions(
    model: Model,
    source: Source,
    out: Any,
    *,
    names: Sequence[str] | None = None,
    features: np.ndarray | None = None,
    safe_csv: bool = False,
    overwrite: bool = False,
    advance: Callable[[int], Any] = lambda n: None,
) -> tuple[int, int, dict[str, str]]:
    """Write a CSV file with a line for each sample, and go on with one that was begun by the same model.

    Parameters
    ----------
    model : SavedModel or SavedRegressor
    source : Source
    out : path
        A file whose name ends in .csv or .tsv.
    names : list of str or None, default=None
        Of several labels; None for their numbers.
    features : (n, d) array or None, default=None
        Of the samples, for a model that takes these.
    safe_csv : bool, default=False
        Make harmless what a spreadsheet could take for a formula.
    overwrite : bool, default=False
        Whether to begin anew where a file of another model, or of somebody else, is in the way.
    advance : callable
        Called with the number of samples that are done.

    Returns
    -------
    n_new : int
        Lines that were written.
    n_before : int
        Lines that were there.
    unreadable : dict from id to reason
    """
    file = _GrowingTable(Path(out), columns_of(model, names), model.card_["files"], safe=safe_csv, overwrite=overwrite)
    unreadable: dict[int, str] = {}
    predict_parts(model, source, [], unreadable, features)  # refuse a model for other samples before the file is made
    done = file.open()
    rows = [position for position, key in enumerate(source.ids) if str(key) not in done]
    n_before = len(source) - len(rows)
    advance(n_before)
    n_new = 0
    for start, part in enumerate(predict_parts(model, source, rows, unreadable, features)):
        file.append([[source.ids[one.position], *one.cells] for one in part])
        n_new += len(part)
        advance(len(rows[start * _PART : (start + 1) * _PART]))
    return n_new, n_before, {source.ids[position]: why for position, why in unreadable.items()}


def check_kind(project: Any, source: Source) -> None:
    """Refuse samples of another kind than those that were labelled: a model for texts would read paths as texts."""
    kind = read_settings(Path(project)).get("kind", source.kind)
    if kind != source.kind:
        raise InvalidParameterError(
            f"The samples must be of the kind that was labelled, {kind!r}. Got {source.kind!r}. Name another source, "
            "or the column of the texts with --text."
        )


def _predict(
    model: Model, source: Source, rows: list[int], unreadable: dict[int, str], features: np.ndarray | None
) -> list[Prediction]:
    try:
        return _ask(model, source.originals(rows) if features is None else features[rows], rows)
    except SampleError as error:
        if not isinstance(source, ImageFolder):
            raise
        if len(rows) == 1:
            unreadable[rows[0]] = str(error)
            return []
        first = str(error)
    half = len(rows) // 2  # which file it is
    parts = (rows[:half], rows[half:])
    found = [one for part in parts for one in _predict(model, source, part, unreadable, features)]
    if not found and len(rows) == min(_PART, len(source)):
        raise SampleError(
            f"The samples must be what the model takes. Got {len(rows)} in a row that it cannot read; the first error: "
            f"{first}"
        )
    return found


def _ask(model: Model, samples: Any, rows: list[int]) -> list[Prediction]:
    # what gives probabilities of classes is asked once: reading the samples may take long
    has_probabilities, by_class = hasattr(model, "predict_proba"), model.card_["task"] == "classification"
    if by_class and has_probabilities:
        return [_by_class(model.classes_, row, p) for row, p in zip(rows, model.predict_proba(samples), strict=True)]
    labels = model.predict(samples).tolist()
    if has_probabilities:
        p = model.predict_proba(samples).round(6).tolist()
        pairs = ([cell for pair in zip(*both, strict=True) for cell in pair] for both in zip(labels, p, strict=True))
        return [Prediction(*one) for one in zip(rows, labels, p, pairs, strict=True)]
    more = [None] * 3 if by_class else []
    return [
        Prediction(row, label, None, [*np.ravel(label).tolist(), *more])
        for row, label in zip(rows, labels, strict=True)
    ]


def _by_class(classes: np.ndarray, row: int, p: np.ndarray) -> Prediction:
    order = np.argsort(-p, kind="stable")[:2]
    said = [(classes[k], round(float(p[k]), 6)) for k in order]
    cells = [cell for pair in said for cell in pair]
    return Prediction(row, *said[0], cells + [None] * (4 - len(cells)))


class _GrowingTable:
    """A table that grows by parts; a note beside it says which model wrote it, and how far it is whole.

    Parameters
    ----------
    path : path
    columns : list of str
        Their names.
    model : list of str
        By what the model is known.
    safe : bool
    overwrite : bool
    """

    def __init__(self, path: Path, columns: list[str], model: list[str], *, safe: bool, overwrite: bool) -> None:
        if path.suffix.lower() not in (".csv", ".tsv"):
            expected, remedy = "a file whose name ends in .csv or .tsv", "Name for example predictions.csv."
            raise InvalidParameterError.for_parameter("predict", "out", expected, str(path), remedy)
        self.path, self._model, self._safe, self._overwrite = path, model, safe, overwrite
        self._columns = columns
        self._separator = "\t" if path.suffix.lower() == ".tsv" else ","
        self._note = path.with_name(f".{path.name}.skal")
        self._sum, self._size = hashlib.sha256(), 0

    def open(self) -> set[str]:
        """The ids that are in the file; it begins with the names of its columns."""
        if not self.path.exists() or self._overwrite:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            self._write(format_table(self._columns, [], separator=self._separator, safe=self._safe))
            return set()
        data = self.path.read_bytes()
        try:
            note = json.loads(self._note.read_bytes())
            known, size, digest = note["model"] == self._model and note["safe"] == self._safe, note["size"], note["sum"]
        except (OSError, ValueError, KeyError, TypeError):
            known, size, digest = False, -1, None
        if not known or hashlib.sha256(data[: max(0, size)]).hexdigest() != digest:
            raise CheckpointError(
                f"{self.path} must be as this model has written it, to go on with it. Got a file of another model, "
                "with other options, or changed by hand. Choose another --out, or say --overwrite."
            )
        if len(data) > size:  # a part that was cut off in the middle
            os.truncate(self.path, size)
        self._sum.update(data[:size])
        self._size = size
        return set(map(str, read_columns(self.path).get("id", [])))

    def append(self, rows: list[list[Any]]) -> None:
        """Write lines, all or none as far as the next start is concerned."""
        text = format_table(self._columns, rows, separator=self._separator, safe=self._safe)
        self._write(text.split("\n", 1)[1])

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        with open(self.path, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        self._sum.update(data)
        self._size += len(data)
        note = {"model": self._model, "safe": self._safe, "size": self._size, "sum": self._sum.hexdigest()}
        replace_file(self._note, json.dumps(note).encode(), sync=False)
