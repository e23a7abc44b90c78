"""The statistics of a result against scipy, hand-computed examples, and each other."""

import numpy as np
import pytest
from scipy import stats

from skal.bench import BenchmarkResult, BenchmarkSuite

from .results import make_result


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def with_areas(areas):
    """A result whose areas under the curves are given: (strategy, seed). The curves are flat."""
    return make_result(np.repeat(np.asarray(areas, dtype=float)[:, :, None], 2, axis=2))


def compare(a, b):
    """The paired test of two strategies' areas, one row of a table."""
    return with_areas([a, b]).pairwise().iloc[0]


class TestArea:
    def test_by_hand(self):
        # (0.2 + 0.4) / 2 * 20 + (0.4 + 0.7) / 2 * 20 = 17, over 40 labels
        np.testing.assert_allclose(make_result([[[0.2, 0.4, 0.7]]]).areas(), 17 / 40)

    def test_constant_curve_is_its_height(self):
        np.testing.assert_allclose(make_result(np.full((2, 4, 3), 0.7)).areas(), np.full((2, 4), 0.7))

    def test_one_budget_is_its_score(self):
        np.testing.assert_array_equal(make_result([[[0.4], [0.5]]]).areas(), [[0.4, 0.5]])


class TestPairedDifference:
    @pytest.mark.parametrize("n", [2, 3, 5, 20])
    def test_equals_scipy(self, rng, n):
        a, b = rng.normal(size=(2, n))
        ours, theirs = compare(a, b), stats.ttest_rel(a, b)
        np.testing.assert_allclose(ours["p"], theirs.pvalue, rtol=1e-10)
        interval = theirs.confidence_interval(0.95)
        np.testing.assert_allclose([ours["low"], ours["high"]], [interval.low, interval.high], rtol=1e-10)
        np.testing.assert_allclose(ours["mean"], (a - b).mean())

    def test_by_hand(self):
        # d = 1, 2, 3: mean 2, s = 1, t = 2√3 = 3.464 on 2 degrees of freedom; t_0.975 = 4.303
        ours = compare([1.0, 2, 3], np.zeros(3))
        assert ours["mean"] == 2
        expected = [2 - 4.302653 / np.sqrt(3), 2 + 4.302653 / np.sqrt(3)]
        np.testing.assert_allclose([ours["low"], ours["high"]], expected, rtol=1e-6)
        # two degrees of freedom have a closed form
        np.testing.assert_allclose(ours["p"], 1 - np.sqrt(12 / 14), rtol=1e-12)

    def test_one_seed_has_no_interval_and_no_p(self):
        ours = compare([0.6], [0.5])
        np.testing.assert_allclose(ours["mean"], 0.1)
        assert ours[["low", "high", "p"]].isna().all()

    def test_no_difference_at_all(self):
        assert compare(np.ones(4), np.ones(4))[["mean", "low", "high", "p"]].tolist() == [0, 0, 0, 1]

    def test_the_same_difference_for_every_seed_is_not_certainty(self):
        assert np.isnan(compare(np.array([0.5, 0.6, 0.7]) + 0.01, [0.5, 0.6, 0.7])["p"])


