"""What is recommended is what the documentation's table says, row by row."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    BaggingRegressor,
    ExtraTreesRegressor,
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn
from torch.utils.data import TensorDataset

from skal import ActiveLearner, ActiveLearningClassifier
from skal.context import QueryContext
from skal.exceptions import NonFiniteError, SkalError
from skal.strategies import BADGE, Margin, MaxHerding, NTKLookahead, RandomSampling, UHerding

from ..support.learners import strategy_named

PAGE = Path(__file__).parents[2] / "docs" / "index.md"
X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
TEXTS = np.array([f"text {i} {'ab' if i % 2 else 'cd'}" for i in range(30)])
y = np.arange(30) % 2


def network(frozen):
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    module[1].requires_grad_(not frozen)
    return NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, max_epochs=1, train_split=None, verbose=0)


# what the first column calls them, in the order of the table
IMAGES = X.reshape(-1, 1, 2, 2)
DIRECTIONS = X / np.linalg.norm(X, axis=1, keepdims=True)
WIDE = np.random.default_rng(1).normal(size=(30, 128)) + 3 * y[:, None]
TABLE = pd.DataFrame({"age": X[:, 0] * 1000, "town": np.resize(["Ulm", "Bern", "Pau"], 30), "member": X[:, 1] > 0})
COLUMNS = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["town", "member"]))
ROWS = {
    "a table": [
        (lambda: make_pipeline(COLUMNS, LogisticRegression()), TABLE),
        (RandomForestClassifier, X),
        (LogisticRegression, 100 * X),
        (LinearSVC, 100 * X),
    ],
    "embeddings, texts, sparse rows": [
        (lambda: make_pipeline(StandardScaler(), LogisticRegression()), WIDE),
        (LogisticRegression, DIRECTIONS),
        (lambda: make_pipeline(TfidfVectorizer(), LogisticRegression()), TEXTS),
        (lambda: make_pipeline(TfidfVectorizer(), LinearSVC()), TEXTS.tolist()),
    ],
    "rows of numbers, with a network": [(lambda: network(frozen=False), X)],
    "a network that is mostly frozen": [(lambda: network(frozen=True), X), (lambda: network(frozen=True), IMAGES)],
    "a network that is trained": [(lambda: network(frozen=False), IMAGES)],
}


def recommend(learner, X_pool):
    """The default strategy after a query: it says what it used, and why."""
    strategy = strategy_named("auto")
    strategy.select(learner, X_pool, 1)
    return strategy


def tables():
    """Rows of the page's table, and of the module's own: two lists of cells."""
    module = sys.modules[type(strategy_named("auto")).__module__]
    for text in (PAGE.read_text(encoding="utf-8"), module.__doc__):
        lines = text[text.index("| the estimator works on |") :].splitlines()[2:]
        cells = (line.split("|")[1:-1] for line in lines[: len(ROWS) + 3])
        yield [[cell.strip().replace("`", "") for cell in row] for row in cells]


def recommended(make, samples, fitted):
    estimator, labelled = make(), slice(10)
    if isinstance(estimator, NeuralNetClassifier):
        estimator.initialize()
    if fitted:
        labelled = samples.iloc[labelled] if hasattr(samples, "iloc") else samples[labelled]
        estimator.fit(labelled, y[:10])
        learner = SimpleNamespace(estimator=estimator, X_training=labelled, y_training=y[:10])
    else:
        learner = SimpleNamespace(estimator=estimator, X_training=None, y_training=None)
    found = recommend(learner, samples)
    assert found.reason_
    return found.strategy_


CASES = [(row, case) for row, cases in enumerate(ROWS.values()) for case in cases]


@pytest.mark.parametrize(("row", "case"), CASES, ids=[list(ROWS)[row] for row, _ in CASES])
def test_the_table_is_what_is_done(row, case):
    page, module = tables()
    found = [recommended(*case, fitted) for fitted in (False, True)]
    for table in (page, module):
        assert table[row][0] == list(ROWS)[row]
        names = [cell.replace(";", "").split(" ")[0] for cell in table[row][1:]]
        assert names == [type(strategy).__name__ for strategy in found]
    if row == 0:
        assert found[1].kernel == "forest"


def number_network():
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 1))
    return NeuralNetRegressor(module, max_epochs=1, train_split=None, verbose=0)


# what predicts numbers: the strategy after the first training
NUMBERS = [
    (RandomForestRegressor(10), X, "UHerding"),
    (make_pipeline(StandardScaler(), ExtraTreesRegressor(10)), X, "UHerding"),
    (GradientBoostingRegressor(n_estimators=10), X, "UHerding"),
    (make_pipeline(COLUMNS, RandomForestRegressor(10)), TABLE, "UHerding"),
    (RandomForestRegressor(10), DIRECTIONS, "LCMD"),
    (HistGradientBoostingRegressor(), X, "LCMD"),
    (BaggingRegressor(Ridge(), 5), X, "LCMD"),
    (Ridge(), X, "LCMD"),
    (number_network(), X, "LCMD"),
]


@pytest.mark.parametrize(("estimator", "samples", "afterwards"), NUMBERS)
def test_numbers(estimator, samples, afterwards):
    learner = SimpleNamespace(estimator=estimator, X_training=None, y_training=None)
    first = recommend(learner, samples)
    assert type(first.strategy_) is MaxHerding
    assert first.strategy_.normalize is False
    labelled, targets = samples[:10], np.linspace(0, 1, 10, dtype=np.float32)[:, None]
    estimator.fit(labelled, targets if isinstance(estimator, NeuralNetRegressor) else targets[:, 0])
    learner = SimpleNamespace(estimator=estimator, X_training=labelled, y_training=targets[:, 0])
    then = recommend(learner, samples)
    assert type(then.strategy_).__name__ == afterwards
    assert then.reason_.startswith("numbers are predicted")
    if afterwards == "UHerding":
        assert then.strategy_.kernel == "forest"
    by_trees = afterwards == "UHerding"
    for table in tables():
        (row,) = [cells for cells in table if cells[0].startswith("trees" if by_trees else "anything else")]
        assert row[1:] == ["MaxHerding by distance", f"{afterwards} by their leaves" if by_trees else afterwards]


def words():
    return nn.Sequential(nn.Embedding(40, 3), nn.Flatten(), nn.Linear(12, 2))


@pytest.mark.parametrize(
    ("module", "labelled", "pool"),
    [
        (words, np.arange(24).reshape(6, 4), np.arange(40).reshape(10, 4)),
        (lambda: nn.Linear(4, 2), X[:6], TensorDataset(torch.from_numpy(X))),
    ],
    ids=["tokens", "dataset"],
)
def test_inputs_that_a_network_takes_and_that_are_no_features(module, labelled, pool):
    assert isinstance(recommend(trained(module, labelled), pool).strategy_, NTKLookahead)


def untrained(X_pool):
    learner = SimpleNamespace(estimator=network(frozen=False), X_training=None, y_training=None)
    return recommend(learner, X_pool)


def test_a_network_without_labels_compares_its_inputs():
    found = untrained(X)
    assert found.strategy_.features == "prepared"
    assert found.reason_ == "no labels yet, and the inputs are rows of numbers"


def test_a_network_on_rows_of_numbers_compares_its_inputs():
    found = recommend(trained(lambda: nn.Linear(4, 2), X[:6]), X)
    assert found.strategy_.features == "prepared"
    assert found.reason_ == "the inputs are rows of numbers"


@pytest.mark.parametrize(
    ("pool", "reason"),
    [
        (np.ones((30, 4), np.float32), "the inputs all have one direction"),
        (np.arange(12).reshape(4, 3), "whole numbers that a network takes may be names, such as those of words"),
        (np.zeros((3, 1, 65, 65), np.float32), "the inputs have more than 4,096 numbers each"),
        (TensorDataset(torch.from_numpy(X)), "the inputs are no table of numbers"),
    ],
    ids=["constant", "tokens", "large", "dataset"],
)
def test_inputs_that_say_nothing_start_at_random(pool, reason):
    found = untrained(pool)
    assert isinstance(found.strategy_, RandomSampling)
    assert found.reason_ == f"no labels yet, and {reason}"


class Rounded(nn.Module):
    """Nothing flows back through it: it has outputs, but no tangent kernel."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x):
        with torch.no_grad():
            outputs = self.layer(x.flatten(1))
        return outputs


