"""A start that a strategy chooses, before anything is labelled or trained, and the recommended strategy."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn

from skal import ActiveLearningClassifier
from skal.exceptions import InvalidParameterError, InvalidTypeError, NotFittedError
from skal.strategies import CoreSet, Margin, MaxHerding, ProbCover, TypiClust, UHerding, max_herding

from ..support.learners import learner_of


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    return (3 * rng.normal(size=(3, 4))[y] + rng.normal(size=(90, 4))).astype(np.float32), y


def loop_of(estimator, query_strategy="margin", **params):
    params = {"n_initial": 9, "n_rounds": 1, "query_size": 5, "random_state": 0} | params
    return ActiveLearningClassifier(estimator, query_strategy, **params)


def network(freeze=False):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    module[0].requires_grad_(not freeze)
    return NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, max_epochs=2, train_split=None, verbose=0)


@pytest.mark.parametrize(
    "initial",
    [MaxHerding(), "max_herding", "MaxHerding()", max_herding, "auto"],
    ids=["object", "name", "class", "function", "auto"],
)
def test_the_first_samples_are_the_strategys(initial, data):
    X, y = data
    loop = loop_of(LogisticRegression(), initial=initial).fit(X, y)
    strategy = MaxHerding(features="prepared", normalize=False) if initial == "auto" else MaxHerding()
    expected = strategy(learner_of(LogisticRegression()), X, 9)
    assert loop.queried_[:9].tolist() == expected.tolist()
    assert (loop.history_[0]["metrics"] is None) == (initial == "auto")


def test_every_round_says_who_chose_and_why(data):
    X, y = data
    rows = loop_of(LogisticRegression(), "auto", initial="auto").fit(X, y).history_
    assert rows[0]["reason"].startswith("MaxHerding: no labels yet, and the inputs are a table")
    assert all(row["reason"].partition(": ")[0] in ("UHerding", "Margin", "MaxHerding") for row in rows[1:])
    assert all(len(row["reason"].partition(": ")[2]) > 20 for row in rows[1:])
    named = loop_of(LogisticRegression(), Margin(), initial="random").fit(X, y).history_
    assert [row["reason"] for row in named] == ["random", *["Margin: as asked for"] * (len(named) - 1)]


@pytest.mark.parametrize("initial", [TypiClust(), ProbCover(), CoreSet(), MaxHerding(features="input")], ids=str)
@pytest.mark.parametrize("estimator", [LogisticRegression(), network(), make_pipeline(StandardScaler(), network())])
def test_any_strategy_that_needs_no_labels_can_start(initial, estimator, data):
    X, y = data
    runs = [loop_of(estimator, initial=initial).fit(X, y) for _ in range(2)]
    assert len(set(runs[0].queried_[:9].tolist())) == 9
    assert runs[0].queried_.tolist() == runs[1].queried_.tolist()
    assert runs[0].initial_ == f"{type(initial).__name__}: as asked for"


TABLE = (
    "MaxHerding: no labels yet, and the inputs are a table, whose columns are scaled and whose rows are compared by "
    "distance for so few labels"
)
ROWS = "MaxHerding: no labels yet, and the inputs are rows of numbers"
FROZEN = "MaxHerding: no labels yet, and the layers below the last one are mostly frozen, and give features"


def test_a_session_starts_with_a_strategy_and_goes_on_from_its_checkpoint(data, tmp_path):
    X, y = data
    session = loop_of(LogisticRegression(), "auto", initial="auto", checkpoint=tmp_path).start(X)
    first = session.ask()
    assert session.classifier.initial_ == TABLE
    del session
    again = loop_of(LogisticRegression(), "auto", initial="auto", checkpoint=tmp_path).start(X)
    assert again.ask().tolist() == first.tolist()
    again.tell(y[first])
    assert again.classifier.initial_ == TABLE
    again.ask()
    assert isinstance(again.classifier.query_strategy_, UHerding)  # as soon as it has chosen


@pytest.mark.parametrize(
    ("estimator", "start", "then"),
    [
        (LogisticRegression(), TABLE, "UHerding()"),
        (network(freeze=True), FROZEN, "UHerding()"),
        (network(), ROWS, "UHerding()"),
    ],
    ids=["inputs", "frozen", "random"],
)
@pytest.mark.parametrize("auto", ["auto", None, "default"])
def test_what_is_recommended_and_why(estimator, start, then, auto, data):
    loop = ActiveLearningClassifier(estimator, n_initial=9, n_rounds=1, query_size=5, random_state=0)
    if auto != "default":
        loop.set_params(query_strategy=auto, initial="auto")
    loop.fit(*data)
    assert loop.initial_ == start
    assert repr(loop.query_strategy_).split("(")[0] + "()" == then


def test_inputs_that_are_all_alike(data):
    X, y = data
    loop = loop_of(HistGradientBoostingClassifier(max_iter=2), "auto", initial="auto").fit(np.zeros_like(X), y)
    assert loop.initial_ == "RandomSampling: no labels yet, and the inputs are all alike"
    assert type(loop.query_strategy_).__name__ == "Margin"


@pytest.mark.parametrize("damage", [lambda X: np.where(X > 2, np.nan, X), lambda X: np.abs(X[:, :1])])
def test_gaps_and_a_single_column_are_a_table(damage, data):
    X, y = data
    loop = loop_of(HistGradientBoostingClassifier(max_iter=2), "auto", initial="auto").fit(damage(X), y)
    assert loop.initial_ == TABLE
    assert type(loop.query_strategy_).__name__ == "UHerding"


def test_texts_are_compared_by_their_words(data):
    texts = np.array([f"word{label} thing{i % 7}" for i, label in enumerate(data[1])])
    pipeline = make_pipeline(CountVectorizer(), MultinomialNB())
    loop = loop_of(pipeline, "auto", initial="auto").fit(texts, data[1])
    assert loop.initial_ == "MaxHerding: no labels yet, and the inputs are sparse rows"
    assert len(set(texts[loop.queried_[:9]])) == 9


def test_other_starts_say_what_they_were(data):
    for initial, said in (("random", "random"), ("stratified", "stratified"), ([1, 2, 3, 4, 5], "positions")):
        assert loop_of(LogisticRegression(), initial=initial).fit(*data).initial_ == said


def test_a_start_that_cannot_work_is_refused(data):
    with pytest.raises(NotFittedError, match="UHerding"):
        loop_of(LogisticRegression(), initial=UHerding()).fit(*data)
    with pytest.raises(InvalidTypeError, match=r"'initial' .* must be a strategy, not a class.*MaxHerding\(\)"):
        loop_of(LogisticRegression(), initial=MaxHerding).fit(*data)
    with pytest.raises(InvalidParameterError, match=r"'initial' parameter .* 'max_herding'"):
        loop_of(LogisticRegression(), initial="maxherding").fit(*data)
    with pytest.raises(InvalidParameterError, match="'n_initial'"):
        loop_of(LogisticRegression(), initial="auto", n_initial=0).fit(*data)
