"""The searches against an eigenvalue computation for every candidate."""

from itertools import combinations

import numpy as np
import pytest

from skal.exceptions import OutputError
from skal.strategies import _spectral
from skal.strategies._spectral import (
    KernelBlocks,
    draw_batches,
    greedy_logdet,
    greedy_search,
    numerical_rank,
    points_above,
    pruned_search,
    ridge_logdets,
    smallest_eigenvalue,
)

EPS = np.finfo(float).eps


def split(K, n):
    return KernelBlocks(K[:n, :n], K[:n, n:], K[n:, n:])


def candidate(K, n, batch):
    rows = [*range(n), *(n + np.asarray(batch))]
    return K[np.ix_(rows, rows)]


def make_kernel(kind, n_points, rng):
    """A kernel matrix from random features: (n_points, n_points)."""
    width = n_points + int(rng.integers(1, 20))
    features = rng.normal(size=(n_points, width))
    if kind == "ill-conditioned":
        features *= np.logspace(0, -rng.uniform(2, 7), width)
    elif kind == "duplicates":
        for row in range(n_points - n_points // 4, n_points):
            features[row] = features[rng.integers(row)]
    elif kind == "low rank":
        features = features[:, : max(1, n_points // 3)]
    elif kind == "scales":
        features *= 10 ** rng.uniform(-3, 3, size=(n_points, 1))
    return features @ features.T


def expect_same_as_brute_force(K, n, batches, **params):
    spectra = [np.linalg.eigvalsh(candidate(K, n, batch)) for batch in batches]
    values = np.array([spectrum[0] for spectrum in spectra])
    best = int(values.argmax())
    rounding = len(spectra[best]) * EPS * spectra[best][-1]
    index, value = pruned_search(split(K, n), batches, **params)
    if values[best] <= rounding:
        assert index == -1 or value <= 10 * rounding
        return False
    assert abs(value - values[best]) <= rounding
    assert abs(values[index] - values[best]) <= rounding
    others = np.delete(values, best)
    if len(others) == 0 or values[best] - others.max() > rounding:
        assert index == best
    return True


KINDS = ["well-conditioned", "ill-conditioned", "duplicates", "low rank", "scales"]


@pytest.mark.parametrize("kind", KINDS)
def test_pruned_search_finds_what_every_eigenvalue_would(kind):
    decided = 0
    for seed in range(80):
        rng = np.random.default_rng([KINDS.index(kind), seed])
        n = 0 if seed % 4 == 0 else int(rng.integers(1, 40))
        N = int(rng.integers(1, 60))
        b = int(rng.integers(1, min(N, 25) + 1))
        K = make_kernel(kind, n + N, rng)
        batches = np.array([rng.choice(N, b, replace=False) for _ in range(int(rng.integers(1, 60)))])
        decided += expect_same_as_brute_force(K, n, batches)
    assert decided >= {"low rank": 5, "duplicates": 10}.get(kind, 60)


@pytest.mark.parametrize(("n", "b"), [(0, 1), (0, 300), (1, 1), (100, 200), (250, 50), (299, 1)])
@pytest.mark.parametrize("kind", ["well-conditioned", "ill-conditioned"])
def test_sizes_up_to_three_hundred(kind, n, b):
    rng = np.random.default_rng(n + b)
    K = make_kernel(kind, n + b + 30, rng)
    assert expect_same_as_brute_force(K, n, np.array([rng.choice(b + 30, b, replace=False) for _ in range(25)]))


def test_each_way_to_form_the_schur_complements_and_every_chunking():
    rng = np.random.default_rng(0)
    K = make_kernel("ill-conditioned", 420, rng)
    few_points, many_points = (
        rng.integers(10, size=(40, 1)) + np.arange(0, 40, 10),
        rng.permutation(400).reshape(40, 10),
    )
    for n_bytes in (1, 2000, 2**25):
        for batches in (few_points, many_points):
            assert expect_same_as_brute_force(K, 20, batches, chunk_bytes=n_bytes)


def test_few_eigenvalues_are_computed(monkeypatch):
    rng = np.random.default_rng(0)
    K = make_kernel("well-conditioned", 130, rng)
    calls = []
    monkeypatch.setattr(_spectral, "smallest_eigenvalue", lambda M: calls.append(M) or smallest_eigenvalue(M))
    pruned_search(split(K, 30), np.array([rng.choice(100, 10, replace=False) for _ in range(1000)]))
    assert 1 <= len(calls) <= 25  # the harmonic number of 1000 is 7.5


def test_the_labelled_block_bounds_every_batch_and_ends_the_search():
    """Interlacing: with one labelled point orthogonal to everything and shorter, all batches reach its length."""
    K = np.diag([0.5, 3.0, 2.0, 4.0])
    assert pruned_search(split(K, 1), np.array([[0], [1], [2]])) == (0, 0.5)


def test_only_batches_above_the_bar_count():
    K = np.diag([3.0, 1.0, 2.0])
    batches = np.array([[1], [2]])
    assert pruned_search(split(K, 0), batches, bar=1.5) == (1, 2.0)
    assert pruned_search(split(K, 0), batches, bar=2.0) == (-1, 2.0)


def test_first_of_equal_batches_wins():
    K = np.diag([1.0, 1.0, 1.0, 1.0])
    assert pruned_search(split(K, 0), np.array([[0, 1], [1, 2], [2, 3]]))[0] == 0


def test_no_degenerate_batch_wins_while_another_was_drawn():
    """Proposition 1, with a single good batch at every position among bad ones."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(12, 40))
    features[8:] = features[4:8]  # pool points 4 … 7 are copies of 0 … 3, n = 4
    K = features @ features.T
    bad = np.array([[0, 4, 1], [1, 2, 5], [3, 7, 0], [2, 6, 3]])
    for position in range(5):
        batches = np.insert(bad, position, [0, 1, 2], axis=0)
        assert pruned_search(split(K, 4), batches)[0] == position


@pytest.mark.parametrize("n", [0, 3])
def test_points_above_are_those_whose_own_eigenvalue_is(n):
    rng = np.random.default_rng(n)
    K = make_kernel("well-conditioned", n + 30, rng)
    values = np.array([smallest_eigenvalue(candidate(K, n, [u])) for u in range(30)])
    bar = np.median(values)
    K_LL, K_LU, K_UU = split(K, n)[:3]
    above = points_above(K_LL, K_LU, K_UU.diagonal(), bar * (1 - 1e-9))
    np.testing.assert_array_equal(above, values > bar * (1 - 1e-9))
    assert 0 < above.sum() < 30
    if n:
        assert not points_above(K_LL, K_LU, K_UU.diagonal(), 2 * np.linalg.eigvalsh(K_LL)[0]).any()


@pytest.mark.parametrize("seed", range(20))
def test_greedy_adds_the_point_that_keeps_the_eigenvalue_highest(seed):
    rng = np.random.default_rng(seed)
    n, N, b = int(rng.integers(0, 8)), 20, 8
    K = make_kernel(["well-conditioned", "scales", "ill-conditioned"][seed % 3], n + N, rng)
    picked, values = greedy_search(split(K, n), b)
    rounding = 4 * EPS * np.linalg.eigvalsh(K)[-1]  # what no eigenvalue is more exact than
    for step in range(b):
        before = list(picked[:step])
        by_hand = {u: smallest_eigenvalue(candidate(K, n, [*before, u])) for u in range(N) if u not in before}
        assert values[step] == pytest.approx(max(by_hand.values()), rel=1e-6, abs=rounding)
        assert by_hand[picked[step]] == pytest.approx(max(by_hand.values()), rel=1e-6, abs=rounding)
    assert len(set(picked)) == b


@pytest.mark.parametrize("n", [0, 12])
def test_greedy_decomposes_anew_after_some_points(n):
    K = make_kernel("well-conditioned", n + 60, np.random.default_rng(n))
    picked, values = greedy_search(split(K, n), 40)
    for step in (15, 16, 17, 33, 39):
        before = list(picked[:step])
        by_hand = {u: smallest_eigenvalue(candidate(K, n, [*before, u])) for u in range(60) if u not in before}
        assert picked[step] == max(by_hand, key=by_hand.get)
        assert values[step] == pytest.approx(by_hand[picked[step]], rel=1e-9)


def test_greedy_continues_where_nothing_is_left():
    K = np.ones((5, 5))
    picked, values = greedy_search(split(K, 1), 3)
    assert len(set(picked)) == 3
    assert np.abs(values).max() < 1e-12


@pytest.mark.parametrize("n", [0, 5])
def test_log_determinants_are_the_definition(n):
    rng = np.random.default_rng(n)
    K = make_kernel("low rank", n + 30, rng)
    batches = np.array([rng.choice(30, 6, replace=False) for _ in range(40)])

    def logdet(M):
        return np.linalg.slogdet(M + 0.1 * np.eye(len(M)))[1]

    expected = [logdet(candidate(K, n, batch)) - logdet(candidate(K, n, [])) for batch in batches]
    for n_bytes in (1, 2**25):
        np.testing.assert_allclose(ridge_logdets(split(K, n), batches, 0.1, n_bytes), expected, rtol=1e-9)


@pytest.mark.parametrize("n", [0, 5])
def test_greedy_log_determinant_takes_the_best_next_point(n):
    rng = np.random.default_rng(n)
    K = make_kernel("low rank", n + 15, rng)
    picked = list(greedy_logdet(split(K, n), 9, 0.1))
    for step in range(9):
        rest = [u for u in range(15) if u not in picked[:step]]
        batches = np.array([[*picked[:step], u] for u in rest])
        values = ridge_logdets(split(K, n), batches, 0.1)
        assert values[rest.index(picked[step])] == pytest.approx(values.max(), rel=1e-9)
    assert len(set(picked)) == 9


def test_a_matrix_that_a_ridge_does_not_mend_is_refused():
    K = -np.eye(3)
    with pytest.raises(OutputError, match="lost in rounding"):
        ridge_logdets(split(K, 1), np.array([[0]]), 0.1)
    with pytest.raises(OutputError, match="lost in rounding"):
        greedy_logdet(split(K, 1), 1, 0.1)


def test_rank_and_smallest_eigenvalue():
    features = np.random.default_rng(0).normal(size=(10, 4))
    assert numerical_rank(features @ features.T, 1e-12) == 4
    assert smallest_eigenvalue(np.diag([3.0, -1.0])) == -1.0


def test_batches_are_uniform_over_all_of_them():
    rng = np.random.default_rng(0)
    batches = draw_batches(40, 3, 5000, rng)
    assert batches.shape == (5000, 3)
    assert all(len(set(batch)) == 3 for batch in batches.tolist())
    counts = np.bincount(batches.ravel(), minlength=40)
    assert np.abs(counts - 375).max() < 5 * np.sqrt(375)
    assert draw_batches(5, 3, 10, rng).tolist() == [list(batch) for batch in combinations(range(5), 3)]
    assert len(draw_batches(5, 3, 9, rng)) == 9
