"""Learning loss: the score is what the network predicts of its own loss."""

import numpy as np
import pytest
import torch
from torch import nn

from skal.config import config_context
from skal.exceptions import UnsupportedLayerError
from skal.loss_prediction import LossPredictionClassifier
from skal.strategies import LearningLoss, learning_loss

from ..support.learners import learner_of
from ..support.networks import small_network


def test_score_is_the_module_s_prediction_by_hand():
    (module, X), y = small_network("CNN", 13, dtype=torch.float32), np.arange(13) % 3
    settings = {"criterion": nn.CrossEntropyLoss, "train_split": None, "verbose": 0, "max_epochs": 2}
    net = LossPredictionClassifier(module, layers=["conv1", "fc1"], hidden=6, **settings).fit(X, y)
    module = net.module_.eval()
    seen = {}
    for name in ("conv1", "fc1"):
        getattr(module.backbone, name).register_forward_hook(
            lambda layer, args, out, name=name: seen.update({name: out})
        )
    with torch.no_grad():
        module.backbone(torch.as_tensor(X))
        pooled = [seen["conv1"].mean(dim=(2, 3)), seen["fc1"]]
        hidden = [torch.relu(x @ linear.weight.T + linear.bias) for x, linear in zip(pooled, module.inner, strict=True)]
        expected = (torch.cat(hidden, dim=1) @ module.outer.weight.T + module.outer.bias)[:, 0]
    assert [linear.out_features for linear in module.inner] == [6, 6]
    with config_context(batch_size=4):
        scores = LearningLoss().scores(learner_of(net, X, y), X)
    np.testing.assert_allclose(scores, expected.numpy(), rtol=1e-4, atol=1e-6)


def test_a_net_that_does_not_predict_its_loss_is_refused(learner, X_pool):
    with pytest.raises(UnsupportedLayerError, match=r"must predict its own loss.*LossPredictionClassifier"):
        learning_loss(learner, X_pool, 1)
