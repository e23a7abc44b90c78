"""DARP against its optimality conditions, a general convex solver, and the inputs that break other implementations."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import LinearConstraint, minimize

from skal.exceptions import (
    AdjustedInputWarning,
    ConvergenceWarning,
    InvalidParameterError,
    InvalidTypeError,
    NonFiniteError,
)
from skal.semi_supervised import darp, solve_darp
from skal.semi_supervised._refinement import _columnwise, fit_refinement


def make_proba(n, k, seed=0, scale=2.0, bias=0.0):
    logits = scale * np.random.default_rng(seed).normal(size=(n, k)) + bias * np.arange(k)
    proba = np.exp(logits - logits.max(axis=1, keepdims=True))
    return proba / proba.sum(axis=1, keepdims=True)


def hard(labels, k):
    return np.eye(k)[labels]


def prepared(proba, target, alpha=2.0, clip=1e-6):
    """q as the problem's definition has it, sample by sample."""
    q = np.array(proba, dtype=np.float64)
    if alpha is not None:
        kept = np.zeros(q.shape, dtype=bool)
        for k, mass in enumerate(target):
            count = min(len(q), max(1, int(np.ceil(alpha * mass - 1e-9))))
            kept[:, k] = q[:, k] >= np.sort(q[:, k])[::-1][count - 1]
        for n in range(len(q)):
            if kept[n].any():
                q[n, ~kept[n]] = 0
    q = np.maximum(q, clip)
    return q / q.sum(axis=1, keepdims=True)


def objective(x, q, min_entropy=1e-3):
    total = 0.0
    for x_n, q_n in zip(x, q, strict=True):
        weight = 1 / max(min_entropy, -(q_n * np.log(q_n)).sum())
        total += weight * sum(a * np.log(a / b) for a, b in zip(x_n, q_n, strict=True) if a > 0)
    return total


def by_scipy(q, target):
    """A general solver on the primal problem, from the formula."""
    n, k = q.shape
    weights = 1 / np.maximum(1e-3, -(q * np.log(q)).sum(axis=1))[:, None]

    def value(x):
        x = np.maximum(x.reshape(n, k), 1e-12)
        return (weights * x * np.log(x / q)).sum()

    def gradient(x):
        x = np.maximum(x.reshape(n, k), 1e-12)
        return (weights * (np.log(x / q) + 1)).ravel()

    rows = np.kron(np.eye(n), np.ones(k))
    columns = np.kron(np.ones(n), np.eye(k))[:-1]  # the last one follows from the others
    constraints = LinearConstraint(
        np.vstack([rows, columns]), np.r_[np.ones(n), target[:-1]], np.r_[np.ones(n), target[:-1]]
    )
    start = np.tile(np.asarray(target) / n, n)
    settings = {"maxiter": 500, "ftol": 1e-12}
    done = minimize(
        value,
        start,
        jac=gradient,
        bounds=[(1e-12, 1)] * (n * k),
        constraints=constraints,
        options=settings,
        method="SLSQP",
    )
    # it may stop at what its line search can tell apart: what counts is where it stands
    np.testing.assert_allclose(constraints.A @ done.x, constraints.lb, atol=1e-7)
    return done.x.reshape(n, k)


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds:RuntimeWarning")  # of SLSQP before scipy 1.16
@pytest.mark.parametrize("alpha", [None, 1.0, 2.0])
@pytest.mark.parametrize("target", [[4, 4, 4], [8, 3, 1]])
@pytest.mark.parametrize("seed", range(2))
def test_equals_a_general_convex_solver(seed, target, alpha):
    proba = make_proba(12, 3, seed, bias=0.8)
    labels, report = solve_darp(proba, target, alpha=alpha, clip=1e-2)
    q = prepared(proba, target, alpha, clip=1e-2)
    reference = by_scipy(q, np.array(target, dtype=float))
    assert objective(labels, q) == pytest.approx(objective(reference, q), rel=1e-4)
    np.testing.assert_allclose(labels, reference, atol=2e-3)
    assert report.converged


def check_sums(labels, target, tol=1e-6):
    np.testing.assert_allclose(labels.sum(axis=1), 1, rtol=tol)
    np.testing.assert_allclose(labels.sum(axis=0), target, rtol=tol)
    assert (labels >= 0).all()


