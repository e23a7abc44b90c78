"""BAIT against its definition: every objective from a matrix that is inverted anew, in float64."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression

from skal.config import config_context
from skal.exceptions import InvalidParameterError
from skal.strategies import BAIT
from skal.strategies._bait import forward_backward

from ..support.learners import learner_of


def objective(X, S, chosen, labelled, S_labelled, ridge):
    """``tr(M⁻¹ F)`` of the whole matrices, whose blocks between classes are 0."""
    (n, d), C = X.shape, S.shape[1]
    F, M = np.zeros((d * C, d * C)), ridge * np.eye(d * C)

    def information(x, s):
        return np.kron(np.diag(s), np.outer(x, x))

    for x, s in zip(X, S, strict=True):
        F += information(x, s) / n
    for x, s in [*zip(labelled, S_labelled, strict=True), *((X[i], S[i]) for i in chosen)]:
        M += information(x, s)
    return np.trace(np.linalg.inv(M) @ F)


def oracle(X, S, labelled, S_labelled, ridge, n_instances, oversample):
    def value(chosen):
        return objective(X, S, chosen, labelled, S_labelled, ridge)

    chosen = []
    for _ in range(oversample * n_instances):
        chosen.append(min((i for i in range(len(X)) if i not in chosen), key=lambda i: value([*chosen, i])))
    while len(chosen) > n_instances:
        chosen.remove(min(chosen, key=lambda i: value([j for j in chosen if j != i])))
    rises = {i: value([j for j in chosen if j != i]) - value(chosen) for i in chosen}
    return sorted(chosen, key=lambda i: -rises[i]), sorted(rises.values(), reverse=True)


def problem(seed, n=14, n_labelled=3, d=3, n_classes=3):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n + n_labelled, d))
    proba = rng.dirichlet(np.ones(n_classes), size=len(X))
    S = proba * (1 - proba)
    return X[n_labelled:], S[n_labelled:], X[:n_labelled], S[:n_labelled]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("ridge", "oversample"), [(1.0, 2), (0.01, 3), (1.0, 1)])
@pytest.mark.parametrize("n_labelled", [0, 3])
def test_the_choice_is_the_definition(seed, ridge, oversample, n_labelled):
    parts = problem(seed, n_labelled=n_labelled)
    tensors = [torch.as_tensor(part) for part in parts]
    keys, taken = torch.arange(14), torch.arange(20, 20 + n_labelled)
    picked, rises = forward_backward(*tensors, ridge, keys, taken, 4, oversample)
    expected, values = oracle(*parts, ridge, 4, oversample)
    assert picked.tolist() == expected
    np.testing.assert_allclose(rises, values, rtol=1e-8)


@pytest.fixture(name="data")
def clustered():
    rng = np.random.default_rng(0)
    y = np.arange(200) % 4
    return 2 * rng.normal(size=(4, 6))[y] + rng.normal(size=(200, 6)), y


def test_the_whole_strategy_is_the_definition(data):
    X, y = data
    X, y = X[:40], y[:40]
    learner = learner_of(LogisticRegression().fit(X[:8], y[:8]), X[:8], y[:8])
    scaled = X / np.sqrt((X[8:] ** 2).mean())
    with_constant = np.concatenate([scaled, np.ones((len(X), 1))], axis=1)
    proba = learner.estimator.predict_proba(X)
    S = proba * (1 - proba)
    expected, values = oracle(with_constant[8:], S[8:], with_constant[:8], S[:8], 1.0, 3, 2)
    picked, rises = BAIT().select(learner, X[8:], 3)
    assert picked.tolist() == expected
    np.testing.assert_allclose(rises, values, rtol=1e-8)


def test_copies_come_last(data):
    X, y = data
    learner = learner_of(LogisticRegression().fit(X[:10], y[:10]), X[:10], y[:10])
    pool = np.concatenate([X[:10], X[10:30], X[10:30]])
    picked = BAIT()(learner, pool, 20)
    assert len({tuple(row) for row in pool[picked]}) == 20
    assert not {tuple(row) for row in pool[picked]} & {tuple(row) for row in X[:10]}
    assert len(set(BAIT()(learner, pool, 45).tolist())) == 45


def test_numbers_that_overflow_when_squared_are_scaled(data):
    X, y = data
    learner = learner_of(LogisticRegression().fit(X[:10], y[:10]), X[:10], y[:10])
    large = BAIT(features=lambda X: 1e200 * X)
    assert large(learner, X[10:], 5).tolist() == BAIT()(learner, X[10:], 5).tolist()


def test_a_bound_on_memory_leaves_as_many_as_fit_or_says_what_is_needed(data):
    X, y = data
    learner = learner_of(LogisticRegression().fit(X[:10], y[:10]), X[:10], y[:10])
    with (
        pytest.raises(
            InvalidParameterError, match=r"'max_memory' parameter of BAIT must be at least \d+ bytes"
        ) as caught,
        config_context(max_memory=1000),
    ):
        BAIT().select(learner, X[10:], 5)
    smallest = int(str(caught.value).split("at least ")[1].split()[0])
    with pytest.raises(InvalidParameterError), config_context(max_memory=smallest - 1):
        BAIT().select(learner, X[10:], 5)
    tight = BAIT(random_state=0)
    with config_context(max_memory=smallest):
        assert len(set(tight(learner, X[10:], 5).tolist())) == 5
        assert tight.cost(learner, X[10:], 5).memory <= smallest


def test_features_of_another_kind(data):
    X, y = data
    learner = SimpleNamespace(estimator=LogisticRegression().fit(X[:10], y[:10]), X_training=None, y_training=None)
    pca = PCA(2).fit(X)
    by_object, by_function = (BAIT(features=f)(learner, X[10:], 5) for f in (pca, pca.transform))
    assert by_object.tolist() == by_function.tolist()
