# SPDX-License-Identifier: BSD-3-Clause
"""How many labels it takes to reach a target: the logit of the accuracy as a line in the logarithm of the labels.

n: labels, T: models, H: held-out labels, B: bootstrap samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import logit

from skal.stopping._forecast import LEAST_POINTS, read_table
from skal.validation import Integer, Real


@dataclass(frozen=True)
class LabelsNeeded:
    """The number of labels still missing to a target.

    Attributes
    ----------
    target : float
        The accuracy to be reached.
    n_labelled : int
        Labels of the last model.
    more : float or None
        Labels to be added: 0 if the target is reached, infinity if the curve does not rise; None without a forecast.
    low, high : float or None
        The middle 95 % of bootstrap samples; the high end may be infinity.
    reason : str or None
        Why there is no forecast.

    Examples
    --------
    >>> from skal.stopping import LabelsNeeded
    >>> print(LabelsNeeded(0.9, 200, 310.0, 150.0, float("inf")).text)
    About 310 more labels to 90 % accuracy (150 or more, 95 % sure), if you go on labelling in the same way.
    """

    target: float
    n_labelled: int
    more: float | None
    low: float | None
    high: float | None
    reason: str | None = None

    @property
    def text(self) -> str:
        """The forecast in words."""
        goal = f"{100 * self.target:g} % accuracy"
        if self.more is None or self.low is None or self.high is None:
            return f"Labels to {goal} are not known yet: {self.reason}."
        span = f"{self.low:.0f} to {self.high:.0f}" if np.isfinite(self.high) else f"{self.low:.0f} or more"
        if not np.isfinite(self.low):
            return f"There is no end in sight to {goal}: the accuracy does not rise."
        about = f"About {self.more:.0f} more labels" if np.isfinite(self.more) else "Very many labels"
        return f"{about} to {goal} ({span}, 95 % sure), if you go on labelling in the same way."


def forecast_labels(
    n_labelled: Any, correct: Any, target: float, *, n_bootstrap: int = 500, random_state: int = 0
) -> LabelsNeeded:
    """Forecast how many more labels a model needs to reach an accuracy.

    A line is fitted to the logit of the held-out accuracies against the logarithm of the labels, where models with more
    labels weigh more. The interval is the middle 95 % of the fits to bootstrap samples of the held-out labels. It does
    not cover that the curve may be no such line.

    Parameters
    ----------
    n_labelled : (T,) array-like of int
        Labels that each model was made with.
    correct : (T, H) array-like of bool
        Whether each model classifies each held-out sample correctly.
    target : float
        The accuracy to be reached, between 0 and 1.
    n_bootstrap : int, default=500
        Fits for the interval.
    random_state : int, default=0
        Seed of the bootstrap samples.

    Returns
    -------
    LabelsNeeded
        With ``reason`` set where there are too few models or labels for it.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.stopping import forecast_labels
    >>> n = np.array([50, 100, 150, 200, 250])
    >>> accuracy = 1 / (1 + (20 / n))  # the logit is log(n / 20): 90 % with 180 labels, 95 % with 380
    >>> correct = np.random.default_rng(0).random(2000) < accuracy[:, None]
    >>> found = forecast_labels(n, correct, 0.95)
    >>> bool(found.low < 380 - 250 < found.high)
    True
    """
    Real(0.0, 0.9999).check("forecast_labels", "target", target)
    Integer(1, 10**6).check("forecast_labels", "n_bootstrap", n_bootstrap)
    n, table = read_table("forecast_labels", n_labelled, correct)
    n_points, n_heldout = len(np.unique(n)), table.shape[1]
    n_now = int(n[-1]) if len(n) else 0
    if n_points < LEAST_POINTS or n_heldout < 2:
        why = f"it needs models with {LEAST_POINTS} different numbers of labels, and 2 held-out labels"
        return LabelsNeeded(target, n_now, None, None, None, f"{why}; there are {n_points} and {n_heldout}")
    generator = np.random.default_rng(random_state)
    draws = generator.multinomial(n_heldout, np.full(n_heldout, 1 / n_heldout), size=n_bootstrap)  # (B, H)
    n_right = np.vstack([table.sum(axis=1), draws @ table.T])  # (1 + B, T)
    more = reach_target(n, (n_right + 1) / (n_heldout + 2), target) - n_now  # no accuracy is 0 or 1
    more = np.maximum(more, 0.0)
    low, high = np.sort(more[1:])[[int(0.025 * n_bootstrap), min(n_bootstrap - 1, int(0.975 * n_bootstrap))]]
    return LabelsNeeded(target, n_now, float(more[0]), float(min(low, more[0])), float(max(high, more[0])))


def reach_target(n: np.ndarray, scores: np.ndarray, target: float) -> np.ndarray:
    """Numbers of labels at which lines in log n through the logits of scores reach a target.

    Parameters
    ----------
    n : (T,)
    scores : (B, T) between 0 and 1
    target : float

    Returns
    -------
    (B,) labels, from 0 to infinity; infinity where a line does not rise and is below the target.
    """
    x, y, w = np.log(n), logit(scores), n / n.sum()
    mean_x, mean_y = w @ x, y @ w
    slope = (y - mean_y[:, None]) @ (w * (x - mean_x)) / (w @ (x - mean_x) ** 2)
    at_end = mean_y + slope * (x[-1] - mean_x)
    missing = logit(target) - at_end
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        reached: np.ndarray = n[-1] * np.exp(missing / np.maximum(slope, 0.0))
    return np.where(missing <= 0, n[-1], np.where(slope > 0, reached, np.inf))