@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 60),
    k=st.integers(2, 6),
    scale=st.sampled_from([0.0, 1.0, 5.0, 40.0]),
    bias=st.sampled_from([0.0, 3.0, 30.0]),
    skew=st.sampled_from([1.0, 0.3, 0.05]),
    alpha=st.sampled_from([None, 1.0, 2.0]),
)
def test_any_table_meets_its_target(seed, n, k, scale, bias, skew, alpha):
    target = skew ** np.arange(k)
    labels, report = solve_darp(make_proba(n, k, seed, scale, bias), target, alpha=alpha)
    assert report.converged
    check_sums(labels, target / target.sum() * n)
    np.testing.assert_allclose(report.target, target / target.sum() * n)


@pytest.mark.parametrize("counts", [(10, 10, 10), (28, 1, 1), (30, 0, 0)])
@pytest.mark.parametrize("target", [(10, 10, 10), (1, 9, 20)])
def test_overconfident_labels(counts, target):
    proba = hard(np.repeat(np.arange(3), counts), 3)
    labels, report = solve_darp(proba, target)
    assert report.n_clipped == 60
    assert report.converged
    check_sums(labels, target)
    with pytest.warns(AdjustedInputWarning, match="raised 60 probabilities"):
        np.testing.assert_array_equal(darp(proba, target), labels)


def test_sure_labels_move_last():
    proba = np.array([[0.999, 0.001], [0.95, 0.05], [0.8, 0.2], [0.6, 0.4]])
    labels = darp(proba, [2, 2], alpha=None)
    assert (np.diff(labels[:, 0]) < 0).all()
    assert labels[0, 0] > 0.98
    assert labels[3, 0] < 0.4


def test_nothing_moves_where_the_target_is_met():
    proba = make_proba(40, 4)
    np.testing.assert_allclose(darp(proba, proba.sum(axis=0), alpha=None), proba, atol=1e-9)


def test_truncation():
    proba = np.array([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.6, 0.4]])
    labels, report = solve_darp(proba, [1, 3], alpha=1.0)
    # class 0 keeps row 0, class 1 rows 1, 2 and 3
    assert (report.n_truncated, report.n_restored) == (4, 0)
    check_sums(labels, [1, 3])
    assert solve_darp(proba, [1, 3], alpha=None)[1].n_truncated == 0


def test_ties_are_kept():
    assert solve_darp(np.full((10, 2), 0.5), alpha=1.0)[1].n_truncated == 0


def test_rows_emptied_by_the_truncation_are_restored():
    proba = np.array([[80, 10, 10], [55, 5, 40], [10, 80, 10], [10, 80, 10], [10, 10, 80], [34, 33, 33]]) / 100
    labels, report = solve_darp(proba, alpha=1.0)
    # classes keep rows (0, 1), (2, 3) and (1, 4); the last row has nothing left and gets all three entries back
    assert (report.n_truncated, report.n_restored) == (9, 1)
    check_sums(labels, [2, 2, 2])


def test_targets_are_normalised_and_said():
    proba = make_proba(20, 2)
    reference = darp(proba)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_allclose(darp(proba, [0.5, 0.5]), reference)  # shares
        np.testing.assert_allclose(darp(proba, [10, 10]), reference)
    with pytest.warns(AdjustedInputWarning, match="neither to the 20 samples"):
        np.testing.assert_allclose(darp(proba, [3, 3]), reference)
    assert solve_darp(proba, [3, 3])[1].target_normalised
    assert not solve_darp(proba, [0.5, 0.5])[1].target_normalised


def test_a_class_may_be_absent():
    labels, report = solve_darp(make_proba(20, 3), [10, 0, 10])
    assert report.converged
    np.testing.assert_array_equal(labels[:, 1], 0)
    check_sums(labels[:, [0, 2]], [10, 10])


def test_tensor_in_tensor_out():
    proba = make_proba(30, 3)
    labels = darp(torch.as_tensor(proba))
    assert isinstance(labels, torch.Tensor)
    assert labels.dtype == torch.float64
    np.testing.assert_array_equal(labels.numpy(), darp(proba))
    np.testing.assert_allclose(darp(torch.as_tensor(proba).float()).numpy(), labels.numpy(), atol=1e-5)


def test_the_input_is_left_alone():
    proba = make_proba(30, 3)
    before = proba.copy()
    darp(proba)
    np.testing.assert_array_equal(proba, before)


