"""The benchmark of stopping criteria finds where they stop, and counts intervals that hold."""

import numpy as np

from benchmarks.stopping import forecasts, main, plateau, run, stop_of, stops
from skal import datasets
from skal.stopping import Budget, MaxTime


def rows(scores):
    return [{"n_labelled": 20 * (i + 1), "eval_score": score} for i, score in enumerate(scores)]


def test_plateau_is_the_end_of_the_curve_and_where_it_begins():
    level, start = plateau(rows([0.5, 0.7, 0.9, 0.88, 0.9, 0.9, 0.9, 0.9, 0.9]))
    assert level == 0.9
    assert start == 100  # the fourth round is too low, the fifth is near
    assert plateau(rows([0.9] * 6)) == (0.9, 20)


def test_a_criterion_is_asked_after_every_round():
    history = rows([0.5] * 5)
    assert stop_of(Budget(50), history)["n_labelled"] == 60
    assert stop_of(MaxTime(1), history) is None


def test_a_small_run():
    data = datasets.load("digits")
    runs = [run(data, "margin", 0, query_size=20, n_labels=300, n_pool=600)]
    table = stops(runs)
    assert len(table) == 7
    assert set(table["stopped"]) <= {"0 of 1", "1 of 1"}
    found = forecasts(runs).iloc[0]
    assert 0 <= found["interval of now holds the test accuracy, %"] <= 100
    assert np.isfinite(found.to_numpy(dtype=float)).all()


def test_command(capsys):
    main(["digits", "--seeds", "1", "--labels", "240", "--pool", "400"])
    assert "StablePredictions()" in capsys.readouterr().out