class TestWilcoxon:
    @pytest.mark.parametrize("n", [3, 6, 10, 25])
    def test_equals_scipy(self, rng, n):
        a, b = rng.normal(size=(2, n))
        np.testing.assert_allclose(compare(a, b)["p_wilcoxon"], stats.wilcoxon(a, b, method="exact").pvalue)

    def test_ties_are_exact(self, rng):
        for _ in range(20):
            d = rng.integers(-3, 4, size=7).astype(float)
            d[0] = 1
            signs = np.array(np.meshgrid(*[[0, 1]] * np.count_nonzero(d))).reshape(np.count_nonzero(d), -1).T
            ranks = stats.rankdata(np.abs(d[d != 0]))
            null, observed = signs @ ranks, ranks[d[d != 0] > 0].sum()
            middle = ranks.sum() / 2
            expected = np.mean(np.abs(null - middle) >= abs(observed - middle) - 1e-9)
            np.testing.assert_allclose(compare(d, np.zeros(7))["p_wilcoxon"], expected)

    def test_rounding_does_not_break_ties(self):
        a = np.array([0.1 + 0.2, 0.5, 0.7, 0.9])
        b = np.array([0.3, 0.4, 0.8, 0.7])  # differences 0 (up to rounding), +, −, +
        assert compare(a, b)["p_wilcoxon"] == compare([0.1, -0.1, 0.2], np.zeros(3))["p_wilcoxon"]

    def test_nothing_differs(self):
        assert compare(np.ones(5), np.ones(5))["p_wilcoxon"] == 1

    @pytest.mark.parametrize("n", [3, 5, 6, 8])
    def test_the_clearest_case(self, n):
        """Of the 2ⁿ equally likely signs, two are as clear as this."""
        np.testing.assert_allclose(compare(np.arange(1.0, n + 1), np.zeros(n))["p_wilcoxon"], 2 / 2**n)


class TestHolm:
    def test_equals_its_definition(self, rng):
        seen = []
        for _ in range(50):
            areas = rng.normal(size=(4, 5)) + rng.normal(scale=2, size=(4, 1))
            tests = with_areas(areas).pairwise()  # six pairs
            for p, adjusted in (("p", "p_holm"), ("p_wilcoxon", "p_wilcoxon_holm")):
                own = tests[p].to_numpy()
                order = np.argsort(own, kind="stable")
                expected = np.empty(6)
                for k, i in enumerate(order):
                    expected[i] = min(1, max((6 - j) * own[order[j]] for j in range(k + 1)))
                np.testing.assert_allclose(tests[adjusted], expected)
                seen += expected.tolist()
        assert min(seen) < 0.05 < max(seen)

    def test_nan_is_no_test(self, rng):
        areas = rng.normal(size=(3, 5))
        areas[1] = areas[0] + 0.25  # for every seed the same: not testable
        tests = with_areas(areas).tests()
        assert np.isnan(tests.loc["s1", ["p", "p_holm"]].astype(float)).all()
        assert tests.loc["s2", "p_holm"] == tests.loc["s2", "p"]
        assert tests.loc["s1", "confidence"] == tests.loc["s2", "confidence"] == pytest.approx(0.95)

    def test_nothing_to_correct(self):
        assert make_result([[[0.4, 0.5]]]).pairwise().empty


class TestFriedman:
    def test_equals_scipy(self, rng):
        areas = rng.normal(size=(4, 6))
        expected = stats.friedmanchisquare(*areas)
        np.testing.assert_allclose(with_areas(areas).friedman(), (expected.statistic, expected.pvalue))

    def test_by_hand(self):
        # ranks 1, 2, 3 in each of 4 blocks: χ² = 12/(4·3·4)·(4² + 8² + 12²) − 3·4·4 = 8
        found = with_areas([[1.0] * 4, [2.0] * 4, [3.0] * 4]).friedman()
        np.testing.assert_allclose(found, [8, np.exp(-4)])

    def test_too_little_to_test(self):
        assert np.isnan(with_areas(np.ones((2, 5))).friedman()).all()
        assert np.isnan(with_areas(np.ones((4, 1))).friedman()).all()

    def test_no_difference_at_all(self):
        assert with_areas(np.ones((3, 5))).friedman() == (0, 1)


class TestPenalties:
    def test_equal_the_definition_with_the_papers_threshold(self, rng):
        scores = rng.normal(size=(3, 5, 5)) + np.array([0.0, 1, 2])[:, None, None]
        expected = np.zeros((3, 3))
        for i in range(3):
            for j in range(3):
                for budget in range(1, 5):  # without the one before the first query
                    d = scores[i, :, budget] - scores[j, :, budget]
                    sigma = np.sqrt(((d - d.mean()) ** 2).sum() / 4)
                    if i != j and np.sqrt(5) * d.mean() / sigma > 2.776:
                        expected[i, j] += 1 / 4
        assert expected.any()
        np.testing.assert_allclose(make_result(scores).penalties(), expected)

    def test_a_strategy_does_not_beat_itself_and_one_seed_says_nothing(self, rng):
        scores = np.repeat(rng.normal(size=(1, 5, 3)), 2, axis=0)
        np.testing.assert_array_equal(make_result(scores).penalties(), np.zeros((2, 2)))
        assert make_result(scores[:, :1]).penalties().isna().to_numpy().all()


