"""The benchmark of the coverage strategies: what it prints, and what it calls a failure."""

import pytest
import torch

from benchmarks import coverage


@pytest.fixture
def small(monkeypatch):
    """Sizes of a moment, and scikit-activeml played by our own code."""
    monkeypatch.setattr(coverage, "QUICK", 210)
    monkeypatch.setattr(coverage, "_theirs", coverage._ours)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("small")
def test_prints_a_row_for_each_strategy(capsys):
    assert coverage.main(["speed", "--quick"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| MaxHerding", "| TypiClust"))]
    assert len(rows) == 2
    assert all("10 of 10" in row and "×" in row for row in rows)


@pytest.mark.usefixtures("small")
def test_other_picks_and_too_much_memory_are_failures(monkeypatch, capsys):
    monkeypatch.setattr(coverage, "_theirs", lambda name, learner, X, b: coverage._ours(name, learner, X[::-1], b))
    assert coverage.main(["speed", "--quick"]) == 1
    monkeypatch.setattr(coverage, "peak_memory", lambda *args: int(3e9))
    assert coverage.main(["memory", "--quick"]) == 1
    assert "3,000 MB" in capsys.readouterr().out


def test_a_large_pool_is_a_memory_map(capsys):
    assert coverage.main(["_task", "600", "3"]) == 0
    assert capsys.readouterr().out.startswith("baseline=")


def test_an_unknown_table_is_refused(capsys):
    with pytest.raises(SystemExit):
        coverage.main(["beauty"])
    assert "Choose from: speed, memory" in capsys.readouterr().err
