# SPDX-License-Identifier: BSD-3-Clause
"""The samples of a project that nobody has labelled, with what its model says of them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Any

from skal.exceptions import SampleError
from skal.labelling._formats import MODEL
from skal.labelling._predict import check_kind, predict_parts, project_model
from skal.labelling._settings import chosen_columns, read_settings
from skal.labelling._sources import Source, open_source


def project_source(folder: Path, source: Any = None) -> Source:
    """The samples of a project, from where its settings say, or from where the user says."""
    settings = read_settings(folder)
    name = source if source is not None else settings.get("source")
    if name is None or not Path(name).exists():
        got = "none in its settings" if name is None else f"{name}, which is not there"
        raise SampleError(
            f"The samples of {folder} must be at hand for this. Got {got}. Say where they are: --source PATH."
        )
    found = open_source(name, **chosen_columns(settings))
    check_kind(folder, found)
    return found


def predict_rest(
    folder: Path,
    source: Source,
    labelled: Container[Any],
    *,
    trusted: Iterable[str] = (),
    advance: Callable[[int], Any] = lambda n: None,
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Rows for an export, one for each sample without a label, and the files that could not be read.

    Parameters
    ----------
    folder : path
        Of ``skal label``.
    source : Source
        Its samples.
    labelled : set
        Ids that have a label.
    trusted : iterable of str
        Names for :func:`skal.load_model`.
    advance : callable
        Called with the number of samples that are done.
    """
    model = project_model(folder, trusted)
    rows = [position for position, key in enumerate(source.ids) if key not in labelled]
    unreadable: dict[int, str] = {}
    found = []
    for part in predict_parts(model, source, rows, unreadable):
        found += [
            {
                "id": source.ids[one.position],
                "label": _plain(one.label),
                "source": MODEL,
                "probability": one.probability,
            }
            for one in part
        ]
        advance(len(part))
    return found, {source.ids[position]: why for position, why in unreadable.items()}


def _plain(label: Any) -> Any:
    """A label as an export has it: numbers and rows as they are, classes by name."""
    return label if isinstance(label, (float, list)) else str(label)
