"""The papers' studies at their smallest: every command prints its table, and a second run measures nothing."""

import json

import pytest

from benchmarks._kept import Kept
from benchmarks.papers import main
from benchmarks.papers.commands import STUDIES

# seconds each at the smallest size; what is a benchmark has tests of its own
QUICK = ["mmd_second", "mmd_budget", "criteria", "gaussian_process", "claim", "spectra", "growing"]


@pytest.mark.parametrize("name", QUICK)
def test_a_study_prints_its_table(name, tmp_path, capsys):
    assert main([name, "--size", "quick", "--results", str(tmp_path)]) == 0
    first = capsys.readouterr().out
    assert STUDIES[name].repeats in first
    rows = [line for line in first.splitlines() if line.startswith("|")]
    assert len(rows) >= 4
    assert len({row.count("|") for row in rows}) == 1
    assert main([name, "--size", "quick", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out == first  # seconds too: nothing is measured again


def test_all_are_named(capsys):
    assert main(["--list"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == list(STUDIES)


def test_an_unknown_study(capsys):
    with pytest.raises(SystemExit):
        main(["figure7"])
    assert "Choose from: mmd," in capsys.readouterr().err


def test_kept_results_survive(tmp_path):
    path = tmp_path / "some" / "results.jsonl"
    assert Kept(path)("a", lambda: [1, 2]) == [1, 2]
    assert Kept(path)("a", lambda: pytest.fail("measured twice")) == [1, 2]
    assert json.loads(path.read_text())["key"] == "a"
