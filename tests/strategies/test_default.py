"""What is recommended is what the documentation's table says, row by row."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from skorch import NeuralNetClassifier
from torch import nn

from skal.context import QueryContext
from skal.strategies import _default
from skal.strategies._default import recommend
from skal.strategies._names import KNOWN

PAGE = Path(__file__).parents[2] / "docs" / "index.md"
X = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
TEXTS = np.array([f"text {i} {'ab' if i % 2 else 'cd'}" for i in range(30)])
y = np.arange(30) % 2


def network(frozen):
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))
    module[0].requires_grad_(not frozen)
    return NeuralNetClassifier(module, criterion=nn.CrossEntropyLoss, max_epochs=1, train_split=None, verbose=0)


# what the first column calls them, in the order of the table
ROWS = {
    "inputs that are numbers, without a network": (LogisticRegression, X),
    "a network with frozen": (lambda: network(frozen=True), X),
    "a network that starts from random weights": (lambda: network(frozen=False), X),
    "text, sparse or missing values": (lambda: make_pipeline(TfidfVectorizer(), LogisticRegression()), TEXTS),
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
    return KNOWN[name].__name__


@pytest.mark.parametrize("row", range(len(ROWS)), ids=list(ROWS))
def test_the_table_is_what_is_done(row):
    words, (make, samples) = list(ROWS.items())[row]
    page, module = tables()
    found = [recommended(make, samples, fitted) for fitted in (False, True)]
    assert page[row][0].startswith(words)
    assert [cell.replace("random", "RandomSampling") for cell in page[row][1:]] == found
    assert module[row][1:] == found
