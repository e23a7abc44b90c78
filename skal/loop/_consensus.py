# SPDX-License-Identifier: BSD-3-Clause
"""What several people's answers come to: how far they agree, how reliable each is, and which label to take.

An array of answers has a row for each sample and a column for each person; −1 is "no answer".
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np


def cohen_kappa(first: np.ndarray, second: np.ndarray) -> float:
    """Agreement of two people beyond chance, on the samples that both have answered.

    Parameters
    ----------
    first, second : (n,) int array
        −1 is "no answer".

    Returns
    -------
    float
        1 if they always agree, 0 if they agree as often as chance would, NaN without a common sample.

    Examples
    --------
    >>> cohen_kappa(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0]))
    0.5
    """
    both = (first >= 0) & (second >= 0)
    if not both.any():
        return float("nan")
    a, b = first[both], second[both]
    n_classes = int(max(a.max(), b.max())) + 1
    observed = float((a == b).mean())
    expected = float(np.bincount(a, minlength=n_classes) @ np.bincount(b, minlength=n_classes)) / len(a) ** 2
    return 1.0 if expected == 1 else (observed - expected) / (1 - expected)


def krippendorff_alpha(answers: np.ndarray) -> float:
    """Agreement of any number of people beyond chance, for classes without an order.

    Parameters
    ----------
    answers : (n, p) int array
        −1 is "no answer".

    Returns
    -------
    float
        1 if all agree; NaN if no sample has two answers.

    Examples
    --------
    >>> krippendorff_alpha(np.array([[0, 0], [1, 1], [0, -1]]))
    1.0
    """
    counts = _counts(answers)
    counts = counts[counts.sum(axis=1) > 1]
    if len(counts) == 0:
        return float("nan")
    per_sample, per_class = counts.sum(axis=1), counts.sum(axis=0)
    n = counts.sum()
    observed = ((per_sample**2 - (counts**2).sum(axis=1)) / (per_sample - 1)).sum() / n
    expected = (n**2 - (per_class**2).sum()) / (n * (n - 1))
    return 1.0 if expected == 0 else float(1 - observed / expected)


def dawid_skene(
    answers: np.ndarray, n_classes: int, *, prior: float = 20.0, n_iter: int = 100, tol: float = 1e-6
) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities of the true classes, and each person's confusions, by the EM algorithm of Dawid and Skene (1979).

    Parameters
    ----------
    answers : (n, p) int array
        −1 is "no answer".
    n_classes : int
    prior : float, default=20.0
        Answers that everybody is taken to have given beforehand in each true class, as many of them right as over all
        classes: few answers say how reliable somebody is, not in which classes. With 0 it is the paper's estimate.
    n_iter : int, default=100
    tol : float, default=1e-6
        Ends when no probability moves by more.

    Returns
    -------
    posterior : (n, n_classes) array
    confusion : (p, n_classes, n_classes) array
        ``confusion[k, true, said]``; rows sum to 1.

    Examples
    --------
    >>> answers = np.array([[0, 0, 1], [1, 1, 0], [0, 0, 0], [1, 1, 1], [0, 1, 1]])
    >>> posterior, confusion = dawid_skene(answers, 2)
    >>> posterior.argmax(axis=1).tolist()
    [0, 1, 0, 1, 1]
    """
    n_people = answers.shape[1]
    said = (answers[:, :, None] == np.arange(n_classes)).astype(np.float64)  # (n, p, C)
    totals = said.sum(axis=1)
    posterior = totals / np.maximum(totals.sum(axis=1, keepdims=True), 1)
    posterior[totals.sum(axis=1) == 0] = 1 / n_classes
    diagonal = np.eye(n_classes, dtype=bool)
    confusion = np.empty((n_people, n_classes, n_classes))
    for _ in range(n_iter):
        confusion = np.einsum("nt,nps->pts", posterior, said)
        right = (np.einsum("ptt->p", confusion) + 3) / (confusion.sum(axis=(1, 2)) + 4)  # three of four, to begin with
        confusion += prior * np.where(
            diagonal, right[:, None, None], ((1 - right) / max(n_classes - 1, 1))[:, None, None]
        )
        confusion /= np.maximum(confusion.sum(axis=2, keepdims=True), np.finfo(float).tiny)
        shares = posterior.sum(axis=0) + (prior > 0)
        logs = np.log(np.maximum(shares / shares.sum(), 1e-300))
        logs = logs + np.einsum("nps,pts->nt", said, np.log(np.maximum(confusion, 1e-300)))
        before, posterior = posterior, np.exp(logs - logs.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)
        if np.abs(posterior - before).max(initial=0.0) < tol:
            break
    return posterior, confusion


def code_answers(said: Mapping[Any, Mapping[Any, Any]]) -> tuple[np.ndarray, list[Any], list[Any], list[Any]]:
    """Answers as an array, with the samples, people and classes that its rows, columns and numbers stand for.

    Parameters
    ----------
    said : dict from sample to dict from person to label
        None is "cannot say", which is no answer here. Labels that are rows count as wholes.

    Examples
    --------
    >>> code_answers({"a": {"ann": "cat", "ben": "dog"}, "b": {"ben": "cat"}})[0].tolist()
    [[0, 1], [-1, 0]]
    """
    people = list(dict.fromkeys(person for each in said.values() for person in each))
    classes = list(dict.fromkeys(_plain(label) for each in said.values() for label in each.values()))
    classes = [label for label in classes if label is not None]
    column = {person: i for i, person in enumerate(people)}
    number = {label: i for i, label in enumerate(classes)}
    answers = np.full((len(said), len(people)), -1, dtype=np.int64)
    for row, each in enumerate(said.values()):
        for person, label in each.items():
            if label is not None:
                answers[row, column[person]] = number[_plain(label)]
    return answers, list(said), people, classes


def weigh_answers(said: Mapping[Any, Mapping[Any, Any]]) -> dict[Any, Any]:
    """The label of every sample on which people differ: the majority, each weighed by how reliable they have been.

    Reliability is estimated from the samples that have several answers. The label is one that somebody has given; of
    two that are as probable, the one that was given first.

    Examples
    --------
    >>> weigh_answers({"a": {"ann": "cat", "ben": "cat"}, "b": {"ann": "cat", "ben": "dog", "eve": "dog"}})
    {'b': 'dog'}
    """
    several = {key: each for key, each in said.items() if sum(label is not None for label in each.values()) > 1}
    answers, keys, _, classes = code_answers(several)
    if not keys:
        return {}
    posterior, _ = dawid_skene(answers, len(classes))
    chosen: dict[Any, Any] = {}
    for row, key in enumerate(keys):
        given = [label for label in several[key].values() if label is not None]
        if any(_plain(label) != _plain(given[0]) for label in given):
            number = {_plain(label): classes.index(_plain(label)) for label in given}
            # rounding must not decide between two that are as probable
            chosen[key] = max(given, key=lambda label: round(float(posterior[row, number[_plain(label)]]), 9))
    return chosen


def _counts(answers: np.ndarray) -> np.ndarray:
    """(n, C) how often each sample was given each class."""
    classes = np.arange(int(answers.max(initial=0)) + 1)
    counts: np.ndarray = (answers[:, :, None] == classes).sum(axis=1).astype(np.float64)
    return counts


def _plain(label: Any) -> Hashable:
    return tuple(label) if isinstance(label, list) else label
