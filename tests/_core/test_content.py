"""What an object computes with is told by its content, in this process and in another."""

import subprocess
import sys
import threading
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from torch import nn

from skal._core.content import content_digest

SCRIPT = """
import numpy as np, torch
from functools import partial
from sklearn.ensemble import RandomForestClassifier
from skal._core.content import content_digest
X = np.random.default_rng(0).normal(size=(30, 4))
forest = RandomForestClassifier(3, random_state=0).fit(X, np.arange(30) % 2)
torch.manual_seed(0)
print(content_digest([forest, torch.nn.Linear(3, 2), partial(np.clip, a_min=0), {"a", "b"}, lambda X: X * 2]))
"""


def test_another_process_finds_the_same():
    runs = {subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True).stdout for _ in range(2)}
    assert len(runs) == 1
    assert len(runs.pop().strip()) == 40


def test_everything_that_counts_counts():
    X = np.random.default_rng(0).normal(size=(30, 4))
    y = np.arange(30) % 2
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    seen = {content_digest(module)}
    with torch.no_grad():
        module[0].weight[0, 0] += 1
        seen.add(content_digest(module))
        module[1].running_mean += 1
        seen.add(content_digest(module))
    module[1].eps = 0.5
    seen.add(content_digest(module))
    assert len(seen) == 4
    assert content_digest(module.train()) == content_digest(module.eval())
    others = [
        PCA(2),
        PCA(2).fit(X),
        PCA(2).fit(X[1:]),
        RandomForestClassifier(2, random_state=0).fit(X, y),
        RandomForestClassifier(2, random_state=1).fit(X, y),
        X,
        X.astype(np.float32),
        X.T,
        np.sum,
        partial(np.sum, axis=0),
        PCA(2).fit(X).transform,
        lambda X: X,
        lambda X: 2 * X,
        lambda X, k=2: X,
        [1, [2]],
        [[1], 2],
        {1: 2},
        torch.arange(3),
        torch.arange(3.0, dtype=torch.bfloat16),
    ]
    assert len({content_digest(other) for other in others} - {None}) == len(others)


def test_parts_may_be_left_out_and_circles_end():
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    head = tuple(module[1].parameters())
    before = content_digest(module, without=head)
    with torch.no_grad():
        head[0].add_(1)
    assert content_digest(module, without=head) == before
    circle = [1]
    circle.append(circle)
    assert content_digest(circle) is not None


@pytest.mark.parametrize("value", [threading.Lock(), (i for i in range(3))])
def test_what_cannot_be_looked_at(value):
    assert content_digest(value) is None
