"""Several benchmarks together: pairs of seeds, shares, labels saved, figures and tables."""

import numpy as np
import pytest
from scipy import stats

from skal.bench import BenchmarkResult, BenchmarkSuite
from skal.bench._statistics import saved_labels_interval
from skal.exceptions import InvalidParameterError

NAMES = ["random", "margin", "good", "bad_one"]
GAINS = {"margin": 0.02, "good": 0.05, "bad_one": -0.04}


@pytest.fixture(scope="module")
def suite(make_result):
    """Six settings, eight seeds; ``good`` leads everywhere."""
    rng = np.random.default_rng(0)
    results = {}
    for k in range(6):
        scores = np.linspace(0.5, 0.8, 5) + rng.normal(scale=0.01, size=(4, 8, 5))
        for place, name in enumerate(NAMES[1:], start=1):
            scores[place, :, 1:] += GAINS[name]
        results[f"setting {k}"] = make_result(scores, NAMES)
    return BenchmarkSuite(results)


def without(result, dropped):
    kept = [run for run in result.runs if (run.strategy, run.seed) not in dropped]
    return BenchmarkResult(result.protocol, kept)


def test_shares_and_ranks(suite):
    shares = suite.shares()
    assert shares.loc["good", "better"] == 6
    assert shares.loc["bad_one", "worse"] == 6
    assert (shares["settings"] == 6).all()
    assert suite.shares("margin").loc["random", "worse"] == 6
    assert suite.mean_ranks().index.tolist() == ["good", "margin", "random", "bad_one"]
    assert suite.mean_ranks()["good"] == 1
    assert suite.friedman().p < 0.001


def test_a_strategy_with_fewer_seeds_is_compared_on_those_it_shares(suite):
    full = suite.results["setting 0"]
    part = without(full, {("good", seed) for seed in (1, 4, 5)} | {("margin", 0)})
    found = BenchmarkSuite({"one": part})
    comparisons = {c.strategy: c for c in found.comparisons()["one"]}
    assert (comparisons["good"].n_seeds, comparisons["margin"].n_seeds, comparisons["bad_one"].n_seeds) == (5, 7, 8)
    areas = full.areas()
    kept = [0, 2, 3, 6, 7]
    expected = (areas.loc["good"] - areas.loc["random"])[kept].mean()
    assert comparisons["good"].difference == pytest.approx(expected)
    assert found.n_seeds().loc["good", "one"] == 5
    assert found.summary().loc["good", "seeds"] == "5"


def test_a_strategy_that_is_not_everywhere_is_not_ranked(suite):
    part = without(suite.results["setting 0"], {("good", seed) for seed in range(8)})
    found = BenchmarkSuite({**suite.results, "setting 0": part})
    assert "good" not in found.ranked
    assert found.shares().loc["good", "settings"] == 5
    assert np.isnan(found.summary().loc["good", "mean rank"])
    assert found.summary().index[-1] == "good"


def test_every_setting_needs_the_reference(suite):
    part = without(suite.results["setting 0"], {("random", seed) for seed in range(8)})
    with pytest.raises(InvalidParameterError, match="none in setting 0"):
        BenchmarkSuite({**suite.results, "setting 0": part})
    with pytest.raises(InvalidParameterError, match="at least one result"):
        BenchmarkSuite({})


def test_labels_saved_are_those_of_the_mean_curves(suite):
    table = suite.saved_labels()
    result = suite.results["setting 2"]
    means = result.means()
    curve, target = means.loc["good"].to_numpy(), means.loc["random"].iloc[-1]
    assert (np.diff(curve) > 0).all()  # so that it meets the target once
    expected = result.n_labels[-1] - np.interp(target, curve, result.n_labels)
    row = table.loc[("setting 2", "good")]
    assert row["value"] == pytest.approx(float(expected))
    assert np.isnan([row["low"], row["high"]]).all()  # eight seeds have no interval
    assert row["share"] == pytest.approx(row["value"] / (result.n_labels[-1] - result.n_labels[0]))
    assert np.isnan(table.loc[("setting 2", "bad_one"), "value"])


def noisy_curves(rng, n_seeds):
    """Curves of 20 budgets that rise, and those of a reference, paired by a common luck; ten labels are saved."""
    n_labels = np.arange(10, 210, 10)
    luck = rng.normal(scale=0.02, size=(n_seeds, 1))
    curves = 0.5 + 0.001 * n_labels + luck + rng.normal(scale=0.01, size=(n_seeds, 20))
    reference = 0.49 + 0.001 * n_labels + luck + rng.normal(scale=0.01, size=(n_seeds, 20))
    return n_labels, curves, reference