def test_a_large_table_starts_from_a_part_of_it():
    proba = make_proba(20_000, 4, bias=1.0)
    target = np.array([2_000, 4_000, 6_000, 8_000])
    labels, report = solve_darp(proba, target)
    check_sums(labels, target)
    assert report.n_iterations <= 6


def test_the_refinement_is_the_solution_and_applies_to_new_samples():
    table = torch.as_tensor(make_proba(50, 3, bias=1.0))
    masses = torch.full((3,), 50 / 3, dtype=torch.float64)
    refinement, _ = fit_refinement(table, masses)
    np.testing.assert_allclose(refinement(table).numpy(), darp(table.numpy()), rtol=1e-12)
    np.testing.assert_allclose(refinement(table[7:9]).numpy(), refinement(table)[7:9].numpy())


def test_columns_are_set_right_one_by_one():
    proba = torch.as_tensor(make_proba(50, 3, bias=2.0))
    entropy = torch.rand(50, dtype=torch.float64) + 0.01
    masses = torch.tensor([30.0, 19.0, 1.0], dtype=torch.float64)
    delta = _columnwise(proba.log(), entropy, masses, torch.zeros(3, dtype=torch.float64))
    np.testing.assert_allclose((proba * torch.exp(-entropy[:, None] * delta)).sum(dim=0), masses, rtol=1e-3)


def test_too_few_steps_are_said():
    with pytest.warns(ConvergenceWarning, match="did not reach"):
        darp(make_proba(100, 4, bias=2), max_iter=1, clip=1e-12)


@pytest.mark.parametrize(
    ("proba", "params", "error", "match"),
    [
        (np.zeros(3), {}, InvalidParameterError, "'proba'"),
        (np.full((2, 1), 1.0), {}, InvalidParameterError, "'proba'"),
        (np.array([[0.5, np.nan]]), {}, NonFiniteError, "finite"),
        (np.array([[1.5, -0.5]]), {}, InvalidParameterError, "not logits"),
        (np.zeros((2, 2)), {}, InvalidParameterError, "row of zeros"),
        (np.array([["a", "b"]]), {}, TypeError, "'proba'"),
        ([[0.1, 0.9], [1.0]], {}, InvalidTypeError, "'proba'"),
        (np.full((4, 2), 0.5 + 0j), {}, InvalidTypeError, "'proba'"),
        (torch.full((4, 2), 0.5 + 0j), {}, InvalidTypeError, "'proba'"),
        (np.full((4, 2), 0.5), {"target": "uniform"}, InvalidTypeError, "'target'"),
        (np.full((4, 2), 0.5), {"target": ["1", "3"]}, InvalidTypeError, "'target'"),
        (np.full((4, 2), 0.5), {"target": {0: 1, 1: 3}}, InvalidTypeError, "'target'"),
        (np.full((4, 2), 0.5), {"target": [[1], [1, 2]]}, InvalidTypeError, "'target'"),
        (np.full((4, 2), 0.5), {"target": np.array([1j, 2])}, InvalidTypeError, "'target'"),
        (np.full((4, 2), 0.5), {"target": torch.tensor([1j, 2])}, InvalidTypeError, "'target'"),
        (np.full((4, 2), 0.5), {"target": [1, 2, 3]}, InvalidParameterError, "'target'"),
        (np.full((4, 2), 0.5), {"target": [-1, 5]}, InvalidParameterError, "'target'"),
        (np.full((4, 2), 0.5), {"target": [0, 0]}, InvalidParameterError, "'target'"),
        (np.full((4, 2), 0.5), {"alpha": 0.5}, InvalidParameterError, "'alpha'"),
        (np.full((4, 2), 0.5), {"clip": 0}, InvalidParameterError, "'clip'"),
        (np.full((4, 2), 0.5), {"min_entropy": 0}, InvalidParameterError, "'min_entropy'"),
        (np.full((4, 2), 0.5), {"tol": 0}, InvalidParameterError, "'tol'"),
        (np.full((4, 2), 0.5), {"max_iter": 0}, InvalidParameterError, "'max_iter'"),
    ],
)
def test_bad_input(proba, params, error, match):
    for function in (darp, solve_darp):
        with pytest.raises(error, match=match):
            function(proba, **params)
