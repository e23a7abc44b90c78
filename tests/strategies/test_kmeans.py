"""K-means against its definition in float64, and against scikit-learn's."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.datasets import load_digits

from skal.strategies._kmeans import kmeans, nearest_centres, seeds


def fitted(points, n_clusters, seed=0, blocks=1, **settings):
    points = torch.as_tensor(points)
    parts = points.split(-(-len(points) // blocks))
    found = kmeans(lambda: parts, points, n_clusters, np.random.default_rng(seed), **settings)
    return [tensor.numpy() for tensor in found]


def within(X, centres, clusters):
    return ((X - centres[clusters]) ** 2).sum()


def test_it_ends_where_means_and_nearest_centres_agree():
    X = np.random.default_rng(0).normal(size=(200, 3))
    centres, clusters = fitted(X, 7, tol=0.0)
    distances = ((X[:, None] - centres) ** 2).sum(-1)
    np.testing.assert_array_equal(clusters, distances.argmin(1))
    np.testing.assert_array_equal(clusters, nearest_centres(torch.as_tensor(X), torch.as_tensor(centres)))
    for k in range(7):
        np.testing.assert_allclose(centres[k], X[clusters == k].mean(0))


@pytest.mark.parametrize("n_clusters", [10, 100])
def test_it_is_nearly_as_good_as_scikit_learns(n_clusters):
    X = load_digits().data
    ours = [within(X, *fitted(X, n_clusters, seed)) for seed in range(3)]
    theirs = [KMeans(n_clusters, n_init=1, random_state=seed).fit(X).inertia_ for seed in range(3)]
    assert np.mean(ours) < 1.03 * np.mean(theirs)


def test_blocks_do_not_matter_and_small_tolerance_is_better():
    X = load_digits().data
    centres, clusters = fitted(X, 20)
    again = fitted(X, 20, blocks=9)
    np.testing.assert_array_equal(clusters, again[1])
    np.testing.assert_allclose(centres, again[0])
    assert within(X, *fitted(X, 20, tol=1e-6)) < within(X, centres, clusters)


def test_more_clusters_than_points_are_copies():
    X = np.repeat(np.eye(3), 4, axis=0)
    centres, clusters = fitted(X, 6)
    np.testing.assert_allclose(centres[clusters], X)


def test_seeds_are_drawn_in_proportion_to_the_squared_distance():
    X = np.array([[0.0], [1.0], [3.0]])
    drawn = [seeds(X, 2, np.random.default_rng(seed)) for seed in range(4000)]
    second = [pair[1] for pair in drawn if pair[0] == 0]
    # two draws, 1 and 3 in the ratio 1 : 9; of both, 3 leaves a smaller sum (1 against 4)
    assert np.mean([row == 2 for row in second]) == pytest.approx(1 - 0.1**2, abs=0.01)
