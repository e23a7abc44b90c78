# SPDX-License-Identifier: BSD-3-Clause
"""Learning loss: query what the network expects to get wrong (Yoo & Kweon 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal.base import ScoreStrategy, query_function
from skal.context import QueryContext, Samples, evaluating
from skal.exceptions import UnsupportedLayerError
from skal.loss_prediction import LossPredictingModule


class LearningLoss(ScoreStrategy):
    """Query the samples with the largest predicted loss.

    The estimator is a :class:`skal.loss_prediction.LossPredictionClassifier`, which trains a small module beside the
    network to predict the loss from the outputs of some of its layers [1]_. The score is its prediction.

    Parameters
    ----------
    subset : int or None, default=None
        Score only this many random samples of the pool; the paper does so, for the sake of diversity.
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset.

    See Also
    --------
    skal.loss_prediction.LossPredictionClassifier : The network that predicts its own loss.
    Entropy : Scores the uncertainty of any network.

    References
    ----------
    .. [1] Yoo and Kweon, "Learning Loss for Active Learning", CVPR 2019.

    Examples
    --------
    >>> import torch
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.loss_prediction import LossPredictionClassifier
    >>> from skal.nets import CNN
    >>> from skal.strategies import LearningLoss, learning_loss
    >>> digits = load("digits")
    >>> module = CNN(in_channels=1, image_size=8)
    >>> net = LossPredictionClassifier(module, criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> learner = ActiveLearner(net, LearningLoss(), X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool = digits.X_train[50:250]
    >>> indices, samples = learner.query(X_pool, n_instances=5)
    >>> samples.shape
    (5, 1, 8, 8)
    >>> bool((learning_loss(learner, X_pool, 5) == indices).all())  # the same, as a function
    True
    """

    def __init__(self, *, subset: int | None = None, random_state: Any = None) -> None:
        self.subset = subset
        self.random_state = random_state

    def _score(self, context: QueryContext) -> np.ndarray:
        network, batch_size = context.network, context.batch_size
        predictor = next((part for part in network.module.modules() if isinstance(part, LossPredictingModule)), None)
        if predictor is None:
            raise UnsupportedLayerError(
                f"The network given to {context.owner} must predict its own loss. Got a "
                f"{type(context.net).__name__} that does not. Use skal.loss_prediction.LossPredictionClassifier."
            )

        network.look(context.pool)

        def shard(part: Samples) -> Tensor:
            predicted = []
            for batch in network.passes(part, batch_size):
                with evaluating(network.module), torch.no_grad(), predictor.collecting_features() as features:
                    network.check_output(network.output(batch))
                    predicted.append(predictor.predict_losses(features).double())
            return torch.cat(predicted)

        return network.collect(shard, context.pool, batch_size).cpu().numpy()


learning_loss = query_function(LearningLoss, "learning_loss", __name__)
