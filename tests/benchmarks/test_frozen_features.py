"""The benchmark on frozen features: runs are made once, compared seed by seed, and go on where they stopped."""

import numpy as np
import pytest

from benchmarks import frozen_features


@pytest.fixture
def made(monkeypatch):
    seen = []

    def run(data, strategy, seed):
        seen.append((data, strategy, seed))
        return [0.5 + 0.1 * seed, 0.7 + 0.1 * seed + 0.02 * list(frozen_features.STRATEGIES).index(strategy)]

    monkeypatch.setattr(frozen_features, "run", run)
    return seen


def test_runs_are_made_once_and_compared_seed_by_seed(made, tmp_path, capsys):
    assert frozen_features.main(["--seeds", "1", "--out", str(tmp_path)]) == 0
    assert frozen_features.main(["--seeds", "2", "--out", str(tmp_path)]) == 0
    assert len(made) == len(set(made)) == 2 * len(frozen_features.STRATEGIES)
    last = capsys.readouterr().out.split("| digits |")[-1]
    assert "| random | 65.0 |  | -1.0 ± 0.0 (0/2) |" in last
    assert "| coreset | 68.0 | +3.0 ± 0.0 (2/2) | +2.0 ± 0.0 (2/2) |" in last


def test_a_run_has_an_accuracy_for_every_round(monkeypatch):
    monkeypatch.setattr(frozen_features, "MOST", 120)
    monkeypatch.setitem(frozen_features.BUDGETS, "digits", (15, 5, 2))
    for strategy in ("random", "uherding after max_herding"):
        scores = frozen_features.run("digits", strategy, 0)
        assert len(scores) == 3
        assert np.all((np.array(scores) > 0.1) & (np.array(scores) <= 1))
