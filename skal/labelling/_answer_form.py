# SPDX-License-Identifier: BSD-3-Clause
"""What people answer: one class, several at once, or a number; and how the journal, the page and files have it.

============== =================== ===================================
task           journal             page and files
============== =================== ===================================
classification ``"cat"``           ``"cat"``
multilabel     ``[1, 0, 1]``       ``["cat", "dog"]``, the classes that hold
regression     ``3.5``             ``3.5``
============== =================== ===================================

Which classes the numbers of a row are of, the journal says itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from skal._files.json_text import format_json, parse_json
from skal._vocabulary import CLASSIFICATION, MULTILABEL, REGRESSION, TASKS, Task
from skal.exceptions import CheckpointError, InvalidParameterError, shorten
from skal.validation import Choice, Real

if TYPE_CHECKING:
    from skal.loop._journal import Journal

_SETTINGS = ("task", "unit", "low", "high")


@dataclass(frozen=True)
class AnswerForm:
    """The form of an answer: a class, several, or a number.

    Attributes
    ----------
    task : {"classification", "multilabel", "regression"}
    unit : str
        Of numbers, for people.
    low, high : float or None
        Between which numbers are; with both there is a slider.

    Examples
    --------
    >>> form = AnswerForm("multilabel")
    >>> form.read(["dog"], ["cat", "dog"]), form.show([1, 0], ["cat", "dog"])
    ([0, 1], ['cat'])
    >>> AnswerForm("regression", low=0.0).read("2.5", [])
    2.5
    """

    task: Task = CLASSIFICATION
    unit: str = ""
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        Choice(*TASKS).check("label", "task", self.task)
        for name, value in (("low", self.low), ("high", self.high)):
            if value is not None:
                Real().check("label", f"bounds ({name})", value)
        if self.low is not None and self.high is not None and self.low >= self.high:
            got, remedy = (self.low, self.high), "Pass for example bounds=(0, 100)."
            raise InvalidParameterError.for_parameter("label", "bounds", "the lower one first", got, remedy)
        if self.task != REGRESSION and (self.unit or self.low is not None or self.high is not None):
            remedy = "Leave unit and bounds out, or say task='regression'."
            raise InvalidParameterError.for_parameter("label", "unit", f"left out with {self.task}", self.unit, remedy)

    @classmethod
    def of(cls, settings: dict[str, Any]) -> AnswerForm:
        """The form that a folder's settings describe."""
        return cls(**{name: settings[name] for name in _SETTINGS if settings.get(name) is not None})

    def settings(self) -> dict[str, Any]:
        """The settings that a folder keeps."""
        return {name: getattr(self, name) for name in _SETTINGS}

    def read(self, said: Any, classes: Sequence[str]) -> Any:
        """The label of the journal for what the page or a file says; refused in words."""
        if self.task == REGRESSION:
            return self._read_number(said)
        if self.task == MULTILABEL:
            return self._read_names(said, classes)
        if not isinstance(said, str):
            raise InvalidParameterError.for_parameter("answer", "label", "a text", said, "Reload the page.")
        if said not in classes:
            remedy = "Add the class first."
            raise InvalidParameterError.for_parameter("answer", "label", f"one of {list(classes)}", said, remedy)
        return said

    def check_journal(self, journal: Journal) -> None:
        """Refuse a folder whose labels are of another task."""
        for key, event in journal.known.items():
            label = event["label"]
            task = MULTILABEL if isinstance(label, list) else REGRESSION if isinstance(label, float) else CLASSIFICATION
            if label is not None and task != self.task:
                raise CheckpointError(
                    f"The labels in {journal.path} must be of the task {self.task!r}. Got {shorten(label)} for "
                    f"{shorten(key)}. Say task={task!r}, or choose another folder."
                )

    def parse(self, text: Any, classes: Sequence[str]) -> Any:
        """The label of the journal for a cell of a table, where rows and lists are JSON."""
        if self.task == CLASSIFICATION:
            return str(text)
        if self.task == MULTILABEL and isinstance(text, str):
            try:
                text = parse_json(text.encode())
            except ValueError:
                text = [name.strip() for name in text.split("|")]
        return self.read(text, classes)

    def show(self, label: Any, classes: Sequence[str]) -> Any:
        """A label of the journal as the page and files show it."""
        if isinstance(label, list) and self.task == MULTILABEL and -1 not in label:  # known in part: as it is
            if len(label) != len(classes):
                remedy = "Name all of the classes that the project began with."
                raise InvalidParameterError.for_parameter("label", "classes", f"{len(label)} names", classes, remedy)
            return [name for name, holds in zip(classes, label, strict=True) if holds]
        return label

    def say(self, label: Any, classes: Sequence[str]) -> str:
        """A label in words.

        Examples
        --------
        >>> AnswerForm("regression", unit="m²").say(3.0, []), AnswerForm("multilabel").say([0, 0], ["cat", "dog"])
        ('3 m²', 'none of them')
        """
        if self.task == REGRESSION:
            return f"{label:g} {self.unit}".strip()
        shown = self.show(label, classes)
        return (", ".join(map(str, shown)) or "none of them") if isinstance(shown, list) else str(shown)

    def suit(self, estimator: Any) -> Any:
        """The estimator for this task in the place of a linear classifier; others as they are, if they fit."""
        if self.task == CLASSIFICATION:
            return estimator
        # not for those who only ask what an answer may be
        from sklearn.linear_model import LogisticRegression, RidgeCV
        from sklearn.multioutput import MultiOutputClassifier
        from sklearn.pipeline import Pipeline

        from skal._core.tasks import find_task

        steps = list(estimator.steps) if isinstance(estimator, Pipeline) else [("linear", estimator)]
        if isinstance(steps[-1][1], LogisticRegression):
            name, last = steps[-1]
            own = RidgeCV(np.logspace(-3, 3, 7)) if self.task == REGRESSION else MultiOutputClassifier(last)
            return Pipeline([*steps[:-1], (name, own)])
        found = find_task(estimator)
        if found != self.task:
            expected = "a regressor" if self.task == REGRESSION else "a classifier of several labels"
            remedy = "Use model='linear'." if self.task == REGRESSION else "Wrap it in MultiOutputClassifier."
            if found == REGRESSION:
                remedy = "Say task='regression' to label numbers."
            raise InvalidParameterError.for_parameter("label", "model", expected, estimator, remedy)
        return estimator

    def _read_number(self, said: Any) -> float:
        low, high = (-math.inf if self.low is None else self.low), (math.inf if self.high is None else self.high)
        try:
            number = math.nan if isinstance(said, bool) else float(said)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number) or not low <= number <= high:
            bounds = [f"at least {low:g}"] * (low > -math.inf) + [f"at most {high:g}"] * (high < math.inf)
            expected = " ".join(["a finite number,", " and ".join(bounds)]).rstrip(" ,")
            raise InvalidParameterError.for_parameter("answer", "label", expected, said, "Write it anew.")
        return number

    def _read_names(self, said: Any, classes: Sequence[str]) -> list[int]:
        if (
            isinstance(said, list)
            and len(said) == len(classes)
            and all(type(x) is int and x in (-1, 0, 1) for x in said)
        ):
            return list(said)
        names = said if isinstance(said, list) else None
        if names is None or not all(isinstance(name, str) and name in classes for name in names):
            expected, remedy = f"a list of classes among {list(classes)}", "Name each class that holds."
            raise InvalidParameterError.for_parameter("answer", "label", expected, shorten(said), remedy)
        return [int(name in names) for name in classes]


def write_cell(label: Any) -> Any:
    """A label in a cell of a table: lists as JSON."""
    return format_json(label) if isinstance(label, list) else label
