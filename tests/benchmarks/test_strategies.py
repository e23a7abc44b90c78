"""The benchmark of all strategies runs, at sizes that say nothing, and so does the check of the report."""

import numpy as np
import pytest

import skal.strategies
from benchmarks import check_report, strategies

from ..bench.results import make_result


def test_all_strategies_of_the_papers_take_part():
    functions = {name for name in skal.strategies.__all__ if name.islower()}
    others = {
        "max_herding",
        "uherding",
        "typiclust",
        "prob_cover",
        "drop_query",
        "falcun",
        "epig",
        "bait",
    }  # of other papers
    assert set(strategies.STRATEGIES) == functions - {"random_sampling"} - others | {"random", "albl"}
    assert len(strategies.STRATEGIES) == 13


def test_quick_run_prints_tables_and_writes_figures(tmp_path, capsys):
    arguments = ["digits", "--quick", "--jobs", "1", "--out", str(tmp_path), "--figures", str(tmp_path / "figures")]
    assert strategies.main(arguments) == 0
    out = capsys.readouterr().out
    for name in strategies.STRATEGIES[1:]:
        assert f"- {name}: " in out
    assert out.count("**") == 2 * len(strategies.SHOWN)
    assert len(list((tmp_path / "figures").iterdir())) == 4


def test_table2_puts_the_papers_rows_beside_ours():
    scores = np.random.default_rng(0).uniform(size=(5, 2, 10))
    lines = strategies.table2(make_result(scores, list(strategies.TABLE2))).splitlines()
    assert len(lines) == 7
    cells = [cell.strip() for cell in lines[-1].strip("|").split("|")]
    assert cells[0::2] == [
        "dynamic_al",
        *(f"{100 * scores[4, :, k].mean():.1f} ± {100 * scores[4, :, k].std(ddof=1):.1f}" for k in (0, 3, 6, 9)),
    ]
    assert cells[1::2] == ["32.6", "35.8", "38.0", "38.9"]


def test_unknown_name_is_refused(capsys):
    with pytest.raises(SystemExit):
        strategies.main(["imagenet"])
    assert "Choose from: digits, mnist, cifar10_sub" in capsys.readouterr().err


GOOD = {"images": [["a", True]] * 5, "overflow": 0, "outside": [], "size": 14}


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"images": [["a", True]] * 4 + [["b", False]]}, "'b' is missing"),
        ({"images": []}, "0 images instead of 5"),
        ({"overflow": 7}, "7 pixels too wide"),
        ({"outside": ["http://example.org/x"]}, "asks for http://example.org/x"),
        ({"size": 9}, "text of 9 pixels"),
    ],
)
def test_the_check_of_the_report_can_fail(change, fault):
    assert check_report.faults(GOOD) == []
    assert any(fault in wrong for wrong in check_report.faults(GOOD | change))


def test_no_browser_is_not_a_pass(capsys):
    assert check_report.main(["--browser", "no-such-browser"]) == 1
    assert "nothing was checked" in capsys.readouterr().err
