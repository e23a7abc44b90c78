"""Norms, inner products and sums of loss gradients, for all kinds of networks and by all backends."""

from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import nn

from skal.exceptions import UnsupportedLayerError
from skal.nets import VGG11
from skal.tangent import gradient_scores, loss_gradient, tangent_features

from ..support import oracle
from ..support.networks import NETWORKS, build, randomise, unsupported

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
BACKENDS = ["auto", "structured", "func", "backpack"]


@lru_cache
def truth(name, loss="cross_entropy"):
    """Oracle gradients (n, P), a direction (P,)."""
    module, X, y = build(name)
    gradients = oracle.loss_gradients(module, X, y, loss)
    return gradients, np.random.default_rng(0).normal(size=gradients.shape[1])


def as_direction(vector, module):
    sizes = [p.numel() for p in module.parameters()]
    parts = torch.as_tensor(vector).split(sizes)
    return {name: part.reshape(p.shape) for part, (name, p) in zip(parts, module.named_parameters(), strict=True)}


@DTYPES
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_scores_agree_with_autograd(name, backend, dtype):
    module, X, y = build(name, dtype=torch.float64)
    module, X = module.to(dtype), X.to(dtype) if X.is_floating_point() else X
    gradients, vector = truth(name)
    direction = as_direction(vector, module)
    if unsupported(backend, name, dtype):
        with pytest.raises(UnsupportedLayerError, match=unsupported(backend, name, dtype)) as caught:
            gradient_scores(module, X, y, direction, backend=backend)
        assert "'auto'" in str(caught.value)
        return
    norms, dots = gradient_scores(module, X, y, direction, backend=backend)
    assert norms.dtype == dots.dtype == np.float64
    assert oracle.relative_error(norms, (gradients**2).sum(1)) < TOLERANCE[dtype]
    assert oracle.relative_error(dots, gradients @ vector) < TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize("name", NETWORKS)
def test_summed_gradient_agrees_with_autograd(name, dtype):
    module, X, y = build(name)
    module, X = module.to(dtype), X.to(dtype) if X.is_floating_point() else X
    total = loss_gradient(module, X, y, batch_size=2)
    assert all(total[key].shape == p.shape and total[key].dtype == dtype for key, p in module.named_parameters())
    assert oracle.relative_error(oracle.flatten(total, module), truth(name)[0].sum(0)) < TOLERANCE[dtype]


@lru_cache
def true_jacobian(name):
    module, X, _ = build(name, n=3)
    return oracle.jacobian(module, X)


@pytest.mark.parametrize(
    ("name", "backend", "dtype"),
    [
        (name, backend, dtype)
        for name in NETWORKS
        for backend, dtype in [("auto", torch.float32), *((backend, torch.float64) for backend in BACKENDS)]
        if name != "resnet18" and not unsupported(backend, name)
    ],
)
def test_exact_features_agree_with_autograd(name, backend, dtype):
    module, X, _ = build(name, n=3)
    module, X = module.to(dtype), X.to(dtype) if X.is_floating_point() else X
    J = true_jacobian(name)
    for kind in ("pntk", "logit", "trace", "entk"):
        features = tangent_features(module, X, kind=kind, n_features=None, backend=backend)
        assert oracle.relative_error(features, oracle.features(J, kind)) < TOLERANCE[dtype]


@pytest.mark.parametrize("backend", ["auto", "func", "backpack"])
def test_squared_error(backend):
    module, X, y = build("tutorial_cnn")
    gradients = oracle.loss_gradients(module, X, y, "squared_error")
    norms, _ = gradient_scores(module, X, y, loss="squared_error", backend=backend)
    assert oracle.relative_error(norms, (gradients**2).sum(1)) < 1e-8
    total = loss_gradient(module, X, y, loss="squared_error")
    assert oracle.relative_error(oracle.flatten(total, module), gradients.sum(0)) < 1e-8


@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
@pytest.mark.parametrize("backend", ["auto", "func", "backpack"])
def test_without_labels_the_predictions_are_the_labels(backend, loss):
    module, X, _ = build("tutorial_cnn")
    predicted = oracle.logits(module, X).argmax(1)
    gradients = oracle.loss_gradients(module, X, predicted, loss)
    norms, dots = gradient_scores(module, X, None, loss=loss, backend=backend)
    assert oracle.relative_error(norms, (gradients**2).sum(1)) < 1e-8
    assert not dots.any()
    total = loss_gradient(module, X, None, loss=loss)
    assert oracle.relative_error(oracle.flatten(total, module), gradients.sum(0)) < 1e-8


def test_direction_may_leave_parameters_out():
    module, X, y = build("mlp")
    gradients, _ = truth("mlp")
    name, parameter = next(iter(module.named_parameters()))
    direction = {name: torch.randn_like(parameter).numpy()}  # arrays are as good as tensors
    _, dots = gradient_scores(module, X, y, direction)
    expected = gradients[:, : parameter.numel()] @ direction[name].reshape(-1)
    assert oracle.relative_error(dots, expected) < 1e-8


def test_direction_from_loss_gradient_gives_the_training_dynamics():
    module, X, y = build("wide_resnet")
    _, dots = gradient_scores(module, X, y, loss_gradient(module, X, y))
    gradients, _ = truth("wide_resnet")
    assert oracle.relative_error(dots.sum(), np.square(gradients.sum(0)).sum()) < 1e-8


@pytest.mark.parametrize("backend", ["auto", "backpack"])
def test_vgg11(backend):
    torch.manual_seed(0)
    module = randomise(VGG11(batch_norm=True, n_classes=2, hidden=(16,), dropout=0.5)).train()
    X, y = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    gradients = oracle.loss_gradients(module, X, y)
    norms, dots = gradient_scores(module, X, y, loss_gradient(module, X, y), backend=backend)
    assert oracle.relative_error(norms, (gradients**2).sum(1)) < 1e-4
    assert oracle.relative_error(dots, gradients @ gradients.sum(0)) < 1e-4


def test_in_place_activation_on_the_input_of_a_layer():
    """An activation that overwrites what an earlier layer has put out, or what a later one has read."""

    class Overwriting(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            x = self.first(x)
            y = self.second(x)
            x.mul_(0.0)  # the second layer's input is gone
            return y + x[:, :3]

    torch.manual_seed(0)
    module, X, y = Overwriting(), torch.randn(4, 4), torch.arange(4) % 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):  # autograd refuses it too
        oracle.loss_gradients(module, X, y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient_scores(module, X, y)
