# SPDX-License-Identifier: BSD-3-Clause
"""Criteria that look at how models change from round to round."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from skal.stopping._criterion import Rows, StoppingCriterion
from skal.validation import Choice, Constraint, Integer, Real


class StablePredictions(StoppingCriterion):
    """Stop when consecutive models agree on samples that they were not trained on.

    Agreement is Cohen's kappa between the predictions of two consecutive models on a fixed random part of the pool; its
    mean over the last rounds must exceed a threshold [1]_. Small batches change a model little whether it is good or
    not: a threshold that suits batches of 20 stops too early with batches of 1.

    Parameters
    ----------
    threshold : float, default=0.99
        Kappa that the mean must exceed; 1 is full agreement.
    window : int, default=3
        Rounds to average over.

    References
    ----------
    .. [1] Bloodgood and Vijay-Shanker, A method for stopping active learning based on stabilizing predictions and the
       need for user-adjustable stopping, CoNLL 2009.

    Examples
    --------
    >>> from skal.stopping import StablePredictions
    >>> rows = [{"n_labelled": 10 * i, "agreement": kappa} for i, kappa in enumerate([None, 0.8, 0.99, 1.0, 1.0])]
    >>> StablePredictions().reason(rows, 40)
    'mean kappa 0.997 between the models of the last 3 rounds'
    """

    constraints: ClassVar[dict[str, Constraint]] = {"threshold": Real(-1, 1), "window": Integer(1)}
    watches = True

    def __init__(self, threshold: float = 0.99, window: int = 3) -> None:
        self.threshold = threshold
        self.window = window

    def reason(self, history: Rows, n_labelled: int) -> str | None:
        """True if the predictions are stable."""
        last = _last(history, "agreement", self.window)
        if last is None or last.mean() <= self.threshold:
            return None
        return f"mean kappa {last.mean():.3f} between the models of the last {self.window} rounds"


class UncertaintyPlateau(StoppingCriterion):
    """Stop when the model's uncertainty about the pool is low, or no longer falls.

    Uncertainty is one minus the largest probability, over the unlabelled samples of a fixed random part of the
    pool. A model may be sure and wrong: with a network's probabilities this says that training has settled, not
    that it is right.

    Parameters
    ----------
    statistic : {"mean", "max"}, default="mean"
        Over the samples.
    threshold : float or None, default=None
        Stop at or below this uncertainty. None leaves only the plateau.
    window : int, default=5
        Stop when the best of the last ``window`` rounds is not lower than the best before by ``tolerance``.
    tolerance : float, default=0.01
        A fall by less than this counts as none.

    Examples
    --------
    >>> from skal.stopping import UncertaintyPlateau
    >>> rows = [{"n_labelled": 10 * i, "uncertainty_mean": u} for i, u in enumerate([0.5, 0.3, 0.299, 0.3, 0.297])]
    >>> UncertaintyPlateau(window=3).reason(rows, 40)
    'the mean uncertainty has not fallen by 0.01 in 3 rounds'
    >>> UncertaintyPlateau(threshold=0.3).reason(rows, 40)
    'the mean uncertainty is 0.297, at most the threshold 0.3'
    """

    constraints: ClassVar[dict[str, Constraint]] = {
        "statistic": Choice("mean", "max"),
        "threshold": Real(0, 1, optional=True),
        "window": Integer(1),
        "tolerance": Real(0, 1),
    }
    watches = True

    def __init__(
        self, statistic: str = "mean", threshold: float | None = None, window: int = 5, tolerance: float = 0.01
    ) -> None:
        self.statistic = statistic
        self.threshold = threshold
        self.window = window
        self.tolerance = tolerance

    def reason(self, history: Rows, n_labelled: int) -> str | None:
        """True if uncertainty is low or no longer falls."""
        values = _values(history, f"uncertainty_{self.statistic}")
        if len(values) and self.threshold is not None and values[-1] <= self.threshold:
            return f"the {self.statistic} uncertainty is {values[-1]:.3g}, at most the threshold {self.threshold:g}"
        if len(values) <= self.window:
            return None
        before, last = values[: -self.window].min(), values[-self.window :].min()
        if last < before - self.tolerance:
            return None
        return f"the {self.statistic} uncertainty has not fallen by {self.tolerance:g} in {self.window} rounds"


def _values(history: Rows, name: str) -> np.ndarray:
    return np.array([row[name] for row in history if row.get(name) is not None], dtype=float)


def _last(history: Rows, name: str, window: int) -> np.ndarray | None:
    """The last values of a column; None if there are fewer."""
    values = _values(history, name)
    return values[-window:] if len(values) >= window else None
