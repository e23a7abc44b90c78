"""Benchmarks of numbers, and of several labels at once."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, make_multilabel_classification
from sklearn.metrics import f1_score

from skal.bench import BenchmarkResult, Protocol, run_benchmark
from skal.cli import main
from skal.exceptions import InvalidParameterError, InvalidTypeError

SMALL = {"n_initial": 20, "query_size": 10, "n_rounds": 2, "seeds": 2, "max_epochs": 5}


@pytest.mark.parametrize("net", ["mlp", "forest", "linear"])
def test_numbers(net):
    result = run_benchmark(["random", "lcmd"], task="regression", data="diabetes", net=net, n_pool=200, **SMALL)
    assert result.scores.shape == (2, 2, 3)
    assert result.score_name == "minus RMSE"
    assert (result.scores < 0).all()
    assert (result.scores[:, :, -1] > -2).all()  # in deviations of the targets
    assert result.tests().loc["lcmd", "difference"] == pytest.approx(
        (result.areas().loc["lcmd"] - result.areas().loc["random"]).mean()
    )


@pytest.mark.parametrize("scoring", ["f1_micro", "f1_macro", "average_precision"])
def test_several_labels(scoring):
    X, Y = make_multilabel_classification(n_samples=300, n_classes=3, random_state=0)
    settings = {"task": "multilabel", "data": (X, Y), "scoring": scoring, "net": "logistic"}
    result = run_benchmark(["random", "margin"], **settings, **SMALL)
    assert ((result.scores > 0) & (result.scores <= 1)).all()
    always = f1_score(Y, np.ones_like(Y), average="micro")
    assert result.scores[:, :, -1].mean() > always - 0.2


def test_r2_and_mae_are_known_and_others_refused():
    for scoring in ("r2", "mae"):
        protocol = Protocol(task="regression", scoring=scoring).settle().check()
        assert protocol.scoring == scoring
        assert "lcmd" in protocol.strategies
    with pytest.raises(InvalidParameterError, match=r"'scoring' .*'rmse', 'mae', 'r2'\. Got 'f1_micro'"):
        Protocol(task="regression", scoring="f1_micro").settle().check()
    with pytest.raises(InvalidParameterError, match=r"'initial' .* There are no classes"):
        Protocol(task="regression", initial="balanced").settle().check()
    with pytest.raises(InvalidTypeError, match="task of Margin must be classification"):
        run_benchmark(["random", "margin"], task="regression", data="diabetes", **SMALL)


def test_a_classification_is_described_as_before():
    assert "task" not in Protocol().as_dict()
    assert Protocol.from_dict(Protocol(task="regression").as_dict()).task == "regression"


def test_the_command(tmp_path, capsys):
    X, y = load_diabetes(return_X_y=True)
    np.savez(tmp_path / "mine.npz", X_train=X[:300], y_train=y[:300], X_test=X[300:], y_test=y[300:])
    words = ["bench", "--task", "regression", "--data", str(tmp_path / "mine.npz"), "--net", "forest"]
    words += ["--strategies", "random,lcmd", "--n-initial", "20", "--query-size", "10", "--n-rounds", "1"]
    main([*words, "--seeds", "2", "--out", str(tmp_path / "out")])
    assert "minus RMSE" in capsys.readouterr().out
    assert BenchmarkResult.load(tmp_path / "out").protocol.task == "regression"
