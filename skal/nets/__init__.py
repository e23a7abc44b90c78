# SPDX-License-Identifier: BSD-3-Clause
"""Networks of the active learning papers, for small images, and two losses.

Every network is a plain :class:`torch.nn.Module` that takes ``(n, in_channels, height, width)`` and returns
logits ``(n, n_classes)``. Give the class to skorch as ``module``, and its parameters as ``module__...``.
"""

from skal.nets._cnn import CNN
from skal.nets._convnet import ConvNet
from skal.nets._known_labels_loss import KnownLabelsLoss
from skal.nets._mlp import MLP
from skal.nets._resnet import ResNet18
from skal.nets._squared_loss import SquaredLoss
from skal.nets._vgg import VGG11
from skal.nets._wide_resnet import WideResNet

__all__ = ["CNN", "MLP", "VGG11", "ConvNet", "KnownLabelsLoss", "ResNet18", "SquaredLoss", "WideResNet"]
