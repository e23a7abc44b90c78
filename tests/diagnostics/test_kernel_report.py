"""The comparison of the pseudo-NTK with the empirical NTK."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skal.diagnostics import kernel_report, kernel_report_of
from skal.exceptions import InvalidParameterError
from skal.nets import MLP, SquaredLoss
from skal.tangent import tangent_kernel


def positive_definite(rng, n):
    root = rng.normal(size=(n, n + 2))
    return root @ root.T


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(2, 4))
def test_is_the_definition(seed, n, C):
    rng = np.random.default_rng(seed)
    K, Theta = positive_definite(rng, n), positive_definite(rng, n * C)
    report = kernel_report(K, Theta)
    full = np.kron(K, np.eye(C))
    own, their = np.linalg.eigvalsh(full), np.linalg.eigvalsh(Theta)
    assert report["frobenius"] == pytest.approx(np.linalg.norm(full - Theta) / np.linalg.norm(Theta))
    assert report["lambda_max"] == pytest.approx(abs(own[-1] - their[-1]) / their[-1])
    assert report["lambda_min"] == pytest.approx(abs(own[0] - their[0]) / their[0], rel=1e-6)
    conditions = own[-1] / own[0], their[-1] / their[0]
    assert report["condition"] == pytest.approx(abs(conditions[0] - conditions[1]) / conditions[1], rel=1e-6)
    sums = {True: 0.0, False: 0.0}
    for i, j, c, d in np.ndindex(n, n, C, C):
        sums[c == d] += abs(Theta[i * C + c, j * C + d])
    assert report["on_diagonal"] == pytest.approx(sums[True] / n**2)
    assert report["off_diagonal"] == pytest.approx(sums[False] / n**2)


def test_equal_kernels_do_not_differ():
    K = positive_definite(np.random.default_rng(0), 4)
    report = kernel_report(K, np.kron(K, np.eye(3)))
    assert report.pop("on_diagonal") == pytest.approx(3 * np.abs(K).mean())
    np.testing.assert_allclose(list(report.values()), 0, atol=1e-9)


def test_equal_kernels_predict_the_same():
    rng = np.random.default_rng(0)
    K, between = positive_definite(rng, 4), rng.normal(size=(6, 4))
    Y, y_test = np.eye(3)[[0, 1, 2, 0]], rng.integers(3, size=6)
    big = {"pntk_test": between, "entk_test": np.kron(between, np.eye(3))}
    report = kernel_report(K, np.kron(K, np.eye(3)), targets=Y, **big, y_test=y_test, ridge=1e-8)
    assert report["prediction_difference"] == pytest.approx(0, abs=1e-6)
    assert report["pntk_accuracy"] == report["entk_accuracy"]
    expected = (between @ np.linalg.solve(K + 1e-8 * np.diag(K).mean() * np.eye(4), Y)).argmax(1)
    assert report["pntk_accuracy"] == np.mean(expected == y_test)


def test_regressions_start_from_the_outputs():
    """Equations 3.4 and 3.5 of the thesis, written out."""
    rng = np.random.default_rng(0)
    n, m, C = 4, 6, 3
    K, Theta = positive_definite(rng, n), positive_definite(rng, n * C)
    between, between_all = rng.normal(size=(m, n)), rng.normal(size=(m * C, n * C))
    f, f_test, Y = rng.normal(size=(n, C)), rng.normal(size=(m, C)), np.eye(C)[[0, 1, 2, 0]]
    report = kernel_report(
        K, Theta, targets=Y, pntk_test=between, entk_test=between_all, outputs=f, outputs_test=f_test, ridge=0
    )
    by_pntk = f_test + between @ np.linalg.solve(K, Y - f)
    by_entk = f_test + (between_all @ np.linalg.solve(Theta, (Y - f).reshape(-1))).reshape(m, C)
    expected = np.linalg.norm(by_pntk - by_entk) / np.linalg.norm(by_entk)
    assert report["prediction_difference"] == pytest.approx(expected)
    with pytest.raises(InvalidParameterError, match=r"'outputs_test'.*Pass outputs and outputs_test, or neither"):
        kernel_report(K, Theta, targets=Y, pntk_test=between, entk_test=between_all, outputs=f)


def test_the_regressions_come_together_while_the_network_learns():
    """As in the thesis' Figure 3.7: what is left to be learnt is what the kernels differ about."""
    torch.manual_seed(0)
    net, rng = MLP(5, 3, hidden=(64,)).double(), np.random.default_rng(0)
    X, X_test = rng.normal(size=(12, 5)), rng.normal(size=(20, 5))
    y = rng.integers(3, size=12)
    inputs, labels, criterion = torch.as_tensor(X), torch.as_tensor(y), SquaredLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    before = kernel_report_of(net, X, y, X_test)["prediction_difference"]
    for _ in range(200):
        optimizer.zero_grad()
        criterion(net(inputs), labels).backward()
        optimizer.step()
    assert kernel_report_of(net, X, y, X_test)["prediction_difference"] < before / 2


