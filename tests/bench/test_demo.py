"""The demo: what it records, that its comparison is paired, and what it writes."""

import numpy as np
import pandas as pd
import pytest
import torch

from skal import strategies
from skal.bench import _demo as demo
from skal.exceptions import InvalidParameterError, InvalidTypeError

TINY = {"n_seeds": 2, "n_rounds": 2, "n_initial": 12, "batch": 3, "max_epochs": 2}


@pytest.fixture(scope="module")
def curves():
    return demo.run_demo(**TINY)


def test_one_row_per_strategy_seed_and_round(curves):
    assert list(curves.columns) == ["strategy", "seed", "n_labels", "accuracy"]
    assert not curves.duplicated(["strategy", "seed", "n_labels"]).any()
    assert len(curves) == len(demo.demo_strategies()) * 2 * 3
    assert set(curves["n_labels"]) == {12, 15, 18}
    assert curves["accuracy"].between(0, 1).all()


def test_strategies_of_a_seed_start_from_the_same_network(curves):
    start = curves[curves["n_labels"] == 12]
    assert (start.groupby("seed")["accuracy"].nunique() == 1).all()
    assert start["accuracy"].nunique() == 2  # but the seeds differ


def test_strategies_do_not_disturb_one_another(curves, monkeypatch):
    monkeypatch.setattr(demo, "demo_strategies", lambda: ["Entropy", "RandomSampling"])
    by = ["strategy", "seed", "n_labels"]
    swapped = demo.run_demo(**TINY).sort_values(by, ignore_index=True)
    expected = curves[curves["strategy"].isin(["Entropy", "RandomSampling"])].sort_values(by, ignore_index=True)
    pd.testing.assert_frame_equal(swapped, expected)


def test_labels_are_asked_for_once_and_only_through_the_strategy(monkeypatch):
    seen = []

    class Recorder(strategies.RandomSampling):
        def select(self, learner, X_pool, n_instances=1):
            indices, metrics = super().select(learner, X_pool, n_instances)
            seen.append((len(X_pool), len(learner.y_training), np.asarray(X_pool)[indices]))
            return indices, metrics

    monkeypatch.setattr(strategies, "RandomSampling", Recorder)
    monkeypatch.setattr(demo, "demo_strategies", lambda: ["RandomSampling"])
    demo.run_demo(**TINY | {"n_seeds": 1})
    (pool, labels, _), (pool_2, labels_2, _) = seen
    assert (labels, labels_2) == (12, 15)
    assert pool_2 == pool - 3
    assert not np.array_equal(seen[0][2], seen[1][2])


def test_a_headline_strategy_joins_by_being_exported(monkeypatch):
    monkeypatch.setattr(strategies, "__all__", ["Entropy", "NPC", "RandomSampling"])
    assert demo.demo_strategies() == ["RandomSampling", "Entropy", "NPC"]
    monkeypatch.setattr(strategies, "NPC", strategies.Margin, raising=False)
    curves = demo.run_demo(**TINY | {"n_seeds": 1, "n_rounds": 1})
    assert list(curves["strategy"].unique()) == ["RandomSampling", "Entropy", "NPC"]


def test_global_state_is_left_alone():
    n_threads, torch_state, numpy_state = torch.get_num_threads(), torch.get_rng_state(), np.random.get_state()[1]
    demo.run_demo(**TINY | {"n_seeds": 1, "n_rounds": 1})
    assert torch.get_num_threads() == n_threads
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [("n_seeds", 0, InvalidParameterError), ("batch", 2.5, InvalidTypeError), ("n_rounds", 999, InvalidParameterError)],
)
def test_bad_sizes_are_refused(name, value, error):
    with pytest.raises(error, match=rf"'{name}' parameter of run_demo must be .* Got {value}"):
        demo.run_demo(**TINY | {name: value})


def _curves(accuracies):
    rows = [("B", 0, 40, a) for a in accuracies] + [("A", 0, 40, 0.25), ("B", 0, 20, 0.1), ("A", 0, 20, 0.1)]
    return pd.DataFrame(rows, columns=["strategy", "seed", "n_labels", "accuracy"])


def test_table_has_means_and_sample_deviations():
    lines = demo.learning_curve_table(_curves([0.5, 0.7])).splitlines()
    assert lines[0].split() == ["labels", "B", "A"]  # strategies in the order they were run, labels ascending
    assert [line.split()[0] for line in lines[1:]] == ["20", "40"]
    assert lines[2].split() == ["40", "60.0", "±", "14.1", "25.0"]


def test_table_of_one_seed_shows_no_spread():
    assert "±" not in demo.learning_curve_table(_curves([0.5]))


def test_plot_is_written_into_a_new_folder(tmp_path, curves):
    path = demo.learning_curve_plot(curves, tmp_path / "new" / "curve.png")
    assert path == tmp_path / "new" / "curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")
