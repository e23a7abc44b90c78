"""One process, two of joblib's workers and two of Dask's give the same answer, for every strategy."""

import numpy as np
import pytest
from sklearn.naive_bayes import GaussianNB

import skal.strategies
from skal.strategies import ALBL, BALD, EGL, NPC, DynamicAL, Entropy, NTKLookahead

CASES = [
    *(getattr(skal.strategies, name)() for name in skal.strategies.__all__ if name[0].isupper()),
    ALBL(uniform=True),
    BALD(batch="joint", n_passes=4),
    DynamicAL(batch="greedy", n_features=64),
    EGL(layers="last"),
    NPC(search="greedy", n_candidates=40),
    NPC(kernel="trace", n_features=256, n_candidates=10),
    NTKLookahead(n_features=None, evaluation=30, criterion="emoc"),
]


def answer(strategy, learner, X, **params):
    own = strategy.get_params(deep=False)
    small = {"batch_size": 8} if "batch_size" in own else {}  # so that there are many batches to share
    strategy = type(strategy)(**(own | {"random_state": 3} | small | params))
    return strategy.select(learner, X, 6)


@pytest.fixture
def learner_for(image_learner, squared_learner):
    return lambda strategy: squared_learner if isinstance(strategy, NTKLookahead) else image_learner


@pytest.mark.parametrize("strategy", CASES, ids=repr)
def test_two_processes(strategy, learner_for, images):
    learner, X = learner_for(strategy), images[0][20:]
    indices, metrics = answer(strategy, learner, X, n_jobs=1)
    shared_indices, shared_metrics = answer(strategy, learner, X, n_jobs=2)
    assert indices.tolist() == shared_indices.tolist()
    np.testing.assert_allclose(shared_metrics, metrics, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("strategy", CASES, ids=repr)
def test_dask(strategy, learner_for, images, on_dask):
    learner, X = learner_for(strategy), images[0][20:]
    indices, metrics = answer(strategy, learner, X, n_jobs=1)
    shared_indices, shared_metrics = answer(strategy, learner, X)
    assert indices.tolist() == shared_indices.tolist()
    np.testing.assert_allclose(shared_metrics, metrics, rtol=1e-6, atol=1e-9)


def test_classifiers_without_a_network_are_shared_too(images):
    X, y = images[0].reshape(120, -1), images[1]

    class Learner:
        estimator = GaussianNB().fit(X[:20], y[:20])
        X_training, y_training = X[:20], y[:20]

    X = np.tile(X, (80, 1))  # more than a chunk
    expected = Entropy(n_jobs=1).scores(Learner, X)
    assert np.array_equal(Entropy(n_jobs=2).scores(Learner, X), expected)
