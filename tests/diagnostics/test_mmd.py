"""The estimate of MMD² between the initial and the current labelled set."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skal.diagnostics import mmd, mmd_of, mmd_squared
from skal.exceptions import InvalidParameterError
from skal.nets import MLP
from skal.tangent import tangent_kernel


def rbf(X):
    return np.exp(-((X[:, None] - X[None]) ** 2).sum(-1) / 2)


@given(st.integers(0, 2**32 - 1), st.integers(2, 6), st.integers(0, 6))
def test_is_the_definition(seed, m, n_queried):
    rng = np.random.default_rng(seed)
    n = m + n_queried
    K = rbf(rng.normal(size=(n, 2)))
    initial = rng.choice(n, m, replace=False)
    a = sum(K[i, j] for i in initial for j in initial if i != j)
    b = sum(K[i, j] for i in range(n) for j in range(n) if i != j)
    c = sum(K[i, j] for i in initial for j in range(n) if i != j)
    expected = a / (m**2 - m) + b / (n**2 - n) - 2 * c / (m * (n - 1))
    assert mmd_squared(K, initial) == pytest.approx(expected, abs=1e-12)
    assert mmd(K, initial) == pytest.approx(np.sqrt(max(0, expected)), abs=1e-6)


def simulate(shift, n_runs=4000, m=5, n=12):
    """The estimate over many draws; the queried samples' distribution lies ``shift`` away from the initial ones'."""
    rng = np.random.default_rng(0)
    values = []
    for _ in range(n_runs):
        X = rng.normal(size=(n, 1))
        X[m:] += shift
        values.append(mmd_squared(rbf(X), np.arange(m)))
    return np.mean(values), np.std(values) / np.sqrt(n_runs)


def test_is_unbiased_when_all_samples_come_from_one_distribution():
    mean, error = simulate(0.0)
    assert abs(mean) < 4 * error
    assert error < 0.01  # so that a bias of the naive estimate's size would be seen


def test_the_naive_estimate_would_be_biased():
    """Counting the pairs of identical samples, as one would for two independent sets, is off by many errors."""
    rng = np.random.default_rng(0)
    values = []
    for _ in range(1000):
        K = rbf(rng.normal(size=(12, 1)))
        values.append(K[:5, :5].mean() + K.mean() - 2 * K[:5].mean())
    assert np.mean(values) > 10 * np.std(values) / np.sqrt(1000)


def test_detects_another_distribution():
    mean, error = simulate(2.0)
    assert mean > 10 * error


def test_bias_under_another_distribution_shrinks_with_n():
    """The population value is ((n − m)/n)² of the MMD² between old and new; the estimate's bias is O(1/n)."""

    def bias(n, m):
        # the expectation, from the kernel's means within and between the two distributions
        same, other = 1 / np.sqrt(3), np.exp(-4 / 6) / np.sqrt(3)
        q = n - m
        b = m * (m - 1) * same + q * (q - 1) * same + 2 * m * q * other
        c = m * (m - 1) * same + m * q * other
        expected = same + b / (n**2 - n) - 2 * c / (m * (n - 1))
        return expected - (q / n) ** 2 * (2 * same - 2 * other)

    small, large = bias(20, 10), bias(200, 100)
    assert abs(large) < abs(small) / 8
    mean, error = simulate(2.0, n_runs=2000, m=10, n=20)
    same, other = 1 / np.sqrt(3), np.exp(-4 / 6) / np.sqrt(3)
    assert mean == pytest.approx(bias(20, 10) + 0.25 * (2 * same - 2 * other), abs=4 * error)


def test_nothing_queried_yet_is_no_discrepancy():
    K = rbf(np.random.default_rng(0).normal(size=(6, 2)))
    assert mmd(K, np.arange(6)) == pytest.approx(0, abs=1e-7)


def test_negative_estimates_become_zero():
    x = np.array([0.0, 2.0, 1.0])
    assert mmd_squared(np.outer(x, x), [0, 1]) < 0
    assert mmd(np.outer(x, x), [0, 1]) == 0.0


def test_network_form_is_the_pure_form():
    torch.manual_seed(0)
    net = MLP(4, 3, hidden=(10,)).double()
    X = np.random.default_rng(0).normal(size=(9, 4))
    X[5:] += 3
    for kind in ("pntk", "trace"):
        expected = mmd(tangent_kernel(net, X, kind=kind), [0, 1, 2, 3, 4])
        assert mmd_of(net, X, [0, 1, 2, 3, 4], kind=kind) == pytest.approx(expected)
        assert expected > 0


@pytest.mark.parametrize(
    "initial", [[0], [], [0, 0], [0, 4], [-1, 0], [0.0, 1.0], [True, False], [[0, 1]], "ab"], ids=str
)
def test_bad_positions_are_named(initial):
    with pytest.raises(InvalidParameterError, match=r"'initial' parameter of mmd must be .*positions.* Got "):
        mmd(np.eye(4), initial)


def test_bad_kernel_is_named():
    with pytest.raises(InvalidParameterError, match="'K' parameter of mmd"):
        mmd(np.ones((3, 2)), [0, 1])
