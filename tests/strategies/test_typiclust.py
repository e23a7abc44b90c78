"""TypiClust against the formula, in loops and in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from skal.strategies import TypiClust
from skal.strategies._typiclust import cluster_pool, most_typical, typical_choice, typicality

from ..support.learners import learner_of


class Reader:
    """Features of rows, as PoolFeatures gives them."""

    device = torch.device("cpu")
    row_bytes, block_bytes = 16, 10_000

    def __init__(self, X):
        self._X = torch.as_tensor(X)

    def __call__(self, rows):
        return self._X[rows]


def typicality_oracle(X, row, members, n_neighbors):
    """One over the mean distance to the nearest neighbours in the cluster."""
    distances = sorted(np.sqrt(((X[row] - X[other]) ** 2).sum()) for other in members if other != row)[:n_neighbors]
    return 1 / np.mean(distances) if distances and np.mean(distances) > 0 else np.inf


def oracle(X, clusters, n_labelled, n_instances, n_neighbors):
    """Rows and typicalities: always from the cluster with the fewest labels, of several the largest."""
    labels, picked, values = n_labelled.copy(), [], []
    sizes = [np.sum(clusters == k) + n_labelled[k] for k in range(len(labels))]
    for _ in range(n_instances):
        open_ = [k for k in range(len(labels)) if set(np.flatnonzero(clusters == k)) - set(picked)]
        best = min(open_, key=lambda k: (sizes[k] <= 5, labels[k], -sizes[k], k))
        members = np.flatnonzero(clusters == best)
        free = [row for row in members if row not in picked]
        row = max(free, key=lambda row: typicality_oracle(X, row, members, n_neighbors))
        picked.append(row)
        values.append(typicality_oracle(X, row, members, n_neighbors))
        labels[best] += 1
    return picked, values


@given(seed=st.integers(0, 10**6), n_neighbors=st.sampled_from([1, 3, 20]), n_clusters=st.integers(1, 8))
def test_the_choice_is_the_formula_for_any_clusters(seed, n_neighbors, n_clusters):
    rng = np.random.default_rng(seed)
    X, clusters = rng.normal(size=(60, 3)), rng.integers(n_clusters, size=60)
    n_labelled = rng.integers(3, size=n_clusters)
    keys, spent = np.arange(60.0), np.zeros(60, dtype=bool)
    picked, values = typical_choice(Reader(X), clusters, n_labelled, keys, spent, 20, n_neighbors, rng)
    expected, typical = oracle(X, clusters, n_labelled, 20, n_neighbors)
    np.testing.assert_allclose(np.minimum(values, 1e6), np.minimum(typical, 1e6), rtol=1e-9)
    distinct = n_neighbors > 1  # two that are each other's nearest are as typical as each other
    assert not distinct or picked.tolist() == expected or len(set(np.round(typical, 9))) < 20


def test_the_whole_strategy_is_the_formula_where_the_clusters_are_plain():
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(12), [9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20])
    X = rng.normal(size=(12, 30))[y] + 0.05 * rng.normal(size=(len(y), 30))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    labelled = np.array([np.flatnonzero(y == k)[0] for k in (0, 5, 11, 3)])
    pool = np.setdiff1d(np.arange(len(y)), labelled)
    learner = learner_of(LogisticRegression(), X[labelled], y[labelled])
    picked, values = TypiClust(random_state=0).select(learner, X[pool], 8)
    expected, typical = oracle(X[pool], y[pool], np.bincount(y[labelled], minlength=12), 8, 20)
    assert picked.tolist() == expected
    np.testing.assert_allclose(values, typical, rtol=1e-6)
    assert sorted(y[pool][picked]) == [1, 2, 4, 6, 7, 8, 9, 10]


def test_typicality_keeps_its_digits_and_knows_no_blocks():
    rng = np.random.default_rng(0)
    X = np.ones(8) + 1e-5 * rng.normal(size=(40, 8))
    expected = [typicality_oracle(X, row, range(40), 5) for row in range(40)]
    for block_bytes in (2**20, 16 * 40 * 3):
        np.testing.assert_allclose(typicality(torch.as_tensor(X), 5, block_bytes), expected, rtol=1e-5)
    assert np.isfinite(typicality(torch.zeros(4, 2), 5)).all()
    assert np.isfinite(typicality(torch.zeros(1, 2), 5)).all()


@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-7, 0.0])
@pytest.mark.parametrize("seed", range(3))
def test_single_precision_gives_the_order_of_double_precision(spread, seed):
    rng = np.random.default_rng(seed)
    points = np.ones(24) + spread * rng.normal(size=(60, 24))
    points[30:] = points[:30][:, ::-1] + 1e-9 * rng.normal(size=(30, 24))  # near ties
    points = torch.as_tensor(points / np.linalg.norm(points, axis=1, keepdims=True), dtype=torch.float32)
    expected = typicality(points, 5)
    ranked = list(most_typical(lambda: points, 5))
    assert sorted(row for row, _ in ranked) == list(range(60))
    order = [row for row, _ in ranked]
    np.testing.assert_array_equal(expected[order], np.sort(expected)[::-1])
    np.testing.assert_allclose([value for _, value in ranked], expected[order], rtol=1e-4)


def test_a_random_part_stands_for_a_large_cluster():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 3))
    clusters, keys, spent = np.repeat([0, 1], [80, 10]), np.arange(90.0), np.zeros(90, dtype=bool)
    read = {}

    class Counted(Reader):
        def __call__(self, rows):
            read.setdefault(int(clusters[int(rows[0])]), rows.tolist())
            return super().__call__(rows)

    given = (Counted(X), clusters, np.zeros(2, dtype=int), keys, spent, 2, 5, rng)
    picked, values = typical_choice(*given, n_members=30)
    assert sorted(clusters[picked]) == [0, 1]
    assert [len(read[0]), len(read[1])] == [30, 10]
    largest = picked[0]  # the larger cluster comes first, by all of its members
    assert clusters[largest] == 0
    assert values[0] == pytest.approx(max(typicality_oracle(X, row, read[0], 5) for row in read[0]))


def test_clusters_of_large_pools_are_found_on_some_samples():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=2000)
    X = np.array([[5.0, 0.0], [0.0, 5.0]])[y] + rng.normal(size=(2000, 2))
    clusters, of_labelled = cluster_pool(Reader(X), 2000, torch.as_tensor(X[:3]), 2, np.random.default_rng(0))
    assert np.mean((clusters.numpy() == clusters[0].item()) == (y == y[0])) > 0.99
    assert of_labelled.tolist() == clusters[:3].tolist()


@pytest.mark.parametrize("n_pool", [1, 3, 12])
def test_small_pools_and_clusters(n_pool):
    X = np.random.default_rng(0).normal(size=(n_pool + 20, 3))
    y = np.arange(20) % 2
    learner = learner_of(LogisticRegression(), X[:20], y)
    assert sorted(TypiClust(random_state=0)(learner, X[20:], n_pool)) == list(range(n_pool))
