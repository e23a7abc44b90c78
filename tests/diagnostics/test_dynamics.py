"""Training dynamics and the approximation ratio against autograd, one sample at a time, in float64."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skal.diagnostics import approximation_ratio, approximation_ratio_of, training_dynamics, training_dynamics_of
from skal.exceptions import InvalidParameterError
from skal.nets import CNN, MLP
from skal.tangent import tangent_kernel


def network(name):
    torch.manual_seed(0)
    if name == "MLP":
        return MLP(5, 3, hidden=(8, 6)).double(), (5,)
    return CNN(in_channels=1, n_classes=3, image_size=8).double(), (1, 8, 8)


@pytest.fixture(scope="module", params=["MLP", "CNN"])
def problem(request):
    module, shape = network(request.param)
    rng = np.random.default_rng(0)
    return module, rng.normal(size=(10, *shape)), rng.integers(3, size=10)


def residual(logits, y, loss):
    """∂ℓ/∂f of one sample."""
    target = torch.eye(logits.shape[-1], dtype=logits.dtype)[y]
    return (torch.softmax(logits, -1) if loss == "cross_entropy" else logits) - target


def gradients_by_hand(module, X, y, loss="cross_entropy"):
    rows = []
    for x, label in zip(X, y, strict=True):
        f = module(torch.as_tensor(x[None]))
        if loss == "cross_entropy":
            value = torch.nn.functional.cross_entropy(f, torch.tensor([int(label)]))
        else:
            value = 0.5 * ((f[0] - torch.eye(f.shape[1], dtype=f.dtype)[int(label)]) ** 2).sum()
        parts = torch.autograd.grad(value, list(module.parameters()))
        rows.append(torch.cat([part.flatten() for part in parts]).numpy())
    return np.stack(rows)


def residuals_by_hand(module, X, y, loss):
    with torch.no_grad():
        return residual(module(torch.as_tensor(X)), torch.as_tensor(y), loss).numpy()


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
class TestTrainingDynamics:
    def test_is_the_squared_norm_of_the_summed_gradient(self, problem, loss):
        module, X, y = problem
        total = gradients_by_hand(module, X, y, loss).sum(0)
        np.testing.assert_allclose(training_dynamics_of(module, X, y, loss=loss), total @ total, rtol=1e-9)

    def test_is_the_quadratic_form_in_the_empirical_ntk(self, problem, loss):
        module, X, y = problem
        d = residuals_by_hand(module, X, y, loss)
        Theta = tangent_kernel(module, X, kind="entk")
        expected = sum(
            d[i] @ Theta[3 * i : 3 * i + 3, 3 * j : 3 * j + 3] @ d[j] for i in range(len(X)) for j in range(len(X))
        )
        np.testing.assert_allclose(training_dynamics(Theta, d), expected, rtol=1e-9)
        np.testing.assert_allclose(
            training_dynamics(Theta, d), training_dynamics_of(module, X, y, loss=loss), rtol=1e-9
        )

    def test_is_the_rate_at_which_gradient_flow_lowers_the_loss(self, problem, loss):
        module, X, y = problem
        X, y, step = torch.as_tensor(X), torch.as_tensor(y), 1e-6

        def total(parameters):
            f = torch.func.functional_call(module, parameters, (X,))
            if loss == "cross_entropy":
                return torch.nn.functional.cross_entropy(f, y, reduction="sum")
            return 0.5 * ((f - torch.eye(3, dtype=f.dtype)[y]) ** 2).sum()

        parameters = dict(module.named_parameters())
        gradients = torch.autograd.grad(total(parameters), list(parameters.values()))
        moved = {name: p - step * g for (name, p), g in zip(parameters.items(), gradients, strict=True)}
        with torch.no_grad():
            rate = float(total(parameters) - total(moved)) / step
        assert rate == pytest.approx(training_dynamics_of(module, X, y, loss=loss), rel=1e-3)

    def test_does_not_depend_on_batch_size(self, problem, loss):
        module, X, y = problem
        values = [training_dynamics_of(module, X, y, loss=loss, batch_size=size) for size in (1, 3, 100)]
        np.testing.assert_allclose(values, values[0], rtol=1e-10)


def test_scalar_kernel_is_the_trace_form():
    rng = np.random.default_rng(0)
    root, d = rng.normal(size=(6, 6)), rng.normal(size=(6, 3))
    K = root @ root.T
    assert training_dynamics(K, d) == pytest.approx(np.trace(d.T @ K @ d))
    assert training_dynamics(K, d) == pytest.approx(training_dynamics(np.kron(K, np.eye(3)), d))


def test_delta_of_a_batch_is_the_difference_of_two_dynamics(problem):
    """Δ(Q|S) = ‖Σ_Q g‖² + 2 g_S·Σ_Q g equals G(S ∪ Q) − G(S)."""
    module, X, y = problem
    g = gradients_by_hand(module, X, y)
    g_S, g_Q = g[:6].sum(0), g[6:].sum(0)
    delta = g_Q @ g_Q + 2 * g_S @ g_Q
    difference = training_dynamics_of(module, X, y) - training_dynamics_of(module, X[:6], y[:6])
    assert difference == pytest.approx(delta, rel=1e-9)


class TestApproximationRatio:
    def test_is_the_definition(self):
        rng = np.random.default_rng(0)
        g, g_S = rng.normal(size=(4, 7)), rng.normal(size=7)
        separate = sum(x @ x + 2 * x @ g_S for x in g)
        total = g.sum(0)
        assert approximation_ratio(g, g_S) == pytest.approx(separate / (total @ total + 2 * total @ g_S))

    @pytest.mark.parametrize("with_labels", [True, False])
    def test_network_form_is_the_pure_form(self, problem, with_labels):
        module, X, y = problem
        with torch.no_grad():
            predicted = module(torch.as_tensor(X)).argmax(1).numpy()
        labels = y if with_labels else predicted
        g_S, g_Q = gradients_by_hand(module, X[:6], y[:6]).sum(0), gradients_by_hand(module, X[6:], labels[6:])
        ratio = approximation_ratio_of(module, X[6:], y[6:] if with_labels else None, X[:6], y[:6], batch_size=2)
        assert ratio == pytest.approx(approximation_ratio(g_Q, g_S), rel=1e-8)

    @given(st.integers(0, 2**32 - 1), st.integers(1, 30))
    def test_one_sample_and_orthogonal_samples_have_ratio_one(self, seed, dimension):
        rng = np.random.default_rng(seed)
        g_S = rng.normal(size=dimension)
        assert approximation_ratio(rng.normal(size=(1, dimension)), g_S) == pytest.approx(1)
        orthogonal = np.linalg.qr(rng.normal(size=(dimension, dimension)))[0] * rng.uniform(0.5, 2, (dimension, 1))
        orthogonal = orthogonal[: max(1, dimension // 2)]
        assert approximation_ratio(orthogonal, np.zeros(dimension)) == pytest.approx(1)

    def test_a_batch_that_changes_nothing_has_no_ratio(self):
        assert np.isnan(approximation_ratio([[1.0], [-1.0]], [0.0]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: training_dynamics(np.ones((2, 3)), np.ones((2, 1))),
            r"'K' parameter of training_dynamics must be finite numbers of shape \(n, n\)",
        ),
        (lambda: training_dynamics(np.full((2, 2), np.nan), np.ones((2, 1))), "Got 'NaN or infinity'"),
        (lambda: training_dynamics("kernel", np.ones((2, 1))), r"finite numbers of shape \(n, n\). Got 'kernel'"),
        (lambda: training_dynamics(np.eye(4), np.ones((3, 2))), r"'residuals' .* shape \(4, C\).*shape \(3, 2\)"),
        (lambda: training_dynamics(np.eye(2), [[1.0], [np.inf]]), "'residuals' .* Got 'NaN or infinity'"),
        (lambda: approximation_ratio(np.ones((2, 3)), np.ones(4)), r"'gradients' .* shape \(q, 4\).*same network"),
        (lambda: approximation_ratio(1.0, np.ones(4)), r"'gradients' .* shape \(q, 4\)"),
        (lambda: approximation_ratio(np.ones((2, 3)), [1, 2, np.nan]), "'labelled_gradient' .* Got 'NaN or infinity'"),
        (lambda: training_dynamics_of(torch.nn.Linear(2, 2), np.ones((3, 2)), [0, 1, 2]), r"integers in 0 … 1"),
        (lambda: training_dynamics_of(torch.nn.Linear(2, 2), np.ones((1, 2)), [0], loss="hinge"), "'loss' .*'hinge'"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(InvalidParameterError, match=message):
        call()
