"""The infinitely wide network's kernel, against wide random networks and against Monte Carlo integrals."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from skal._lookahead.infinite import (
    BIAS_VARIANCE,
    WEIGHT_VARIANCE,
    depth_of,
    flat_inputs,
    infinite_diagonal,
    infinite_kernel,
)
from skal.context import Network, Samples
from skal.nets import CNN, MLP
from skal.tangent import tangent_kernel


def inputs(n=6, d=5, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, d)))


class TheoryLinear(nn.Module):
    """A layer in the parametrisation of the theory: ``√(σ_w² / d) W a + σ_b b`` with standard normal W and b."""

    def __init__(self, n_in, n_out, generator):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_out, n_in, generator=generator))
        self.bias = nn.Parameter(torch.randn(n_out, generator=generator))

    def forward(self, a):
        scale = (WEIGHT_VARIANCE / a.shape[1]) ** 0.5
        return scale * (a @ self.weight.T) + BIAS_VARIANCE**0.5 * self.bias


def random_network(d, depth, width, seed, n_outputs=4):
    generator = torch.Generator().manual_seed(seed)
    widths = [d, *[width] * (depth - 1), n_outputs]
    layers = []
    for n_in, n_out in pairwise(widths):
        layers += [TheoryLinear(n_in, n_out, generator), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def empirical_kernel(module, X):
    """pNTK from one backward pass: a weight's gradient is √(σ_w² / d) g aᵀ, a bias's σ_b g."""
    inputs, outputs = [], []
    a = X.float().requires_grad_(True)
    for layer in module:
        if isinstance(layer, TheoryLinear):
            inputs.append(a)
        a = layer(a)
        if isinstance(layer, TheoryLinear):
            outputs.append(a)
    gradients = torch.autograd.grad(a.sum() / a.shape[1] ** 0.5, outputs)
    K = torch.zeros(len(X), len(X))
    for a, g in zip(inputs, gradients, strict=True):
        K += (WEIGHT_VARIANCE * (a @ a.T) / a.shape[1] + BIAS_VARIANCE) * (g @ g.T)
    return K.detach().numpy()


def test_the_empirical_kernel_is_that_of_the_engine():
    X, module = inputs(), random_network(5, 3, 32, seed=0)
    np.testing.assert_allclose(empirical_kernel(module, X), tangent_kernel(module, X.float()), rtol=1e-4)


# one network's kernel scatters by 1/√width; the mean of several shows whether it scatters around the right one
@pytest.mark.parametrize(("depth", "width", "n_networks"), [(1, 1, 1), (2, 16384, 16), (3, 2048, 48), (5, 1024, 150)])
def test_very_wide_random_networks_agree_to_two_per_cent(depth, width, n_networks):
    X = inputs()
    K = np.mean([empirical_kernel(random_network(5, depth, width, seed), X) for seed in range(n_networks)], axis=0)
    expected = infinite_kernel(X, X, depth).numpy()
    assert np.linalg.norm(K - expected) < 0.02 * np.linalg.norm(expected)
    assert np.abs(K / expected - 1)[expected > 0.1 * expected.max()].max() < 0.05


def test_the_diagonal_needs_no_angles():
    X = inputs(20)
    for depth in (1, 2, 6):
        torch.testing.assert_close(
            infinite_diagonal(X, depth), infinite_kernel(X, X, depth).diagonal(), rtol=1e-7, atol=0
        )


def test_positive_definite_and_finite_for_copies_opposites_and_zeros():
    X = inputs(8)
    X = torch.cat([X, X[:2], -X[:1], 2 * X[:1], torch.zeros(1, 5, dtype=X.dtype)])
    for depth in (1, 3, 20):
        for bias_variance in (0.0, 0.01):
            K = infinite_kernel(X, X, depth, bias_variance=bias_variance)
            assert bool(torch.isfinite(K).all())
            assert torch.linalg.eigvalsh(K)[0] > -1e-6 * K.diagonal().max()


def test_depth_counts_linear_and_convolutional_layers():
    assert depth_of(MLP(4, 3, hidden=(5, 6))) == 3
    assert depth_of(CNN(in_channels=1, image_size=8)) == 5
    assert depth_of(nn.BatchNorm1d(3)) == 1


def test_inputs_are_flattened_as_the_network_receives_them():
    X = np.arange(48, dtype=np.float32).reshape(4, 1, 3, 4)
    network = Network(nn.Flatten())
    flat = flat_inputs(network, Samples(X), batch_size=3)
    assert flat.dtype == torch.float64
    np.testing.assert_array_equal(flat.numpy(), X.reshape(4, 12))
    two = flat_inputs(network, Samples({"a": X, "b": X[:, 0]}), batch_size=3)
    assert two.shape == (4, 24)
