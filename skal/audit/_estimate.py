# SPDX-License-Identifier: BSD-3-Clause
"""The mean of a score that is known for audited samples only: estimate and interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skal.audit._arguments import check_confidence, read_answers, read_positions, read_probabilities
from skal.audit._bounds import betting_limit, count_limit, is_unlikely, likelihood_limit, log_wealth
from skal.audit._design import EVEN
from skal.audit._drawn import check_draw, is_uniform
from skal.exceptions import InvalidParameterError
from skal.validation import Integer, as_finite_array

Floats = NDArray[np.float64]
Positions = NDArray[np.int64]

FEW = 50  # below it only limits that are proved for every sample size are used


@dataclass(frozen=True)
class Estimate:
    """A number from an audit, with its interval.

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
        How the interval was made: "exact" (Clopper and Pearson's), "betting" (proved for any number of
        labels), "likelihood" (for 50 labels and more), or "union" (several exact or betting intervals).

    Examples
    --------
    >>> from skal.audit import Estimate
    >>> print(Estimate(0.89, 0.87, 0.91, confidence=0.95, n_labels=60, method="likelihood"))
    87.0 to 91.0 %, 95 % sure, from 60 audited labels
    """

    estimate: float
    low: float
    high: float
    confidence: float
    n_labels: int
    method: str

    def __str__(self) -> str:
        labels = f"{self.n_labels} audited labels"
        return f"{100 * self.low:.1f} to {100 * self.high:.1f} %, {100 * self.confidence:g} % sure, from {labels}"


@dataclass(frozen=True)
class Audit:
    """Audited samples and how they were drawn. ``everyone`` has the inclusion probabilities of all, if known."""

    n: int
    positions: Positions
    probabilities: Floats
    everyone: Floats | None

    def total(self, expected: Floats, values: Floats) -> float:
        """Difference estimate of the mean of a score over all n samples; expected is (n,), values (m,)."""
        off = (values - expected[self.positions]) / self.probabilities
        return float(expected.mean() + off.sum() / self.n)

    def limits(
        self, expected: Floats, values: Floats, least: Floats, most: Floats, alpha: float
    ) -> tuple[float, float]:
        """Lower and upper limit of the mean, each wrong with probability alpha at most.

        Parameters
        ----------
        expected : array of shape (n,)
            What the score is thought to be.
        values : array of shape (m,)
            What it is.
        least, most : arrays of shape (n,)
            Bounds of every sample's score.
        alpha : float
            The chance to be wrong at each side.

        Returns
        -------
        low, high : float
            The limits.
        """
        return self.low(expected, values, least, alpha), -self.low(-expected, -values, -most, alpha)

    def low(self, expected: Floats, values: Floats, least: Floats, alpha: float) -> float:
        """Lower limit of the mean; arguments as in ``limits``."""
        start, t = self.shift(expected, values, least)
        possible = float(values.sum() + least.sum() - least[self.positions].sum()) / self.n
        limit = betting_limit if self.few else likelihood_limit
        return max(start + float(limit(t, alpha)) if len(t) else start, possible)

    def is_above(self, mean: float, expected: Floats, values: Floats, least: Floats, alpha: float) -> bool:
        """Whether the lower limit exceeds a number, which is quicker to say than what the limit is."""
        start, t = self.shift(expected, values, least)
        if len(t) == 0 or mean <= start:
            return mean < start
        if self.few:
            return bool(log_wealth(t / (mean - start)) >= -np.log(alpha))
        return is_unlikely(t / (mean - start), alpha)

    def shift(self, expected: Floats, values: Floats, least: Floats) -> tuple[float, Floats]:
        """A number and values t ≥ 0 of samples that were not certain to be drawn: the mean of t, added to the number,
        is the mean of the score.
        """
        open_units = self.probabilities < 1
        at, m = self.positions[open_units], int(open_units.sum())
        off = values - expected[self.positions]
        sure = float(expected.mean() + off[~open_units].sum() / self.n)
        if m == 0:
            return sure, off[open_units]
        scale = m / (self.n * self.probabilities[open_units])
        if self.everyone is not None:
            rest = self.everyone < 1
            end = float((m * (least - expected)[rest] / (self.n * self.everyone[rest])).min())
        elif self.few:  # another model's plan: no sample had less than the even share of it
            end = float((least - expected).min()) / EVEN
        else:
            end = float((scale * (least - expected)[at]).min())
        scaled = scale * off[open_units]
        end = min(end, float(scaled.min()))
        return sure + end, scaled - end

    @property
    def few(self) -> bool:
        """Whether only limits that are proved for every sample size are good enough."""
        return int((self.probabilities < 1).sum()) < FEW

    @property
    def method(self) -> str:
        """How ``limits`` are made."""
        return "betting" if self.few else "likelihood"


def mean_score(
    expected: Any,
    positions: Any,
    values: Any,
    probabilities: Any,
    confidence: float = 0.95,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> Estimate:
    """Estimate the mean of any score over all samples from its values at audited ones.

    The estimate is ``mean(expected) + (1/N) Σ (value − expected) / probability`` over the audited samples. It has no
    bias, however bad ``expected`` is; a good one makes the interval narrow.

    Parameters
    ----------
    expected : array-like of shape (N,), or int
        What the score of every sample is thought to be before the audit, or only the number of samples.
    positions : array-like of shape (m,)
        The audited samples, from :func:`plan`.
    values : array-like of shape (m,)
        Their scores.
    probabilities : array-like of shape (m,)
        Their inclusion probabilities, from :func:`plan`.
    confidence : float, default=0.95
        How sure the interval should be.
    bounds : pair of float, default=(0.0, 1.0)
        The least and the largest score there can be.

    Returns
    -------
    Estimate
        The mean with its interval. From fewer than 50 labels it holds for any sample size: exact for scores of 0 and
        1 and a uniform audit, by betting otherwise.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit import mean_score, plan
    >>> costs = np.random.default_rng(0).random(5000)  # unknown but for audited samples
    >>> positions, probabilities = plan(5000, 200, uniform=True, random_state=0)
    >>> found = mean_score(5000, positions, costs[positions], probabilities)
    >>> bool(found.low < costs.mean() < found.high)
    True
    """
    check_confidence("mean_score", confidence)
    low, high = as_finite_array("mean_score", "bounds", bounds, (2,), remedy="Pass the least and the largest score.")
    if np.ndim(expected) == 0:
        Integer(1, remedy="Pass the number of samples, or expected scores.").check("mean_score", "expected", expected)
        thought = np.full(int(expected), (low + high) / 2)
    else:
        thought = np.clip(as_finite_array("mean_score", "expected", expected, ("N",)), low, high)
    n = len(thought)
    at = read_positions("mean_score", positions, n)
    chance = read_probabilities("mean_score", probabilities, len(at))
    scores = as_finite_array("mean_score", "values", read_answers("mean_score", values, len(at)), ("m",))
    if scores.min() < low or scores.max() > high:
        got = f"values from {scores.min():.4g} to {scores.max():.4g}"
        remedy = "Give the least and the largest possible score as bounds."
        raise InvalidParameterError.for_parameter("mean_score", "values", f"between {low:g} and {high:g}", got, remedy)
    audit = Audit(n, at, chance, check_draw("mean_score", None, n, at, chance))
    return estimate_mean(audit, thought, scores, float(low), float(high), confidence)


def estimate_mean(
    audit: Audit, expected: Floats, values: Floats, least: float, most: float, confidence: float
) -> Estimate:
    """Mean over all samples of a score between least and most, without checks."""
    alpha, m = (1 - confidence) / 2, len(values)
    counts = is_uniform(audit.probabilities) and audit.everyone is not None and np.isin(values, [0, 1]).all()
    if counts and (m < FEW or np.ptp(expected) == 0):  # nothing is known that the exact limit would not use
        yes = int(values.sum())
        low = 1 - int(count_limit(m - yes, m, audit.n, alpha)) / audit.n
        high = int(count_limit(yes, m, audit.n, alpha)) / audit.n
        return Estimate(yes / m, low, high, confidence, m, "exact")
    ends = np.full(audit.n, least), np.full(audit.n, most)
    low, high = audit.limits(expected, values, *ends, alpha)
    middle = min(max(audit.total(expected, values), low), high)
    return Estimate(middle, low, high, confidence, m, audit.method)
