# SPDX-License-Identifier: BSD-3-Clause
"""What every source has, and labels that come along in a file."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from skal.exceptions import SampleError, shorten
from skal.validation import as_list

ID_COLUMNS = ("id", "file", "filename", "path", "image")
LABEL_COLUMNS = ("label", "class", "target", "y")


class Ids(list[Any]):
    """Ids that know what content they stand for, so that a sample that changes under its id is noticed.

    Parameters
    ----------
    ids : iterable of str
    digest : callable
        ``digest(position)`` is a hash of the content.
    """

    def __init__(self, ids: Iterable[str], digest: Callable[[int], str | None]) -> None:
        super().__init__(ids)
        self.digest = digest


class Source(ABC):
    """Samples to label.

    Attributes
    ----------
    kind : {"image", "text", "numbers"}
        How a sample is shown.
    ids : Ids
        One for each sample.
    folder_labels : dict from id to label
        What the places of the samples say of their labels; empty where they say nothing.
    """

    kind: str = "numbers"
    ids: Ids
    folder_labels: dict[str, str]

    def __len__(self) -> int:
        return len(self.ids)

    @abstractmethod
    def samples(self) -> Any:
        """What a model is trained on: one row for each id."""

    def picture(self, position: int, size: int | None) -> tuple[bytes, str]:
        """A picture as bytes, at most ``size`` pixels wide and high, and its media type; SampleError if unreadable."""
        raise SampleError(
            f"A sample of kind {self.kind!r} has no picture. Got {self.ids[position]!r}. Show its text instead."
        )

    def text(self, position: int) -> str:
        """A sample in words."""
        name: str = self.ids[position]
        return name

    def check_readable(self) -> None:
        """Refuse a source of which no sample can be read; where all are in memory there is nothing to look at."""
        return

    def unreadable(self) -> dict[int, str]:
        """Positions found to be unreadable so far, and why."""
        return {}


def given_ids(ids: Any, n: int) -> list[str]:
    """Ids as text, distinct, one for each of n samples."""
    remedy = "Pass one name per sample."
    keys = [str(key) for key in as_list("label", "ids", ids, expected=f"a list of {n} ids", remedy=remedy)]
    if len(keys) != n or len(set(keys)) < len(keys):
        raise SampleError(
            f"The ids must be distinct, one for each of the {n} samples. Got {len(keys)} ids, {len(set(keys))} of them "
            f"distinct. {remedy}"
        )
    return keys


def known_labels(path: Path, ids: Sequence[str] | None) -> dict[str, str]:
    """Labels from a CSV or JSONL file with a column of ids and one of labels; files may be named without their folder.

    Parameters
    ----------
    path : path
    ids : list of str or None
        Of the samples. Lines about others are refused; with None all are taken.
    """
    table = read_table(path)
    key_column = next((name for name in ID_COLUMNS if name in table), None)
    label_column = next((name for name in LABEL_COLUMNS if name in table), None)
    if key_column is None or label_column is None:
        raise SampleError(
            f"{path} must have a column of ids ({', '.join(ID_COLUMNS)}) and one of labels "
            f"({', '.join(LABEL_COLUMNS)}). Got the columns {shorten(list(table))}. Rename two of them."
        )
    pairs = zip(table[key_column], table[label_column], strict=True)
    return resolve(path, [(str(key), str(label)) for key, label in pairs if not pd.isna(label) and label != ""], ids)


def resolve(path: Path, pairs: Iterable[tuple[str, str]], ids: Sequence[str] | None) -> dict[str, str]:
    """Labels by the ids of samples, from pairs in which files may be named without their folder, or with more of it."""
    if ids is None:
        return dict(pairs)
    own, by_name = set(ids), _by_name(ids)
    found: dict[str, str] = {}
    strangers = []
    for key, label in pairs:
        inside = key.replace("?d=", "/").split("/")  # Label Studio puts its own folders before a file
        endings = ["/".join(inside[i:]) for i in range(len(inside))]
        exact = next((ending for ending in endings if ending in own), None)
        places = [exact] if exact is not None else by_name.get(endings[-1], [])
        if len(places) > 1:
            raise SampleError(
                f"Every line of {path} must name one sample. Got {key!r}, and there are {len(places)} files of "
                f"that name: {shorten(places)}. Name the folder too, as in {places[0]!r}."
            )
        if not places:
            strangers.append(key)
            continue
        found[places[0]] = label
    if strangers:
        raise SampleError(
            f"Every line of {path} must name a sample. Got {len(strangers)} that are not there: {shorten(strangers)}. "
            "Delete these lines, or name the samples by their ids."
        )
    return found


def read_table(path: Path) -> pd.DataFrame:
    """A CSV, TSV or JSONL file, every cell as text; SampleError if it is none."""
    try:
        if path.suffix.lower() in (".jsonl", ".ndjson"):
            lines = path.read_text(encoding="utf-8").splitlines()
            return pd.DataFrame([dict(json.loads(line)) for line in lines if line.strip()])
        separator = "\t" if path.suffix.lower() == ".tsv" else ","
        return pd.read_csv(path, dtype=str, keep_default_na=False, sep=separator)
    except OSError as error:
        raise SampleError(f"{path} must be a file that can be read. Got: {error.strerror}. Check the path.") from error
    except (ValueError, TypeError) as error:
        raise SampleError(
            f"{path} must be a CSV or JSONL file in UTF-8. Got something else ({type(error).__name__}: {error}). "
            "Save it as such."
        ) from error


def _by_name(ids: Sequence[str]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for key in ids:
        names.setdefault(key.rsplit("/", 1)[-1], []).append(key)
    return names
