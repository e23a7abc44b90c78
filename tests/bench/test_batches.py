"""Batches cut at once are those of torch's loader."""

import numpy as np
import pytest
import torch
from skorch.dataset import Dataset
from torch.utils.data import DataLoader, Subset

from skal.bench._batches import WholeBatches


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("part", [False, True])
def test_the_same_batches_and_the_same_draws(shuffle, labelled, part):
    X = np.random.default_rng(0).normal(size=(23, 1, 3, 3)).astype("float32")
    data = Dataset(X, np.arange(23) if labelled else None)
    data = Subset(data, range(5, 20)) if part else data
    found = []
    for loader in (DataLoader, WholeBatches):
        torch.manual_seed(3)
        batches = [batch for _ in range(2) for batch in loader(data, batch_size=4, shuffle=shuffle)]
        found.append((batches, torch.rand(2)))
    (expected, after), (batches, also) = found
    assert len(batches) == len(expected)
    for (X_own, y_own), (X_other, y_other) in zip(batches, expected, strict=True):
        torch.testing.assert_close(X_own, X_other, rtol=0, atol=0)
        torch.testing.assert_close(y_own, y_other, rtol=0, atol=0)
    torch.testing.assert_close(after, also, rtol=0, atol=0)
