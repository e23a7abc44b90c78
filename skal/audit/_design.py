# SPDX-License-Identifier: BSD-3-Clause
"""Which samples an audit looks at: uncertain ones more often, none never, each with a probability that is known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from skal.audit._arguments import read_confidences
from skal.audit._checksum import add_checksum
from skal.exceptions import InvalidParameterError
from skal.validation import Integer, make_generator

Floats = NDArray[np.float64]
Positions = NDArray[np.int64]

EVEN = 0.2  # this share of the audit is spread evenly, so that no sample is left out
LEAST, MOST = 0.02, 0.98  # no model is surer than this


def plan(proba: Any, n_labels: int, *, uniform: bool = False, random_state: Any = None) -> tuple[Positions, Floats]:
    """Draw the samples of an audit, and say how probable each was.

    Show the samples to people, and give their labels to :func:`accuracy` or :func:`certify` together with what this
    function returned. Exactly ``n_labels`` samples are drawn without replacement, by pivotal sampling (Deville and
    Tillé 1998), which keeps the inclusion probabilities exactly.

    Parameters
    ----------
    proba : array-like of shape (N, C) or (N,), or int
        The model's probabilities of the samples without a person's label. One column is taken as confidences: the
        probability that the label at hand is right. A number of samples is enough for a uniform audit.
    n_labels : int
        How many samples to audit.
    uniform : bool, default=False
        Whether all samples are equally probable, as :func:`certify` needs it; up to about 200 labels that is as good
        for :func:`accuracy`. Otherwise the inclusion probability is
        min(1, n_labels (0.2/N + 0.8 u/Σu)) with u = √(g(1 − g)) and g the probability of an error, between 0.02 and
        0.98. Where the minimum is 1, the others share what is left over, so that the sum stays ``n_labels``.
    random_state : None, int, Generator or RandomState, default=None
        Where the draws come from. The same integer gives the same audit.

    Returns
    -------
    positions : int64 array of shape (n_labels,)
        Rows of ``proba``, in random order.
    probabilities : float64 array of shape (n_labels,)
        Their inclusion probabilities, to nine digits: the last ones are a checksum of the samples, by which it is
        noticed if some of them are missing, or others are audited.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit import plan
    >>> proba = np.random.default_rng(0).dirichlet(np.ones(3), size=1000)
    >>> positions, probabilities = plan(proba, 50, random_state=0)
    >>> len(positions), bool(probabilities.min() >= 0.2 * 50 / 1000)
    (50, True)
    >>> plan(1000, 50, uniform=True, random_state=0)[1][:3].round(9)
    array([0.05, 0.05, 0.05])
    """
    confidences, n = read_pool("plan", proba, uniform)
    Integer(1, n, remedy=f"Audit 1 to {n} samples.").check("plan", "n_labels", n_labels)
    rng = make_generator("plan", random_state)
    if uniform or confidences is None:
        positions, chance = rng.permutation(n)[:n_labels].astype(np.int64), np.full(n_labels, n_labels / n)
    else:
        probabilities = inclusion_probabilities(confidences, n_labels)
        positions = draw_pivotal(probabilities, rng)
        chance = probabilities[positions]
    return positions, add_checksum(positions, chance, n)


def read_pool(owner: str, proba: Any, uniform: bool) -> tuple[Floats | None, int]:
    """Confidences of all samples, None where only their number is given, and their number."""
    if np.ndim(proba) > 0:
        confidences = read_confidences(owner, proba)
        return confidences, len(confidences)
    Integer(1, remedy="Pass probabilities, or a number of samples with uniform=True.").check(owner, "proba", proba)
    if not uniform:
        remedy = "Pass uniform=True if nothing is known of the samples but their number."
        raise InvalidParameterError.for_parameter(owner, "proba", "probabilities of shape (N, C)", proba, remedy)
    return None, int(proba)


def guess_errors(confidences: Floats) -> Floats:
    """Probability g that each label is wrong, by the model's own account, (N,)."""
    return np.clip(1 - confidences, LEAST, MOST)


def draw_shares(confidences: Floats) -> Floats:
    """Share of the audit that each sample should have: they sum to 1, (N,)."""
    guess = guess_errors(confidences)
    spread = np.sqrt(guess * (1 - guess))
    shares: Floats = EVEN / len(spread) + (1 - EVEN) * spread / spread.sum()
    return shares


def inclusion_probabilities(confidences: Floats, n_labels: int) -> Floats:
    """Inclusion probabilities π of all samples: they sum to ``n_labels``, (N,)."""
    shares = draw_shares(confidences)
    certain = np.zeros(len(shares), dtype=bool)
    while True:
        left = n_labels - certain.sum()
        rest = shares[~certain].sum()
        probabilities = np.where(certain, 1.0, left * shares / rest if rest > 0 else 1.0)
        above = (probabilities >= 1) & ~certain
        if not above.any():
            return probabilities
        certain |= above


def draw_pivotal(probabilities: Floats, rng: np.random.Generator) -> Positions:
    """Positions of a sample with these inclusion probabilities, which sum to a whole number, in random order.

    Units meet in pairs in a random tournament. Of a pair with a + b ≤ 1 one gets a + b and the other 0; of a pair with
    a + b > 1 one gets 1 and the other a + b − 1. Both are drawn so that nobody's expectation changes.
    """
    p = probabilities.copy()
    open_units = rng.permutation(np.flatnonzero((p > 0) & (p < 1)))
    while len(open_units) > 1:
        half = len(open_units) // 2
        first, second, odd = open_units[:half], open_units[half : 2 * half], open_units[2 * half :]
        a, b = p[first], p[second]
        both, u = a + b, rng.random(half)
        small = both <= 1
        with np.errstate(divide="ignore", invalid="ignore"):
            first_wins = np.where(small, u * both < a, u * (2 - both) < 1 - b)
        winner, loser = np.where(first_wins, first, second), np.where(first_wins, second, first)
        p[winner] = np.where(small, both, 1.0)
        p[loser] = np.where(small, 0.0, both - 1)
        pairs = np.where(small, winner, loser)  # the one that stays open
        settled = (p[pairs] < 1e-12) | (p[pairs] > 1 - 1e-12)
        p[pairs[settled]] = np.round(p[pairs[settled]])
        open_units = np.concatenate([pairs[~settled], odd])
    p[open_units] = np.round(p[open_units])  # the last one is 0 or 1 up to rounding
    return rng.permutation(np.flatnonzero(p > 0.5)).astype(np.int64)
