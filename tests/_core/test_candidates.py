"""Rows of a pool that may be queried, named and not copied."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from modAL.uncertainty import margin_sampling
from sklearn.linear_model import LogisticRegression

from skal import ActiveLearner, ActiveLearningClassifier, LinearizedLearner, strategies
from skal.exceptions import InvalidParameterError, InvalidTypeError
from tests.support.learners import learner_of

CHEAP = [strategies.Margin(), strategies.CoreSet(features="input"), strategies.BADGE(random_state=0)]


@pytest.mark.parametrize("strategy", CHEAP, ids=lambda strategy: type(strategy).__name__)
@given(seed=st.integers(0, 2**16), as_mask=st.booleans())
def test_the_answer_is_that_on_a_copy_of_the_rows(flat_learner, flat_data, strategy, seed, as_mask):
    X = flat_data[0][15:]
    rng = np.random.default_rng(seed)
    rows = np.sort(rng.choice(len(X), size=rng.integers(5, len(X)), replace=False))
    candidates = np.isin(np.arange(len(X)), rows) if as_mask else rows
    expected, expected_metrics = strategy.select(flat_learner, X[rows], 4)
    indices, metrics = strategy.select(flat_learner, X, 4, candidates=candidates)
    np.testing.assert_array_equal(indices, rows[expected])
    np.testing.assert_allclose(metrics, expected_metrics)


@pytest.mark.parametrize("query_strategy", [strategies.margin, margin_sampling, lambda learner, X: 0])
def test_learners_take_them_for_any_function(flat_data, query_strategy):
    X, y = flat_data
    learner = ActiveLearner(LogisticRegression(), query_strategy, X_training=X[:15], y_training=y[:15])
    rows = np.arange(15, 60, 2)
    index, sample = learner.query(X, candidates=rows)
    expected, _ = learner.query(X[rows])
    np.testing.assert_array_equal(index, rows[expected])
    np.testing.assert_array_equal(sample, X[index])


def test_the_linearised_learner_takes_them(make_net, flat_data):
    X, y = flat_data
    learner = LinearizedLearner(make_net(), X_training=X[:15], y_training=y[:15])
    rows = np.arange(15, 60, 2)
    np.testing.assert_array_equal(learner.query(X, 3, candidates=rows)[0], rows[learner.query(X[rows], 3)[0]])


class OnDisk:
    """An array that is read when it is indexed, and counts the rows that are read."""

    def __init__(self, X):
        self.X, self.dtype, self.shape, self.ndim = X, X.dtype, X.shape, X.ndim
        self.read = []

    def __len__(self):
        return len(self.X)

    def __getitem__(self, rows):
        self.read.append(np.arange(len(self.X))[rows])
        return self.X[rows]


def test_no_other_row_of_a_pool_on_disk_is_read_nor_all_at_once(flat_learner, flat_data):
    pool, rows = OnDisk(flat_data[0]), np.arange(20, 60)
    strategies.Margin(batch_size=8).select(flat_learner, pool, 3, candidates=rows)
    assert set(np.concatenate([np.atleast_1d(part) for part in pool.read]).tolist()) == set(rows.tolist())
    assert max(np.size(part) for part in pool.read) <= 8


def test_the_loop_does_not_copy_its_pool(make_net, flat_data):
    X, y = flat_data
    pool = OnDisk(X)
    strategy = strategies.Margin(batch_size=8)
    settings = {"n_initial": 9, "initial": "random", "query_size": 3, "n_rounds": 2, "random_state": 0}
    loop = ActiveLearningClassifier(make_net(), strategy, **settings).fit(pool, y)
    assert max(np.size(part) for part in pool.read) <= 15  # the labelled rows, and batches: never the pool
    twin = ActiveLearningClassifier(make_net(), strategy, **settings).fit(X, y)
    np.testing.assert_array_equal(loop.queried_, twin.queried_)


@pytest.mark.parametrize(
    ("candidates", "error", "message"),
    [
        ([], InvalidTypeError, "flat array"),
        (np.array([], dtype=int), InvalidParameterError, "at least one"),
        ([3, 3], InvalidParameterError, "distinct"),
        ([-1], InvalidParameterError, r"0 … 59"),
        ([60], InvalidParameterError, r"0 … 59"),
        ([True, False], InvalidParameterError, "each of the 60 rows"),
        (np.zeros(60, dtype=bool), InvalidParameterError, "at least one"),
        ([0.5], InvalidTypeError, "integers or of truth values"),
        ([[0], [1]], InvalidTypeError, "flat"),
    ],
)
def test_wrong_ones_are_refused_by_name(flat_learner, flat_data, candidates, error, message):
    with pytest.raises(error, match=rf"'candidates' parameter of Margin must be.*{message}"):
        strategies.Margin().select(flat_learner, flat_data[0], candidates=candidates)


def test_more_than_there_are_is_refused(flat_learner, flat_data):
    with pytest.raises(InvalidParameterError, match="n_instances"):
        strategies.Margin().select(flat_learner, flat_data[0], 3, candidates=[4, 5])


def test_a_plain_object_is_a_learner_too(flat_data):
    X, y = flat_data
    learner = learner_of(LogisticRegression().fit(X, y), X, y)
    indices, _ = strategies.Margin().select(learner, X, candidates=[7])
    assert indices.tolist() == [7]
