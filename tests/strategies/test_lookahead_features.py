"""Look-ahead by variance with kernels on features: a dense kernel of all samples, conditioned explicitly."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from skorch import NeuralNetClassifier
from torch import nn

from skal import LinearizedLearner
from skal.config import config_context
from skal.datasets import load
from skal.exceptions import FeatureError, InvalidParameterError, NoNetworkError, TwoLevelWarning
from skal.nets import MLP
from skal.strategies import NTKLookahead, ntk_lookahead
from skal.tangent import tangent_features

from ..support.learners import learner_of, untrained

RIDGE = 0.1


def kernel_of(X, n, kernel, radius=None):
    X = np.asarray(X, dtype=np.float64)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    if kernel == "linear":
        return X @ X.T
    distances = np.sqrt(np.square(X[:, None] - X).sum(2))
    if radius is None:
        radius = np.median(np.sort(distances[:n, :n], axis=1)[:, 1])
    return np.exp(-((distances / radius) ** 2)) if kernel == "rbf" else np.exp(-distances / radius)


def dense_batch(K, n, p, b):
    """Scores and conditioning as they are printed for kernels on features, with units of the mean diagonal."""
    K = K / K[:n, :n].diagonal().mean()
    S = K[n:, n:] - K[n:, :n] @ np.linalg.inv(K[:n, :n] + RIDGE * np.eye(n)) @ K[:n, n:]
    ordered = np.sort(p, axis=1)
    margin = 1 - (ordered[:, -1] - ordered[:, -2])
    h = np.maximum(margin, 0.01)
    picked, gains, first = [], [], None
    for _ in range(b):
        scores = np.array([h[j] * (margin * S[:, j] ** 2).sum() / (RIDGE + h[j] * S[j, j]) for j in range(len(S))])
        first = scores.copy() if first is None else first
        scores[picked] = -np.inf
        j = int(scores.argmax())
        picked.append(j)
        gains.append(scores[j])
        S = S - np.outer(S[:, j], S[:, j]) * h[j] / (RIDGE + h[j] * S[j, j])
    return picked, gains, first


@pytest.fixture(scope="module")
def table():
    digits = load("digits")
    X, y = digits.X_train.reshape(-1, 64).astype(np.float64)[:171], digits.y_train[:171]
    return X, y


@pytest.fixture(scope="module")
def classifier(table):
    X, y = table
    # 21 labels: with an even number of them there would be two medians
    return learner_of(LogisticRegression(max_iter=2000).fit(X[:21], y[:21]), X[:21], y[:21])


@pytest.mark.parametrize("kernel", ["rbf", "laplace", "linear"])
def test_all_picks_for_a_classifier_that_is_no_network(kernel, classifier, table):
    X_pool = table[0][21:]
    strategy = NTKLookahead(kernel=kernel)
    p = classifier.estimator.predict_proba(X_pool)
    picked, gains, first = dense_batch(kernel_of(table[0], 21, kernel), 21, p, 25)
    indices, metrics = strategy.select(classifier, X_pool, 25)
    assert indices.tolist() == picked
    np.testing.assert_allclose(metrics, gains, rtol=1e-6)
    np.testing.assert_allclose(strategy.scores(classifier, X_pool), first, rtol=1e-6)


def test_features_of_the_users_own_and_a_radius(classifier, table):
    X, _ = table
    pca = PCA(8).fit(X)
    p = classifier.estimator.predict_proba(X[21:])
    picked = dense_batch(kernel_of(pca.transform(X), 21, "rbf", 0.7), 21, p, 15)[0]
    for features in (pca, pca.transform):
        assert NTKLookahead(features=features, radius=0.7).select(classifier, X[21:], 15)[0].tolist() == picked


def frozen_net(seed=0):
    torch.manual_seed(seed)
    learner, X_pool = untrained(MLP(5, 3, hidden=(9, 6)).double(), (5,), 7, 30, criterion=nn.CrossEntropyLoss)
    module = learner.estimator.module_
    for parameter in module.features.parameters():
        parameter.requires_grad_(False)
    return learner, X_pool


def test_auto_is_the_tangent_kernel_for_a_network_that_is_trained_and_rbf_where_it_is_frozen():
    learner, X_pool = frozen_net()
    module = learner.estimator.module_
    with torch.no_grad():
        X = np.concatenate([learner.X_training, X_pool])
        features, p = module.features(torch.as_tensor(X)).numpy(), torch.softmax(module(torch.as_tensor(X_pool)), 1)
    picked, gains, _ = dense_batch(kernel_of(features, 7, "rbf"), 7, p.numpy(), 10)
    indices, metrics = ntk_lookahead.strategy().select(learner, X_pool, 10)
    assert indices.tolist() == picked
    np.testing.assert_allclose(metrics, gains, rtol=1e-6)
    assert NTKLookahead(kernel="rbf", features="last_layer").select(learner, X_pool, 10)[0].tolist() == picked
    hidden = list(module.features.parameters())
    for part in (hidden[-1:], hidden):  # a part of the hidden layers, then all of them
        for parameter in part:
            parameter.requires_grad_(True)
        trained = NTKLookahead().select(learner, X_pool, 10)[0].tolist()
        assert trained == NTKLookahead(kernel="pntk").select(learner, X_pool, 10)[0].tolist()
        assert trained != picked


def test_tangent_features():
    learner, X_pool = frozen_net()
    for parameter in learner.estimator.module_.parameters():
        parameter.requires_grad_(True)
    indices, metrics = NTKLookahead(features="tangent").select(learner, X_pool, 10)
    assert len(set(indices.tolist())) == 10
    assert (metrics > 0).all()
    X = np.concatenate([learner.X_training, X_pool])
    exact = tangent_features(learner.estimator, X, n_features=None)  # as long as the sketch or shorter: nothing is lost
    logits = learner.estimator.forward(X_pool).numpy()
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert indices.tolist() == dense_batch(kernel_of(exact, 7, "rbf"), 7, p, 10)[0]


def test_copies_gain_nothing(classifier, table):
    X = table[0]
    X_pool = np.concatenate([X[21:31], X[21:23], X[:3]])
    indices, metrics = NTKLookahead().select(classifier, X_pool, 15)
    assert len(set((indices[:10] % 10).tolist())) == 10
    assert not metrics[10:].any()
    assert not NTKLookahead().scores(classifier, X_pool)[-3:].any()


def test_invariance(classifier, table):
    X_pool = table[0][21:]
    strategy = NTKLookahead()
    expected = strategy.select(classifier, X_pool, 12)[0]
    order = np.random.default_rng(0).permutation(len(X_pool))
    assert order[strategy.select(classifier, X_pool[order], 12)[0]].tolist() == expected.tolist()
    for settings in ({"batch_size": 7}, {"n_jobs": 2}):
        with config_context(**settings):
            assert strategy.select(classifier, X_pool, 12)[0].tolist() == expected.tolist()
    subset = NTKLookahead(subset=50, random_state=0)
    scores = subset.scores(classifier, X_pool)
    assert np.isfinite(scores).sum() == 50
    assert np.isfinite(scores[subset.select(classifier, X_pool, 12)[0]]).all()


def test_any_classifier_and_labels_that_are_text(table):
    X, y = table
    names = np.array([f"class {label}" for label in y])
    learner = learner_of(RandomForestClassifier(20, random_state=0).fit(X[:20], names[:20]), X[:20], names[:20])
    assert len(set(NTKLookahead().select(learner, X[20:], 10)[0].tolist())) == 10


def test_two_stages_where_memory_is_short(classifier, table):
    X_pool = np.concatenate([table[0][21:] + 0.01 * shift for shift in range(4)])
    whole = NTKLookahead(evaluation=40, random_state=0)
    with config_context(max_memory="600KB"):
        with pytest.warns(TwoLevelWarning):
            indices, metrics = whole.select(classifier, X_pool, 5)
        scores = whole.scores(classifier, X_pool)
    assert indices[0] == scores.argmax()
    np.testing.assert_allclose(scores, whole.scores(classifier, X_pool), rtol=1e-6)
    assert metrics.sum() >= 0.8 * whole.select(classifier, X_pool, 5)[1].sum()


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"kernel": "rbf", "criterion": "mlmoc"}, "'kernel' parameter.*a tangent kernel with criterion='mlmoc'"),
        ({"kernel": "pntk", "features": "input"}, "'features' parameter.*'auto' with kernel='pntk'"),
        ({"criterion": "eer", "features": "input"}, "'features' parameter.*'auto' with criterion='eer'"),
        ({"kernel": "rbf", "retraining": "infinite"}, "'retraining' parameter"),
        ({"radius": 0.0}, "'radius' parameter"),
        ({"ridge": 0.0}, "'ridge' parameter.*larger than 0"),
        ({"evaluation": 1000}, "'evaluation' parameter"),
        ({"kernel": "cosine"}, "'kernel' parameter"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(params, message, classifier, table):
    with pytest.raises(InvalidParameterError, match=message):
        NTKLookahead(**params).select(classifier, table[0][21:], 3)


def test_features_that_say_nothing_are_refused(classifier, table):
    with pytest.raises(FeatureError, match="different for different samples"):
        NTKLookahead(features=lambda X: np.ones((len(X), 3))).select(classifier, table[0][21:], 3)
    labelled = table[0][:21].sum()
    zeros = NTKLookahead(kernel="linear", features=lambda X: X * (0.0 if X.sum() == labelled else 1.0))
    with pytest.raises(InvalidParameterError, match="positive diagonal"):
        zeros.select(classifier, table[0][21:], 3)


def test_tangent_kernels_need_a_network(classifier, table):
    for params in ({"kernel": "pntk"}, {"criterion": "mlmoc"}, {"features": "tangent"}):
        with pytest.raises(NoNetworkError):
            NTKLookahead(**params).select(classifier, table[0][21:], 3)


def test_the_sequential_learner_has_a_network_to_linearise():
    net = NeuralNetClassifier(MLP(5, 3))
    for params in ({"kernel": "rbf"}, {"features": "input"}):
        with pytest.raises(InvalidParameterError, match="an NTKLookahead with a tangent kernel"):
            LinearizedLearner(net, NTKLookahead(**params))
