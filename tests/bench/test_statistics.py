"""The statistics against scipy, hand-computed examples, and each other."""

import numpy as np
import pytest
from scipy import stats

from skal.bench._statistics import (
    area,
    friedman,
    holm,
    matching_confidence,
    paired_difference,
    paired_tests,
    penalty_matrix,
    saved_labels,
    wilcoxon,
    wilcoxon_floor,
)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


class TestArea:
    def test_by_hand(self):
        # (0.2 + 0.4) / 2 * 10 + (0.4 + 0.6) / 2 * 20 = 13, over 30 labels
        np.testing.assert_allclose(area(np.array([10, 20, 40]), np.array([0.2, 0.4, 0.6])), 13 / 30)

    def test_constant_curve_is_its_height_and_leading_axes_stay(self):
        np.testing.assert_allclose(area(np.array([5, 6, 9]), np.full((2, 4, 3), 0.7)), np.full((2, 4), 0.7))

    def test_one_budget_is_its_score(self):
        np.testing.assert_array_equal(area(np.array([30]), np.array([[0.4], [0.5]])), [0.4, 0.5])


class TestPairedDifference:
    @pytest.mark.parametrize("n", [2, 3, 5, 20])
    def test_equals_scipy(self, rng, n):
        a, b = rng.normal(size=(2, n))
        ours, theirs = paired_difference(a, b), stats.ttest_rel(a, b)
        np.testing.assert_allclose(ours.p, theirs.pvalue, rtol=1e-10)
        interval = theirs.confidence_interval(0.95)
        np.testing.assert_allclose([ours.low, ours.high], [interval.low, interval.high], rtol=1e-10)
        np.testing.assert_allclose(ours.mean, (a - b).mean())

    def test_by_hand(self):
        # d = 1, 2, 3: mean 2, s = 1, t = 2√3 = 3.464 on 2 degrees of freedom; t_0.975 = 4.303
        mean, low, high, p = paired_difference(np.array([1.0, 2, 3]), np.zeros(3))
        assert mean == 2
        np.testing.assert_allclose([low, high], [2 - 4.302653 / np.sqrt(3), 2 + 4.302653 / np.sqrt(3)], rtol=1e-6)
        np.testing.assert_allclose(p, 1 - np.sqrt(12 / 14), rtol=1e-12)  # two degrees of freedom have a closed form

    def test_one_seed_has_no_interval_and_no_p(self):
        mean, low, high, p = paired_difference(np.array([0.6]), np.array([0.5]))
        np.testing.assert_allclose(mean, 0.1)
        assert np.isnan([low, high, p]).all()

    def test_no_difference_at_all(self):
        assert paired_difference(np.ones(4), np.ones(4)) == (0, 0, 0, 1)

    def test_the_same_difference_for_every_seed_is_not_certainty(self):
        assert np.isnan(paired_difference(np.array([0.5, 0.6, 0.7]) + 0.01, np.array([0.5, 0.6, 0.7])).p)


class TestWilcoxon:
    @pytest.mark.parametrize("n", [3, 6, 10, 25])
    def test_equals_scipy(self, rng, n):
        a, b = rng.normal(size=(2, n))
        np.testing.assert_allclose(wilcoxon(a, b), stats.wilcoxon(a, b, method="exact").pvalue)

    def test_ties_are_exact(self, rng):
        for _ in range(20):
            d = rng.integers(-3, 4, size=7).astype(float)
            d[0] = 1
            signs = np.array(np.meshgrid(*[[0, 1]] * np.count_nonzero(d))).reshape(np.count_nonzero(d), -1).T
            ranks = stats.rankdata(np.abs(d[d != 0]))
            null, observed = signs @ ranks, ranks[d[d != 0] > 0].sum()
            middle = ranks.sum() / 2
            expected = np.mean(np.abs(null - middle) >= abs(observed - middle) - 1e-9)
            np.testing.assert_allclose(wilcoxon(d, np.zeros(7)), expected)

    def test_rounding_does_not_break_ties(self):
        a = np.array([0.1 + 0.2, 0.5, 0.7, 0.9])
        b = np.array([0.3, 0.4, 0.8, 0.7])  # differences 0 (up to rounding), +, −, +
        assert wilcoxon(a, b) == wilcoxon(np.array([0.1, -0.1, 0.2]), np.zeros(3))

    def test_nothing_differs(self):
        assert wilcoxon(np.ones(5), np.ones(5)) == 1

    @pytest.mark.parametrize("n", [3, 5, 6, 8])
    def test_floor_is_what_the_clearest_case_gives(self, n):
        np.testing.assert_allclose(wilcoxon(np.arange(1.0, n + 1), np.zeros(n)), wilcoxon_floor(n))


class TestHolm:
    def test_by_hand(self):
        # sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1: 0.02, 0.03, 0.06, then the maximum so far
        np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])

    def test_equals_its_definition(self, rng):
        for _ in range(50):
            p = rng.uniform(size=6) ** 3
            order = np.argsort(p)
            expected = np.empty(6)
            for k, i in enumerate(order):
                expected[i] = min(1, max((6 - j) * p[order[j]] for j in range(k + 1)))
            np.testing.assert_allclose(holm(p), expected)

    def test_nan_is_no_test(self):
        np.testing.assert_allclose(holm(np.array([0.02, np.nan, 0.03])), [0.04, np.nan, 0.04])

    def test_empty(self):
        assert holm(np.array([])).shape == (0,)


