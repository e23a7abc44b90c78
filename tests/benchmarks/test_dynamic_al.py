"""The studies behind the guide's numbers run, at sizes that say nothing."""

import numpy as np
import pytest

from benchmarks import _dynamics_study, dynamic_al
from skal.nets import CNN
from skal.strategies import DynamicAL


@pytest.fixture(autouse=True)
def without_data(monkeypatch, tmp_path):
    monkeypatch.setenv("SKAL_DATA_HOME", str(tmp_path))


def test_speed():
    header, _, line = dynamic_al.speed_table(repeats=1, timed=[("tutorial CNN", CNN, 64, 8)]).splitlines()
    assert header.endswith("| ratio |")
    assert line.startswith("| tutorial CNN |")
    assert line.count("|") == header.count("|")


def test_optimum():
    lines = dynamic_al.optimum_table(n_problems=3).splitlines()
    assert [line.split()[1] for line in lines[2:]] == ["greedy", "top"]


def test_the_objective_of_one_sample_is_its_score():
    learner, X_pool = next(dynamic_al.small_problems())
    value = dynamic_al.batch_objective(learner, X_pool)
    np.testing.assert_allclose(
        [value([i]) for i in range(len(X_pool))], DynamicAL().scores(learner, X_pool), rtol=1e-3, atol=1e-5
    )


def test_ratio(tmp_path, capsys):
    settings = {"query_sizes": (1, 5), "checkpoints": (0, 2), "n_labelled": 20, "n_pool": 30, "n_draws": 4}
    table = _dynamics_study.ratio_table("mnist", tmp_path, **settings)
    assert "using digits" in capsys.readouterr().out
    assert "1.000 [1.000, 1.000]" in table  # one sample has no others to interact with
    assert (tmp_path / "approximation_ratio_digits.png").exists()


def test_correlation(tmp_path):
    table = _dynamics_study.correlation_table("digits", tmp_path, n_labelled=20, n_query=10, n_draws=5, n_pool=30)
    assert len(table.splitlines()) == 7
    assert (tmp_path / "dynamics_correlation_digits.png").exists()


def test_unknown_task_is_refused(capsys):
    with pytest.raises(SystemExit):
        dynamic_al.main(["seed"])
    assert "Choose from: speed, optimum, ratio, correlation" in capsys.readouterr().err
