# SPDX-License-Identifier: BSD-3-Clause
"""What a stopping criterion is, and how several make one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from sklearn.base import BaseEstimator

from skal.exceptions import InvalidTypeError
from skal.validation import Constrained

Rows = Sequence[dict[str, Any]]


class StoppingCriterion(Constrained, BaseEstimator, ABC):
    """A reason to stop, decided from the history of a loop alone: so a resumed run decides as the first one would have.

    A criterion of your own writes ``reason``, and sets what it needs.

    Attributes
    ----------
    constraints : dict
        For each parameter what it may be, as a :class:`skal.validation.Constraint`.
    watches : bool
        Whether every model must predict a fixed random part of the pool: the columns ``agreement``,
        ``uncertainty_mean`` and ``uncertainty_max`` of the history.
    share : float
        Which share of the labels must be drawn at random and held out: ``heldout_score`` and ``n_heldout``.

    Examples
    --------
    >>> from skal.stopping import StoppingCriterion
    >>> class Rounds(StoppingCriterion):
    ...     def __init__(self, n):
    ...         self.n = n
    ...
    ...     def reason(self, history, n_labelled):
    ...         return f"{len(history)} rounds" if len(history) >= self.n else None
    >>> (Rounds(2) & Rounds(3)).reason([{"n_labelled": 5}] * 3, 15)
    '3 rounds and 3 rounds'
    """

    watches: bool = False
    share: float = 0.0

    @abstractmethod
    def reason(self, history: Rows, n_labelled: int) -> str | None:
        """Why to stop now, None to go on.

        Parameters
        ----------
        history : list of dict
            One row a round, the last one last; never empty.
        n_labelled : int
            Labels now: some may have come after the last round.
        """

    def parts(self) -> Iterator[StoppingCriterion]:
        """The criteria that this one is made of: itself, unless it is a combination.

        Yields
        ------
        StoppingCriterion
            Itself, or the parts of each part of a combination.
        """
        yield self

    def __or__(self, other: StoppingCriterion) -> AnyOf:
        return AnyOf(_flat(AnyOf, self, other))

    def __and__(self, other: StoppingCriterion) -> AllOf:
        return AllOf(_flat(AllOf, self, other))


def _flat(kind: type[_Combination], *criteria: Any) -> list[StoppingCriterion]:
    for criterion in criteria:
        if not isinstance(criterion, StoppingCriterion):
            remedy = "Combine criteria of skal.stopping, such as Budget(200) | MaxTime(3600)."
            raise InvalidTypeError.for_parameter(kind.__name__, "criteria", "stopping criteria", criterion, remedy)
    return [part for each in criteria for part in (each.criteria if isinstance(each, kind) else [each])]


class _Combination(StoppingCriterion):
    """Several criteria.

    Parameters
    ----------
    criteria : list of StoppingCriterion
    """

    _sign = ""

    def __init__(self, criteria: Sequence[StoppingCriterion]) -> None:
        self.criteria = criteria

    def parts(self) -> Iterator[StoppingCriterion]:
        """The criteria that this one is made of."""
        for criterion in self.criteria:
            yield from criterion.parts()

    def check_params(self) -> None:
        """Raise if there is nothing to combine, or a criterion's parameters make no sense."""
        listed = isinstance(self.criteria, (list, tuple)) and len(self.criteria) > 0
        if not listed or not all(isinstance(part, StoppingCriterion) for part in self.criteria):
            expected, remedy = "a list of stopping criteria", "Combine them with | and &."
            raise InvalidTypeError.for_parameter(type(self).__name__, "criteria", expected, self.criteria, remedy)
        for criterion in self.criteria:
            criterion.check_params()

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:  # scikit-learn's signature
        texts = [f"({part!r})" if isinstance(part, AnyOf) else repr(part) for part in self.criteria]
        return f" {self._sign} ".join(texts)


class AnyOf(_Combination):
    """Stop as soon as one of several criteria says so: ``first | second``.

    Parameters
    ----------
    criteria : list of StoppingCriterion
        At least one.

    Examples
    --------
    >>> from skal.stopping import AnyOf, Budget, MaxTime
    >>> AnyOf([Budget(100), MaxTime(60)]).reason([{"n_labelled": 100, "elapsed": 5.0}], 100)
    '100 labels, as many as the budget'
    """

    _sign = "|"

    def reason(self, history: Rows, n_labelled: int) -> str | None:
        """The first reason that there is."""
        found = (criterion.reason(history, n_labelled) for criterion in self.criteria)
        return next((text for text in found if text is not None), None)


class AllOf(_Combination):
    """Stop when all of several criteria say so: ``first & second``.

    Parameters
    ----------
    criteria : list of StoppingCriterion
        At least one.

    Examples
    --------
    >>> from skal.stopping import AllOf, Budget, MaxTime
    >>> AllOf([Budget(100), MaxTime(60)]).reason([{"n_labelled": 100, "elapsed": 5.0}], 100) is None
    True
    """

    _sign = "&"

    def reason(self, history: Rows, n_labelled: int) -> str | None:
        """All reasons, None if one is missing."""
        found = [criterion.reason(history, n_labelled) for criterion in self.criteria]
        return " and ".join(text for text in found if text is not None) if None not in found else None
