"""Tangent kernels: against the oracle, and the identities between their kinds."""

from functools import lru_cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.kernel_ridge import KernelRidge
from sklearn.svm import SVC
from torch import nn

from skal.exceptions import NonFiniteError
from skal.tangent import tangent_features, tangent_kernel

from ..support import oracle
from ..support.networks import N_CLASSES, NETWORKS, Branches, build, unsupported

KINDS = ["pntk", "logit", "trace", "entk"]
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
CASES = [
    (name, backend, dtype)
    for name in NETWORKS
    for backend, dtype in [
        ("auto", torch.float64),
        ("auto", torch.float32),
        ("func", torch.float64),
        ("backpack", torch.float64),
    ]
    if not unsupported(backend, name, dtype) and (backend, name) != ("backpack", "resnet18")
]


@lru_cache
def true_jacobian(name):
    module, X, _ = build(name)
    return oracle.jacobian(module, X)


@lru_cache
def last_parameters(name):
    """Where in the flat gradient the parameters of the last layer stand: the head comes last in all of them."""
    module, _, _ = build(name)
    *_, (_, head) = [item for item in module.named_modules() if isinstance(item[1], nn.Linear)]
    return slice(true_jacobian(name).shape[2] - sum(p.numel() for p in head.parameters()), None)


@pytest.mark.parametrize(("name", "backend", "dtype"), CASES)
def test_agrees_with_autograd(name, backend, dtype):
    module, X, _ = build(name)
    module, X = module.to(dtype), X.to(dtype) if X.is_floating_point() else X
    J = true_jacobian(name)
    for kind in KINDS:
        K = tangent_kernel(module, X, kind=kind, backend=backend)
        assert K.dtype == np.float64
        assert oracle.relative_error(K, oracle.kernel(J, J, kind)) < TOLERANCE[dtype]
        np.testing.assert_array_equal(K, K.T)
        assert np.linalg.eigvalsh(K).min() > -1e-12 * np.linalg.eigvalsh(K).max()
    between = tangent_kernel(module, X[:2], X[2:], backend=backend)
    assert oracle.relative_error(between, oracle.kernel(J[:2], J[2:], "pntk")) < TOLERANCE[dtype]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_last_layer_agrees_with_autograd(name, kind):
    module, X, _ = build(name)
    J = true_jacobian(name)[:, :, last_parameters(name)]
    K = tangent_kernel(module, X, kind=kind, layers="last")
    assert oracle.relative_error(K, oracle.kernel(J, J, kind)) < 1e-8
    between = tangent_kernel(module, X[:3], X[3:], kind=kind, layers="last")
    assert oracle.relative_error(between, oracle.kernel(J[:3], J[3:], kind)) < 1e-8


@pytest.mark.parametrize("bias", [True, False])
def test_trace_of_the_last_layer_is_the_inner_product_of_its_inputs(bias):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4, bias=bias)).double()
    X = torch.randn(7, 5, dtype=torch.float64)
    phi = module[:2](X).detach().numpy()
    K = tangent_kernel(module, X, kind="trace", layers="last")
    np.testing.assert_allclose(K, 4 * (phi @ phi.T + bias), rtol=1e-12)


@pytest.mark.parametrize("name", ["mlp", "tutorial_cnn", "torchvision_style", "vision_transformer", "text_gru"])
def test_identities_between_the_kinds(name):
    module, X, _ = build(name)
    n = len(X)
    blocks = tangent_kernel(module, X, kind="entk").reshape(n, N_CLASSES, n, N_CLASSES)
    np.testing.assert_allclose(tangent_kernel(module, X), blocks.sum((1, 3)) / N_CLASSES, rtol=1e-10)
    np.testing.assert_allclose(tangent_kernel(module, X, kind="trace"), np.einsum("icjc->ij", blocks), rtol=1e-10)
    np.testing.assert_allclose(tangent_kernel(module, X, kind="logit"), blocks[:, 0, :, 0], rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["mlp", "tutorial_cnn", "text_attention"])
def test_features_have_the_kernel_for_gram_matrix(name, kind):
    module, X, _ = build(name)
    features = tangent_features(module, X, kind=kind, n_features=None)
    np.testing.assert_allclose(features @ features.T, tangent_kernel(module, X, kind=kind), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["tutorial_cnn", "text_attention", "text_gru"])
