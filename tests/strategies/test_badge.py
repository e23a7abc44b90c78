"""BADGE: explicit gradient embeddings, and the D² law."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from sklearn.linear_model import LogisticRegression
from skorch import NeuralNetBinaryClassifier
from torch import nn

from skal.config import config_context
from skal.context import CrossEntropy
from skal.exceptions import FeatureError, InvalidParameterError, InvalidTypeError, UnsupportedLayerError
from skal.strategies import BADGE, CoreSet, badge
from skal.strategies._badge import _draw, _OuterProducts, kmeans_plus_plus

from ..support.learners import learner_of, net_of
from ..support.networks import SMALL, small_network
from ..support.unusual import Scaled


def embeddings_by_hand(module, X):
    """The gradient of the last layer's weight, by autograd, one sample at a time."""
    *_, head = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    rows = []
    for x in X:
        logits = module(torch.as_tensor(x)[None])
        loss = nn.functional.cross_entropy(logits, logits.argmax(dim=1))
        rows.append(torch.autograd.grad(loss, head.weight)[0].flatten())
    return torch.stack(rows).numpy()


def factors(n, C=4, d=5, seed=0):
    rng = np.random.default_rng(seed)
    logits = torch.as_tensor(2 * rng.normal(size=(n, C)))
    return CrossEntropy().gradient(logits, logits.argmax(1)), torch.as_tensor(rng.normal(size=(n, d)))


