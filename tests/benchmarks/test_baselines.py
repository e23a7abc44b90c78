"""The benchmark of the baselines: its objectives, its targets, and what it prints."""

import numpy as np
import pytest
import torch

from benchmarks import baselines


@pytest.fixture
def small(monkeypatch):
    """Sizes of a moment, and scikit-activeml played by our own code."""
    monkeypatch.setattr(baselines, "QUICK", [(200, 3, 0, 0)])
    monkeypatch.setattr(baselines, "_theirs", baselines._ours)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_objectives_are_the_definitions():
    learner, X = baselines._problem(60, 3)
    picked = np.array([4, 40, 7])
    with torch.no_grad():
        proba = torch.softmax(learner.estimator.module_(torch.from_numpy(X)).double(), dim=1).numpy()
    g = ((proba - np.eye(3)[proba.argmax(axis=1)])[:, :, None] * X[:, None].astype(float)).reshape(60, -1)
    potential = ((g[:, None] - g[picked][None]) ** 2).sum(axis=2).min(axis=1).sum()
    assert baselines._objective("BADGE", learner, X, picked) == pytest.approx(potential, rel=1e-6)
    centres = np.concatenate([learner.X_training, X[picked]]).astype(float)
    radius = np.sqrt(((X[:, None].astype(float) - centres[None]) ** 2).sum(axis=2)).min(axis=1).max()
    assert baselines._objective("CoreSet", learner, X, picked) == pytest.approx(radius, rel=1e-6)


@pytest.mark.usefixtures("small")
def test_prints_a_row_for_each_strategy(capsys):
    assert baselines.main(["speed", "--quick"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| BADGE", "| CoreSet"))]
    assert len(rows) == 2
    assert all("200" in row and "×" in row for row in rows)


@pytest.mark.usefixtures("small")
def test_a_missed_target_shows_in_the_status(monkeypatch, capsys):
    monkeypatch.setattr(baselines, "QUICK", [(200, 3, 2, 0)])
    monkeypatch.setattr(baselines, "_timed", lambda task, repeats=1: (1.0, task()))
    assert baselines.main(["speed", "--quick"]) == 1
    monkeypatch.setattr(baselines, "peak_memory", lambda *args: int(3e9))
    assert baselines.main(["memory", "--quick"]) == 1
    assert "3,000 MB" in capsys.readouterr().out


def test_an_unknown_table_is_refused(capsys):
    with pytest.raises(SystemExit):
        baselines.main(["beauty"])
    assert "Choose from: speed, memory" in capsys.readouterr().err
