# SPDX-License-Identifier: BSD-3-Clause
"""What every source has, and labels that come along in a file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from skal.exceptions import SampleError, shorten
from skal.labelling._sources._columns import read_pairs
from skal.validation import as_list


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
    kind : {"image", "text", "numbers", "table"}
        How a sample is shown.
    ids : Ids
        One for each sample.
    left_out : sequence of str
        Files beside the samples that are of no kind we read.
    chosen : dict
        For :func:`open_source`: which columns of a file the samples are, so that it is read alike the next time.
    """

    kind: str = "numbers"
    ids: Ids
    left_out: Sequence[str] = ()
    chosen: Mapping[str, Any] = MappingProxyType({})

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def folder_labels(self) -> dict[str, str]:
        """The labels that the samples' folders give, by id; empty if they give none."""
        return {}

    @abstractmethod
    def samples(self) -> Any:
        """The rows that a model is trained on, one for each id."""

    @abstractmethod
    def originals(self, rows: Sequence[int]) -> Any:
        """Samples as a user has them, which is what a saved model takes: paths, texts or arrays."""

    def picture(self, position: int, size: int | None) -> tuple[bytes, str]:
        """A picture as bytes, at most ``size`` pixels wide and high, and its media type; SampleError if unreadable."""
        raise SampleError(
            f"A sample of kind {self.kind!r} has no picture. Got {self.ids[position]!r}. Show its text instead."
        )

    def text(self, position: int) -> str:
        """A sample in words."""
        name: str = self.ids[position]
        return name

    def cells(self, position: int) -> list[tuple[str, str]]:
        """Names and contents of the columns of a row, empty for what is no row of a table."""
        return []

    def fields(self, position: int) -> dict[str, Any]:
        """The columns that a file of labels has for a sample beside its id."""
        return {}

    def n_bytes(self, position: int) -> int:
        """Bytes of a sample that is a file: only files of one size can be copies. 0 for others."""
        return 0

    def copies(self) -> list[list[int]]:
        """Positions of samples that are the same, byte for byte, for every content that there is more than once."""
        sizes: dict[int, list[int]] = {}
        for position in range(len(self)):
            sizes.setdefault(self.n_bytes(position), []).append(position)
        groups: dict[str, list[int]] = {}
        for same in sizes.values():
            for position in same if len(same) > 1 else ():
                digest = self.ids.digest(position)
                if digest is not None:
                    groups.setdefault(digest, []).append(position)
        return [group for group in groups.values() if len(group) > 1]

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


def known_labels(path: Path, ids: Sequence[str]) -> dict[str, str]:
    """Labels from a CSV, TSV or JSONL file with a column of ids and one of labels; lines about others are refused."""
    return resolve(path, [(str(key), str(label)) for key, label in read_pairs(path)], ids)


def resolve(
    path: Path,
    pairs: Iterable[tuple[Any, Any]],
    ids: Sequence[str] | None,
    texts: Sequence[str] | None = None,
    names_used: dict[Any, list[Any]] | None = None,
) -> dict[Any, Any]:
    """Labels by the ids of samples, of which each has one label.

    Parameters
    ----------
    path : path
        Where the pairs are from.
    pairs : iterable of (id, label)
        Samples may be named otherwise: files without their folder, or with more of it, and texts by themselves.
    ids : list of str or None
        Of the samples; others are refused. With None all are taken as they are.
    texts : list of str or None, default=None
        Of the samples, if that is what they are.
    names_used : dict or None, default=None
        Gets, for every id, what the file calls the sample.
    """
    own, names = ({}, {}) if ids is None else (dict.fromkeys(ids), _by_name(ids, texts))
    found: dict[Any, Any] = {}
    strangers = []
    for key, label in pairs:
        places = [key] if ids is None or key in own else names.get(key) or _find_file(key, own, names)
        if len(places) > 1:
            raise SampleError(
                f"Every line of {path} must name one sample. Got {shorten(key)}, and there are {len(places)} "
                f"{'files' if texts is None else 'texts'} of that name: {shorten(places)}. "
                f"Name the {'folder too' if texts is None else 'id'}, as in {shorten(places[0])}."
            )
        if places and names_used is not None:
            names_used.setdefault(places[0], []).append(key)
        if not places:
            strangers.append(key)
        elif found.setdefault(places[0], label) != label:
            raise SampleError(
                f"{path} must have one label for every sample. Got {shorten(found[places[0]])} and {shorten(label)} "
                f"for {shorten(key)}. Delete one of them."
            )
    if strangers:
        raise SampleError(
            f"Every line of {path} must name a sample. Got {len(strangers)} that are not there: {shorten(strangers)}. "
            "Delete these lines, or name the samples by their ids."
        )
    return found


def _by_name(ids: Sequence[str], texts: Sequence[str] | None) -> dict[str, list[str]]:
    """Ids by what else a sample may be called: its text, or its file without the folder."""
    names: dict[str, list[str]] = {}
    for key, name in zip(ids, (key.rsplit("/", 1)[-1] for key in ids) if texts is None else texts, strict=True):
        names.setdefault(name, []).append(key)
    return names


def _find_file(key: str, own: Container[str], names: dict[str, list[str]]) -> list[str]:
    """The files that a path may stand for."""
    inside = key.replace("?d=", "/").split("/")  # Label Studio puts its own folders before a file
    endings = ["/".join(inside[i:]) for i in range(len(inside))]
    exact = next((ending for ending in endings if ending in own), None)
    return [exact] if exact is not None else names.get(endings[-1], [])