class TestFriedman:
    def test_equals_scipy(self, rng):
        areas = rng.normal(size=(4, 6))
        expected = stats.friedmanchisquare(*areas)
        np.testing.assert_allclose(friedman(areas), (expected.statistic, expected.pvalue))

    def test_by_hand(self):
        # ranks 1, 2, 3 in each of 4 blocks: χ² = 12/(4·3·4)·(4² + 8² + 12²) − 3·4·4 = 8
        statistic, p = friedman(np.array([[1.0] * 4, [2.0] * 4, [3.0] * 4]))
        np.testing.assert_allclose([statistic, p], [8, np.exp(-4)])

    def test_too_little_to_test(self):
        assert np.isnan(friedman(np.ones((2, 5)))).all()
        assert np.isnan(friedman(np.ones((4, 1)))).all()

    def test_no_difference_at_all(self):
        assert friedman(np.ones((3, 5))) == (0, 1)


class TestPenaltyMatrix:
    def test_equals_the_definition_with_the_papers_threshold(self, rng):
        scores = rng.normal(size=(3, 5, 4)) + np.array([0.0, 1, 2])[:, None, None]
        expected = np.zeros((3, 3))
        for i in range(3):
            for j in range(3):
                for budget in range(4):
                    d = scores[i, :, budget] - scores[j, :, budget]
                    sigma = np.sqrt(((d - d.mean()) ** 2).sum() / 4)
                    if i != j and np.sqrt(5) * d.mean() / sigma > 2.776:
                        expected[i, j] += 1 / 4
        assert expected.any()
        np.testing.assert_allclose(penalty_matrix(scores), expected)

    def test_a_strategy_does_not_beat_itself_and_one_seed_says_nothing(self, rng):
        scores = np.repeat(rng.normal(size=(1, 5, 3)), 2, axis=0)
        np.testing.assert_array_equal(penalty_matrix(scores), np.zeros((2, 2)))
        assert np.isnan(penalty_matrix(scores[:, :1])).all()


class TestPairedTests:
    @pytest.mark.parametrize("n_seeds", [3, 8, 20])
    def test_an_interval_leaves_zero_out_exactly_where_the_corrected_test_finds_a_difference(self, rng, n_seeds):
        """Whatever the noise: many families of eight comparisons, with differences of every size."""
        seen = set()
        for _ in range(40):
            areas = rng.normal(size=(9, n_seeds)) + np.r_[0, rng.normal(scale=3, size=8)][:, None]
            tests = paired_tests(areas, [(i, 0) for i in range(1, 9)])
            found = (tests["p_holm"] <= 0.05).to_numpy()
            np.testing.assert_array_equal(((tests["low"] > 0) | (tests["high"] < 0)).to_numpy(), found)
            assert (tests["confidence"] >= 0.95 - 1e-12).all()
            seen |= set(found)
        assert seen == {True, False}

    def test_the_interval_has_the_level_that_it_names(self, rng):
        areas = rng.normal(size=(4, 6))
        for row, i in zip(paired_tests(areas, [(1, 0), (2, 0), (3, 0)]).itertuples(), (1, 2, 3), strict=True):
            expected = stats.ttest_rel(areas[i], areas[0]).confidence_interval(row.confidence)
            np.testing.assert_allclose((row.low, row.high), expected)

    def test_only_shared_seeds_count(self, rng):
        areas = rng.normal(size=(3, 7))
        areas[1, [0, 4]] = np.nan
        tests = paired_tests(areas, [(1, 0), (2, 0)])
        shared = [1, 2, 3, 5, 6]
        assert tests["p"][0] == pytest.approx(stats.ttest_rel(areas[1, shared], areas[0, shared]).pvalue)
        assert tests["p_wilcoxon"][0] == pytest.approx(stats.wilcoxon(areas[1, shared], areas[0, shared]).pvalue)
        assert tests["p"][1] == pytest.approx(stats.ttest_rel(areas[2], areas[0]).pvalue)

    def test_levels_of_p_values_that_are_zero_or_none(self):
        levels = matching_confidence(np.array([0.0, np.nan, 0.5]), np.array([0.0, np.nan, 0.5]))
        np.testing.assert_allclose(levels, [0.975, 0.95, 0.95])


class TestLabelsSaved:
    labels = np.array([20, 40, 60, 80])

    def test_between_budgets(self):
        # 0.75 lies half-way between 0.7 at 40 and 0.8 at 60: 50 labels, 30 before the end
        np.testing.assert_allclose(saved_labels(self.labels, np.array([0.5, 0.7, 0.8, 0.9]), 0.75), 30)

    def test_the_last_crossing_counts(self):
        np.testing.assert_allclose(saved_labels(self.labels, np.array([0.5, 0.9, 0.7, 0.9]), 0.8), 10)

    def test_never(self):
        assert np.isnan(saved_labels(self.labels, np.array([0.5, 0.9, 0.9, 0.7]), 0.8))

    def test_from_the_start(self):
        assert saved_labels(self.labels, np.array([0.9, 0.9, 0.9, 0.9]), 0.8) == 60

    def test_the_reference_saves_nothing_against_itself(self, rng):
        for _ in range(20):
            curve = np.sort(rng.uniform(size=4))
            np.testing.assert_allclose(saved_labels(self.labels, curve, curve[-1]), 0, atol=1e-9)
