"""CoreSet against furthest-first written as a double loop, and on every kind of network."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from torch import nn

from skal.config import config_context
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.strategies import CoreSet, coreset

from ..support.learners import learner_of, net_of
from ..support.networks import SMALL, small_network


def last_layers_input(module, x):
    *_, head = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    seen = []
    handle = head.register_forward_pre_hook(lambda layer, args: seen.append(args[0]))
    with torch.no_grad():
        module(x)
    handle.remove()
    return seen[0].numpy()


def furthest_first_by_hand(points, centres, b):
    points, centres, picked, distances = points.astype(float), [*centres.astype(float)], [], []
    for _ in range(b):
        best, best_distance = None, -1.0
        for i, x in enumerate(points):
            distance = min(np.sqrt(((x - c) ** 2).sum()) for c in centres)
            if i not in picked and distance > best_distance:
                best, best_distance = i, distance
        picked.append(best)
        distances.append(best_distance)
        centres.append(points[best])
    return picked, distances


def furthest_first(points, centres, n):
    """What CoreSet chooses among points where the labelled ones are the centres."""
    learner = learner_of(LogisticRegression(), centres, np.zeros(len(centres), int))
    return CoreSet(features="input").select(learner, points, n)


@pytest.mark.parametrize("kind", SMALL)
def test_equals_brute_force_on_the_last_layers_input(kind):
    module, X = small_network(kind, 40, dtype=torch.float32)
    learner = learner_of(net_of(module), X[:6], np.arange(6) % 3)
    phi = last_layers_input(module, torch.as_tensor(X))
    indices, metrics = CoreSet().select(learner, X[6:], 10)
    picked, distances = furthest_first_by_hand(phi[6:], phi[:6], 10)
    assert indices.tolist() == picked
    np.testing.assert_allclose(metrics, distances, rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_lazy_distances_choose_as_brute_force_does(seed):
    rng = np.random.default_rng(seed)
    points = rng.normal(size=(60, 3)) * rng.exponential(size=(60, 1))
    centres = rng.normal(size=(4, 3))
    indices, metrics = furthest_first(points, centres, 60)
    picked, distances = furthest_first_by_hand(points, centres, 60)
    assert indices.tolist() == picked
    np.testing.assert_allclose(metrics, distances, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_points_that_come_to_the_top_late_are_found(offset):
    """Clusters without a centre at first: each choice in one of them lowers many distances at once."""
    rng = np.random.default_rng(0)
    points = 10 * rng.normal(size=(12, 20))[rng.integers(12, size=900)] + rng.normal(size=(900, 20)) + offset
    points = points.astype(np.float32)
    indices, metrics = furthest_first(points[2:], points[:2], 120)
    exact = points.astype(float)
    distances = np.sqrt(((exact[2:, None] - exact[:2]) ** 2).sum(-1)).min(1)
    for index, metric in zip(indices, metrics, strict=True):
        assert index == distances.argmax()
        assert metric == pytest.approx(distances.max(), rel=1e-9)
        distances = np.minimum(distances, np.sqrt(((exact[2:] - exact[2:][index]) ** 2).sum(1)))


def test_blocks_of_distances_make_no_difference():
    rng = np.random.default_rng(0)
    points, centres = rng.normal(size=(50, 4)), rng.normal(size=(7, 4))
    whole = furthest_first(points, centres, 20)
    with config_context(max_memory=9000, batch_size=2):
        parts = furthest_first(points, centres, 20)
    assert whole[0].tolist() == parts[0].tolist()
    np.testing.assert_allclose(whole[1], parts[1])


def test_large_pools_are_compared_with_explicit_differences():
    """More distances than fit into one block, a point on top of a centre, and centres far longer than the points."""
    rng = np.random.default_rng(0)
    points, centres = rng.normal(size=(1400, 3)), 50 * rng.normal(size=(100, 3))
    points[7], centres[3] = centres[5], points[9]
    distances = np.sqrt(((points[:, None] - centres) ** 2).sum(-1)).min(1)
    picked, metrics = furthest_first(points, centres, 5)
    expected = []
    for _ in range(5):
        expected.append((int(distances.argmax()), distances.max()))
        distances = np.minimum(distances, np.sqrt(((points - points[expected[-1][0]]) ** 2).sum(1)))
    assert picked.tolist() == [best for best, _ in expected]
    np.testing.assert_allclose(metrics, [distance for _, distance in expected], rtol=1e-9)
    everything = furthest_first(points, centres, 1400)
    assert set(everything[0][-2:].tolist()) == {7, 9}
    assert everything[1][-2:].tolist() == [0, 0]


def test_ties_keep_the_pools_order():
    points = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    indices, _ = furthest_first(points, np.zeros((1, 2)), 4)
    assert indices.tolist() == [0, 1, 2, 3]


def test_many_ties_keep_the_pools_order():
    """More points at the same distance than are looked at: four corners, then copies of them, all at distance zero."""
    corners = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    indices, metrics = furthest_first(corners.repeat(40, axis=0), np.zeros((1, 2)), 160)
    assert indices[:4].tolist() == [0, 40, 80, 120]
    assert indices[4:].tolist() == [i for i in range(160) if i % 40]
    assert metrics.tolist() == [1.0] * 4 + [0.0] * 156


def test_metrics_never_increase_and_bound_what_is_left():
    rng = np.random.default_rng(1)
    points = rng.normal(size=(200, 6))
    indices, metrics = furthest_first(points, points[:1], 40)
    assert (np.diff(metrics) <= 1e-12).all()
    radius = cdist(points, points[np.r_[0, indices]]).min(axis=1).max()
    assert radius <= metrics[-1]


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_coinciding_samples_are_at_distance_zero_and_come_once(offset, flat_learner):
    rng = np.random.default_rng(2)
    X = rng.normal(size=(4, 5)).astype(np.float32) + np.float32(offset)
    pool = np.concatenate([X, X, X])
    indices, metrics = CoreSet().select(flat_learner, pool, 12)
    assert len(set(indices.tolist())) == 12
    assert len(set(indices[:4] % 4)) == 4
    assert metrics[4:].tolist() == [0.0] * 8


def test_copies_of_labelled_samples_come_last(flat_learner, flat_data):
    X = flat_data[0]
    pool = np.concatenate([X[:15], X[40:45]])
    indices, metrics = CoreSet().select(flat_learner, pool, 20)
    assert set(indices[:5]) == set(range(15, 20))
    assert metrics[5:].tolist() == [0.0] * 15


@pytest.mark.parametrize("labels", [None, 0])
def test_without_labels_the_first_centre_is_the_sample_nearest_the_mean(labels, flat_learner, flat_data):
    X = flat_data[0][15:]
    X_training = None if labels is None else X[:0]
    empty = learner_of(flat_learner.estimator, X_training, X_training)
    with torch.no_grad():
        module = flat_learner.estimator.module_
        phi = module.features(torch.as_tensor(X)).double().numpy()
    first = int(((phi - phi.mean(axis=0)) ** 2).sum(axis=1).argmin())
    indices, metrics = CoreSet().select(empty, X, 6)
    picked, distances = furthest_first_by_hand(phi, phi[first : first + 1], 5)
    assert indices.tolist() == [first, *picked]
    assert metrics[0] == np.inf
    np.testing.assert_allclose(metrics[1:], distances, rtol=1e-5)


def test_many_labelled_samples_come_in_blocks(flat_learner, flat_data):
    X = flat_data[0]
    many = np.tile(X[:15], (600, 1))  # 9,000 rows
    learner = learner_of(flat_learner.estimator, many, np.zeros(9000, int))
    few, _ = CoreSet().select(flat_learner, X[15:], 10)
    with config_context(batch_size=1000):
        assert CoreSet().select(learner, X[15:], 10)[0].tolist() == few.tolist()


def test_a_memory_bound_below_two_batches_is_refused(flat_learner, flat_data):
    X = flat_data[0]
    with config_context(max_memory="1GB"):
        assert len(CoreSet()(flat_learner, X, 3)) == 3
    error = pytest.raises(InvalidParameterError, match=r"max_memory.*two batches.*fewer")
    with error, config_context(max_memory="400B"):
        CoreSet()(flat_learner, X, 3)


def test_bad_parameters(flat_learner, flat_data):
    with pytest.raises(InvalidTypeError, match="subset"):
        coreset(flat_learner, flat_data[0], 2, subset="all")


def data(n=80):
    rng = np.random.default_rng(0)
    y = np.arange(n) % 3
    return 3 * rng.normal(size=(3, 4))[y] + rng.normal(size=(n, 4)), y


@pytest.mark.parametrize("features", ["auto", "input", lambda X: 2 * X[:, ::-1] + 1])
def test_inputs_of_a_classifier_and_own_features_are_covered(features):
    X, y = data()
    scale = 2 if callable(features) else 1
    learner = learner_of(HistGradientBoostingClassifier().fit(X[:9], y[:9]), X[:9], y[:9])
    expected, distances = furthest_first_by_hand(X[9:], X[:9], 12)
    picked, metrics = CoreSet(features=features).select(learner, X[9:], 12)
    assert picked.tolist() == expected
    np.testing.assert_allclose(metrics, scale * np.array(distances))


def test_it_starts_before_anything_is_fitted():
    X, _ = data()
    picked, metrics = CoreSet().select(learner_of(LogisticRegression()), X, 5)
    first = np.square(X - X.mean(0)).sum(1).argmin()
    assert (picked[0], metrics[0]) == (first, np.inf)
    assert picked[1:].tolist() == furthest_first_by_hand(X, X[[first]], 4)[0]
