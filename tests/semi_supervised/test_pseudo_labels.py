"""Pseudo-labels in the course of training, the moving average, and the stream of batches."""

import numpy as np
import pytest
import torch
from torch import nn

from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.semi_supervised import darp
from skal.semi_supervised._averaging import ParameterAverage
from skal.semi_supervised._pseudo_labels import RefinedLabels, class_shares, pseudo_label_loss
from skal.semi_supervised._rows import Permutations


def make_table(n, seed=0):
    logits = torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) * 2
    return torch.softmax(logits + torch.tensor([2.0, 0.0, -1.0]), dim=1)


def test_no_gradient_reaches_the_pseudo_labels():
    logits = torch.randn(4, 3, requires_grad=True)
    weak = torch.randn(4, 3, requires_grad=True)
    loss, _, _ = pseudo_label_loss(logits, torch.softmax(weak, dim=1), 0.0)
    loss.backward()
    assert logits.grad is not None
    assert weak.grad is None


def test_darp_over_the_table_after_the_warmup():
    table = make_table(30)
    labels = RefinedLabels(30, torch.full((3,), 1 / 3, dtype=torch.float64), warmup=3, every=2)
    for iteration in range(3):
        rows = torch.arange(10 * iteration, 10 * iteration + 10)
        torch.testing.assert_close(labels(rows, table[rows], iteration), table[rows])
    rows = torch.tensor([4, 20])
    refined = labels(rows, table[rows], 3)
    expected = darp(table.float().double().numpy())
    np.testing.assert_allclose(refined, expected[rows], atol=1e-4)
    assert labels.residual < 1e-4
    before = labels.refinement
    labels(rows, table[rows], 4)
    assert labels.refinement is before
    labels(rows, table[rows], 5)
    assert labels.refinement is not before


def test_only_rows_that_were_seen_count():
    table = make_table(30)
    labels = RefinedLabels(1000, torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64), warmup=0)
    refined = labels(torch.arange(30), table, 0)
    np.testing.assert_allclose(refined.sum(dim=0), [6, 9, 15], rtol=1e-3)


def test_targets():
    labels = np.array([0, 0, 0, 1, -1, -1])
    assert class_shares("F", None, labels, 3) is None
    np.testing.assert_allclose(class_shares("F", "uniform", labels, 3), [1 / 3] * 3)
    np.testing.assert_allclose(class_shares("F", "labels", labels, 3), [4 / 7, 2 / 7, 1 / 7])
    np.testing.assert_allclose(class_shares("F", [2, 1, 1], labels, 3), [0.5, 0.25, 0.25])
    for bad in ("even", [1, 2], [0, 0, 0], [-1, 1, 1], [np.nan, 1, 1], ["1", "2", "3"], np.ones(3, complex), object()):
        with pytest.raises((InvalidParameterError, InvalidTypeError), match="'darp' parameter of F"):
            class_shares("F", bad, labels, 3)


def test_average_of_parameters():
    module = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    average = ParameterAverage(module, 0.3)
    expected = {name: p.detach().clone() for name, p in module.named_parameters()}
    for step in range(1, 6):
        for p in module.parameters():
            p.data.normal_()
        average.update()
        decay = min(0.3, (1 + step) / (10 + step))
        for name, p in module.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach()
    latest = {name: p.detach().clone() for name, p in module.named_parameters()}
    with average.use():
        for name, p in module.named_parameters():
            torch.testing.assert_close(p.detach(), expected[name])
    for name, p in module.named_parameters():
        assert torch.equal(p, latest[name])


def test_permutations_repeat_small_sets():
    positions = list(Permutations(3, 8))
    assert len(positions) == len(Permutations(3, 8)) == 8
    assert sorted(positions[:3]) == sorted(positions[3:6]) == [0, 1, 2]
    endless = iter(Permutations(2))
    assert len([next(endless) for _ in range(100)]) == 100
    with pytest.raises(TypeError):
        len(Permutations(2))
