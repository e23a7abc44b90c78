"""Tests of skal.base: validation, the choice of the best, the functions."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.naive_bayes import GaussianNB

from skal.base import QueryStrategy, ScoreStrategy, query_function, top
from skal.exceptions import InvalidParameterError, InvalidTypeError, NoLabelledDataError, NoNetworkError, NonFiniteError

from .support.learners import learner_of

POOL = np.arange(10.0).reshape(-1, 1)


class Score(ScoreStrategy):
    """Scores that are given."""

    needs_network = False

    def __init__(self, *, values=None, subset=None, random_state=None):
        self.values = values
        self.subset = subset
        self.random_state = random_state

    def _score(self, context):
        return np.asarray(self.values)[context.pool.rows]


@pytest.fixture(scope="module")
def plain_learner():
    y = np.arange(10) % 2
    return learner_of(GaussianNB().fit(POOL, y), POOL, y)


scores = hnp.arrays(float, st.integers(1, 40), elements=st.floats(allow_nan=False) | st.sampled_from([0.0, 1.0]))


@given(scores, st.data())
def test_top_is_a_stable_sort(values, data):
    k = data.draw(st.integers(1, len(values)))
    expected = sorted(range(len(values)), key=lambda i: -values[i])[:k]
    assert top(values, k).tolist() == expected


def test_top_of_equal_and_of_infinite_scores():
    assert top(np.zeros(5), 5).tolist() == [0, 1, 2, 3, 4]
    assert top(np.array([-np.inf, np.inf, 0, np.inf, -np.inf]), 4).tolist() == [1, 3, 2, 0]


@given(hnp.arrays(float, 10, elements=st.floats(-5, 5)), st.integers(1, 10))
def test_the_best_come_first_with_their_scores(values, n_instances):
    y = np.arange(10) % 2
    learner = learner_of(GaussianNB().fit(POOL, y), POOL, y)
    indices, metrics = Score(values=values).select(learner, POOL, n_instances)
    assert indices.dtype == np.int64
    assert len(set(indices.tolist())) == n_instances
    assert metrics.tolist() == sorted(values.tolist(), reverse=True)[:n_instances]


@given(st.integers(1, 12), st.integers(0, 1000))
def test_a_subset_is_scored_and_the_same_seed_draws_it_again(subset, seed):
    y = np.arange(10) % 2
    learner = learner_of(GaussianNB().fit(POOL, y), POOL, y)
    values = np.arange(10.0)
    strategy = Score(values=values, subset=subset, random_state=seed)
    found = strategy.scores(learner, POOL)
    scored = np.isfinite(found)
    assert scored.sum() == min(subset, 10)
    assert np.array_equal(found[scored], values[scored])
    assert np.isneginf(found[~scored]).all()
    assert np.array_equal(found, clone(strategy).scores(learner, POOL))


def test_a_generator_draws_another_subset_each_time(plain_learner):
    strategy = Score(values=np.zeros(10), subset=5, random_state=np.random.default_rng(0))
    drawn = {tuple(strategy.scores(plain_learner, POOL)) for _ in range(5)}
    assert len(drawn) > 1


def test_nan_scores_are_refused(plain_learner):
    with pytest.raises(NonFiniteError, match=r"scores of Score must not be NaN\. Got NaN for 2 samples"):
        Score(values=[np.nan] * 2 + [0] * 8).scores(plain_learner, POOL)


def test_a_subset_smaller_than_the_batch_is_refused(plain_learner):
    with pytest.raises(InvalidParameterError, match=r"at most subset \(3\)"):
        Score(values=np.zeros(10), subset=3)(plain_learner, POOL, 4)


def test_all_parameters_are_checked_before_the_data(plain_learner):
    for params in ({"subset": 0}, {"random_state": -1}):
        with pytest.raises(InvalidParameterError, match=next(iter(params))):
            Score(**params)(plain_learner, POOL)


def test_needs_are_enforced(plain_learner):
    class Network(Score):
        needs_network = True

    class Labels(Score):
        needs_labels = True

    unlabelled = learner_of(plain_learner.estimator)
    values = np.zeros(10)
    with pytest.raises(NoNetworkError, match="Network works on"):
        Network(values=values).scores(plain_learner, POOL)
    with pytest.raises(NoLabelledDataError, match="Labels needs"):
        Labels(values=values).scores(unlabelled, POOL)
    assert Labels(values=values).scores(plain_learner, POOL).tolist() == [0] * 10
    assert Score(values=values).scores(unlabelled, POOL).tolist() == [0] * 10


def test_the_bases_cannot_be_used_alone():
    for base in (QueryStrategy, ScoreStrategy):
        with pytest.raises(TypeError, match="abstract"):
            base()


def test_the_function_has_the_strategys_signature():
    function = query_function(Score, "score", "some.module")
    assert str(inspect.signature(function)) == (
        "(learner, X_pool, n_instances=1, *, values=None, subset=None, random_state=None)"
    )
    assert (function.__name__, function.__module__, function.strategy) == ("score", "some.module", Score)
    assert "Score" in function.__doc__


def test_the_function_is_the_class(plain_learner):
    function = query_function(Score, "score", __name__)
    values = np.arange(10.0)
    assert function(plain_learner, POOL, 3, values=values).tolist() == [9, 8, 7]
    assert function(plain_learner, POOL, values=values).tolist() == [9]
    with pytest.raises(InvalidParameterError, match=r"among values, subset, random_state\. Got 'gamma' instead"):
        function(plain_learner, POOL, gamma=1)
    with pytest.raises(InvalidTypeError, match="n_instances"):
        function(plain_learner, POOL, 2.0, values=values)


def test_functions_can_be_pickled():
    import pickle

    from skal.strategies import entropy

    assert pickle.loads(pickle.dumps(entropy)) is entropy
