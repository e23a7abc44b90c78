"""Runs that do not go as planned: labels of one class, strategies that fail, wide tables, long trainings."""

import numpy as np
import pytest

from skal.bench import BenchmarkError, BenchmarkResult, run_benchmark
from skal.config import config_context
from skal.strategies import Margin

from .results import make_result

LABELS = {"net": "logistic", "inputs": "unit", "n_initial": 4, "query_size": 2, "n_rounds": 2}


@pytest.fixture(scope="module")
def rare():
    """Two classes, one of them an eighth: many random draws of four have the other one only."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3)).astype("float32")
    return X, (X[:, 0] > 1.2).astype(int)


@pytest.fixture(scope="module")
def one_class(rare):
    return run_benchmark(["random", "margin"], data=rare, seeds=6, **LABELS)


class TestOneClass:
    def test_labels_of_one_class_score_as_that_class(self, one_class, rare):
        runs = [run for run in one_class.runs if any("one class" in text for text in run.warnings)]
        assert 0 < len(runs) < len(one_class.runs)
        share = np.bincount(rare[1])[0] / len(rare[1])  # the test set has a fifth of each class
        for run in runs:
            assert run.scores[0] == pytest.approx(share, abs=0.02)
            assert np.isnan(run.train_scores[0])

    def test_strategies_stay_paired(self, one_class):
        for seed in range(6):
            a, b = (run for run in one_class.runs if run.seed == seed)
            assert a.initial == b.initial
            assert a.scores[0] == b.scores[0]

    def test_a_whole_run_of_one_class_is_a_run(self, rare):
        X, y = rare
        data = (X[y == 0][:40], np.r_[np.zeros(39, dtype=int), 1], X, y)
        result = run_benchmark(["random"], data=data, seeds=1, **LABELS)
        assert result.runs[0].scores == pytest.approx([np.mean(y == 0)] * 3)
        assert "At 3 of 3 budgets all labels are of one class" in result.runs[0].warnings[0]

    def test_balanced_accuracy_of_one_class_is_chance(self, rare):
        X, y = rare
        data = (X[y == 0][:40], np.r_[np.zeros(39, dtype=int), 1], X, y)
        result = run_benchmark(["random"], data=data, seeds=1, scoring="balanced_accuracy", **LABELS)
        assert result.runs[0].scores == pytest.approx([0.5] * 3)


class Broken(Margin):
    """Fails once it has seen labels."""

    def _select(self, context, n_instances):
        raise RuntimeError("out of luck")


class TestFailure:
    def test_without_a_folder_the_other_runs_are_in_the_error_and_on_the_disk(self, rare):
        settings = LABELS | {"n_rounds": 1, "seeds": 2, "initial": "balanced"}
        with pytest.raises(BenchmarkError, match="2 of 4 runs failed") as caught:
            run_benchmark({"random": "random", "broken": Broken()}, data=rare, **settings)
        assert caught.value.result.strategies == ["random"]
        assert len(caught.value.result.runs) == 2
        folder = str(caught.value).split("saved in ")[1].split(":")[0]
        assert BenchmarkResult.load(folder).runs == caught.value.result.runs
        # with the folder that the message names, only what failed is run again
        result = run_benchmark({"random": "random", "broken": Margin()}, data=rare, out=folder, **settings)
        assert [run.seconds_fit for run in result.runs[:2]] == [r.seconds_fit for r in caught.value.result.runs]
        assert result.n_missing == 0

    def test_without_any_run_there_is_no_result(self, rare):
        with pytest.raises(BenchmarkError, match="No run finished") as caught:
            run_benchmark({"broken": Broken()}, data=rare, seeds=1, **LABELS | {"initial": "balanced"})
        assert caught.value.result is None


def draw(learner, X_pool, n_instances=1):
    assert learner.X_training is None or len(learner.X_training) >= 4
    return np.random.permutation(len(X_pool))[:n_instances]


def test_zero_shot_takes_plain_functions(rare):
    settings = LABELS | {"n_rounds": 1, "seeds": 2, "initial": "zero_shot"}
    first, again = (run_benchmark({"draw": draw}, data=rare, **settings) for _ in range(2))
    assert [run.initial for run in first.runs] == [run.initial for run in again.runs]
    assert first.runs[0].initial != first.runs[1].initial
    assert all(len(set(run.initial)) == 4 for run in first.runs)


def test_a_wide_table_prints_whole():
    table = make_result(np.random.default_rng(0).random((70, 2, 40))).table()
    for text in (str(table), table.to_string(), table._repr_html_()):
        assert "..." not in text
        assert all(str(column) in text for column in table.columns)
        assert all(name in text for name in table.index)
    assert str(table.head(1)).count("±") == 40


def test_long_trainings_are_announced(capsys):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)).astype("float32")
    settings = {"net": "mlp", "n_initial": 6, "query_size": 3, "n_rounds": 1, "seeds": 1, "inputs": "unit"}
    with config_context(progress=True):
        # the first epoch is good enough, but nobody knows before
        run_benchmark(["random"], data=(X, X[:, 0] > 0), max_epochs=10**6, stop_accuracy=0.0, **settings)
        assert "Training for 1 run takes at most about" in capsys.readouterr().err
        run_benchmark(["random"], data=(X, X[:, 0] > 0), max_epochs=2, **settings)
        assert "Training" not in capsys.readouterr().err
