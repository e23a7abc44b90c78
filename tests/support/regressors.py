"""Networks that predict numbers, and data for them."""

import numpy as np
import torch
from skorch import NeuralNetRegressor
from torch import nn

from .learners import learner_of
from .oracle import jacobian


class Numbers(nn.Module):
    """Two layers and k outputs, or one without a dimension of its own."""

    def __init__(self, n_outputs=1, width=12, flat=False, dropout=0.0):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(width, n_outputs)
        self.flat = flat

    def forward(self, x):
        outputs = self.head(self.body(x))
        return outputs[:, 0] if self.flat else outputs


def make_targets(n=60, k=1, seed=0, dtype=np.float64):
    """(n, 4) samples and (n, k) numbers."""
    X = np.random.default_rng(seed).normal(size=(n, 4))
    y = np.stack([np.sin(X[:, 0]) + X[:, 1] ** 2, 3 * X[:, 2], X[:, 3] * X[:, 0]], axis=1)[:, :k]
    return X.astype(dtype), y.astype(dtype)


def fit_net(X, y, *, seed=0, **params):
    """A fitted net in the samples' own precision."""
    torch.manual_seed(seed)
    module = Numbers(y.reshape(len(y), -1).shape[1], **params).to(torch.as_tensor(X).dtype)
    return NeuralNetRegressor(module, max_epochs=3, train_split=None, verbose=0, lr=0.05).fit(X, y)


def make_regression_learner(n_labelled=10, n_pool=40, k=1, **params):
    """A learner with a fitted net in double precision, and its pool."""
    X, y = make_targets(n_labelled + n_pool, k)
    net = fit_net(X[:n_labelled], y[:n_labelled], **params)
    return learner_of(net, X[:n_labelled], y[:n_labelled]), X[n_labelled:]


def tangent_rows(learner, X_pool):
    """Gradients of all outputs side by side, of pool and labelled samples, as methods with a kernel scale them.

    One call of autograd for each; then the mean squared length over the pool is 1.
    """
    module = learner.estimator.module_
    flat = getattr(module, "flat", False)
    pool, labelled = (
        jacobian(module, X, (lambda f: f[:, None]) if flat else (lambda f: f)).reshape(len(X), -1)
        for X in (X_pool, learner.X_training)
    )
    scale = np.sqrt(np.square(pool).sum(axis=1).mean())
    return pool / scale, labelled / scale