class TestIntervals:
    @pytest.mark.parametrize("n_seeds", [3, 8, 20])
    def test_an_interval_leaves_zero_out_exactly_where_the_corrected_test_finds_a_difference(self, rng, n_seeds):
        """Whatever the noise: many families of eight comparisons, with differences of every size."""
        seen = set()
        for _ in range(20):
            areas = rng.normal(size=(9, n_seeds)) + np.r_[0, rng.normal(scale=3, size=8)][:, None]
            tests = with_areas(areas).tests()
            found = (tests["p_holm"] <= 0.05).to_numpy()
            np.testing.assert_array_equal(((tests["low"] > 0) | (tests["high"] < 0)).to_numpy(), found)
            assert (tests["confidence"] >= 0.95 - 1e-12).all()
            seen |= set(found)
        assert seen == {True, False}

    def test_the_interval_has_the_level_that_it_names(self, rng):
        areas = rng.normal(size=(4, 6))
        for row, i in zip(with_areas(areas).tests().itertuples(), (1, 2, 3), strict=True):
            expected = stats.ttest_rel(areas[i], areas[0]).confidence_interval(row.confidence)
            np.testing.assert_allclose((row.low, row.high), expected)

    def test_only_shared_seeds_count(self, rng):
        areas = rng.normal(size=(3, 7))
        whole = with_areas(areas)
        runs = [run for run in whole.runs if (run.strategy, run.seed) not in {("s1", 0), ("s1", 4)}]
        suite = BenchmarkSuite({"one": BenchmarkResult(whole.protocol, runs)})
        first, second = suite.comparisons()["one"]
        shared = [1, 2, 3, 5, 6]
        assert first.p == pytest.approx(stats.ttest_rel(areas[1, shared], areas[0, shared]).pvalue)
        assert first.p_wilcoxon == pytest.approx(stats.wilcoxon(areas[1, shared], areas[0, shared]).pvalue)
        assert second.p == pytest.approx(stats.ttest_rel(areas[2], areas[0]).pvalue)

    def test_the_level_of_a_p_value_that_rounds_to_zero(self, rng):
        """It has passed the strictest of Holm's tests."""
        areas = np.stack([np.zeros(60), 1 + 1e-8 * rng.normal(size=60), rng.normal(size=60)])
        tests = with_areas(areas).tests()
        assert tests.loc["s1", "p"] == 0
        assert tests.loc["s1", "confidence"] == pytest.approx(0.975)
        assert tests.loc["s1", "low"] == pytest.approx(1)


def saved(curve, target):
    """Labels saved by a curve of 20, 40, 60 and 80 labels where the reference ends with the target."""
    suite = BenchmarkSuite({"one": make_result([[[0.1, 0.1, 0.1, target]], [curve]])})
    return suite.saved_labels().loc[("one", "s1"), "value"]


class TestLabelsSaved:
    def test_between_budgets(self):
        # 0.75 lies half-way between 0.7 at 40 and 0.8 at 60: 50 labels, 30 before the end
        np.testing.assert_allclose(saved([0.5, 0.7, 0.8, 0.9], 0.75), 30)

    def test_the_last_crossing_counts(self):
        np.testing.assert_allclose(saved([0.5, 0.9, 0.7, 0.9], 0.8), 10)

    def test_never(self):
        assert np.isnan(saved([0.5, 0.9, 0.9, 0.7], 0.8))

    def test_from_the_start(self):
        assert saved([0.9, 0.9, 0.9, 0.9], 0.8) == 60

    def test_the_reference_saves_nothing_against_itself(self, rng):
        for _ in range(20):
            curve = np.sort(rng.uniform(size=4))
            np.testing.assert_allclose(saved(curve, curve[-1]), 0, atol=1e-9)
