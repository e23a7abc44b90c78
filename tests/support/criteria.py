"""Criteria of the kinds that people train with, and the loss of one sample by each."""

import torch
import torch.nn.functional as F
from skorch import NeuralNetBinaryClassifier, NeuralNetClassifier
from torch import nn

from skal.nets import SquaredLoss

from .networks import N_CLASSES


class FocalLoss(nn.Module):
    """As users write it: no parent but Module, class weights as a buffer, and a reduction."""

    def __init__(self, gamma=2.0, reduction="mean"):
        super().__init__()
        self.gamma, self.reduction = gamma, reduction
        self.register_buffer("alpha", torch.linspace(0.5, 1.5, N_CLASSES))

    def forward(self, outputs, target):
        log_p = F.log_softmax(outputs, dim=-1).gather(-1, target[:, None])[:, 0]
        losses = -self.alpha[target] * (1 - log_p.exp()) ** self.gamma * log_p
        return losses if self.reduction == "none" else getattr(losses, self.reduction)()


class SharpCrossEntropy(nn.CrossEntropyLoss):
    """A subclass whose forward is not its parent's."""

    def forward(self, input, target):
        return super().forward(3 * input, target)


def weights(dtype=torch.float64):
    return torch.linspace(0.1, 3.0, N_CLASSES, dtype=dtype)


CRITERIA = {
    "plain": lambda dtype: nn.CrossEntropyLoss(),
    "weighted": lambda dtype: nn.CrossEntropyLoss(weight=weights(dtype)),
    "smoothed": lambda dtype: nn.CrossEntropyLoss(label_smoothing=0.2),
    "weighted and smoothed": lambda dtype: nn.CrossEntropyLoss(weight=weights(dtype), label_smoothing=0.1),
    "ignoring": lambda dtype: nn.CrossEntropyLoss(ignore_index=1),
    "squared": lambda dtype: SquaredLoss(),
    "binary": lambda dtype: nn.BCEWithLogitsLoss(pos_weight=torch.tensor(5.0, dtype=dtype)),
    "focal": lambda dtype: FocalLoss().to(dtype),
    "subclass": lambda dtype: SharpCrossEntropy(weight=weights(dtype)),
    "margin": lambda dtype: nn.MultiMarginLoss(margin=0.7),
}


def net_trained_with(criterion, module):
    """An initialised net that has this very criterion."""
    binary = isinstance(criterion, nn.BCEWithLogitsLoss)
    cls = NeuralNetBinaryClassifier if binary else NeuralNetClassifier
    net = cls(module, criterion=type(criterion), train_split=None, verbose=0).initialize()
    net.criterion_ = criterion
    return net


def one_loss(criterion, output, label):
    """The loss of one sample, not averaged: of its output (1, C) or (1,) and its label, an integer."""
    before, criterion.reduction = criterion.reduction, "sum"
    try:
        if isinstance(criterion, nn.BCEWithLogitsLoss):
            return criterion(output.reshape(1), torch.tensor([float(label)]).to(output))
        return criterion(output, torch.tensor([label]))
    finally:
        criterion.reduction = before
