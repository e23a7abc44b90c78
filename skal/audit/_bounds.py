# SPDX-License-Identifier: BSD-3-Clause
r"""Limits of a mean from a sample: the statistics that every audit stands on, for arrays without checks.

All of them ask how small the mean τ of values t ≥ 0 can be. A gambler who bets the share c on every value has
``∏ (1 − c + c t_i / τ)`` in the end. If τ is the mean, nobody wins much at this game, so a τ that somebody would have
won much against is too small.

Why the game is fair. ``plan`` draws m samples without replacement, with inclusion probabilities π that sum to m, and
the values are ``t_i = m z_i / (N π_i)``, so that their mean is the mean of z. Pivotal sampling is strongly Rayleigh
(Brändén and Jonasson 2012): the polynomial ``g(x) = E ∏_{i sampled} x_i`` is stable and homogeneous of degree m, so
that g^(1/m) is concave where x ≥ 0 (Gårding 1959). Its tangent at x = 1 lies above it: ``g(x) ≤ (Σ π_i x_i / m)^m``.
With ``x_i = 1 − c + c t_i / τ`` the right-hand side is 1. By Markov's inequality the gambler has more than 1/α with
probability α at most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import chi2, hypergeom

Floats = NDArray[np.float64]

BETS = 1 - np.geomspace(0.99, 0.02, 24)  # from 0.01 to 0.98: small bets for large samples, large ones for small
EXTRA = 0.5  # the weight of the value that likelihood_limit adds
_STEPS = 48  # halvings: the limits are exact up to rounding


def betting_limit(values: Any, alpha: float) -> Any:
    """Lower limit of the mean of non-negative values, right with probability 1 − alpha for any sample size.

    Parameters
    ----------
    values : array-like of shape (..., n)
        Values t ≥ 0 of sampled units, scaled by their inclusion probabilities.
    alpha : float
        The chance to be wrong.

    Returns
    -------
    array of shape (...)
        The limits, one for each leading index.

    Examples
    --------
    >>> from skal.audit._bounds import betting_limit
    >>> float(betting_limit([1.0] * 100, 0.05)) > 0.9
    True
    >>> float(betting_limit([0.0] * 100, 0.05))
    0.0
    """
    t = np.asarray(values, dtype=np.float64)
    mean = t.mean(-1)
    scaled = t / np.where(mean > 0, mean, 1.0)[..., None]
    low, high = np.full(mean.shape, -40.0), np.zeros(mean.shape)  # logarithms of τ, in units of the mean
    for _ in range(_STEPS):
        middle = (low + high) / 2
        won = log_wealth(scaled * np.exp(-middle)[..., None]) >= -np.log(alpha)
        low, high = np.where(won, middle, low), np.where(won, high, middle)
    return np.where((mean > 0) & (low > -40), mean * np.exp(low), 0.0)


def log_wealth(ratios: Floats) -> Floats:
    """Logarithm of what a gambler has who spreads the stake evenly over all of ``BETS``.

    Parameters
    ----------
    ratios : array of shape (..., n)
        t_i / τ.

    Returns
    -------
    array of shape (...)
        It exceeds log(1/α) with probability α at most.
    """
    each = np.log1p(BETS * (ratios[..., None] - 1)).sum(-2)
    total: Floats = logsumexp(each, axis=-1) - np.log(len(BETS))
    return total


def likelihood_limit(values: Any, alpha: float) -> Any:
    """Lower limit of the mean of non-negative values by the empirical likelihood, with half a value of 0 added.

    The gambler knows the best share c afterwards, and is therefore asked for more than nothing, but less than 1/α:
    half a quantile of the χ² distribution. This is right for large samples (Owen 2001). Half a value of 0, the
    smallest there can be, stands for what chance kept out of the sample. It is enough for the worst case, rare values
    of which none was drawn: two limits of 95 % then miss in 3.4 % of all audits.

    Parameters
    ----------
    values : array-like of shape (..., n)
        Values t ≥ 0 of sampled units, scaled by their inclusion probabilities.
    alpha : float
        The chance to be wrong.

    Returns
    -------
    array of shape (...)
        The limits, one for each leading index.

    Examples
    --------
    >>> from skal.audit._bounds import likelihood_limit
    >>> right = [1.0] * 90 + [0.0] * 10
    >>> round(float(likelihood_limit(right, 0.025)), 3)
    0.826
    """
    t = np.asarray(values, dtype=np.float64)
    n, mean = t.shape[-1], t.mean(-1)
    scaled = t / np.where(mean > 0, mean, 1.0)[..., None]
    wanted = chi2.isf(2 * alpha, 1) / 2
    low, high = np.full(mean.shape, -30.0), np.full(mean.shape, 80.0)  # of log κ, where κ = c / ((1 − c) τ)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        grown = 1 + np.exp(middle)[..., None] * scaled
        kept = (EXTRA + (1 / grown).sum(-1)) / (n + EXTRA)  # 1 − c, where the derivative in c is 0
        below = np.log(grown).sum(-1) + (n + EXTRA) * np.log(kept) < wanted
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    kept = (EXTRA + (1 / (1 + np.exp(low)[..., None] * scaled)).sum(-1)) / (n + EXTRA)
    return np.where(mean > 0, mean * (1 - kept) / kept * np.exp(-low), 0.0)


def is_unlikely(ratios: Floats, alpha: float) -> bool:
    """Whether τ lies below :func:`likelihood_limit`, from t / τ of shape (n,), without finding the limit."""
    excess = ratios - 1
    low, high = 0.0, 1.0  # of the best share c, where the derivative of the concave gain is 0
    for _ in range(40):
        c = (low + high) / 2
        rising = (excess / (1 + c * excess)).sum() > EXTRA / (1 - c)
        low, high = (c, high) if rising else (low, c)
    gain = np.log1p(low * excess).sum() + EXTRA * np.log1p(-low)
    return bool(gain > chi2.isf(2 * alpha, 1) / 2)


def count_limit(seen: Any, drawn: Any, total: Any, alpha: float) -> Any:
    """Upper limit of how many of ``total`` have a property that ``seen`` of ``drawn`` have, drawn at random.

    Clopper and Pearson's limit for draws without replacement: exact for any number of draws. It is the largest count
    under which as few as ``seen`` are found with probability above alpha.

    Parameters
    ----------
    seen, drawn, total : int or array of int
        Found with the property, drawn, and in all.
    alpha : float
        The chance to be wrong.

    Returns
    -------
    int array
        The limits.

    Examples
    --------
    >>> from skal.audit._bounds import count_limit
    >>> int(count_limit(0, 59, 100_000, 0.05))  # no error in 59: at most 5 %
    4949
    """
    seen, drawn, total = np.broadcast_arrays(*(np.asarray(value, dtype=np.int64) for value in (seen, drawn, total)))
    low, high = seen.copy(), total - drawn + seen  # what is possible at all
    while np.any(low < high):
        middle = (low + high + 1) // 2
        possible = (hypergeom.cdf(seen, total, middle, drawn) > alpha) & (low < high)
        low, high = np.where(possible, middle, low), np.where(possible | (low >= high), high, middle - 1)
    return low


def is_at_most(most: float, seen: Any, drawn: Any, total: Any, alpha: float) -> Any:
    """Whether :func:`count_limit` is at most a number, which is quicker to say than what the limit is.

    Parameters
    ----------
    most : float
        The number.
    seen, drawn, total : int or array of int
        As for :func:`count_limit`.
    alpha : float
        The chance to be wrong.

    Returns
    -------
    bool array
        The answers.

    Examples
    --------
    >>> from skal.audit._bounds import is_at_most
    >>> [bool(is_at_most(most, 0, 59, 100_000, 0.05)) for most in (4948, 4949)]
    [False, True]
    """
    seen, drawn, total = np.broadcast_arrays(*(np.asarray(value, dtype=np.int64) for value in (seen, drawn, total)))
    next_count = int(np.floor(most)) + 1  # the least count that is too large: is it unlikely?
    possible = np.clip(next_count, seen, total - drawn + seen)
    unlikely = hypergeom.cdf(seen, total, possible, drawn) <= alpha
    return np.where(next_count > total - drawn + seen, True, unlikely & (next_count > seen))
