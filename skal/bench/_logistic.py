# SPDX-License-Identifier: BSD-3-Clause
"""Logistic regression for every strategy: scikit-learn's, and the same model as a network for those that need one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from skorch import NeuralNetClassifier
from torch import nn

ABSENT = -30.0  # logit of a class without a label, whose probability is 0 in scikit-learn


class DropoutLinear(nn.Module):
    """A linear layer behind dropout of its inputs, which only strategies that ask for it turn on.

    Parameters
    ----------
    n_features, n_classes : int
    dropout : float, default=0.0
    """

    def __init__(self, n_features: int, n_classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(n_features, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (n, n_classes) of samples (n, n_features)."""
        logits: torch.Tensor = self.fc(self.dropout(x))
        return logits


class LogisticNet(NeuralNetClassifier):
    """scikit-learn's logistic regression with its weights in a network: predictions agree up to rounding.

    Parameters
    ----------
    module, *args, **kwargs
        As in ``skorch.NeuralNetClassifier``; the module's last layer is ``fc``.
    C : float, default=1.0
    max_iter : int, default=1000
        As in ``sklearn.linear_model.LogisticRegression``, which finds the weights.
    """

    def __init__(self, module: Any, *args: Any, C: float = 1.0, max_iter: int = 1000, **kwargs: Any) -> None:
        self.C = C
        self.max_iter = max_iter
        super().__init__(module, *args, **kwargs)

    def fit_loop(self, X: Any, y: Any = None, epochs: int | None = None, **fit_params: Any) -> LogisticNet:
        """Solve for the weights, whatever the weights before."""
        X, y = np.asarray(X), np.asarray(y)
        layer: Any = self.module_.fc
        classes = np.unique(y).astype(np.int64)  # torch takes small integers for a mask
        weight = torch.zeros_like(layer.weight)
        bias = torch.full_like(layer.bias, ABSENT)
        if len(classes) == 1:
            bias[int(classes[0])] = 0
        else:
            model = LogisticRegression(C=self.C, max_iter=self.max_iter).fit(X, y)
            slopes, offsets = model.coef_, model.intercept_
            if len(classes) == 2:  # one row says how far the second is ahead of the first
                slopes, offsets = np.vstack([-slopes, slopes]) / 2, np.hstack([-offsets, offsets]) / 2
            weight[classes] = torch.as_tensor(slopes, dtype=weight.dtype, device=weight.device)
            bias[classes] = torch.as_tensor(offsets, dtype=bias.dtype, device=bias.device)
        with torch.no_grad():
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
        return self


def make_logistic(n_features: int, n_classes: int, params: dict[str, Any], *, network: bool, dropout: float) -> Any:
    """The classifier, or the network for a strategy that needs one."""
    if not network:
        return LogisticRegression(**{"max_iter": 1000} | params)
    settings: dict[str, Any] = {"module__n_features": n_features, "module__n_classes": n_classes}
    settings |= {"module__dropout": dropout, "criterion": nn.CrossEntropyLoss, "iterator_valid__batch_size": 512}
    return LogisticNet(DropoutLinear, train_split=None, verbose=0, callbacks="disable", **settings, **params)
