"""Tests of skal._core.evaluation: eval mode for a while, and everything as before."""

import pytest
import torch
from torch import nn

from skal._core.evaluation import evaluating


def test_evaluating_restores_flags_and_buffers_even_after_an_error():
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout())
    module[2].eval()
    mean = module[1].running_mean.clone()

    def spoil():
        with evaluating(module):
            assert not any(submodule.training for submodule in module.modules())
            module.train()
            module(torch.randn(6, 4))
            raise KeyError

    with pytest.raises(KeyError):
        spoil()
    assert [submodule.training for submodule in module.modules()] == [True, True, True, False]
    assert torch.equal(module[1].running_mean, mean)
    assert module[1].num_batches_tracked == 0


def test_evaluating_takes_a_module_without_parameters():
    with evaluating(nn.ReLU()):
        pass


def test_evaluating_switches_autocast_off():
    with torch.autocast("cpu", dtype=torch.bfloat16), evaluating(module := nn.Linear(4, 3)):
        assert module(torch.ones(1, 4)).dtype == torch.float32
