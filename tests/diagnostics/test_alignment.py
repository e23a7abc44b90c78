"""Alignment and the bound's leading term, and the two inequalities that connect them with training."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skal.diagnostics import (
    alignment,
    alignment_of,
    convergence,
    convergence_of,
    generalization_bound,
    generalization_bound_of,
)
from skal.exceptions import InvalidParameterError
from skal.nets import MLP
from skal.tangent import tangent_kernel


@st.composite
def kernels_and_labels(draw):
    """A positive definite kernel with eigenvalues over up to three decades, and one-hot labels."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, n_classes = draw(st.integers(2, 25)), draw(st.integers(2, 5))
    spread = draw(st.floats(0, 3))
    basis = np.linalg.qr(rng.normal(size=(n, n)))[0]
    K = (basis * 10 ** rng.uniform(-spread, 0, n)) @ basis.T
    return (K + K.T) / 2, np.eye(n_classes)[rng.integers(n_classes, size=n)]


@given(kernels_and_labels())
def test_alignment_is_the_trace(problem):
    K, Y = problem
    assert alignment(K, Y) == pytest.approx(np.trace(Y.T @ K @ Y))


@given(kernels_and_labels())
def test_bound_is_the_definition(problem):
    K, Y = problem
    assert generalization_bound(K, Y) == pytest.approx(np.sqrt(2 * np.trace(Y.T @ np.linalg.inv(K) @ Y) / len(K)))


@given(kernels_and_labels(), st.floats(0.01, 1), st.integers(1, 50))
def test_theorem_1(problem, relative_step, t):
    """The loss after t steps of gradient descent lies between two lines in the alignment, for ηλ_max ≤ 1."""
    K, Y = problem
    values, vectors = np.linalg.eigh(K)
    eta = relative_step / values[-1]
    A, total = alignment(K, Y), np.trace(Y.T @ Y)
    loss = sum(
        (1 - eta * values[i]) ** (2 * t) * (vectors[:, i] @ Y[:, k]) ** 2
        for i in range(len(K))
        for k in range(Y.shape[1])
    )
    assert convergence(K, Y, eta, t) == pytest.approx(loss, rel=1e-9)
    slack = 1e-9 * total
    assert total - 2 * t * eta * A <= loss + slack
    assert loss <= total - eta * A + slack


@given(kernels_and_labels(), st.floats(0.01, 1.9), st.integers(0, 10))
def test_convergence_is_the_loss_of_gradient_descent(problem, relative_step, t):
    K, Y = problem
    eta = relative_step / np.linalg.eigvalsh(K)[-1]
    f = np.zeros_like(Y)
    for _ in range(t):
        f = f - eta * K @ (f - Y)
    assert convergence(K, Y, eta, t) == pytest.approx(((f - Y) ** 2).sum(), rel=1e-6, abs=1e-9)


def test_convergence_is_the_loss_of_a_network_that_is_trained():
    """A linear network is its own linearisation: t steps on its weights, from zero."""
    rng = np.random.default_rng(0)
    X, y = torch.as_tensor(rng.normal(size=(6, 4))), rng.integers(3, size=6)
    net = torch.nn.Linear(4, 3).double()
    Y = torch.eye(3, dtype=torch.float64)[torch.as_tensor(y)]
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02)
    for _ in range(7):
        optimizer.zero_grad()
        (0.5 * (net(X) - Y).square().sum()).backward()
        optimizer.step()
    left = float((net(X) - Y).detach().square().sum())
    assert convergence_of(net, X.numpy(), y, lr=0.02, n_steps=7) == pytest.approx(left, rel=1e-9)


@given(kernels_and_labels())
def test_theorem_2(problem):
    """Tr²[YᵀY]/A ≤ (n/2) B² ≤ (λ_max/λ_min) Tr²[YᵀY]/A."""
    K, Y = problem
    values = np.linalg.eigvalsh(K)
    middle = len(K) / 2 * generalization_bound(K, Y) ** 2
    lower = np.trace(Y.T @ Y) ** 2 / alignment(K, Y)
    assert lower <= middle * (1 + 1e-9)
    assert middle <= values[-1] / values[0] * lower * (1 + 1e-9)


def test_ridge_is_relative_to_the_mean_diagonal():
    K, Y = np.diag([1.0, 3.0]), np.eye(2)
    assert generalization_bound(K, Y, ridge=0.5) == pytest.approx(np.sqrt(1 / 2 + 1 / 4))
    singular = np.ones((2, 2))
    assert np.isfinite(generalization_bound(singular, Y, ridge=1e-6))


@pytest.mark.parametrize("kind", ["pntk", "trace"])
def test_network_forms_are_the_pure_forms(kind):
    torch.manual_seed(0)
    net = MLP(5, 3, hidden=(20,)).double()
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(8, 5)), rng.integers(3, size=8)
    K, Y = tangent_kernel(net, X, kind=kind), np.eye(3)[y]
    assert alignment_of(net, X, y, kind=kind, batch_size=3) == pytest.approx(alignment(K, Y))
    assert generalization_bound_of(net, X, y, kind=kind) == pytest.approx(generalization_bound(K, Y))
    assert generalization_bound_of(net, X, y, kind=kind, ridge=0.1) == pytest.approx(
        generalization_bound(K, Y, ridge=0.1)
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: alignment(np.ones(3), np.ones(3)), r"'K' .* Got 'shape \(3, 1\)'"),
        (lambda: alignment(np.eye(3), np.ones((2, 2))), r"'Y' parameter of alignment .*\(3, C\)"),
        (lambda: alignment(np.eye(2), [["a"], ["b"]]), "'Y' parameter of alignment .* one row per sample"),
        (lambda: alignment(np.empty((0, 0)), np.empty((0, 1))), "'K' parameter of alignment"),
        (lambda: generalization_bound(np.ones((2, 2)), np.eye(2)), "positive definite.*pass a small ridge"),
        (lambda: generalization_bound(np.eye(2), np.eye(2), ridge=-1), "'ridge' parameter of generalization_bound"),
        (lambda: convergence(np.eye(2), np.eye(2), -1, 1), "'lr' parameter of convergence"),
        (lambda: convergence(np.eye(2), np.eye(2), 3.0, 1), "'lr' parameter of convergence .* at most 2 / λ_max"),
        (lambda: convergence(np.eye(2), np.eye(2), 1.0, -1), "'n_steps' parameter of convergence"),
        (lambda: alignment_of(torch.nn.Linear(2, 2), np.ones((2, 2)), ["a", "b"]), "integers in 0 … 1.*LabelEncoder"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidParameterError, match=message):
        call()
