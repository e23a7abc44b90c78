"""The two backends that need no rules."""

import pytest
import torch
from torch import nn

from skal.context import Network
from skal.tangent._backends import FuncBackend, LoopBackend
from skal.tangent._cotangents import probes, target_itself

from ..support import oracle
from ..support.networks import Branches, build


@pytest.mark.parametrize("backend", [FuncBackend, LoopBackend])
@pytest.mark.parametrize("name", ["mlp", "torchvision_style", "transformer_encoder"])
def test_only_what_is_asked_for(name, backend):
    module, X, _ = build(name, n=3)
    module.eval()
    names = {key for number, (key, _) in enumerate(module.named_parameters()) if number % 3 == 0}
    (found,) = backend(Network(module), names).gradients(X, probes(3, 3), [target_itself])
    assert set(found) == names
    truth = torch.einsum("ncp,nc->np", torch.as_tensor(oracle.jacobian(module, X)), probes(3, 3))
    sizes = [p.numel() for p in module.parameters()]
    for (key, _), part in zip(module.named_parameters(), truth.split(sizes, dim=1), strict=True):
        if key in names:
            torch.testing.assert_close(found[key].dense(), part)


@pytest.mark.parametrize("backend", [FuncBackend, LoopBackend])
def test_leaves_no_gradient_behind(backend):
    module, X, _ = build("mlp", n=3)
    names = {key for key, _ in module.named_parameters()}
    for found in backend(Network(module), names).gradients(X, probes(3, 3), [target_itself]):
        assert not any(gradient.dense().requires_grad for gradient in found.values())
    assert all(p.grad is None for p in module.parameters())


def test_loop_leaves_out_what_has_no_influence():
    module = nn.ModuleDict({"used": nn.Linear(4, 3), "spare": nn.Linear(4, 3)})
    module.forward = lambda x: module["used"](x)
    (found,) = LoopBackend(Network(module), {"used.weight", "spare.weight"}).gradients(
        torch.randn(2, 4), probes(2, 3).float(), [target_itself]
    )
    assert set(found) == {"used.weight"}


def test_loop_adds_zeros_where_only_some_samples_have_an_influence():
    X = torch.tensor([[1.0, 2.0], [-1.0, 3.0]])
    (found,) = LoopBackend(Network(Branches(2, 2)), {"left.weight", "right.weight"}).gradients(
        X, torch.ones(2, 2), [target_itself]
    )
    assert found["left.weight"].dense().tolist() == [[1.0, 2.0, 1.0, 2.0], [0.0] * 4]
    assert found["right.weight"].dense().tolist() == [[0.0] * 4, [-1.0, 3.0, -1.0, 3.0]]
