"""Tests over several data sets, against a published example and against brute force."""

from itertools import permutations, product

import numpy as np
import pytest
from scipy import stats

from skal.bench import BenchmarkSuite
from skal.bench._ranks import groups

from .results import make_result

# Demšar (2006), Table 6: the ranks of four variants of C4.5 on fourteen data sets
PUBLISHED = np.array(
    [
        [4, 1, 4, 4, 4, 1, 3, 2.5, 4, 2.5, 4, 3, 4, 3],
        [3, 2, 1, 1, 2, 2.5, 2, 2.5, 3, 2.5, 2.5, 2, 1, 1],
        [2, 3, 2, 3, 3, 4, 4, 4, 2, 2.5, 1, 4, 2, 4],
        [1, 4, 3, 2, 1, 2.5, 1, 1, 1, 2.5, 2.5, 1, 3, 2],
    ]
)
DEMSAR = -PUBLISHED  # any scores in this order will do


def suite_of(scores):
    """A suite with one score for each strategy and setting; the first strategy is the reference."""
    settings = {f"setting {k}": make_result(column[:, None, None]) for k, column in enumerate(np.asarray(scores).T)}
    return BenchmarkSuite(settings)


def rank(scores):
    return suite_of(scores).ranks().to_numpy()


def friedman_test(scores):
    return suite_of(scores).friedman()


def test_ranks_of_the_published_example():
    np.testing.assert_array_equal(rank(DEMSAR), PUBLISHED)
    np.testing.assert_allclose(rank(DEMSAR).mean(axis=1), [3.143, 2.000, 2.893, 1.964], atol=5e-4)


def test_friedman_of_the_published_example():
    """The paper has χ² = 9.28 and F = 3.69 without a correction for ties, which makes both a little larger."""
    k, n = DEMSAR.shape
    means = rank(DEMSAR).mean(axis=1)
    plain = 12 * n / (k * (k + 1)) * ((means**2).sum() - k * (k + 1) ** 2 / 4)
    assert round(plain, 2) == 9.28
    assert round((n - 1) * plain / (n * (k - 1) - plain), 2) == 3.69
    found = friedman_test(DEMSAR)
    ties = sum((np.unique(column, return_counts=True)[1] ** 3).sum() - k for column in DEMSAR.T)
    assert found.statistic == pytest.approx(plain / (1 - ties / (n * k * (k**2 - 1))))
    assert found.f == pytest.approx((n - 1) * found.statistic / (n * (k - 1) - found.statistic))
    assert found.p_f == pytest.approx(stats.f.sf(found.f, 3, 39))
    assert found.p_f < found.p < 0.05


def test_friedman_against_all_permutations():
    """Three strategies, four settings: 6⁴ equally likely tables of ranks. χ² is rough there; the statistic is not."""
    scores = np.random.default_rng(1).normal(size=(3, 4))
    scores[0] += 1

    def spread(ranks):
        return ((ranks.mean(axis=1) - 2) ** 2).sum()

    tables = [np.array(columns).T for columns in product(permutations([1.0, 2.0, 3.0]), repeat=4)]
    own = spread(rank(scores))
    exact = np.mean([spread(table) >= own - 1e-9 for table in tables])
    found = friedman_test(scores)
    # the statistic orders tables as the spread of the mean ranks does
    some = tables[::27]
    larger = np.mean([friedman_test(-table).statistic >= found.statistic - 1e-9 for table in some])
    expected = np.mean([spread(table) >= own - 1e-9 for table in some])
    assert larger == expected
    assert abs(found.p - exact) < 0.1


def test_the_same_order_everywhere_is_as_different_as_can_be():
    found = friedman_test(np.array([[3.0, 3, 3, 3], [2, 2, 2, 2], [1, 1, 1, 1]]))
    assert found.statistic == pytest.approx(8)
    assert found.f == np.inf
    assert found.p_f == 0


def test_too_little_to_test():
    assert np.isnan(friedman_test(np.ones((2, 5))).p_f)


def test_nemenyi_of_the_published_tables():
    """Demšar's Table 5a: q at 0.05 is 1.960, 2.343, 2.569, 2.728, … 3.164 for 2, 3, 4, 5 and 10 classifiers."""
    for k, q in ((2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (10, 3.164)):
        found = suite_of(np.random.default_rng(0).normal(size=(k, 14))).critical_difference()
        assert found == pytest.approx(q * np.sqrt(k * (k + 1) / (6 * 14)), rel=4e-4)


def test_pairs_against_brute_force_signs():
    scores = np.random.default_rng(0).normal(size=(3, 8)) + np.array([[0.8], [0], [0]])
    found = suite_of(scores).pairwise()
    exact = []
    for i, j in ((0, 1), (0, 2), (1, 2)):
        d = scores[i] - scores[j]
        ranks = stats.rankdata(np.abs(d))
        sums = np.array([np.dot(signs, ranks) for signs in product((-1, 1), repeat=8)])
        exact.append(np.mean(np.abs(sums) >= abs(np.dot(np.sign(d), ranks)) - 1e-9))
    np.testing.assert_allclose(found["p"], exact)
    # Holm by its definition: the k-th smallest is multiplied by what is left, and none falls below one before it
    order, running = np.argsort(exact), 0.0
    for place, index in enumerate(order):
        running = max(running, min(1.0, (3 - place) * exact[index]))
        assert found["p_holm"].iloc[index] == pytest.approx(running)
    np.testing.assert_allclose(
        found["difference"], [(scores[i] - scores[j]).mean() for i, j in ((0, 1), (0, 2), (1, 2))]
    )


def test_groups_are_the_longest_runs_without_a_difference():
    rng = np.random.default_rng(0)
    for _ in range(50):
        apart = np.triu(rng.random((6, 6)) < 0.3, 1)
        apart |= apart.T
        runs = [(i, j) for i in range(6) for j in range(i + 1, 6) if not apart[i : j + 1, i : j + 1].any()]
        longest = [(i, j) for i, j in runs if not any((a <= i and j <= b and (a, b) != (i, j)) for a, b in runs)]
        assert groups(apart) == longest
