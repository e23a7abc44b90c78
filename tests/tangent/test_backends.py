"""The backend of last resort: one sample after the other, for what neither rules nor torch.func can do."""

import torch
from torch import nn

from skal.tangent._cotangents import probes

from .checking import check_exact


class OneByOne(nn.Module):
    """Each sample goes through one of two recurrent layers, which torch.func does not know; a third is not used."""

    def __init__(self):
        super().__init__()
        self.left, self.right, self.spare = (nn.GRU(4, 3, batch_first=True) for _ in range(3))

    def forward(self, x):
        return torch.cat([(self.left if row[0, 0] > 0 else self.right)(row[None])[1][0] for row in x])


def test_samples_that_use_different_parameters_and_parameters_that_none_uses():
    torch.manual_seed(0)
    module, X = OneByOne().double(), torch.randn(6, 2, 4).double()
    X[0, 0, 0], X[1, 0, 0] = 1, -1  # among the first, which the plan is made with, some of each kind
    plan = check_exact(module, X)
    assert plan == {"loop": {name for name, _ in module.named_parameters() if not name.startswith("spare")}}


def test_probes_are_all_different():
    """What backends are compared by: no two gradients may be mistaken for one another."""
    assert len(set(probes(3, 10).flatten().tolist())) == 30
    assert probes(3, 10).abs().min() > 1e-3
