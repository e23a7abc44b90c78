"""BackPACK as a backend: on a copy, in eval mode, by its converter where need be."""

import warnings

import pytest
import torch
from torch import nn

from skal.exceptions import UnsupportedLayerError
from skal.tangent import gradient_scores

from ..support.networks import build, count_hooks
from .checking import check_exact


def test_the_module_itself_is_left_alone():
    module, X, _ = build("torchvision_style", n=3)
    gradient_scores(module, X, None, backend="backpack")
    assert module.training
    assert module.relu.inplace
    assert count_hooks(module) == 0
    assert all(p.grad is None and not hasattr(p, "grad_batch") for p in module.parameters())


def test_a_module_in_training_mode_is_evaluated():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)).double()
    X = torch.randn(5, 4, dtype=torch.float64)
    module(X)  # running statistics
    check_exact(module.train(), X, backend="backpack")


@pytest.mark.parametrize("frozen", ["0.weight", "2.bias"])
def test_frozen_parameters(frozen):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    module.get_parameter(frozen).requires_grad_(False)
    check_exact(module, torch.randn(5, 4, dtype=torch.float64), backend="backpack")


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


class Branching(nn.Module):
    """In place, and not to be traced: neither way is open."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        x = self.layer(x)
        if x.sum() > 1e9:
            return x
        x += 1
        return x


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)), "'0.weight' of a LayerNorm layer"),
        (nn.Sequential(nn.PReLU(), nn.Linear(4, 3)), "'0.weight' of a PReLU layer"),
        (Twice(), "Got a Linear layer"),
        (Branching(), "modified inplace"),
    ],
    ids=["layer norm", "prelu", "twice", "branching"],
)
def test_what_it_cannot_do_is_named(module, named):
    X = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(UnsupportedLayerError, match=named) as caught:
        gradient_scores(module, X, None, backend="backpack")
    assert "'auto'" in str(caught.value)
    gradient_scores(module, X, None)


def test_warnings_of_others_are_not_silenced():
    class Outspoken(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            warnings.warn("something of my own", UserWarning, stacklevel=1)
            return self.layer(x)

    with pytest.warns(UserWarning, match="something of my own"):
        gradient_scores(Outspoken(), torch.randn(4, 4), None, backend="backpack")
