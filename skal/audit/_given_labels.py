# SPDX-License-Identifier: BSD-3-Clause
"""Labels from elsewhere, by a language model, a crowd or an old system: how many are wrong, and which are doubtful."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skal.audit._arguments import (
    check_confidence,
    read_answers,
    read_confidences,
    read_positions,
    read_probabilities,
)
from skal.audit._design import guess_errors
from skal.audit._drawn import check_draw
from skal.audit._estimate import Audit, Estimate, estimate_mean
from skal.exceptions import InvalidParameterError, UnknownLabelsWarning, shorten

_SHOWN = 5  # labels in a message


@dataclass(frozen=True)
class ErrorEstimate(Estimate):
    """The share of errors among labels from elsewhere, with its interval.

    Attributes
    ----------
    estimate : float
        The estimate.
    low, high : float
        The interval.
    confidence : float
        How sure it is that the interval holds the true value.
    n_labels : int
        How many audited samples it comes from.
    method : str
        How the interval was made, as in :class:`Estimate`.
    doubtful : int64 array
        As many samples as errors are expected among those that were not audited, the most doubtful first; empty
        without scores.

    Examples
    --------
    >>> from skal.audit import ErrorEstimate
    >>> print(ErrorEstimate(0.04, 0.031, 0.05, confidence=0.95, n_labels=400, method="likelihood"))
    3.1 to 5.0 %, 95 % sure, from 400 audited labels
    """

    doubtful: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __str__(self) -> str:
        return super().__str__()


def errors(
    given: Any, positions: Any, labels: Any, probabilities: Any, confidence: float = 0.95, *, scores: Any = None
) -> ErrorEstimate:
    """Estimate how many labels from elsewhere are wrong.

    Parameters
    ----------
    given : array-like of shape (N,)
        The labels that are audited: numbers, strings, or others that are equal or not.
    positions : array-like of shape (m,)
        The audited samples: from ``plan(N, m, uniform=True)``, or from ``plan(scores, m)``.
    labels : array-like of shape (m,)
        Their labels by people. Another type is refused, and a warning names those that no given label has: then one
        of them may be spelt in another way.
    probabilities : array-like of shape (m,)
        Their inclusion probabilities.
    confidence : float, default=0.95
        How sure the interval should be.
    scores : array-like of shape (N,) or None, default=None
        How sure it is that each label is right, from 0 to 1. Scores that are wrong make the interval wide, not wrong.

    Returns
    -------
    ErrorEstimate
        The share of errors with its interval, and the doubtful labels if there are scores.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit import errors, plan
    >>> rng = np.random.default_rng(0)
    >>> true = rng.choice(["cat", "dog"], 10_000)
    >>> given = np.where(rng.random(10_000) < 0.04, "cat", true)  # every fiftieth is wrong
    >>> positions, probabilities = plan(10_000, 400, uniform=True, random_state=0)
    >>> print(errors(given, positions, true[positions], probabilities))
    1.6 to 5.1 %, 95 % sure, from 400 audited labels
    """
    check_confidence("errors", confidence)
    array = np.asarray(given)
    if array.ndim != 1 or len(array) == 0:
        remedy = "Pass one label for each sample."
        raise InvalidParameterError.for_parameter("errors", "given", "labels of shape (N,)", array.shape, remedy)
    n = len(array)
    at = read_positions("errors", positions, n)
    chance = read_probabilities("errors", probabilities, len(at))
    answers = read_answers("errors", labels, len(at))
    compare_labels(array, answers)
    wrong = (array[at] != answers).astype(np.float64)
    sure = None if scores is None else read_confidences("errors", scores, "scores")
    if sure is not None and len(sure) != n:
        remedy = "Pass one score for each label, or None."
        raise InvalidParameterError.for_parameter("errors", "scores", f"{n} numbers", len(sure), remedy)
    audit = Audit(n, at, chance, check_draw("errors", sure, n, at, chance))
    expected = np.zeros(n) if sure is None else guess_errors(sure)
    found = estimate_mean(audit, expected, wrong, 0.0, 1.0, confidence)
    doubtful = np.zeros(0, dtype=np.int64)
    if sure is not None:
        order = np.argsort(sure, kind="stable")
        order = order[~np.isin(order, at)]
        doubtful = order[: round(found.estimate * n - wrong.sum())].astype(np.int64)
    return ErrorEstimate(found.estimate, found.low, found.high, confidence, len(at), found.method, doubtful)


def compare_labels(given: NDArray[Any], answers: NDArray[Any]) -> None:
    """Refuse answers of another type than the given labels, and warn of those that are no given label at all."""
    expected, got = say_types(given), say_types(answers)
    if not got <= expected:
        words = f"{' and '.join(sorted(expected))}, as the given labels"
        remedy = "Convert one of them: '1' and 1 are never the same label."
        raise InvalidParameterError.for_parameter("errors", "labels", words, " and ".join(sorted(got)), remedy)
    known = set(given.tolist())
    unknown = [label for label in answers.tolist() if label not in known]
    if unknown:
        names = [shorten(label) for label in sorted(set(unknown), key=repr)]
        shown = ", ".join(names[:_SHOWN] + ["..."] * (len(names) > _SHOWN))
        text = (
            f"{len(unknown)} of the {len(answers)} audited samples have labels that no given label has: {shown}. "
            "They count as errors. Spell the labels of both alike, also capitals and spaces, if these are no classes "
            "of their own."
        )
        warnings.warn(text, UnknownLabelsWarning, stacklevel=3)


def say_types(labels: NDArray[Any]) -> set[str]:
    """Which types labels have, in words; those of two types are never equal.

    Examples
    --------
    >>> say_types(np.array([1, 2.5])), say_types(np.array(["1"])), sorted(say_types(np.array(["1", 2], dtype=object)))
    ({'numbers'}, {'strings'}, ['numbers', 'strings'])
    """
    words: dict[Any, str] = {str: "strings", bytes: "bytes"}
    numbers = (bool, int, float, complex, np.number, np.bool_)
    types = set(map(type, labels.tolist()))
    return {"numbers" if issubclass(each, numbers) else words.get(each, each.__name__) for each in types}
