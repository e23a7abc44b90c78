# SPDX-License-Identifier: BSD-3-Clause
"""Criteria that count: labels, seconds, and labels that were held out."""

from __future__ import annotations

from typing import ClassVar

from skal.stopping._criterion import Rows, StoppingCriterion
from skal.stopping._forecast import wilson_interval
from skal.validation import Constraint, Integer, Real


class Budget(StoppingCriterion):
    """Stop at a number of labels, the initial and the held-out ones included.

    Parameters
    ----------
    n_labels : int
        The budget.

    Examples
    --------
    >>> from skal.stopping import Budget
    >>> Budget(50).reason([{"n_labelled": 40}], 40) is None
    True
    """

    constraints: ClassVar[dict[str, Constraint]] = {"n_labels": Integer(1)}

    def __init__(self, n_labels: int) -> None:
        self.n_labels = n_labels

    def reason(self, history: Rows, n_labelled: int) -> str | None:
        """True when the labels are spent."""
        return f"{n_labelled} labels, as many as the budget" if n_labelled >= self.n_labels else None


class MaxTime(StoppingCriterion):
    """Stop at the end of the first round after a time: training, queries and labelling together.

    The time in which no session is open does not count.

    Parameters
    ----------
    seconds : float
        The time, over all sessions of a run.

    Examples
    --------
    >>> from skal.stopping import MaxTime
    >>> MaxTime(60).reason([{"n_labelled": 40, "elapsed": 61.2}], 40)
    '61 seconds, more than the 60 allowed'
    """

    constraints: ClassVar[dict[str, Constraint]] = {"seconds": Real(0)}

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def reason(self, history: Rows, n_labelled: int) -> str | None:
        """True when the time is over."""
        elapsed = history[-1].get("elapsed")
        over = elapsed is not None and elapsed >= self.seconds
        return f"{elapsed:.0f} seconds, more than the {self.seconds:g} allowed" if over else None


class TargetScore(StoppingCriterion):
    """Stop when the accuracy on labels that were drawn at random and held out reaches a target.

    Queried samples are a biased sample of the pool, so a ``share`` of every batch is drawn at random, and these labels
    are never trained on. The estimate is looked at after every round: the first time that it is over the target, it is
    a little more likely to be there by chance. ``confidence`` guards against that.

    Parameters
    ----------
    score : float
        Between 0 and 1.
    share : float, default=0.2
        Of the labels.
    n_min : int, default=30
        Held-out labels before the criterion says anything.
    confidence : float or None, default=None
        Stop only when the lower end of the Wilson interval of this confidence reaches the target. None compares the
        estimate itself.

    Examples
    --------
    >>> from skal.stopping import TargetScore
    >>> row = {"n_labelled": 250, "heldout_score": 0.92, "n_heldout": 50}
    >>> TargetScore(0.9).reason([row], 250)
    'accuracy 0.920 on 50 held-out labels, the target is 0.9'
    >>> TargetScore(0.9, confidence=0.95).reason([row], 250) is None
    True
    """

    constraints: ClassVar[dict[str, Constraint]] = {
        "score": Real(0, 1),
        "share": Real(0.01, 0.9),
        "n_min": Integer(1),
        "confidence": Real(0.01, 0.999, optional=True),
    }

    def __init__(self, score: float, *, share: float = 0.2, n_min: int = 30, confidence: float | None = None) -> None:
        self.score = score
        self.share = share
        self.n_min = n_min
        self.confidence = confidence

    def reason(self, history: Rows, n_labelled: int) -> str | None:
        """True when the target is reached."""
        score, n_heldout = history[-1].get("heldout_score"), history[-1].get("n_heldout") or 0
        if score is None or n_heldout < self.n_min:
            return None
        bound = score
        if self.confidence is not None:
            bound = wilson_interval(round(score * n_heldout), n_heldout, self.confidence)[0]
        if bound < self.score:
            return None
        return f"accuracy {score:.3f} on {n_heldout} held-out labels, the target is {self.score:g}"


class HoldOut(StoppingCriterion):
    """Never stop, but measure: hold out a share of the labels, drawn at random, so that accuracy can be estimated.

    ``session.forecast()`` tells the accuracy now, and with more labels.

    Parameters
    ----------
    share : float, default=0.2
        Of the labels.

    Examples
    --------
    >>> from skal.stopping import Budget, HoldOut
    >>> Budget(500) | HoldOut(0.1)
    Budget(n_labels=500) | HoldOut(share=0.1)
    """

    constraints: ClassVar[dict[str, Constraint]] = {"share": Real(0.01, 0.9)}
    watches = True

    def __init__(self, share: float = 0.2) -> None:
        self.share = share

    def reason(self, history: Rows, n_labelled: int) -> str | None:
        """None."""
        return None