def test_bounds_lie_between_budgets_that_a_paired_t_test_tells_apart_and_others():
    n_labels, curves, reference = noisy_curves(np.random.default_rng(3), 12)
    found = saved_labels_interval(n_labels, curves, reference)
    assert found.low < found.value < found.high
    p = stats.ttest_rel(curves, reference[:, -1:]).pvalue
    inside = (n_labels[-1] - found.high <= n_labels) & (n_labels <= n_labels[-1] - found.low)
    np.testing.assert_array_equal(inside, p > 0.05)
    assert 0 < inside.sum() < 20


def test_the_interval_holds():
    rng = np.random.default_rng(4)
    found = [saved_labels_interval(*noisy_curves(rng, 10)) for _ in range(1000)]
    held = np.mean([np.nan_to_num(low, nan=-np.inf) <= 10 <= high for _, low, high in found])
    assert 0.93 < held < 0.97


def test_a_bound_can_be_that_it_is_not_reached(make_result):
    reference = np.tile([0.5, 0.6, 0.7], (12, 1))
    scores = np.tile([0.5, 0.69, 0.71], (12, 1))
    scores[0] -= 0.1  # without the others the target is missed
    results = {"many": make_result([reference, scores]), "nine": make_result([reference[:9], scores[:9]])}
    found = BenchmarkSuite(results).saved_labels()
    assert np.isnan(found.loc[("many", "s1"), "low"])
    assert found.loc[("many", "s1"), "high"] > 0
    assert np.isnan(found.loc[("nine", "s1"), ["low", "high"]].to_numpy()).all()


def test_pairwise_names_and_correction(suite):
    tests = suite.pairwise()
    assert len(tests) == 6
    assert (tests["p_holm"] >= tests["p"]).all()
    row = tests[(tests["a"] == "random") & (tests["b"] == "good")].iloc[0]
    assert row["difference"] == pytest.approx(-suite.differences().loc["good"].mean())
    assert row["p"] == pytest.approx(2 / 2**6)


@pytest.mark.parametrize("kind", ["ranks", "outcomes", "saved"])
def test_figures_name_every_strategy(suite, kind):
    ax = suite.plot(kind)
    texts = [text.get_text() for text in ax.texts] + [label.get_text() for label in ax.get_yticklabels()]
    for name in ("good", "margin", "bad_one"):
        assert any(name in text for text in texts)
    assert ax._repr_png_().startswith(b"\x89PNG")


def test_the_diagram_joins_what_is_not_told_apart(suite):
    # six settings are too few for Holm's correction over six pairs: one bar over all of them
    bars = [line for line in suite.plot("ranks").lines if line.get_linewidth() == 3]
    assert len(bars) == 1
    means = suite.mean_ranks()
    np.testing.assert_allclose(bars[0].get_xdata(), [means.min() - 0.05, means.max() + 0.05])


def test_unknown_figure(suite):
    with pytest.raises(InvalidParameterError, match="'ranks', 'outcomes', 'saved'"):
        suite.plot("pie")


def environments(text):
    """What is opened and closed, in order; unbalanced LaTeX fails here."""
    depth = 0
    for character, before in zip(text, " " + text, strict=False):
        depth += (character == "{" and before != "\\") - (character == "}" and before != "\\")
        assert depth >= 0
    assert depth == 0
    assert text.count("$") % 2 == 0
    for name in ("table", "table*", "tabular"):
        assert text.count(f"\\begin{{{name}}}") == text.count(f"\\end{{{name}}}")


def test_latex_of_a_suite(suite):
    text = suite.to_latex()
    environments(text)
    rows = [line for line in text.splitlines() if line.rstrip().endswith(r"\\")]
    assert len(rows) == 1 + len(NAMES)
    assert len({row.count("&") for row in rows}) == 1
    assert r"bad\_one" in text
    assert "bad_one" not in text
    assert text.count(r"\textbf") == 1
    for rule in (r"\toprule", r"\midrule", r"\bottomrule"):
        assert text.count(rule) == 1
    assert "Friedman's test: $\\chi^2_{3}" in text


def test_latex_of_a_result(suite):
    text = suite.results["setting 0"].to_latex()
    environments(text)
    assert "good$^{+}$" in text
    assert r"bad\_one$^{-}$" in text
    assert r"\label{tab:digits}" in text
    assert text.count(r"\textbf") >= 5  # the best of every budget
    assert r"\caption{mine}" in suite.results["setting 0"].to_latex("mine", "tab:x")


def test_names_cannot_be_commands(make_result):
    text = make_result(np.ones((2, 2, 2)), ["random", r"\input{x} 50% a_b^~"]).to_latex()
    assert r"\textbackslash{}input\{x\} 50\% a\_b\textasciicircum{}\textasciitilde{}" in text
    assert r"\input" not in text


def test_subset_and_repr(suite):
    part = suite.subset(["setting 1", "setting 3"])
    assert part.settings == ["setting 1", "setting 3"]
    assert repr(suite) == "BenchmarkSuite(6 settings, 4 strategies)"
