"""Tests of LeastConfidence, Margin and Entropy against their definitions and against modAL."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from modAL.uncertainty import classifier_entropy, classifier_margin, classifier_uncertainty
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from skal.config import config_context
from skal.exceptions import NoNetworkError
from skal.strategies import Entropy, LeastConfidence, Margin, entropy, least_confidence, margin

from ..support.learners import learner_of, net_of

# the definitions, for one row of probabilities, in exact sums of Python floats
DEFINITIONS = {
    LeastConfidence: lambda row: 1 - max(row),
    Margin: lambda row: sorted(row)[-2] - sorted(row)[-1],
    Entropy: lambda row: -math.fsum(p * math.log(p) for p in row if p > 0),
}
MODAL = {
    LeastConfidence: classifier_uncertainty,
    Margin: lambda classifier, X: -classifier_margin(classifier, X),
    Entropy: classifier_entropy,
}
FUNCTIONS = {LeastConfidence: least_confidence, Margin: margin, Entropy: entropy}
each_strategy = pytest.mark.parametrize("strategy", DEFINITIONS, ids=lambda cls: cls.__name__)


class Table(ClassifierMixin, BaseEstimator):
    """A classifier whose probabilities are its inputs."""

    def __init__(self):
        self.classes_ = np.arange(2)

    def fit(self, X, y):
        return self

    def predict_proba(self, X):
        return np.asarray(X)


TABLE = learner_of(Table())


def distributions(n_classes):
    weights = hnp.arrays(float, st.tuples(st.integers(1, 30), st.just(n_classes)), elements=st.floats(0, 1))
    return weights.map(
        lambda w: (w + (w.sum(1, keepdims=True) == 0)) / (w + (w.sum(1, keepdims=True) == 0)).sum(1, keepdims=True)
    )


@each_strategy
@given(proba=st.sampled_from([2, 3, 4, 5, 6, 16, 17, 40]).flatmap(distributions))
def test_definition(strategy, proba):
    expected = [DEFINITIONS[strategy](row) for row in proba.tolist()]
    np.testing.assert_allclose(strategy().scores(TABLE, proba), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("n_classes", [2, 10, 16, 17])
def test_margin_of_many_rows(n_classes):
    """Column by column, and with equal probabilities among them."""
    proba = np.random.default_rng(0).integers(1, 4, size=(1500, n_classes)).astype(float)
    proba /= proba.sum(1, keepdims=True)
    expected = [DEFINITIONS[Margin](row) for row in proba.tolist()]
    np.testing.assert_allclose(Margin().scores(TABLE, proba), expected, rtol=1e-12, atol=1e-14)


@each_strategy
@given(proba=distributions(3), seed=st.integers(0, 99))
def test_order_of_pool_and_of_classes_does_not_matter(strategy, proba, seed):
    rng = np.random.default_rng(seed)
    order, classes = rng.permutation(len(proba)), rng.permutation(3)
    scores = strategy().scores(TABLE, proba)
    np.testing.assert_allclose(strategy().scores(TABLE, proba[order]), scores[order], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(strategy().scores(TABLE, proba[:, classes]), scores, rtol=1e-12, atol=1e-14)


@each_strategy
def test_certain_and_undecided_samples(strategy):
    certain, undecided = np.eye(4)[:1], np.full((1, 4), 0.25)
    pool = np.concatenate([certain, undecided, certain])
    assert strategy()(TABLE, pool, 3).tolist() == [1, 0, 2]
    assert strategy().scores(TABLE, pool)[0] == DEFINITIONS[strategy](certain[0])


def test_known_values():
    proba = np.array([[0.5, 0.25, 0.25]])
    assert LeastConfidence().scores(TABLE, proba).tolist() == [0.5]
    assert Margin().scores(TABLE, proba).tolist() == [-0.25]
    np.testing.assert_allclose(Entropy().scores(TABLE, proba), [1.5 * math.log(2)])


def test_rounding_below_zero_is_no_nan():
    proba = np.array([[1 + 1e-7, -1e-7], [0.5, 0.5]])
    assert np.isfinite(Entropy().scores(TABLE, proba)).all()


CLASSIFIERS = {
    "logistic": LogisticRegression(solver="newton-cg"),
    "bayes": GaussianNB(),
    "neighbours": KNeighborsClassifier(5),
    "tree": DecisionTreeClassifier(max_depth=2, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), GaussianNB()),
}


@each_strategy
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_equals_modal_on_sklearn_classifiers(strategy, name, flat_data):
    X, y = flat_data[0].astype(float), flat_data[1]  # modAL computes in the precision of the probabilities
    classifier = CLASSIFIERS[name].fit(X[:30], y[:30])
    learner = learner_of(classifier, X[:30], y[:30])
    expected = MODAL[strategy](classifier, X)
    np.testing.assert_allclose(strategy().scores(learner, X), expected, rtol=1e-9, atol=1e-12)


@each_strategy
def test_equals_modal_on_a_net(strategy, flat_learner, flat_data):
    X, _ = flat_data
    expected = MODAL[strategy](flat_learner.estimator, X)
    with config_context(batch_size=7):
        scores, best = strategy().scores(flat_learner, X), FUNCTIONS[strategy](flat_learner, X, 10)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6)
    assert best.tolist() == np.argsort(-expected, kind="stable")[:10].tolist()


@each_strategy
@given(batch_size=st.integers(1, 70))
def test_any_batch_size(strategy, flat_learner, flat_data, batch_size):
    X, _ = flat_data
    with config_context(batch_size=batch_size):
        scores = strategy().scores(flat_learner, X)
    np.testing.assert_allclose(scores, strategy().scores(flat_learner, X), rtol=1e-4, atol=1e-6)


@each_strategy
def test_labels_of_any_type(strategy, flat_data):
    X, y = flat_data
    names = np.array(["ape", "bee", "cat"])[y]
    learner = learner_of(GaussianNB().fit(X, names), X, names)
    expected = strategy().scores(learner_of(GaussianNB().fit(X, y)), X)
    np.testing.assert_allclose(strategy().scores(learner, X), expected)


@each_strategy
def test_a_classifier_that_knows_one_class_finds_all_alike(strategy, flat_data):
    X, _ = flat_data
    dummy = DummyClassifier().fit(X, np.zeros(60))
    learner = learner_of(dummy, X, np.zeros(60))
    assert len(set(strategy().scores(learner, X))) == 1
    assert strategy()(learner, X, 3).tolist() == [0, 1, 2]


def test_margin_on_logits(flat_learner, flat_data):
    X, _ = flat_data
    module = flat_learner.estimator.module_.eval()
    with torch.no_grad():
        logits = module(torch.as_tensor(X)).double().sort(dim=1).values
    expected = (logits[:, -2] - logits[:, -1]).numpy()
    with config_context(batch_size=7):
        scores = Margin(on="logits").scores(flat_learner, X)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-6)
    # of three classes and more the order is another one than that of probabilities
    assert (np.argsort(scores) != np.argsort(Margin().scores(flat_learner, X))).any()


def test_margin_on_logits_needs_a_network(flat_data):
    X, y = flat_data
    with pytest.raises(NoNetworkError):
        Margin(on="logits").scores(learner_of(GaussianNB().fit(X, y), X, y), X)


def test_margin_on_the_logits_behind_a_softmax(flat_data):
    X, _ = flat_data
    torch.manual_seed(0)
    linear = torch.nn.Linear(X.shape[1], 3)
    softmax = net_of(torch.nn.Sequential(linear, torch.nn.Softmax(dim=1)), torch.nn.NLLLoss)
    expected = Margin(on="logits").scores(learner_of(net_of(linear)), X)
    np.testing.assert_allclose(Margin(on="logits").scores(learner_of(softmax), X), expected, rtol=1e-5, atol=1e-6)
