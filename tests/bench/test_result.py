"""What a result says about its scores."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy import stats

from skal.bench import BenchmarkResult
from skal.exceptions import InvalidParameterError, SkalError


def test_frame_has_every_number(result):
    frame = result.to_frame()
    assert len(frame) == 4 * 5 * 4
    row = frame.query("strategy == 's2' and seed == 3 and round == 2").iloc[0]
    assert row["n_labels"] == 60
    assert row["score"] == result.scores[2, 3, 2]
    np.testing.assert_allclose(row["seconds_query"], 0.3)
    assert frame.query("round == 0")["seconds_query"].isna().all()


def test_table_is_mean_and_sample_deviation_in_percent(make_result):
    table = make_result([[[0.5, 0.75], [0.6, 0.75]]]).table()
    assert table.loc["random"].tolist() == ["55.0 ± 7.1", "75.0 ± 0.0"]
    assert table.columns.tolist() == [20, 40]


def test_one_seed_has_no_deviation(make_result):
    assert make_result([[[0.5, 0.75]]]).table().loc["random"].tolist() == ["50.0", "75.0"]


def test_tests_and_verdicts(result):
    tests = result.tests()
    assert tests.index.tolist() == ["s1", "s2", "s3"]
    assert tests.loc["s3", "verdict"].startswith("better than Random at every budget, p < 0.001")
    assert tests.loc["s1", "verdict"].startswith("not distinguishable from Random")
    areas = result.areas()
    expected = [stats.ttest_rel(areas.loc[name], areas.loc["random"]).pvalue for name in tests.index]
    np.testing.assert_allclose(tests["p"], expected)


def test_pairwise_equals_scipy(result):
    pairs, areas = result.pairwise(), result.areas()
    assert len(pairs) == 6
    for row in pairs.itertuples():
        np.testing.assert_allclose(row.p, stats.ttest_rel(areas.loc[row.a], areas.loc[row.b]).pvalue)
    assert (pairs["p_holm"] >= pairs["p"]).all()


def test_friedman_equals_scipy(result):
    expected = stats.friedmanchisquare(*result.areas().to_numpy())
    np.testing.assert_allclose(result.friedman(), (expected.statistic, expected.pvalue))


def test_penalties_leave_the_start_out(result):
    penalties = result.penalties()
    np.testing.assert_array_equal(penalties.loc["s3", ["random", "s1", "s2"]], 1)
    np.testing.assert_array_equal(penalties["s3"], 0)


def test_overlap_leaves_the_start_out(result):
    # random has 0 … 59, s1 has 1 … 60
    np.testing.assert_allclose(result.overlap().loc["random", "s1"], 59 / 61)


def test_times(result):
    np.testing.assert_allclose(result.times()["query"], [0.1, 0.2, 0.3, 0.4])
    np.testing.assert_allclose(result.times()["fit"], 0.5)


@pytest.mark.parametrize("kind", ["curves", "areas", "difference", "time", "overlap"])
@pytest.mark.parametrize("n_seeds", [1, 3])
def test_plots_show_every_strategy(make_result, kind, n_seeds):
    scores = np.random.default_rng(0).uniform(size=(7, n_seeds, 3))
    result = make_result(scores)
    axes = result.plot(kind)
    texts = {"overlap": axes.get_xticklabels, "areas": axes.get_yticklabels}
    shown = {text.get_text() for text in texts.get(kind, lambda: axes.get_legend().get_texts())()}
    assert shown == set(result.strategies) - ({"random"} if kind in ("difference", "areas") else set())
    axes.figure.canvas.draw()


def test_the_plot_of_areas_fills_what_the_verdict_calls_different(make_result):
    scores = np.random.default_rng(0).normal(0.5, 0.01, size=(3, 5, 4))
    scores[2] += 0.2
    result = make_result(scores)
    points = [line for line in result.plot("areas").get_lines() if line.get_marker() not in ("|", "_", "None")]
    hollow = {int(line.get_ydata()[0]) for line in points if str(line.get_markerfacecolor()) == "white"}
    filled = {int(line.get_ydata()[0]) for line in points} - hollow
    outcomes = [c.outcome for c in sorted(result.comparisons(), key=lambda c: c.difference)]
    assert outcomes == ["not distinguishable", "better"]
    assert (hollow, filled) == ({0}, {1})


def test_plot_draws_on_given_axes_and_refuses_unknown_kinds(result):
    axes = Figure().subplots()
    assert result.plot("curves", axes) is axes
    with pytest.raises(InvalidParameterError, match="'curves', 'areas', 'difference', 'time', 'overlap'"):
        result.plot("pie")


def test_save_and_load(result, tmp_path):
    result.save(tmp_path / "a")
    loaded = BenchmarkResult.load(tmp_path / "a")
    pd.testing.assert_frame_equal(loaded.to_frame(), result.to_frame())
    assert loaded.protocol == result.protocol
    assert loaded.details == result.details
    assert loaded.runs == result.runs
    loaded.save(tmp_path / "b")
    assert (tmp_path / "b" / "results.csv").read_bytes() == (tmp_path / "a" / "results.csv").read_bytes()


def test_an_unfinished_folder_compares_whole_seeds(result, tmp_path):
    result.save(tmp_path)
    (tmp_path / "runs" / "s2.seed4.json").unlink()
    partial = BenchmarkResult.load(tmp_path)
    assert partial.seeds == [0, 1, 2, 3]
    assert partial.n_missing == 1
    assert partial.scores.shape == (4, 4, 4)
    assert len(partial.to_frame()) == 19 * 4


def test_nothing_to_compare_yet(result):
    runs = [run for run in result.runs if (run.strategy, run.seed) in {("random", 0), ("s1", 1)}]
    with pytest.raises(InvalidParameterError, match="No seed has been finished"):
        BenchmarkResult(result.protocol, runs).table()
    with pytest.raises(InvalidParameterError, match="No run has finished"):
        BenchmarkResult(result.protocol, [])


def test_damaged_files_are_named(result, tmp_path):
    with pytest.raises(SkalError, match=r"settings\.json is missing"):
        BenchmarkResult.load(tmp_path)
    result.save(tmp_path)
    path = tmp_path / "runs" / "s1.seed0.json"
    path.write_text(path.read_text()[:50])
    with pytest.raises(SkalError, match=r"s1.seed0.json is damaged"):
        BenchmarkResult.load(tmp_path)
    path.write_text('{"strategy": "s1"}')
    with pytest.raises(SkalError, match="is not a run of a benchmark"):
        BenchmarkResult.load(tmp_path)


def test_names_that_are_no_file_names(make_result, tmp_path):
    names = ["random", "dynamic_al(gamma=0)", "dynamic_al(gamma=inf)", "../a b/ü", "…"]
    result = make_result(np.random.default_rng(0).uniform(size=(5, 2, 2)), names)
    result.save(tmp_path)
    assert BenchmarkResult.load(tmp_path).strategies == names
    assert len(list((tmp_path / "runs").iterdir())) == 10


def test_without_random_the_first_strategy_is_the_reference(make_result):
    result = make_result(np.random.default_rng(0).uniform(size=(2, 3, 2)), ["margin", "badge"])
    assert result.reference == "margin"
    assert "margin" in result.tests().loc["badge", "verdict"]


def test_one_budget(make_result):
    """A zero-shot benchmark has nothing but the first labels."""
    result = make_result(np.random.default_rng(0).uniform(size=(3, 4, 1)))
    assert result.tests()["n_budgets"].tolist() == [1, 1]
    assert result.penalties().shape == (3, 3)


def test_repr_is_short(result):
    assert repr(result) == "BenchmarkResult('benchmark': random, s1, s2, s3; 5 seeds, 80 labels)"


def test_a_notebook_shows_a_plot_as_a_picture(result):
    """Without a backend that IPython knows of: the axes bring their own picture."""
    picture = result.plot("areas")._repr_png_()
    assert picture.startswith(b"\x89PNG\r\n")
    assert len(picture) > 5000
    formatters = pytest.importorskip("IPython.core.formatters", reason="IPython is no dependency of skal")
    shown, _ = formatters.DisplayFormatter().format(result.plot())
    assert shown["image/png"]
