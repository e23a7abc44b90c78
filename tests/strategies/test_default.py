"""What is recommended is what the documentation's table says, row by row."""

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
from skal.context import QueryContext
from skal.exceptions import NonFiniteError, SkalError
from skal.strategies import Margin, NTKLookahead, _default
from skal.strategies._default import Recommended, recommend
from skal.strategies._names import make_strategy

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


def tables():
    """Rows of the page's table, and of the module's own: two lists of cells."""
    for text in (PAGE.read_text(encoding="utf-8"), _default.__doc__):
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
    name, reason = recommend(QueryContext(learner, samples))
    assert reason
    return type(make_strategy(name)).__name__


CASES = [(row, case) for row, cases in enumerate(ROWS.values()) for case in cases]


@pytest.mark.parametrize(("row", "case"), CASES, ids=[list(ROWS)[row] for row, _ in CASES])
def test_the_table_is_what_is_done(row, case):
    page, module = tables()
    found = [recommended(*case, fitted) for fitted in (False, True)]
    assert page[row][0].startswith(list(ROWS)[row])
    assert [cell.replace("random", "RandomSampling") for cell in page[row][1:]] == found
    assert module[row][1:] == found


@pytest.mark.parametrize("pool", [np.arange(40).reshape(10, 4), TensorDataset(torch.from_numpy(X))])
def test_inputs_that_a_network_takes_and_that_are_no_features(pool):
    learner = trained(lambda: nn.Linear(4, 2), X[:6])
    assert recommend(QueryContext(learner, pool))[0] == "ntk_lookahead"


def untrained(X_pool):
    learner = SimpleNamespace(estimator=network(frozen=False), X_training=None, y_training=None)
    return recommend(QueryContext(learner, X_pool))


def test_a_network_without_labels_compares_its_inputs():
    name, reason = untrained(X)
    assert make_strategy(name).features == "input"
    assert reason == "no labels yet, and the inputs are features"


def test_a_network_on_rows_of_numbers_compares_its_inputs():
    name, reason = recommend(QueryContext(trained(lambda: nn.Linear(4, 2), X[:6]), X))
    assert make_strategy(name).features == "input"
    assert reason == "the inputs are features"


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
    assert untrained(pool) == ("random", f"no labels yet, and {reason}")


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
    strategy = Recommended()
    indices, _ = strategy.select(learner, IMAGES, 3)
    assert isinstance(strategy.strategy_, Margin)
    assert strategy.reason_.startswith("look-ahead cannot work on this network: ")
    assert indices.tolist() == Margin().select(learner, IMAGES, 3)[0].tolist()


def test_what_is_wrong_with_the_pool_is_still_refused():
    with pytest.raises(NonFiniteError, match="X_pool"):
        Recommended().select(trained(lambda: nn.Linear(4, 2), X[:6]), np.full((5, 4), np.nan, np.float32), 2)


def test_the_default_of_a_learner_with_a_network_for_images_is_look_ahead():
    learner = ActiveLearner(network(frozen=False), "auto", X_training=IMAGES[:10], y_training=y[:10])
    indices, _ = learner.query(IMAGES[10:], 4)
    assert isinstance(learner.query_strategy.strategy_, NTKLookahead)
    assert len(set(indices.tolist())) == 4
