# SPDX-License-Identifier: BSD-3-Clause
"""Several people on one project: which samples two of them see, how far they agree, and where a second look pays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from skal.exceptions import InvalidParameterError
from skal.labelling._options import LIMITS
from skal.validation import as_list

if TYPE_CHECKING:
    from skal.loop._journal import Journal

_LONGEST = 60  # letters of a name


class Team:
    """The people, and the samples that wait for a second opinion.

    Parameters
    ----------
    people : list of str
        The first decides on disputes, unless somebody else is named.
    overlap : float, default=0.1
        Share of the samples that two people label.
    decider : str or None, default=None

    Examples
    --------
    >>> team = Team(["ann", "ben"], overlap=1.0)
    >>> team.note("a.jpg", {"ann": "cat"})
    >>> list(team.seconds({})), team.decider
    (['a.jpg'], 'ann')
    """

    # benchmarks/second_opinions.py says what these two are worth
    PAYS = 0.2  # a second look at a doubtful label must show another one in at least this share of cases
    SHARE = 0.2  # and given to at most this share of the samples

    def __init__(self, people: Sequence[str], overlap: float = 0.1, decider: str | None = None) -> None:
        LIMITS["overlap"].check("label", "overlap", overlap)
        expected, remedy = "a list of distinct names", "Pass for example team=['ann', 'ben']."
        names = as_list("label", "team", people, expected=expected, remedy=remedy)
        good = [name for name in names if isinstance(name, str) and 0 < len(name.strip()) <= _LONGEST]
        if len(good) < len(names) or len(set(names)) < len(names):
            raise InvalidParameterError.for_parameter("label", "team", expected, people, remedy)
        if decider is not None and decider not in names:
            among = f"one of {names}" if names else "left out without a team"
            remedy = "Add the name to the team." if names else "Name the team, too: several people."
            raise InvalidParameterError.for_parameter("label", "decider", among, decider, remedy)
        self.people, self.overlap = list(names), overlap
        self.decider = decider or (names[0] if names else None)
        self._waiting: dict[Any, None] = {}  # samples of the overlap with one answer
        self._doubtful: dict[Any, None] = {}
        self._answered: set[Any] = set()
        self._looks: dict[Any, bool] = {}  # second looks at doubtful labels, and whether they showed another one

    def __bool__(self) -> bool:
        return bool(self.people)

    def is_shared(self, key: Any) -> bool:
        """True if a sample goes to two people; this is random, but always the same for the same sample."""
        number = int.from_bytes(blake2b(str(key).encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        return number < self.overlap * 2**64

    def resume(self, journal: Journal) -> None:
        """Take up what the journal says."""
        for key, said in journal.answers.items():
            self.note(key, {} if key in journal.decided else {who: event["label"] for who, event in said.items()})

    def note(self, key: Any, said: Mapping[str, Any]) -> None:
        """Take note of the labels that people have given a sample so far."""
        self._answered.add(key)
        if len(said) == 1 and self.is_shared(key):
            self._waiting[key] = None
        else:
            self._waiting.pop(key, None)
        if len(said) != 1:
            self._doubtful.pop(key, None)
        if len(said) > 1 and not self.is_shared(key):
            self._looks[key] = len({str(label) for label in said.values()}) > 1

    def doubt(self, keys: Iterable[Any]) -> None:
        """Labels with one answer that models doubt which were trained without them, the most doubtful first."""
        self._doubtful = dict.fromkeys(keys)

    @property
    def pays(self) -> bool:
        """True while a second look at a doubtful label is worth a new sample; the first ones are taken to find out."""
        often = (sum(self._looks.values()) + 2) / (len(self._looks) + 4) >= self.PAYS
        return often and len(self._looks) < self.SHARE * len(self._answered)

    def seconds(self, skip: Mapping[Any, Any]) -> Iterable[Any]:
        """Ids that wait for a second opinion, the doubtful ones first as far as that pays."""
        found = {**(self._doubtful if self.pays else {}), **self._waiting}
        return (key for key in found if key not in skip)


def describe_agreement(journal: Journal, people: Sequence[str]) -> dict[str, Any]:
    """How far people agree on samples that several of them have answered.

    Returns
    -------
    dict
        ``alpha`` (Krippendorff's, None without a common sample), ``common`` (samples), ``pairs`` with Cohen's
        ``kappa``, and how many ``answers`` each person has given.
    """
    from skal.loop._consensus import code_answers, cohen_kappa, krippendorff_alpha  # not to check names alone

    said = {key: {who: event["label"] for who, event in each.items()} for key, each in journal.answers.items()}
    counts = {name: sum(name in each for each in said.values()) for name in people}
    answers, _, found, _ = code_answers({key: each for key, each in said.items() if len(each) > 1})
    column = {name: i for i, name in enumerate(found)}
    pairs = []
    for first, second in combinations([name for name in people if name in column], 2):
        a, b = answers[:, column[first]], answers[:, column[second]]
        common = int(((a >= 0) & (b >= 0)).sum())
        if common:
            pairs.append({"people": [first, second], "kappa": cohen_kappa(a, b), "common": common})
    alpha = krippendorff_alpha(answers) if answers.size else float("nan")
    several = int(((answers >= 0).sum(axis=1) > 1).sum()) if answers.size else 0
    return {"alpha": None if np.isnan(alpha) else alpha, "common": several, "pairs": pairs, "answers": counts}