def trained(module, X_labelled):
    net = NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, train_split=None, verbose=0).initialize()
    return SimpleNamespace(estimator=net, X_training=X_labelled, y_training=y[: len(X_labelled)])


def test_margin_answers_where_look_ahead_cannot():
    learner = trained(Rounded, IMAGES[:6])
    with pytest.raises(SkalError):
        NTKLookahead().select(learner, IMAGES, 3)
    strategy = strategy_named("auto")
    indices, _ = strategy.select(learner, IMAGES, 3)
    assert isinstance(strategy.strategy_, Margin)
    assert strategy.reason_.startswith("look-ahead cannot work on this network: ")
    assert indices.tolist() == Margin().select(learner, IMAGES, 3)[0].tolist()


def test_what_is_wrong_with_the_pool_is_still_refused():
    with pytest.raises(NonFiniteError, match="X_pool"):
        strategy_named("auto").select(trained(lambda: nn.Linear(4, 2), X[:6]), np.full((5, 4), np.nan, np.float32), 2)


def test_the_default_of_a_learner_with_a_network_for_images_is_look_ahead():
    learner = ActiveLearner(network(frozen=False), "auto", X_training=IMAGES[:10], y_training=y[:10])
    indices, _ = learner.query(IMAGES[10:], 4)
    assert isinstance(learner.query_strategy.strategy_, NTKLookahead)
    assert len(set(indices.tolist())) == 4


