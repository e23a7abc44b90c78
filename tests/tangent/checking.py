"""One comparison for any module: everything the engine computes, against the oracle."""

import numpy as np
import torch

from skal.context import Samples, TangentEngine
from skal.tangent import gradient_scores, tangent_features, tangent_kernel

from ..support import oracle


def plan_of(net, X, backend="auto"):
    """Which backend computes which parameters: a dict of sets."""
    return {name: set(covered) for name, covered in TangentEngine(net, Samples(X), backend=backend).plan}


def check_exact(module, X, backend="auto", tolerance=1e-8, batch_size=256):
    """Scores, kernels and exact features agree with autograd; returns the plan."""
    n = oracle._length(X)
    predicted = oracle.logits(module, X).argmax(1)
    gradients = oracle.loss_gradients(module, X, predicted)
    J = oracle.jacobian(module, X)
    generator = torch.Generator().manual_seed(0)
    direction = {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for name, p in module.named_parameters()
        if p.requires_grad
    }
    settings = {"backend": backend, "batch_size": batch_size}
    norms, dots = gradient_scores(module, X, predicted, direction, **settings)
    assert oracle.relative_error(norms, (gradients**2).sum(1)) < tolerance
    assert oracle.relative_error(dots, gradients @ oracle.flatten(direction, module)) < tolerance
    for kind in ("pntk", "trace"):
        K = tangent_kernel(module, X, kind=kind, **settings)
        assert oracle.relative_error(K, oracle.kernel(J, J, kind)) < tolerance
    features = tangent_features(module, X, n_features=None, **settings)
    assert features.shape[0] == n
    assert oracle.relative_error(features, oracle.features(J, "pntk")) < tolerance
    return plan_of(module, X, backend)


def check_sketch(module, X, k=32):
    """The sketch of factored gradients is the sketch of the written-out ones."""
    sketched = tangent_features(module, X, n_features=k, backend="structured")
    np.testing.assert_allclose(sketched, tangent_features(module, X, n_features=k, backend="func"), atol=1e-9)
