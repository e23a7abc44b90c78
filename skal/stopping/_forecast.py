# SPDX-License-Identifier: BSD-3-Clause
"""How good a model is, and how good it would be with more labels: estimates with intervals.

n: labels, T: models, H: held-out labels, B: bootstrap samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import norm

from skal.exceptions import InvalidParameterError
from skal.validation import Integer, Real

__all__ = ["Forecast", "forecast_accuracy", "wilson_interval"]

LEAST_POINTS = 4
ENOUGH = 20  # random held-out labels; from fewer no percentage is worth saying
_EXPONENTS = np.geomspace(0.05, 3.0, 40)


def wilson_interval(n_correct: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Interval for a share of which ``n_correct`` of ``n`` were seen.

    Parameters
    ----------
    n_correct : int
        Successes.
    n : int
        Trials, at least one.
    confidence : float, default=0.95
        Share of such intervals that hold the truth.

    Returns
    -------
    low, high : float
        The ends, within [0, 1].

    Examples
    --------
    >>> from skal.stopping import wilson_interval
    >>> [round(end, 3) for end in wilson_interval(45, 50)]
    [0.786, 0.957]
    """
    Integer(1).check("wilson_interval", "n", n)
    Integer(0).check("wilson_interval", "n_correct", n_correct)
    Real(0.01, 0.9999).check("wilson_interval", "confidence", confidence)
    if n_correct > n:
        remedy = "Pass the number of correct ones, then of all."
        raise InvalidParameterError.for_parameter("wilson_interval", "n_correct", f"at most n = {n}", n_correct, remedy)
    z = float(norm.ppf(0.5 + confidence / 2))
    share, z2 = n_correct / n, z * z
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * np.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    low, high = float(middle - half), float(middle + half)
    return 0.0 if n_correct == 0 else low, 1.0 if n_correct == n else high  # there rounding would be all


@dataclass(frozen=True)
class Forecast:
    """Accuracy now, and with more labels.

    Attributes
    ----------
    n_labelled : int
        Labels of the last model, held-out ones included.
    n_heldout : int
        Random labels that the model was not trained on; everything here is computed from these.
    accuracy, low, high : float or None
        Now, with a Wilson interval.
    more : int
        So many labels more.
    later, later_low, later_high : float or None
        With these, from a power law, with an interval by bootstrap.
    reason : str or None
        Why there is no forecast, or no estimate at all.

    Examples
    --------
    >>> from skal.stopping import Forecast
    >>> print(Forecast(100, 20, 0.9, 0.7, 0.97, 100, None, None, None, "it needs 4 models; there are 3").text)
    About 90 % of samples like these are classified correctly now; between 70 and 97 % with 95 % confidence (20 random labels, never trained on). No forecast yet: it needs 4 models; there are 3.
    """  # noqa: E501 the text is one line

    n_labelled: int
    n_heldout: int
    accuracy: float | None
    low: float | None
    high: float | None
    more: int
    later: float | None
    later_low: float | None
    later_high: float | None
    reason: str | None = None

    @property
    def text(self) -> str:
        """The forecast in words, with its limits; from few held-out labels only how many are missing."""
        if self.accuracy is None:
            return f"Accuracy is not known yet: {self.reason}."
        if self.n_heldout < ENOUGH:
            missing = ENOUGH - self.n_heldout
            verb = "is" if missing == 1 else "are"
            return f"How good the model is can be said from {ENOUGH} held-out labels on: {missing} more {verb} needed."
        now = (
            f"About {_percent(self.accuracy)} % of samples like these are classified correctly now; between "
            f"{_percent(self.low)} and {_percent(self.high)} % with 95 % confidence ({self.n_heldout} random labels, "
            "never trained on)."
        )
        return f"{now} {self.later_text}"

    @property
    def later_text(self) -> str:
        """Say what more labels would bring, or why that is not known."""
        if self.later is None or self.accuracy is None:
            return f"No forecast yet: {self.reason}."
        less = ""
        if round(100 * self.later) < round(100 * self.accuracy):
            less = (
                " That is less than now because the last model happens to lie above the fitted curve: expect no gain."
            )
        return (
            f"With {self.more} more labels: about {_percent(self.later)} % "
            f"({_percent(self.later_low)} to {_percent(self.later_high)} %), if the curve goes on as a power law and "
            f"you go on labelling in the same way.{less} "
            "It says nothing about data that differ from this pool."
        )


def _percent(share: float | None) -> str:
    return "?" if share is None else f"{100 * share:.0f}"


