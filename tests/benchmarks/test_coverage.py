"""The benchmark of the coverage strategies: what it prints, and what it calls a failure."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks import coverage


@pytest.fixture
def small(monkeypatch):
    """Sizes of a moment, and scikit-activeml played by our own code."""
    monkeypatch.setattr(coverage, "QUICK", 210)
    monkeypatch.setattr(coverage, "_theirs", lambda name, learner, X, b, *_: coverage._ours(name, learner, X, b))
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
def test_other_picks_are_a_failure(monkeypatch):
    monkeypatch.setattr(coverage, "_theirs", lambda name, learner, X, b, *_: np.arange(b))
    assert coverage.main(["speed", "--quick"]) == 1


def test_clusters_are_those_of_the_strategy():
    learner, X = coverage._problem(210)
    clusters = coverage._OurClusters(105).fit_predict(np.concatenate([X, learner.X_training]))
    assert clusters.shape == (310,)
    free = np.setdiff1d(clusters[:210], clusters[210:])  # without a label
    picked = coverage._ours("TypiClust", learner, X, 5)
    sizes = np.bincount(clusters, minlength=105)
    if len(free) >= 5 and np.sort(sizes[free])[-5] > 5:
        assert set(clusters[picked]) <= set(free)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_too_much_memory_is_a_failure(monkeypatch, capsys):
    monkeypatch.setattr(coverage, "_write_features", lambda path, n: None)
    answer = SimpleNamespace(stdout="3e9 12.0")
    monkeypatch.setattr(coverage.subprocess, "run", lambda *args, **kwargs: answer)
    assert coverage.main(["memory", "--quick"]) == 1
    assert "3,000 MB" in capsys.readouterr().out


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("name", coverage.STRATEGIES)
def test_a_large_pool_is_a_memory_map(name, tmp_path, capsys):
    threads = torch.get_num_threads()
    coverage._write_features(tmp_path / "features.npy", 600)
    assert coverage.main(["_task", name, str(tmp_path / "features.npy"), "3"]) == 0
    peak, seconds = map(float, capsys.readouterr().out.split())
    assert peak >= 0
    assert seconds > 0
    torch.set_num_threads(threads)


def test_a_random_evaluation_set_is_compared_with_the_whole_pool(monkeypatch, capsys):
    learner, X = coverage._problem(150)
    monkeypatch.setattr(coverage, "_problem", lambda n: (learner, X))
    assert coverage.main(["evaluation", "--quick"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.endswith("% |")]
    assert [row.split(" | ")[0] for row in rows] == ["| 100", "| 500", "| all", "| (random batch)"]


def test_an_unknown_table_is_refused(capsys):
    with pytest.raises(SystemExit):
        coverage.main(["beauty"])
    assert "Choose from: speed, memory, evaluation" in capsys.readouterr().err