def test_little_memory_gives_the_same_kernel(name, kind):
    module, X, _ = build(name, n=7)
    expected = tangent_kernel(module, X, kind=kind)
    for bound in ("1MB", 1):
        np.testing.assert_allclose(tangent_kernel(module, X, kind=kind, max_memory=bound), expected, rtol=1e-10)
    between = tangent_kernel(module, X[:4], X[4:], kind=kind, max_memory="1MB")
    per_sample = N_CLASSES if kind == "entk" else 1
    np.testing.assert_allclose(between, expected[: 4 * per_sample, 4 * per_sample :], rtol=1e-10)


@pytest.mark.parametrize(("bound", "passes"), [("1GB", [8, 8, 4]), (1, [1] * (20 * 21 // 2))])
def test_gradients_of_a_block_are_computed_once(bound, passes):
    """A block is compared with itself and with what comes after it; with no room at all, a block is one sample."""
    module, X, _ = build("mlp", n=20)
    tangent_kernel(module, X)  # the comparison with autograd comes once
    seen = []
    module.register_forward_hook(lambda layer, args, output: seen.append(len(args[0])))
    tangent_kernel(module, X, batch_size=8, max_memory=bound)
    assert seen[4:] == passes  # looks at the outputs, at the order of samples, and at what a sample takes come first


@settings(max_examples=15)
@given(batch_size=st.integers(1, 12), n=st.integers(1, 11), m=st.integers(1, 11))
def test_batch_size_and_sets(batch_size, n, m):
    module, X, _ = build("tutorial_cnn", n=12)
    whole = tangent_kernel(module, X, batch_size=12)
    part = tangent_kernel(module, X[:n], X[12 - m :], batch_size=batch_size)
    np.testing.assert_allclose(part, whole[:n, 12 - m :], rtol=1e-10)


@settings(max_examples=8)
@given(order=st.permutations(range(6)))
def test_permuted_samples_permute_the_kernel(order):
    module, X, _ = build("torchvision_style", n=6)
    K = tangent_kernel(module, X, batch_size=4)
    np.testing.assert_allclose(tangent_kernel(module, X[order], batch_size=4), K[np.ix_(order, order)], rtol=1e-10)


def test_sets_that_use_different_branches_have_no_inner_product():
    """Not one parameter is shared, and so not one entry of the gradients."""
    torch.manual_seed(0)
    module, X = Branches(3, 2).double(), torch.rand(4, 3, dtype=torch.float64) + 0.1
    for kind in KINDS:
        expected = oracle.kernel(oracle.jacobian(module, X), oracle.jacobian(module, -X), kind)
        assert not expected.any()
        np.testing.assert_array_equal(tangent_kernel(module, X, -X, kind=kind), expected)


def test_scikit_learn_takes_the_kernel():
    module, X, y = build("tutorial_cnn", n=20)
    train, test = slice(0, 15), slice(15, 20)
    K, between = tangent_kernel(module, X[train]), tangent_kernel(module, X[test], X[train])
    alpha = np.linalg.solve(K + 0.1 * np.eye(15), np.eye(N_CLASSES)[y[train]])
    ridge = KernelRidge(alpha=0.1, kernel="precomputed").fit(K, np.eye(N_CLASSES)[y[train]])
    np.testing.assert_allclose(ridge.predict(between), between @ alpha, rtol=1e-6)
    assert (SVC(kernel="precomputed", C=1e6).fit(K, y[train]).predict(K) == y[train].numpy()).all()


def test_a_sample_far_out_that_overflows():
    module, X, _ = build("mlp", n=6, dtype=torch.float32)
    X[5] = 3e38
    with torch.no_grad():
        next(module.parameters()).mul_(10)
        assert not module(X[5:]).isfinite().all()
    with pytest.raises(NonFiniteError, match="outputs must be finite"):
        tangent_kernel(module, X, batch_size=3)
    with pytest.raises(NonFiniteError, match="outputs must be finite"):
        tangent_kernel(module, X[:5], X[3:], batch_size=3)


def test_infinite_gradients_of_finite_outputs():
    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2, bias=False)

        def forward(self, x):
            return self.layer(x).abs().sqrt()

    X = torch.cat([torch.rand(4, 3), torch.zeros(1, 3)])
    with pytest.raises(NonFiniteError, match="gradients must be finite"):
        tangent_kernel(Root(), X)
    with pytest.raises(NonFiniteError, match="gradients must be finite"):
        tangent_features(Root(), X)
