"""EPIG against the sums of its definition, in loops and in float64."""

from math import log

import numpy as np
import pytest
import torch
from torch import nn

from skal.config import config_context
from skal.strategies import EPIG
from skal.strategies._dropout import dropout_outputs
from skal.strategies._information import predictive_information

from ..support.learners import learner_of, net_of


def oracle(proba, targets):
    """Mean over targets of ``Σ p(y, y*) log p(y, y*) / (p(y) p(y*))``; (T, n, C), (T, M, C) -> (n,)."""
    n_masks, n, n_classes = proba.shape
    found = np.zeros(n)
    for i in range(n):
        for j in range(targets.shape[1]):
            for a in range(n_classes):
                for b in range(n_classes):
                    joint = np.mean([proba[t, i, a] * targets[t, j, b] for t in range(n_masks)])
                    apart = proba[:, i, a].mean() * targets[:, j, b].mean()
                    found[i] += joint * log(joint / apart) if joint > 0 else 0
    return found / targets.shape[1]


@pytest.mark.parametrize("block_bytes", [1, 2**20])
def test_the_score_is_the_mutual_information_of_the_labels(block_bytes):
    rng = np.random.default_rng(0)
    proba, targets = rng.dirichlet(np.ones(3), size=(6, 7)), rng.dirichlet(0.3 * np.ones(3), size=(6, 4))
    given = torch.as_tensor(proba), torch.as_tensor(targets)
    for dtype, rtol in ((torch.float64, 1e-9), (torch.float32, 1e-5)):
        found = predictive_information(*given, dtype, block_bytes)
        np.testing.assert_allclose(found, oracle(proba, targets), rtol=rtol)
    alike = np.repeat(proba[:1], 6, axis=0)  # masks that agree
    np.testing.assert_allclose(predictive_information(torch.as_tensor(alike), torch.as_tensor(targets)), 0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_predictions_that_are_certain_or_nearly_equal(dtype):
    rng = np.random.default_rng(0)
    certain = np.eye(4)[rng.integers(3, size=(6, 5))]  # no mask predicts the fourth class
    nearly = rng.dirichlet(np.ones(4), size=5) * (1 + 1e-5 * rng.normal(size=(6, 5, 4)))
    nearly /= nearly.sum(-1, keepdims=True)
    for proba in (certain, nearly):
        found = predictive_information(torch.as_tensor(proba), torch.as_tensor(proba[:, :3]), dtype)
        tolerance = {"rtol": 2e-2, "atol": 1e-16} if proba is nearly else {"rtol": 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(found, oracle(proba, proba[:, :3]), **tolerance)


def test_the_whole_strategy_is_the_formula():
    torch.manual_seed(0)
    net = net_of(nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 3)).double())
    X = np.random.default_rng(0).normal(size=(30, 4))
    learner = learner_of(net, X[:5], np.arange(5) % 3)
    strategy = EPIG(n_passes=4, n_targets=6, random_state=1)
    with config_context(batch_size=7):
        scores = strategy.scores(learner, X)
    generator = np.random.default_rng(1)
    seeds = [int(seed) for seed in generator.integers(2**31, size=4)]
    rows = np.sort(generator.choice(30, size=6, replace=False))
    context = strategy.prepare(learner, X)
    (outputs,) = dropout_outputs(context.network, context.pool, 30, seeds, "test")
    proba = outputs.softmax(-1).numpy()
    np.testing.assert_allclose(scores, oracle(proba, proba[:, rows]), atol=1e-12)
    assert scores.min() >= 0
