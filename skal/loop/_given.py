# SPDX-License-Identifier: BSD-3-Clause
"""Labels that come from outside a round: from before the start, or told for samples by their ids."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from skal.exceptions import CheckpointError, InvalidParameterError, InvalidTypeError, shorten
from skal.loop._identity import SampleIds, plain_id
from skal.loop._labels import read_labels

if TYPE_CHECKING:
    from skal.loop._checkpoint import RunCheckpoint
    from skal.loop._config import LoopConfig


def new_given_labels(config: LoopConfig, store: RunCheckpoint) -> tuple[list[tuple[int, Any]], str | None]:
    """(position, label) of those labels in y that the journal does not have, and their type; contradictions refused."""
    values, dtype = read_labels(config.given, config.no_given_label)
    if dtype is not None and np.dtype(dtype).kind == "f" and None in values:  # integers, but for the gaps
        values, dtype = [None if value is None else int(value) for value in values], "<i8"
    rows = [i for i, value in enumerate(values) if value is not None]
    keys, journal = store.ids.of(rows), store.journal
    other = [
        key
        for i, key in zip(rows, keys, strict=True)
        if key in journal.earlier and values[i] not in journal.earlier[key]
    ]
    if other:
        raise CheckpointError(
            f"The labels in y must be those of {journal.path}, where samples have one. Got others for "
            f"{shorten(other)}. Leave y out, and use relabel to change labels."
        )
    return [(i, values[i]) for i, key in zip(rows, keys, strict=True) if key not in journal.earlier], dtype


def positions_of(owner: str, keys: Any, ids: SampleIds) -> list[int]:
    """Where the samples of these ids stand; unknown ones refused."""
    takes_labels = owner in ("relabel", "add")
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Mapping if takes_labels else Iterable):
        expected = "a dict from id to label" if takes_labels else "a list of ids"
        raise InvalidTypeError.for_parameter(owner, "ids", expected, keys, "See session.ids.")
    found = {plain_id(key): ids.position(key) for key in keys}
    unknown = [key for key, position in found.items() if position is None]
    if unknown:
        expected, remedy = "ids of samples in X", "session.ids has the id of every position."
        raise InvalidParameterError.for_parameter(owner, "ids", expected, unknown, remedy)
    return [position for position in found.values() if position is not None]


def labels_by_id(owner: str, labels: Mapping[Any, Any], no_label: int | None) -> tuple[list[Any], str | None]:
    """The labels of a dict from id to label, and their type; a gap is refused."""
    values, dtype = read_labels(list(labels.values()), no_label)
    missing = [key for key, value in zip(labels, values, strict=True) if value is None]
    if missing:
        expected, remedy = "a label for every id", "Use decline to take labels back."
        raise InvalidParameterError.for_parameter(owner, "labels", expected, f"none for {missing}", remedy)
    return values, dtype


def check_answer(positions: list[Any], values: list[Any], unanswered: list[int]) -> None:
    """Refuse answers to what was not asked."""
    if not unanswered and values:
        raise InvalidParameterError(
            f"The samples told must be among those asked for. Got {len(values)} labels while nothing is asked for. "
            "Call ask() first."
        )
    if len(positions) != len(values):
        raise InvalidParameterError(
            f"The labels must be one for each of the {len(positions)} samples. Got {len(values)} instead. "
            "Put None where there is no label, or name the samples with indices."
        )
    if set(positions) - set(unanswered) or len(set(positions)) != len(positions):
        raise InvalidParameterError(
            f"The samples told must be distinct and among those asked for ({shorten(unanswered)}). "
            f"Got {shorten(positions)} instead. Call ask() for the open ones."
        )
