"""Verdicts: right words for clear cases, and no effect is reported as one."""

import numpy as np
import pytest
from scipy import stats

from skal.bench import terminal_report

from .results import make_result


def simulated(rng, n_strategies, n_seeds, *, discrete=0):
    """Scores with what real ones have: a rising curve, good and bad seeds, rounds that depend on each other."""
    curve = np.array([0.5, 0.6, 0.66, 0.7])
    seeds = rng.normal(scale=0.03, size=(1, n_seeds, 1))
    steps = rng.normal(scale=0.01, size=(n_strategies, n_seeds, len(curve)))
    steps[:, :, 0] = 0  # the same start
    scores = curve + seeds + steps.cumsum(axis=2)
    return np.round(scores * discrete) / discrete if discrete else scores


def false_alarms(rng, n_seeds, verdict, n_benchmarks=300, **options):
    """Share of benchmarks with ten copies of Random that call at least one of them different."""
    names = ["random", *(f"copy {k}" for k in range(10))]
    return np.mean([verdict(names, simulated(rng, 11, n_seeds, **options)) for _ in range(n_benchmarks)])


def compare(names, scores):
    return make_result(scores, names, reference="random").comparisons()


def ours(names, scores):
    return any(comparison.outcome in ("better", "worse") for comparison in compare(names, scores))


def uncorrected(names, scores):
    return any(comparison.p <= 0.05 for comparison in compare(names, scores))


@pytest.mark.parametrize(("n_seeds", "discrete"), [(3, 0), (5, 400), (10, 0)])
def test_copies_of_random_are_called_different_at_the_nominal_rate(n_seeds, discrete):
    rate = false_alarms(np.random.default_rng(n_seeds), n_seeds, ours, discrete=discrete)
    # 300 benchmarks at 5 %: three standard errors are 3.8 points
    assert rate < 0.05 + 0.038
    assert rate > 0  # a rule that never speaks would pass, too


def test_without_the_correction_they_would_be():
    assert false_alarms(np.random.default_rng(0), 5, uncorrected, n_benchmarks=200) > 0.15


def test_a_real_difference_is_found():
    rng = np.random.default_rng(0)
    scores = simulated(rng, 3, 5)
    scores[1, :, 1:] += 0.1
    scores[2, :, 1:] -= 0.1
    better, worse = compare(["random", "good", "bad"], scores)
    assert better.verdict.startswith("better than Random at every budget, p")
    assert worse.verdict.startswith("worse than Random at every budget, p")
    assert better.saved_labels > 0
    assert np.isnan(worse.saved_labels)
    assert (better.ahead, better.behind, better.n_budgets) == (3, 0, 3)


def test_better_overall_is_not_better_everywhere():
    scores = simulated(np.random.default_rng(0), 2, 8)
    scores[1, :, 2:] += 0.1
    scores[1, :, 1] = scores[0, :, 1] - 0.01
    (comparison,) = compare(["random", "good"], scores)
    assert comparison.verdict.startswith("better than Random overall, at 2 of 3 budgets, p")


def test_the_numbers_are_those_of_the_areas():
    scores = simulated(np.random.default_rng(1), 2, 5)
    (comparison,) = compare(["margin", "random"], scores)
    gain, base = scores @ np.array([1, 2, 2, 1]) / 6  # the trapezoidal rule: budgets are evenly spaced
    test = stats.ttest_rel(gain, base)
    interval = test.confidence_interval(0.95)
    assert comparison.difference == pytest.approx((gain - base).mean())
    assert (comparison.low, comparison.high) == pytest.approx((interval.low, interval.high))
    assert comparison.p == comparison.p_holm == pytest.approx(test.pvalue)
    assert comparison.strategy == "margin"


def test_one_seed_is_not_enough():
    (comparison,) = compare(["random", "a"], simulated(np.random.default_rng(0), 2, 1))
    assert comparison.outcome == "not testable"
    assert comparison.verdict.startswith("not enough seeds")


def test_few_seeds_are_no_proof_of_equality():
    (comparison,) = compare(["random", "a"], simulated(np.random.default_rng(0), 2, 3))
    assert comparison.verdict.startswith("not distinguishable from Random")
    assert "remains possible with only 3 seeds" in comparison.verdict


def test_intervals_leave_zero_out_where_the_corrected_test_finds_a_difference():
    scores = simulated(np.random.default_rng(5), 12, 5)  # one of them comes far by chance
    names = ["random", *(f"copy {k}" for k in range(11))]
    comparisons = compare(names, scores)
    assert any(c.outcome == "not distinguishable" and c.p <= 0.05 for c in comparisons)
    scores[3] += 0.05  # and one is better
    found = [*comparisons, *compare(names, scores)]
    assert {c.outcome for c in found} == {"better", "not distinguishable"}
    for comparison in found:
        assert (comparison.low > 0 or comparison.high < 0) == (comparison.outcome == "better")
        assert comparison.confidence >= 0.95


def test_the_same_difference_for_every_seed_is_not_testable():
    scores = np.repeat(simulated(np.random.default_rng(0), 1, 3), 2, axis=0)
    scores[1, :, 1:] += 0.01
    (comparison,) = compare(["random", "a"], scores)
    assert comparison.outcome == "not testable"
    assert "noise is unknown" in comparison.verdict


def test_another_reference_is_named():
    scores = simulated(np.random.default_rng(0), 2, 5)
    (comparison,) = make_result(scores, ["entropy", "a"], reference="entropy").comparisons()
    assert "from entropy" in comparison.verdict


@pytest.mark.parametrize(("n_seeds", "n_tests", "needed"), [(3, 1, "6 seeds"), (5, 10, "9 seeds")])
def test_wilcoxon_says_when_it_cannot_speak(n_seeds, n_tests, needed):
    report = terminal_report(make_result(simulated(np.random.default_rng(0), n_tests + 1, n_seeds)))
    assert f"{needed} would be needed" in report


@pytest.mark.parametrize(("n_seeds", "n_tests"), [(6, 1), (9, 10), (3, 0)])
def test_wilcoxon_is_silent_when_it_can(n_seeds, n_tests):
    report = terminal_report(make_result(simulated(np.random.default_rng(0), n_tests + 1, n_seeds)))
    assert "would be needed" not in report
