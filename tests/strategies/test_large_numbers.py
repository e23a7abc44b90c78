"""Numbers near the end of what floats can hold: finite scores and distinct indices, or an error by name."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from skal.base import ScoreStrategy
from skal.checks import make_learner
from skal.config import config_context
from skal.exceptions import InvalidParameterError, InvalidQueryError, NonFiniteError, SkalError
from skal.nets import MLP
from skal.semi_supervised import FixMatchClassifier
from skal.strategies import (
    ALBL,
    BADGE,
    BAIT,
    CoreSet,
    DynamicAL,
    Margin,
    MaxHerding,
    NTKLookahead,
    ProbCover,
    TypiClust,
    UHerding,
)

from ..support.learners import learner_of

COVERAGE = [
    cls(features=features, **({} if cls is UHerding else {"random_state": 0}))
    for cls in (MaxHerding, UHerding, TypiClust, ProbCover)
    for features in ("auto", "input")
]


@pytest.mark.parametrize("features", [1e-30, 1.0, 1e25, 3e37])
def test_directions_do_not_depend_on_the_unit(features):
    learner, X_pool = make_learner()
    expected = MaxHerding(features="input", radius=1.0)
    scaled = MaxHerding(features=lambda X: np.float32(features) * X.reshape(len(X), -1), radius=1.0)
    assert scaled(learner, X_pool, 5).tolist() == expected(learner, X_pool, 5).tolist()


@pytest.mark.parametrize("batch", ["top", "greedy"])
def test_gamma(batch):
    learner, X_pool = make_learner()
    for gamma in (1e308, -1e308):
        with pytest.raises(SkalError, match="finite"):
            DynamicAL(gamma=gamma, batch=batch).select(learner, X_pool, 5)
    for gamma in (1e300, float("inf")):
        indices, metrics = DynamicAL(gamma=gamma, batch=batch).select(learner, X_pool, 5)
        assert np.isfinite(metrics).all()
        assert len(set(indices)) == 5


@pytest.mark.parametrize("rows", [slice(5, 8), slice(None)])
@pytest.mark.parametrize(
    "strategy",
    [CoreSet(), CoreSet(features="input"), BADGE(), ALBL(), BAIT(), BAIT(features="input"), *COVERAGE],
    ids=repr,
)
def test_pools_near_the_largest_float32(strategy, rows):
    learner, X_pool = make_learner()
    X_pool = X_pool.copy()
    X_pool[rows] = 3e38
    X_pool[3] = -3e38
    try:
        indices, metrics = strategy.select(learner, X_pool, 5)
    except SkalError:
        return
    assert np.isfinite(metrics).all()
    assert len(set(indices)) == 5


@pytest.mark.parametrize("size", [1.0, 1e30, 1e200, 1e307])
def test_furthest_first_does_not_depend_on_the_unit(size):
    def furthest_first(points):
        learner = learner_of(LogisticRegression(), points[:2], np.zeros(2, int))
        return CoreSet(features="input").select(learner, points, 6)

    points = np.random.default_rng(0).normal(size=(30, 3))
    expected, distances = furthest_first(points)
    picked, scaled = furthest_first(points * size)
    assert np.array_equal(picked, expected)
    assert np.allclose(scaled / size, distances)


class Given(ScoreStrategy):
    """Scores as they are given."""

    needs_network = reads_outputs = False

    def __init__(self, scores):
        self.scores_given = scores

    def _score(self, context):
        return self.scores_given


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_scores_that_cannot_be_compared(bad):
    scores = np.arange(40.0)
    scores[7] = bad
    with pytest.raises(NonFiniteError, match="Given must"):
        Given(scores).select(*make_learner(), 3)


@pytest.mark.parametrize("scores", [np.zeros((40, 4)), np.zeros(39), 3.0])
def test_scores_of_a_wrong_shape(scores):
    with pytest.raises(InvalidQueryError, match=r"_score of Given must return one number for each of the 40 samples"):
        Given(scores).scores(*make_learner())


class Plain:
    """A classifier that follows no convention but ``predict_proba``."""

    def predict_proba(self, X):
        return np.full((len(X), 3), np.nan)


def test_probabilities_that_are_not_numbers():
    learner = SimpleNamespace(estimator=Plain(), X_training=None, y_training=None)
    with pytest.raises(NonFiniteError, match="probabilities must be finite"):
        Margin().select(learner, np.zeros((4, 2)), 1)


def test_probabilities_of_a_fixmatch_that_has_diverged():
    X, y = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32), np.r_[np.arange(4) % 2, [-1] * 16]
    net = FixMatchClassifier(MLP(4, 2), augment="tabular", max_epochs=1, batch_size=4, verbose=0, random_state=0).fit(
        X, y
    )
    with torch.no_grad():
        next(net.module_.parameters()).fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="FixMatchClassifier must be finite"):
        net.predict_proba(X)


@pytest.mark.parametrize("strategy", [MaxHerding, UHerding, ProbCover])
def test_bounds_beyond_any_memory(strategy):
    learner, X_pool = make_learner()
    expected = strategy(random_state=0).select(learner, X_pool, 3)[0]
    with config_context(max_memory=10**30):
        assert np.array_equal(strategy(random_state=0).select(learner, X_pool, 3)[0], expected)
    with pytest.raises(InvalidParameterError, match="'radius' parameter"):
        strategy(radius=1e308).select(learner, X_pool, 3)


@pytest.mark.parametrize(
    ("strategy", "name"), [(DynamicAL, "n_features"), (UHerding, "temperature"), (NTKLookahead, "ridge")]
)
def test_an_array_is_not_auto(strategy, name):
    learner, X_pool = make_learner()
    with pytest.raises(SkalError, match=f"'{name}' parameter"):
        strategy(**{name: np.array([1.0, 2.0])}).select(learner, X_pool, 3)
