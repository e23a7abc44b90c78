"""The curve shows what is in the history."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate

from skal import ActiveLearningClassifier
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.loop import ActiveLearningCurveDisplay
from skal.strategies import Margin, RandomSampling


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


@pytest.fixture
def loop():
    return ActiveLearningClassifier(
        LogisticRegression(), Margin(), n_initial=12, query_size=4, n_rounds=2, random_state=0
    )


def test_one_loop(loop, flat_data):
    X, y = flat_data
    loop.fit(X, y, eval_set=(X, y))
    display = ActiveLearningCurveDisplay.from_estimator(loop, color="red")
    (line,) = display.lines_
    assert line.get_xdata().tolist() == [12, 16, 20]
    assert line.get_ydata().tolist() == [row["eval_score"] for row in loop.history_]
    assert line.get_color() == "red"
    assert line.get_label() == "Margin"
    assert display.ax_.get_ylabel() == "eval score"
    assert display.bands_ == []
    other = ActiveLearningCurveDisplay.from_estimator(loop, score="train_score", score_name="accuracy", ax=display.ax_)
    assert other.figure_ is display.figure_
    assert other.lines_[0].get_ydata().tolist() == [row["train_score"] for row in loop.history_]


def test_repeats_and_several(loop, flat_data):
    X, y = flat_data
    folds = cross_validate(loop, X, y, cv=3, return_estimator=True)["estimator"]
    single = ActiveLearningClassifier(LogisticRegression(), RandomSampling(), n_initial=12, query_size=8, n_rounds=1)
    display = ActiveLearningCurveDisplay.from_estimator({"folds": folds, "random": single.fit(X, y)})
    scores = np.array([[row["train_score"] for row in fold.history_] for fold in folds])
    np.testing.assert_allclose(display.lines_[0].get_ydata(), scores.mean(axis=0))
    assert len(display.bands_) == 1
    assert [text.get_text() for text in display.ax_.get_legend().get_texts()] == ["folds", "random"]


def test_repeats_that_stopped_early(loop, flat_data):
    X, y = flat_data
    short = ActiveLearningClassifier(LogisticRegression(), n_initial=12, query_size=4, n_rounds=1, random_state=1)
    display = ActiveLearningCurveDisplay.from_estimator([loop.fit(X, y), short.fit(X, y)])
    assert display.lines_[0].get_xdata().tolist() == [12, 16]


def test_bad_input(loop, flat_data):
    with pytest.raises(InvalidTypeError, match="'estimator'"):
        ActiveLearningCurveDisplay.from_estimator("loop")
    for nothing in ([], {}, {"margin": []}):
        with pytest.raises(InvalidParameterError, match=r"'estimator'.*at least one loop"):
            ActiveLearningCurveDisplay.from_estimator(nothing)
    with pytest.raises(ValueError, match="not fitted"):
        ActiveLearningCurveDisplay.from_estimator(loop)
    loop.fit(*flat_data)
    with pytest.raises(InvalidParameterError, match=r"'score'.*train_score"):
        ActiveLearningCurveDisplay.from_estimator(loop, score="eval_score")
