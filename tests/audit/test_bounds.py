"""Limits against slow versions from their formulas, and the inequality that they stand on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import chi2, hypergeom

from skal.audit._bounds import BETS, betting_limit, count_limit, is_at_most, is_unlikely, likelihood_limit, log_wealth
from skal.audit._design import draw_pivotal, inclusion_probabilities

VALUES = st.lists(st.floats(0, 5), min_size=1, max_size=30)


def slow_likelihood(values, alpha):
    values = np.array(values)

    def excess(tau):
        def loss(c):
            return -np.log1p(c * (values / tau - 1)).sum() - 0.5 * np.log1p(-c)

        best = minimize_scalar(loss, bounds=(0, 1 - 1e-12), method="bounded", options={"xatol": 1e-12})
        return -2 * best.fun - chi2.isf(2 * alpha, 1)

    return brentq(excess, 1e-9, values.mean())


@pytest.mark.parametrize("values", [[1, 1, 0, 1, 2], [0.1] * 9 + [3], [1] * 40 + [0] * 2])
def test_likelihood_limit_is_the_point_where_the_ratio_reaches_the_quantile(values):
    limit = likelihood_limit(values, 0.025)
    assert limit == pytest.approx(slow_likelihood(values, 0.025), rel=1e-4)
    assert is_unlikely(np.array(values) / (0.999 * limit), 0.025)
    assert not is_unlikely(np.array(values) / (1.001 * limit), 0.025)


@pytest.mark.parametrize("values", [[1, 1, 0, 1, 2], [0.1] * 9 + [3], [1] * 40 + [0] * 2])
def test_at_the_betting_limit_the_gambler_has_one_over_alpha(values):
    tau = betting_limit(values, 0.05)
    wealth = np.mean([np.prod(1 - c + c * np.array(values) / tau) for c in BETS])
    assert wealth == pytest.approx(20)


@settings(max_examples=25, deadline=None)
@given(values=VALUES, factor=st.floats(0.1, 10))
def test_limits_lie_below_the_mean_and_scale_with_the_values(values, factor):
    for limit in (betting_limit, likelihood_limit):
        low = float(limit(values, 0.05))
        assert 0 <= low <= np.mean(values) * (1 + 1e-9)
        assert float(limit(np.array(values) * factor, 0.05)) == pytest.approx(low * factor, rel=1e-6, abs=1e-12)
        assert float(limit(values, 0.01)) <= low * (1 + 1e-9)


def test_limits_of_many_samples_at_once():
    values = np.random.default_rng(0).random((3, 4, 20))
    for limit in (betting_limit, likelihood_limit):
        each = [[float(limit(one, 0.05)) for one in row] for row in values]
        np.testing.assert_allclose(limit(values, 0.05), each)


@pytest.mark.parametrize(("seen", "drawn", "total"), [(0, 5, 30), (2, 10, 40), (5, 5, 9), (0, 0, 7), (3, 7, 7)])
def test_count_limit_is_the_largest_count_that_the_draw_allows(seen, drawn, total):
    allowed = [k for k in range(total + 1) if hypergeom.cdf(seen, total, k, drawn) > 0.05]
    possible = [k for k in allowed if seen <= k <= total - drawn + seen]
    assert count_limit(seen, drawn, total, 0.05) == max(possible)


@pytest.mark.parametrize(("drawn", "total"), [(1, 1), (5, 5), (7, 30), (30, 30), (20, 90)])
def test_whether_a_limit_is_at_most_a_number_is_what_the_limit_says(drawn, total):
    seen = np.arange(drawn + 1)
    limits = count_limit(seen, drawn, total, 0.05)
    for most in [0, 0.5, *range(1, total + 2)]:
        assert is_at_most(most, seen, drawn, total, 0.05).tolist() == (limits <= most).tolist()


@pytest.mark.parametrize("kind", ["rare", "half", "signs"])
def test_nobody_wins_on_average_at_pivotal_sampling(kind):
    """The inequality of the proof: E ∏ (1 − c + c t/τ) ≤ 1 at the true mean, for values of any kind."""
    rng = np.random.default_rng(0)
    n, m = 40, 8
    p = inclusion_probabilities(rng.random(n), m)
    z = {"rare": rng.random(n) < 0.1, "half": rng.random(n) < 0.5, "signs": rng.random(n) + p}[kind]
    t = m * z / (n * p)
    draws = np.array([draw_pivotal(p, rng) for _ in range(4000)])
    wealth = np.exp(log_wealth(t[draws] / z.mean()))
    assert wealth.mean() < 1 + 4 * wealth.std() / np.sqrt(len(wealth))
    each = np.prod(0.5 + 0.5 * t[draws] / z.mean(), axis=1)
    assert each.mean() < 1 + 4 * each.std() / np.sqrt(len(each))