class Adapted(nn.Module):
    """A network with one frozen number, a small adapter, and a body that is trained or frozen."""

    def __init__(self, frozen, n_spare=0):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)
        self.body, self.head = nn.Linear(4, 50).requires_grad_(not frozen), nn.Linear(50, 2)
        self.adapter = nn.Linear(4, 2, bias=False)
        self.spare = nn.Parameter(torch.zeros(n_spare))

    def forward(self, x):
        x = x.flatten(1) * self.scale
        return self.head(torch.relu(self.body(x) + self.adapter(x).sum(1, keepdim=True))) + self.spare.sum()


def test_one_frozen_number_does_not_make_a_network_pre_trained():
    assert isinstance(recommend(trained(Adapted(frozen=False), IMAGES[:6]), IMAGES).strategy_, NTKLookahead)
    found = recommend(trained(Adapted(frozen=True), IMAGES[:6]), IMAGES)
    assert isinstance(found.strategy_, UHerding)
    assert found.reason_ == "the layers below the last one are mostly frozen, and give features"


def test_look_ahead_is_for_networks_that_it_can_afford():
    found = recommend(trained(Adapted(frozen=False, n_spare=1_000_000), IMAGES[:6]), IMAGES)
    assert isinstance(found.strategy_, BADGE)
    assert found.reason_ == "the network is trained; look-ahead would take long with 1,000,360 parameters"


@pytest.mark.parametrize("informative", [True, False])
def test_margin_takes_over_where_neighbours_say_nothing(informative):
    rng = np.random.default_rng(1)
    labels = np.arange(40) % 2
    rows = rng.normal(size=(80, 8)) + 3 * informative * np.resize([-1, 1], 80)[:, None]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    estimator = LogisticRegression().fit(rows[:40], labels)
    learner = SimpleNamespace(estimator=estimator, X_training=rows[:40], y_training=labels)
    found = recommend(learner, rows[40:])
    assert isinstance(found.strategy_, UHerding if informative else Margin)
    assert ("no more often than chance" in found.reason_) == (not informative)


