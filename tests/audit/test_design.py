"""Plans have the inclusion probabilities that they return, and exactly the size that was asked for."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skal.audit import plan, plan_sequence

from .projects import make_pool


def formula(proba, m):
    g = np.clip(1 - proba.max(1), 0.02, 0.98)
    u = np.sqrt(g * (1 - g))
    return np.minimum(1, m * (0.2 / len(g) + 0.8 * u / u.sum()))


def test_probabilities_are_the_formula():
    p, _ = make_pool(np.random.default_rng(0))
    positions, probabilities = plan(p, 60, random_state=0)
    np.testing.assert_allclose(probabilities, formula(p, 60)[positions])


def test_each_sample_is_drawn_as_often_as_its_probability_says():
    p, _ = make_pool(np.random.default_rng(1), n=60)
    expected, counts = formula(p, 12), np.zeros(60)
    rng = np.random.default_rng(0)
    for _ in range(4000):
        counts[plan(p, 12, random_state=rng)[0]] += 1
    z = (counts / 4000 - expected) / np.sqrt(expected * (1 - expected) / 4000)
    assert np.abs(z).max() < 4.5


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 80), share=st.floats(0, 1), seed=st.integers(0, 10**6), uniform=st.booleans())
def test_the_size_is_exact_and_positions_are_distinct(n, share, seed, uniform):
    p = np.random.default_rng(seed).dirichlet(np.full(3, 0.2), size=n)
    m = max(1, round(share * n))
    positions, probabilities = plan(p, m, uniform=uniform, random_state=seed)
    assert len(set(positions.tolist())) == len(probabilities) == m
    assert probabilities.min() > 0
    assert probabilities.max() <= 1
    if m == n:
        np.testing.assert_allclose(probabilities, 1)


def test_a_uniform_plan_grows_from_the_same_seed():
    first, second = (plan(1000, m, uniform=True, random_state=3)[0] for m in (50, 80))
    np.testing.assert_array_equal(first, second[:50])


def test_draws_in_sequence_are_in_proportion_to_what_is_left():
    p, _ = make_pool(np.random.default_rng(2), n=6)
    shares, rng = formula(p, 1), np.random.default_rng(0)
    counts = np.zeros((6, 6))
    for _ in range(6000):
        (i, j), (a, b) = plan_sequence(p, 2, random_state=rng)
        counts[i, j] += 1
        assert a == pytest.approx(shares[i])
        assert b == pytest.approx(shares[j] / (1 - shares[i]))
    expected = shares[:, None] * shares / (1 - shares[:, None])
    np.fill_diagonal(expected, 0)
    assert np.abs(counts / 6000 - expected).max() < 0.02


def test_a_sequence_goes_on_with_those_that_are_left():
    first, _ = plan_sequence(20, 12, uniform=True, random_state=0)
    second, chance = plan_sequence(20, 8, uniform=True, drawn=first, random_state=1)
    assert sorted([*first, *second]) == list(range(20))
    np.testing.assert_allclose(1 / chance, np.arange(8, 0, -1))