def test_network_form_is_the_pure_form():
    torch.manual_seed(0)
    net = MLP(5, 3, hidden=(16,)).double()
    rng = np.random.default_rng(0)
    X, y, X_test, y_test = rng.normal(size=(6, 5)), rng.integers(3, size=6), rng.normal(size=(4, 5)), [0, 1, 2, 0]
    kernels = [tangent_kernel(net, X, kind=kind) for kind in ("pntk", "entk")]
    assert kernel_report_of(net, X) == pytest.approx(kernel_report(*kernels))
    test = {f"{kind}_test": tangent_kernel(net, X_test, X, kind=kind) for kind in ("pntk", "entk")}
    with torch.no_grad():
        outputs = {"outputs": net(torch.as_tensor(X)).numpy(), "outputs_test": net(torch.as_tensor(X_test)).numpy()}
    expected = kernel_report(*kernels, targets=np.eye(3)[y], **test, y_test=y_test, **outputs, ridge=1e-3)
    report = kernel_report_of(net, X, y, X_test, y_test, ridge=1e-3, batch_size=2)
    assert report == pytest.approx(expected)
    assert set(report) > {"prediction_difference", "pntk_accuracy", "entk_accuracy"}


def test_the_difference_falls_with_width():
    X = np.random.default_rng(0).normal(size=(8, 5))

    def error(width, seed):
        torch.manual_seed(seed)
        return kernel_report_of(MLP(5, 3, hidden=(width, width)).double(), X)["frobenius"]

    narrow, wide = (np.mean([error(width, seed) for seed in range(5)]) for width in (16, 1024))
    assert wide < narrow / 2  # width^(−1/2) is 1/8


def test_singular_kernels_have_infinite_condition():
    report = kernel_report(np.diag([1.0, 0.0]), np.kron(np.diag([1.0, 0.5]), np.eye(2)))
    assert report["condition"] == np.inf
    report = kernel_report(np.diag([1.0, 0.5]), np.kron(np.diag([1.0, 0.0]), np.eye(2)))
    assert report["condition"] == report["lambda_min"] == np.inf


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"pntk": np.ones((2, 3))}, r"'pntk' parameter of kernel_report must be .* shape \(n, n\)"),
        ({"entk": np.full((6, 6), np.nan)}, "'entk' .* Got 'NaN or infinity'"),
        ({"entk": np.eye(5)}, "n·C rows for the pntk's n = 2. Got 5"),
        ({"entk": np.zeros((6, 6))}, "not zero"),
        ({"targets": np.ones((2, 2))}, r"'targets' .* shape \(2, 3\)"),
        ({"targets": np.ones((2, 3))}, "'pntk_test' .* Got .*need pntk_test and entk_test"),
        ({"targets": np.ones((2, 3)), "pntk_test": np.ones((4, 2))}, r"'entk_test' .* shape \(12, 6\)"),
        ({"targets": np.ones((2, 3)), "pntk_test": np.ones((4, 3))}, r"'pntk_test' .* shape \(m, 2\)"),
        ({"ridge": -1.0}, "'ridge' parameter of kernel_report"),
    ],
)
def test_bad_input_is_named(params, message):
    with pytest.raises(InvalidParameterError, match=message):
        kernel_report(**({"pntk": np.eye(2), "entk": np.eye(6)} | params))
