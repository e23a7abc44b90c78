"""ProbCover against the definition, in loops and in float64."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

from skal.strategies import ProbCover
from skal.strategies._pool_features import PoolFeatures
from skal.strategies._prob_cover import pure_radius

from ..support.learners import learner_of


def blobs(seed, n=80, n_classes=4):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    X = 2 * rng.normal(size=(n_classes, 5))[y] + rng.normal(size=(n, 5))
    return X / np.linalg.norm(X, axis=1, keepdims=True), y


def purity(X, clusters, radius):
    """The share of balls that hold samples of one cluster only."""
    pure = 0
    for i in range(len(X)):
        inside = [j for j in range(len(X)) if np.sqrt(((X[i] - X[j]) ** 2).sum()) <= radius]
        pure += len({clusters[j] for j in inside}) == 1
    return pure / len(X)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.5, 0.95, 1.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-4), (torch.float32, 1e-3)])
@pytest.mark.parametrize("spread", [1.0, 1e-4])  # distances that single precision cannot tell from products
def test_the_radius_is_the_largest_at_which_enough_balls_are_pure(seed, share, dtype, tolerance, spread):
    X, _ = blobs(seed)
    X = np.hstack([spread * X, np.ones((len(X), 1))])
    X = torch.as_tensor(X / np.linalg.norm(X, axis=1, keepdims=True)).to(dtype)
    clusters = KMeans(4, n_init=1, random_state=seed).fit_predict(X)
    labels = torch.as_tensor(clusters)
    radius = pure_radius(X, labels, lambda: zip(X.split(30), labels.split(30), strict=True), share)
    assert purity(X.double().numpy(), clusters, radius) >= share
    assert purity(X.double().numpy(), clusters, radius * (1 + tolerance)) < share


def greedy_oracle(X, labelled, radius, picked):
    """How many uncovered samples each pick covers, and the most that any could have covered."""
    near = np.array([[np.sqrt(((a - b) ** 2).sum()) <= radius for b in X] for a in X])
    covered = np.array([any(np.sqrt(((a - b) ** 2).sum()) <= radius for b in labelled) for a in X])
    new, most = [], []
    for number, pick in enumerate(picked):
        gains = (near & ~covered).sum(1)
        gains[picked[:number]] = -1
        new.append(gains[pick])
        most.append(gains.max())
        covered = covered | near[pick]
    return new, most


@pytest.mark.parametrize("radius", [0.3, 0.8, "auto"])
@pytest.mark.parametrize("n_labelled", [0, 6])
def test_every_pick_covers_most_of_what_is_not_covered(radius, n_labelled):
    X, y = blobs(0)
    labelled, pool = X[:n_labelled], X[n_labelled:]
    learner = learner_of(LogisticRegression(), labelled, y[:n_labelled]) if n_labelled else None
    strategy = ProbCover(radius=radius, n_clusters=4, random_state=0)
    picked, metrics = strategy.select(learner or learner_of(LogisticRegression()), pool, 12)
    if radius == "auto":
        context = strategy.prepare(learner or learner_of(LogisticRegression()), pool)
        radius = strategy._radius(context, PoolFeatures(context, "auto"), torch.zeros(0, 5))
        assert 0.1 < radius < 1.5
    new, most = greedy_oracle(pool, labelled, radius, picked)
    assert new == most
    np.testing.assert_allclose(metrics, new)


def test_a_radius_that_says_nothing_is_1():
    def among_themselves(points, clusters):
        return pure_radius(points, clusters, lambda: [(points, clusters)], 0.95)

    assert among_themselves(torch.eye(5), torch.zeros(5)) == 1.0  # one cluster
    assert among_themselves(torch.zeros(4, 2), torch.arange(4) % 2) == 1.0  # copies in two clusters
    assert among_themselves(torch.eye(2), torch.arange(2)) == pytest.approx(np.sqrt(2), rel=1e-4)


def test_balls_are_as_pure_in_the_whole_pool_as_promised():
    X, _ = blobs(0, n=400)
    points, clusters = torch.as_tensor(X), torch.as_tensor(KMeans(4, n_init=1, random_state=0).fit_predict(X))
    some = torch.arange(0, 400, 10)  # few of the points have a ball; all of them may lie in one
    radius = pure_radius(points[some], clusters[some], lambda: [(points, clusters)], 0.9)
    inside = torch.cdist(points[some], points) <= radius
    pure = (~inside | (clusters[some, None] == clusters)).all(1)
    assert float(pure.double().mean()) >= 0.9
    among_themselves = pure_radius(points[some], clusters[some], lambda: [(points[some], clusters[some])], 0.9)
    assert radius < among_themselves
