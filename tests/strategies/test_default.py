"""What is recommended is what the documentation's table says, row by row."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import TensorDataset

from skal import ActiveLearner
from skal.exceptions import NonFiniteError, SkalError
from skal.strategies import Margin, NTKLookahead, RandomSampling

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
ROWS = {
    "rows of numbers": [(LogisticRegression, X), (lambda: network(frozen=False), X)],
    "a network with frozen": [(lambda: network(frozen=True), X), (lambda: network(frozen=True), IMAGES)],
    "any other network": [(lambda: network(frozen=False), IMAGES)],
    "text, sparse or missing values": [(lambda: make_pipeline(TfidfVectorizer(), LogisticRegression()), TEXTS)],
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
        yield [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in lines[: len(ROWS)]]


def recommended(make, samples, fitted):
    estimator, labelled = make(), slice(10)
    if isinstance(estimator, NeuralNetClassifier):
        estimator.initialize()
    if fitted:
        estimator.fit(samples[labelled], y[labelled])
        learner = SimpleNamespace(estimator=estimator, X_training=samples[labelled], y_training=y[labelled])
    else:
        learner = SimpleNamespace(estimator=estimator, X_training=None, y_training=None)
    found = recommend(learner, samples)
    assert found.reason_
    return type(found.strategy_).__name__


CASES = [(row, case) for row, cases in enumerate(ROWS.values()) for case in cases]


@pytest.mark.parametrize(("row", "case"), CASES, ids=[list(ROWS)[row] for row, _ in CASES])
def test_the_table_is_what_is_done(row, case):
    page, module = tables()
    found = [recommended(*case, fitted) for fitted in (False, True)]
    assert page[row][0].startswith(list(ROWS)[row])
    assert [cell.replace("random", "RandomSampling") for cell in page[row][1:]] == found
    assert module[row][1:] == found


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
    assert found.strategy_.features == "input"
    assert found.reason_ == "no labels yet, and the inputs are features"


def test_a_network_on_rows_of_numbers_compares_its_inputs():
    found = recommend(trained(lambda: nn.Linear(4, 2), X[:6]), X)
    assert found.strategy_.features == "input"
    assert found.reason_ == "the inputs are features"


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
