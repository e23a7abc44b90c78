"""The kernels that only the papers need, against slow versions written from the formulas."""

import itertools

import numpy as np
import pytest
import torch

from benchmarks.papers.convolutional import convolutional_kernel
from benchmarks.papers.flips import count_flips
from benchmarks.papers.tightness import N_OUTPUTS, kernels, make_weights, measure
from skal._lookahead.comparators import BIAS_VARIANCE


def moments(q, own, other):
    """E[relu'(u) relu'(v)] and E[relu(u) relu(v)] of normal u and v with these variances and covariance."""
    cosine = min(1.0, max(-1.0, q / np.sqrt(own * other)))
    angle = np.arccos(cosine)
    slope = (np.pi - angle) / (2 * np.pi)
    return slope, np.sqrt(own * other) * (np.sin(angle) + (np.pi - angle) * cosine) / (2 * np.pi)


def pixel_by_pixel(x, z, depth):
    """The recursion for one pair of images, with a loop over pixels and shifts; also every layer's q."""
    pixels = list(np.ndindex(x.shape[1:]))
    shifts = list(itertools.product((-1, 0, 1), repeat=2))

    def near(values, p, r):
        moved = [((p[0] + a, p[1] + b), (r[0] + a, r[1] + b)) for a, b in shifts]
        return 2 / 9 * sum(values[pair] for pair in moved if pair in values)

    pairs = list(itertools.product(pixels, pixels))
    products = {(p, r): x[:, p[0], p[1]] @ z[:, r[0], r[1]] / len(x) for p, r in pairs}
    q = {pair: near(products, *pair) + BIAS_VARIANCE for pair in pairs}
    theta, layers = q, [q]
    own, other = (layers, layers) if x is z else (pixel_by_pixel(a, a, depth)[1] for a in (x, z))
    for layer in range(depth):
        here = {(p, r): moments(q[p, r], own[layer][p, p], other[layer][r, r]) for p, r in pairs}
        moment = {pair: value[1] for pair, value in here.items()}
        weighed = {pair: value[0] * theta[pair] for pair, value in here.items()}
        if layer == depth - 1:
            break
        q = {pair: near(moment, *pair) + BIAS_VARIANCE for pair in pairs}
        theta = {pair: q[pair] + near(weighed, *pair) for pair in pairs}
        layers.append(q)
    return 2 * np.mean([moment[pair] + weighed[pair] for pair in pairs]) + BIAS_VARIANCE, layers


@pytest.mark.parametrize("depth", [1, 3])
def test_convolutional_kernel_is_the_recursion(depth):
    X = np.random.default_rng(depth).normal(size=(3, 2, 3, 2))
    expected = [[pixel_by_pixel(x, z, depth)[0] for z in X] for x in X]
    np.testing.assert_allclose(convolutional_kernel(X, depth), expected, rtol=1e-10)


def test_convolutional_kernel_is_the_limit_of_wide_networks():
    """Gradients of a network of 256 channels, averaged over draws of its weights."""
    X = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    K = convolutional_kernel(X.numpy(), depth=2)
    found, generator = np.zeros((2, 2)), torch.Generator().manual_seed(1)
    n_draws, width = 20, 256
    for _ in range(n_draws):
        shapes = [(width, 2, 3, 3), (width,), (width, width, 3, 3), (width,), (1, width), (1,)]
        parameters = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
        W_1, b_1, W_2, b_2, V, c = parameters
        h = torch.nn.functional.conv2d(X, W_1, padding=1) * (2 / 18) ** 0.5 + 0.1 * b_1[:, None, None]
        h = torch.nn.functional.conv2d(h.relu(), W_2, padding=1) * (2 / (9 * width)) ** 0.5 + 0.1 * b_2[:, None, None]
        f = (2 / width) ** 0.5 * h.relu().mean((2, 3)) @ V.T + 0.1 * c
        gradients = [
            torch.cat([g.flatten() for g in torch.autograd.grad(f[k, 0], parameters, retain_graph=True)])
            for k in range(2)
        ]
        found += np.array([[float(a @ b) for b in gradients] for a in gradients]) / n_draws
    np.testing.assert_allclose(found, K, rtol=0.1)


def test_flips_are_those_of_linear_models_trained_anew():
    rng = np.random.default_rng(0)
    n, N, C, k = 5, 12, 3, 40
    L, U, W = rng.normal(size=(n, k)), rng.normal(size=(N, k)), 0.1 * rng.normal(size=(k, C))
    Y = np.eye(C)[rng.integers(C, size=n)]
    rho = 1e-2 * (L**2).sum(1).mean()
    expected = []
    for x in U:
        X = np.vstack([L, x])
        labels = np.vstack([Y, np.eye(C)[(x @ W).argmax()]])
        step = X.T @ np.linalg.solve(X @ X.T + rho * np.eye(n + 1), labels - X @ W)
        expected.append(((U @ (W + step)).argmax(1) != (U @ W).argmax(1)).sum())
    assert len(set(expected)) > 2
    assert count_flips(L, U, U, Y - L @ W, U @ W, U @ W, ridge=1e-2).tolist() == expected


def test_the_recursion_gives_the_gradients_of_the_network():
    weights = make_weights(4, 6, seed=0)
    x, z = np.random.default_rng(1).normal(size=(2, 4))
    tensors = [torch.tensor(W, requires_grad=True) for W in weights]

    def jacobian(x):
        a = torch.tensor(x)
        for W in tensors[:-1]:
            a = (W @ a).relu()
        rows = []
        for output in tensors[-1] @ a:
            gradients = torch.autograd.grad(output, tensors, retain_graph=True)
            rows.append(torch.cat([g.flatten() for g in gradients]))
        return torch.stack(rows).numpy()

    hidden, theta = kernels(weights, x, z)
    assert hidden.shape == (6, 6)
    np.testing.assert_allclose(theta, jacobian(x) @ jacobian(z).T, atol=1e-12)


def test_the_bounds_hold():
    rng = np.random.default_rng(0)
    found = measure(make_weights(20, 64, seed=0), rng.normal(size=(4, 20)), rng.normal(size=20), np.eye(N_OUTPUTS)[:4])
    assert all(0 < value < 1 for value in found.values())