def forecast_accuracy(
    n_labelled: Any, correct: Any, more: int = 100, *, n_bootstrap: int = 500, random_state: int = 0
) -> Forecast:
    """Accuracy of the last of several models, and of one with ``more`` labels.

    A power law a − b·n^(−c) is fitted to the scores by weighted least squares; the interval is the middle 95 % of the
    fits to bootstrap samples of the held-out labels, and never narrower than the Wilson interval of as many labels.
    It does not cover that the curve may be no power law.

    Parameters
    ----------
    n_labelled : (T,) array-like of int
        Labels that each model was made with.
    correct : (T, H) array-like of bool
        Whether each model classifies each held-out sample correctly.
    more : int, default=100
        Labels to be added.
    n_bootstrap : int, default=500
        Fits for the interval.
    random_state : int, default=0
        Seed of the bootstrap samples.

    Returns
    -------
    Forecast
        With ``reason`` set where there are too few models or labels for it.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.stopping import forecast_accuracy
    >>> n = np.array([50, 100, 150, 200, 250])
    >>> correct = np.random.default_rng(0).random(400) < (0.95 - 2 * n**-0.7)[:, None]
    >>> found = forecast_accuracy(n, correct, more=250)
    >>> found.later_low < 0.95 - 2 * 500**-0.7 < found.later_high
    True
    """
    Integer(1).check("forecast_accuracy", "more", more)
    Integer(1, 10**6).check("forecast_accuracy", "n_bootstrap", n_bootstrap)
    n, table = read_table("forecast_accuracy", n_labelled, correct)
    n_models, n_heldout = table.shape
    if n_models == 0 or n_heldout == 0:
        why = "no model has been trained yet" if n_models == 0 else "no label has been drawn at random and held out yet"
        return Forecast(int(n[-1]) if n_models else 0, n_heldout, None, None, None, more, None, None, None, why)
    n_correct = int(table[-1].sum())
    now = (int(n[-1]), n_heldout, n_correct / n_heldout, *wilson_interval(n_correct, n_heldout), more)
    n_points = len(np.unique(n))
    if n_points < LEAST_POINTS or n_heldout < 2:
        why = f"it needs models with {LEAST_POINTS} different numbers of labels, and 2 held-out labels"
        return Forecast(*now, None, None, None, f"{why}; there are {n_points} and {n_heldout}")
    generator = np.random.default_rng(random_state)
    draws = generator.multinomial(n_heldout, np.full(n_heldout, 1 / n_heldout), size=n_bootstrap)  # (B, H)
    scores = np.vstack([table.mean(axis=1), draws @ table.T / n_heldout])  # (1 + B, T)
    later = power_law(n, scores, np.array([n[-1] + more]))[:, 0]
    low, high = np.quantile(later[1:], [0.025, 0.975])
    # a few held-out labels without a mistake would give an interval of no width: no number is known better than now
    least_low, least_high = wilson_interval(round(float(later[0]) * n_heldout), n_heldout)
    return Forecast(*now, float(later[0]), min(float(low), least_low), max(float(high), least_high))


def read_table(owner: str, n_labelled: Any, correct: Any) -> tuple[np.ndarray, np.ndarray]:
    """(T,) labels of each model and (T, H) whether it is right; refused if they do not fit together."""
    n = np.asarray(n_labelled, dtype=np.float64).reshape(-1)
    table = np.asarray(correct, dtype=bool)
    if table.ndim != 2 or len(table) != len(n) or (len(n) and n.min() < 1):
        expected = f"a table with a row for each of the {len(n)} models, each with at least one label"
        remedy = "Pass one row per model, one column per held-out label."
        raise InvalidParameterError.for_parameter(owner, "correct", expected, table.shape, remedy)
    return n, table


def power_law(n: np.ndarray, scores: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Fits of a − b·n^(−c), with b ≥ 0 and 0 ≤ a ≤ 1, to several curves by weighted least squares.

    Parameters
    ----------
    n : (T,)
    scores : (B, T)
    at : (M,) where to evaluate the fits

    Returns
    -------
    (B, M) values in [0, 1]. The weights are one over the variance of a share, the exponent the best of a grid.

    Examples
    --------
    >>> n = np.array([10.0, 20.0, 40.0, 80.0])
    >>> power_law(n, (0.9 - 2 * n**-1.0)[None], np.array([160.0])).round(2)
    array([[0.89]])
    """
    smooth = np.clip(scores, 0.02, 0.98)
    w = 1 / (smooth * (1 - smooth))  # (B, T)
    w /= w.sum(axis=1, keepdims=True)
    best_error = np.full(len(scores), np.inf)
    best = np.zeros((len(scores), len(at)))
    for c in _EXPONENTS:
        x = n**-c
        mean_x, mean_y = w @ x, (w * scores).sum(axis=1)
        spread = (w * (x - mean_x[:, None]) ** 2).sum(axis=1)
        b = -(w * (x - mean_x[:, None]) * (scores - mean_y[:, None])).sum(axis=1) / spread
        b = np.maximum(b, 0)  # a curve that falls is flat and noisy
        a = mean_y + b * mean_x
        over = a > 1
        b = np.where(over, np.maximum((w * (1 - scores) * x).sum(axis=1) / (w * x**2).sum(axis=1), 0), b)
        a = np.where(over, 1.0, a)
        error = (w * (scores - a[:, None] + b[:, None] * x) ** 2).sum(axis=1)
        better = error < best_error - 1e-15
        best_error = np.where(better, error, best_error)
        best = np.where(better[:, None], a[:, None] - b[:, None] * at[None] ** -c, best)
    return np.clip(best, 0.0, 1.0)