@pytest.mark.parametrize("informative", [True, False])
@pytest.mark.parametrize("make", [LogisticRegression, RandomForestClassifier])
def test_margin_takes_over_where_a_table_says_nothing(make, informative):
    """A table with a column for each speaker, say: nothing that the labels follow."""
    rng = np.random.default_rng(2)
    labels = np.arange(40) % 2
    rows = 100 * rng.normal(size=(80, 8))
    rows[:, 3] += 600 * informative * np.resize([-1, 1], 80)
    learner = SimpleNamespace(estimator=make().fit(rows[:40], labels), X_training=rows[:40], y_training=labels)
    found = recommend(learner, rows[40:])
    assert isinstance(found.strategy_, UHerding if informative else Margin)
    assert ("than chance" in found.reason_) == (not informative)


def test_labels_of_one_class_teach_a_forest_nothing():
    estimator = RandomForestClassifier().fit(X[:10], np.zeros(10))
    found = recommend(SimpleNamespace(estimator=estimator, X_training=X[:10], y_training=np.zeros(10, int)), X[10:])
    assert isinstance(found.strategy_, MaxHerding)
    assert found.reason_.startswith("only one class is labelled")


@pytest.mark.parametrize("n_labels", [10, 11])
def test_a_small_start_on_a_table_goes_by_distance(n_labels):
    strategy = strategy_named("auto")
    table = np.random.default_rng(0).normal(size=(60, 4))
    learner = SimpleNamespace(estimator=LogisticRegression(), X_training=None, y_training=None)
    indices, _ = strategy.select(learner, table, n_labels)
    assert strategy.strategy_.normalize == (n_labels > 10)
    assert strategy.reason_.endswith("by distance for so few labels" if n_labels == 10 else "by direction")
    same = MaxHerding(features="prepared", normalize=n_labels > 10).select(learner, table, n_labels)[0]
    assert indices.tolist() == same.tolist()


@pytest.mark.parametrize("estimator", [RandomForestClassifier(10), MultiOutputClassifier(LogisticRegression())])
def test_a_start_for_several_labels_goes_by_distance(estimator):
    """A forest alone does not say that it will learn several labels: the loop does."""
    generator = np.random.default_rng(0)
    table, labels = generator.normal(size=(60, 4)), generator.integers(2, size=(60, 3))
    loop = ActiveLearningClassifier(estimator, n_initial=20, n_rounds=1, random_state=0).fit(table, labels)
    assert loop.initial_.endswith("by distance for several labels")
    nobody = SimpleNamespace(estimator=estimator, X_training=None, y_training=None)
    same = MaxHerding(features="prepared", normalize=False).select(nobody, table, 20)[0]
    assert sorted(loop.queried_[:20]) == sorted(same)


@pytest.mark.parametrize("task", ["binary", ["a"], np.zeros(2)], ids=str)
def test_a_task_of_another_kind_means_nothing(task):
    learner = SimpleNamespace(estimator=LogisticRegression(), X_training=None, y_training=None, task=task)
    assert QueryContext(learner, X).task == "classification"


@pytest.mark.parametrize("n_labels", [10, 20])
def test_the_start_on_a_raw_table_is_not_led_by_the_largest_numbers(n_labels):
    """Compared by direction before anything is scaled, nearly all first picks have a large number in one column."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(40, 10, 300), "hours": rng.normal(38, 5, 300)})
    table["gain"] = np.where(rng.random(300) < 0.1, rng.normal(5e4, 2e4, 300), 0.0)
    table["job"] = rng.choice(["clerk", "cook", "pilot"], 300)
    columns = make_column_transformer((StandardScaler(), ["age", "hours", "gain"]), (OneHotEncoder(), ["job"]))
    learner = SimpleNamespace(estimator=make_pipeline(columns, LogisticRegression()), X_training=None, y_training=None)
    indices, _ = strategy_named("auto").select(learner, table, n_labels)
    assert (table["gain"].iloc[indices] > 0).mean() < 0.35
    assert table["job"].iloc[indices].nunique() == 3