def generator(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("kind", SMALL)
def test_factorised_distances_are_those_of_the_explicit_gradients(kind):
    module, X = small_network(kind, 30, 4)
    g = embeddings_by_hand(module, X)
    indices, metrics = BADGE(random_state=0).select(learner_of(net_of(module)), X, 12)
    assert indices[0] == (g**2).sum(axis=1).argmax()
    np.testing.assert_allclose(metrics[0], (g[indices[0]] ** 2).sum(), rtol=1e-9)
    for k in range(1, 12):
        distance = ((g[indices[:k]] - g[indices[k]]) ** 2).sum(axis=1).min()
        np.testing.assert_allclose(metrics[k], distance, rtol=1e-9)


@pytest.mark.parametrize(("refresh", "proposals"), [(16, 8), (16, 1), (1, 1)])
def test_second_and_third_choice_follow_the_d2_law(refresh, proposals):
    q, phi = factors(6)
    g = torch.einsum("nc,nd->ncd", q, phi).flatten(1).numpy()
    squares = ((g[:, None] - g[None]) ** 2).sum(axis=2)
    first = int((g**2).sum(axis=1).argmax())
    expected = np.zeros((6, 6))
    for i in range(6):
        nearest = np.minimum(squares[first], squares[i])
        if squares[first, i] > 0:
            expected[i] = squares[first, i] / squares[first].sum() * nearest / nearest.sum()
    n = 1000
    rng, counts = generator(), np.zeros((6, 6))
    for _ in range(n):
        picked, _ = kmeans_plus_plus(q, phi, 3, rng, refresh=refresh, n_proposals=proposals)
        assert picked[0] == first
        counts[picked[1], picked[2]] += 1
    possible = expected > 0
    assert counts[~possible].sum() == 0
    np.testing.assert_allclose(expected.sum(), 1)
    assert chisquare(counts[possible], n * expected[possible]).pvalue > 1e-3
    # a law in D instead of D², or one that ignores the second choice, is told apart
    plain = np.sqrt(squares[first]) / np.sqrt(squares[first]).sum()
    others = np.arange(6) != first
    assert chisquare(counts.sum(axis=1)[others], n * plain[others]).pvalue < 1e-3


def test_the_strategy_draws_by_that_law():
    module, X = small_network("MLP", 5, 4)
    learner = learner_of(net_of(module))
    g = embeddings_by_hand(module, X)
    first = (g**2).sum(axis=1).argmax()
    law = ((g - g[first]) ** 2).sum(axis=1)
    random_state = np.random.default_rng(0)
    strategy = BADGE(random_state=random_state)
    counts = np.bincount([strategy.select(learner, X, 2)[0][1] for _ in range(200)], minlength=5)
    others = np.arange(5) != first
    assert chisquare(counts[others], 200 * law[others] / law.sum()).pvalue > 1e-3


@pytest.mark.parametrize("n", [1, 7, 30])
@pytest.mark.parametrize("seed", range(3))
def test_no_duplicates_when_all_embeddings_coincide(n, seed):
    q, phi = factors(1, C=3, d=50, seed=seed)
    picked, squares = kmeans_plus_plus(q.expand(n, -1), phi.expand(n, -1), n, generator(seed))
    assert sorted(picked) == list(range(n))
    assert squares[1:].tolist() == [0.0] * (n - 1)


def test_coinciding_embeddings_are_drawn_uniformly():
    q, phi = factors(1, C=3, d=50)
    q, phi = q.expand(5, -1).contiguous(), phi.expand(5, -1).contiguous()
    rng = generator()
    second = [kmeans_plus_plus(q, phi, 2, rng)[0][1] for _ in range(500)]
    assert chisquare(np.bincount(second, minlength=5)[1:]).pvalue > 1e-3


@pytest.mark.parametrize("mass", [[4.0, 0, 0, 0], [0.0, 0, 0, 0], [0.0, 2, 0, 2]])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_no_duplicates_when_those_that_are_left_count_for_nothing(mass, scale):
    phi = 1 + scale * torch.arange(4).double()[:, None]
    picked, _ = kmeans_plus_plus(torch.ones(4, 1).double(), phi, 4, generator(), torch.tensor(mass).double())
    assert sorted(picked) == [0, 1, 2, 3]


def test_no_duplicates_when_groups_coincide_or_gradients_vanish():
    q, phi = factors(4)
    q, phi = q.repeat(5, 1), phi.repeat(5, 1)
    q[8:] = 0  # certain predictions: embeddings at the origin
    picked, _ = kmeans_plus_plus(q, phi, 20, generator())
    assert sorted(picked) == list(range(20))
    assert len({int(i) % 4 for i in picked[:5] if i < 8}) == 4  # the four distinct gradients and the origin come first


def test_draws_never_fall_on_a_weight_of_zero():
    weights = torch.tensor([0.0, 2.0, 0.0, 1.0, 0.0]).double()
    draws = torch.tensor([0.0, 0.5, 2 / 3 - 1e-9, 2 / 3 + 1e-9, np.nextafter(1, 0), 1.0]).double()
    assert _draw(weights, draws).tolist() == [1, 1, 1, 3, 3, 1]  # 1 itself does not occur; the largest weight stands in


def test_distances_to_the_nearest_are_those_of_the_explicit_gradients():
    q, phi = factors(60)
    q[8], phi[8] = q[3], phi[3]
    g = torch.einsum("nc,nd->ncd", q, phi).flatten(1).numpy()
    squares = _OuterProducts(q, phi).nearest(slice(5, 50), [3, 20, 55])
    expected = ((g[5:50, None] - g[[3, 20, 55]]) ** 2).sum(-1).min(1)
    np.testing.assert_allclose(squares.numpy(), expected, rtol=1e-9)
    assert squares[3] == squares[15] == 0


@pytest.mark.parametrize("block", [1, 7, 1000])
def test_long_batches_keep_the_distances_right(block):
    q, phi = factors(60)
    g = torch.einsum("nc,nd->ncd", q, phi).flatten(1).numpy()
    picked, squares = kmeans_plus_plus(q, phi, 60, generator(), block=block)
    assert sorted(picked) == list(range(60))
    for k in range(1, 60):
        np.testing.assert_allclose(squares[k], ((g[picked[:k]] - g[picked[k]]) ** 2).sum(axis=1).min(), rtol=1e-9)


def test_softmax_and_one_output_are_the_same_network():
    torch.manual_seed(0)
    linear = nn.Linear(5, 1).double()
    two = nn.Linear(5, 2).double()
    with torch.no_grad():
        two.weight.copy_(torch.cat([torch.zeros_like(linear.weight), linear.weight]))
        two.bias.copy_(torch.cat([torch.zeros_like(linear.bias), linear.bias]))
    X = np.random.default_rng(0).normal(size=(30, 5))
    expected = BADGE(random_state=0).select(learner_of(net_of(two)), X, 10)
    probabilities = learner_of(net_of(nn.Sequential(two, nn.Softmax(dim=1)), nn.NLLLoss))
    binary = learner_of(net_of(linear, nn.BCEWithLogitsLoss, NeuralNetBinaryClassifier))
    for learner, share in ((probabilities, 1), (binary, 0.5)):  # one output has one of the two equal rows of gradients
        indices, metrics = BADGE(random_state=0).select(learner, X, 10)
        assert indices.tolist() == expected[0].tolist()
        np.testing.assert_allclose(metrics, share * expected[1], rtol=1e-6)


def test_a_network_that_changes_its_last_layers_output_is_refused():
    with pytest.raises(UnsupportedLayerError, match=r"BADGE.*must be.*'fc'.*CoreSet"):
        BADGE()(learner_of(net_of(Scaled(5, 3))), np.zeros((4, 5), np.float32), 2)


def test_a_memory_bound_below_two_batches_is_refused(flat_learner, flat_data):
    with config_context(max_memory="1MB"):
        assert len(badge(flat_learner, flat_data[0], 3)) == 3
    error = pytest.raises(InvalidParameterError, match=r"max_memory.*two batches.*fewer")
    with error, config_context(max_memory="1KB"):
        badge(flat_learner, flat_data[0], 20)


def test_a_linear_classifier_and_a_linear_network_are_one():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    X = (3 * rng.normal(size=(3, 4))[y] + rng.normal(size=(120, 4))).astype(np.float32)
    model = LogisticRegression().fit(X[:30], y[:30])
    module = nn.Linear(4, 3)
    with torch.no_grad():
        module.weight.copy_(torch.as_tensor(model.coef_))
        module.bias.copy_(torch.as_tensor(model.intercept_))
    by_net = BADGE(random_state=0).select(learner_of(net_of(module), X[:30], y[:30]), X[30:], 10)
    for features in ("auto", "input", lambda X: X):
        picked, metrics = BADGE(features=features, random_state=0).select(learner_of(model, X[:30], y[:30]), X[30:], 10)
        assert picked.tolist() == by_net[0].tolist()
        np.testing.assert_allclose(metrics, by_net[1], rtol=1e-4)


def test_own_features_of_a_network_take_the_place_of_its_last_layer(learner_and_pool):
    learner, X_pool = learner_and_pool
    logits = torch.as_tensor(np.log(learner.estimator.predict_proba(X_pool))).double()
    q = CrossEntropy().gradient(logits, logits.argmax(1)).numpy()
    g = np.einsum("nc,nd->ncd", q, X_pool.reshape(len(X_pool), -1).astype(float)).reshape(len(X_pool), -1)
    choices = []
    for features in ("input", lambda X: X.reshape(len(X), -1)):
        picked, metrics = BADGE(features=features, random_state=0).select(learner, X_pool, 6)
        choices.append(picked.tolist())
        assert picked[0] == (g**2).sum(axis=1).argmax()
        for k in range(1, 6):
            distance = ((g[picked[:k]] - g[picked[k]]) ** 2).sum(axis=1).min()
            np.testing.assert_allclose(metrics[k], distance, rtol=1e-4)
    assert choices[0] == choices[1]


@pytest.mark.parametrize("strategy", [BADGE, CoreSet])
@pytest.mark.parametrize(
    ("features", "words"),
    [
        (lambda X: X[:, :0], "at least one column"),
        (lambda X: X * np.nan, "NaN"),
        (lambda X: X[:-1], "an array of"),
        (np.ones_like, "different for different samples"),
    ],
)
def test_bad_features_are_named(strategy, features, words):
    X, y = np.random.default_rng(0).normal(size=(30, 3)), np.arange(30) % 2
    learner = learner_of(LogisticRegression().fit(X, y), X, y)
    with pytest.raises(FeatureError, match=f"that {strategy.__name__} works on must be .*{words}"):
        strategy(features=features).select(learner, X, 3)
    with pytest.raises(InvalidTypeError, match="must be one of 'auto', 'input'"):
        strategy(features="pixels").select(learner, X, 3)
