# SPDX-License-Identifier: BSD-3-Clause
"""EPIG: what a label would tell about the labels of other samples (Bickford Smith et al. 2023)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from skal.base import ScoreStrategy, query_function
from skal.context import QueryContext
from skal.strategies._dropout import MOST_PASSES, over_passes, seeds_of
from skal.strategies._information import predictive_information
from skal.validation import Integer, make_generator


class EPIG(ScoreStrategy):
    """Query the samples whose labels would tell most about the labels of the rest of the pool.

    BALD asks what a label would tell about the network, whether or not it matters for any prediction. The score here
    is the mutual information between the sample's label and that of a target, averaged over targets: random samples of
    the pool. Both are predicted by ``n_passes`` networks with different dropout masks.

    Parameters
    ----------
    n_passes : int, default=20
        Forward passes, each with a mask of its own.
    n_targets : int, default=100
        Random samples of the pool whose labels are to be predicted.
    subset : int or None, default=None
        Score only this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the masks, the targets, and the choice of the subset.

    See Also
    --------
    BALD : What a label would tell about the network.
    NTKLookahead : What retraining on a sample would change, without dropout.

    References
    ----------
    F. Bickford Smith, A. Kirsch, S. Farquhar, Y. Gal, A. Foster and T. Rainforth (2023). Prediction-oriented Bayesian
    active learning. AISTATS.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.nets import CNN
    >>> from skal.strategies import EPIG, epig
    >>> digits = load("digits")
    >>> module = CNN(in_channels=1, image_size=8, dropout=0.25)
    >>> net = NeuralNetClassifier(module, criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> strategy = EPIG(n_passes=5, random_state=0)
    >>> learner = ActiveLearner(net, strategy, X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool = digits.X_train[50:250]
    >>> indices, samples = learner.query(X_pool, n_instances=5)
    >>> samples.shape
    (5, 1, 8, 8)
    >>> bool((epig(learner, X_pool, 5, n_passes=5, random_state=0) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = {
        "n_passes": Integer(2, MOST_PASSES, remedy="Masks can only disagree if there are two."),
        "n_targets": Integer(1),
    }
    draws_from_pool = True

    def __init__(
        self, *, n_passes: int = 20, n_targets: int = 100, subset: int | None = None, random_state: Any = None
    ) -> None:
        self.n_passes = n_passes
        self.n_targets = n_targets
        self.subset = subset
        self.random_state = random_state

    def _score(self, context: QueryContext) -> np.ndarray:
        generator = make_generator(type(self).__name__, self.random_state)
        seeds = seeds_of(self, generator)
        rows = np.sort(generator.choice(context.n_pool, size=min(self.n_targets, context.n_pool), replace=False))
        targets = over_passes(context, context.pool.take(rows), seeds, lambda proba: proba.transpose(0, 1))
        targets = targets.transpose(0, 1).contiguous()  # (T, M, C)
        dtype = context.network.precision
        scores = over_passes(context, context.pool, seeds, lambda proba: predictive_information(proba, targets, dtype))
        return scores.clamp_min(0).cpu().numpy()


epig = query_function(EPIG, "epig", __name__)
