"""Tests of RandomSampling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from sklearn.naive_bayes import GaussianNB

from skal.strategies import RandomSampling, random_sampling

from ..support.learners import learner_of

POOL = np.arange(8.0).reshape(-1, 1)
LEARNER = learner_of(GaussianNB().fit(POOL, np.arange(8) % 2))


@given(st.integers(1, 8), st.integers(0, 2**32))
def test_distinct_and_repeatable(n_instances, seed):
    indices = RandomSampling(random_state=seed)(LEARNER, POOL, n_instances)
    assert len(set(indices.tolist())) == n_instances
    assert np.array_equal(indices, random_sampling(LEARNER, POOL, n_instances, random_state=seed))


def test_every_position_is_as_likely_in_every_place():
    generator = np.random.default_rng(0)
    drawn = np.array([RandomSampling(random_state=generator)(LEARNER, POOL, 3) for _ in range(2000)])
    for place in drawn.T:
        assert chisquare(np.bincount(place, minlength=8)).pvalue > 1e-3


def test_none_differs_from_query_to_query():
    assert len({tuple(RandomSampling()(LEARNER, POOL, 8)) for _ in range(10)}) > 1


@pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
def test_a_generator_continues_from_query_to_query(make):
    strategy = RandomSampling(random_state=make(0))
    assert not np.array_equal(strategy(LEARNER, POOL, 8), strategy(LEARNER, POOL, 8))


def test_the_pool_is_not_read():
    class Unreadable:
        shape = (8, 1)

        def __getitem__(self, rows):
            raise AssertionError("read")

    assert len(RandomSampling(random_state=0)(LEARNER, Unreadable(), 3)) == 3
