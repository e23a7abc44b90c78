# SPDX-License-Identifier: BSD-3-Clause
"""The networks of a benchmark: one for all strategies, and the same with an addition for those that need one."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from skorch import NeuralNetClassifier
from torch import nn

from skal import nets
from skal.bench._batches import WholeBatches
from skal.bench._logistic import make_logistic
from skal.bench._protocol import Protocol
from skal.callbacks import FreshOptimizer, OneCycle, StopAtTrainAccuracy
from skal.exceptions import InvalidParameterError
from skal.loss_prediction import LossPredictionClassifier
from skal.semi_supervised import FixMatchClassifier, StrongImage, WeakImage
from skal.strategies import BALD, EPIG, LearningLoss
from skal.validation import check_choice

_NETS: dict[str, type[nn.Module]] = {
    "mlp": nets.MLP,
    "cnn": nets.CNN,
    "convnet": nets.ConvNet,
    "vgg11": nets.VGG11,
    "resnet18": nets.ResNet18,
    "wide_resnet": nets.WideResNet,
}


_FOR_FEATURES = ("mlp", "logistic")


def needed_addition(strategy: Any) -> str:
    """What a strategy needs beside the network that all have: ``dropout``, ``loss prediction`` or nothing."""
    if isinstance(strategy, (BALD, EPIG)):
        return "dropout"
    return "loss prediction" if isinstance(strategy, LearningLoss) else ""


def make_net(protocol: Protocol, shape: tuple[int, ...], n_classes: int, strategy: Any) -> Any:
    """An unfitted skorch net for samples of this shape, (C, H, W) or (D,), as the protocol trains it.

    From one torch seed it starts with the same weights for every strategy: dropout has none, and the loss prediction
    is initialised after the network it sits beside.
    """
    remedy = "Pass a skorch net to run one of your own."
    check_choice("run_benchmark", "net", protocol.net, [*_NETS, "logistic"], remedy=remedy)
    _check_shape(protocol.net, shape)
    addition = needed_addition(strategy)
    if protocol.net == "logistic":
        return _logistic(protocol, shape, n_classes, strategy, addition)
    settings: dict[str, Any] = {"train_split": None, "verbose": 0, "callbacks__print_log": None}
    settings |= {"max_epochs": protocol.max_epochs, "iterator_valid__batch_size": 128}
    settings |= _module(protocol, shape, n_classes, addition == "dropout")
    if protocol.semi_supervised is not None:
        return _semi_supervised(protocol, settings, addition)
    callbacks: list[Any] = [("fresh", FreshOptimizer())]
    if protocol.stop_accuracy is not None:
        callbacks.append(("stop", StopAtTrainAccuracy(protocol.stop_accuracy, exact=False)))
    if protocol.schedule.startswith("one_cycle"):
        callbacks.append(("schedule", OneCycle(cycle_momentum=protocol.schedule == "one_cycle_momentum")))
    settings |= {
        "criterion": nn.CrossEntropyLoss if protocol.criterion == "cross_entropy" else nets.SquaredLoss,
        "optimizer": torch.optim.Adam,
        "lr": protocol.lr,
        "optimizer__weight_decay": protocol.weight_decay,
        "batch_size": protocol.batch_size,
        "iterator_train": WholeBatches,
        "iterator_valid": WholeBatches,
        "iterator_train__shuffle": True,
        "warm_start": protocol.warm_start,
        "callbacks": callbacks,
    }
    if protocol.optimizer != "adam":
        nesterov = protocol.optimizer == "sgd" and protocol.momentum > 0
        momentum = {"optimizer__momentum": protocol.momentum, "optimizer__nesterov": nesterov}
        settings |= {"optimizer": torch.optim.SGD, **momentum}
    kind = LossPredictionClassifier if addition == "loss prediction" else NeuralNetClassifier
    return kind(**settings)


def _check_shape(net: str, shape: tuple[int, ...]) -> None:
    if len(shape) == 3 and net != "logistic":
        return
    if len(shape) == 1 and net in _FOR_FEATURES:
        return
    expected = "one of 'mlp', 'logistic' for features" if len(shape) == 1 else "a network for samples of this shape"
    remedy = f"A sample has the shape {shape}: choose another, or pass a net of your own."
    raise InvalidParameterError.for_parameter("run_benchmark", "net", expected, net, remedy)


def _logistic(protocol: Protocol, shape: tuple[int, ...], n_classes: int, strategy: Any, addition: str) -> Any:
    if addition == "loss prediction":
        raise InvalidParameterError(
            "The strategies of a benchmark of logistic regression must do without learning_loss. Got learning_loss: "
            "it predicts losses from hidden layers. Leave it out, or set net='mlp'."
        )
    network = bool(getattr(strategy, "needs_network", False))
    dropout = protocol.dropout if addition == "dropout" else 0.0
    return make_logistic(shape[0], n_classes, dict(protocol.net_params), network=network, dropout=dropout)


def _semi_supervised(protocol: Protocol, settings: dict[str, Any], addition: str) -> Any:
    if addition == "loss prediction":
        raise InvalidParameterError(
            "The strategies of a semi-supervised benchmark must do without learning_loss. Got learning_loss: its loss "
            "prediction has no place in FixMatchClassifier. Leave it out, or run a supervised benchmark."
        )
    own = dict(protocol.semi_supervised or {})
    if own.pop("flip", False):
        own["augment"] = (WeakImage(flip=True), StrongImage(flip=True))
    return FixMatchClassifier(**(settings | own))


def _module(protocol: Protocol, shape: tuple[int, ...], n_classes: int, dropout: bool) -> dict[str, Any]:
    """The module and its parameters, as skorch calls them."""
    network = _NETS[protocol.net]
    known = inspect.signature(network).parameters
    of_data = {"n_features": shape, "in_channels": shape[0], "image_size": shape[-1], "n_classes": n_classes}
    params = {name: value for name, value in of_data.items() if name in known} | dict(protocol.net_params)
    if dropout and "dropout" not in known:
        params |= {"network": network, "dropout": protocol.dropout}
        network = DropoutBeforeLast
    elif dropout and not params.get("dropout", known["dropout"].default):  # VGG has dropout for every strategy
        params["dropout"] = protocol.dropout
    return {"module": network} | {f"module__{name}": value for name, value in params.items()}


class DropoutBeforeLast(nn.Module):
    """A network with a last layer ``fc``, and dropout before it; the weights are those the network starts with."""

    def __init__(self, network: type[nn.Module], dropout: float, **params: Any) -> None:
        super().__init__()
        self.network: Any = network(**params)
        last: Any = self.network.fc
        self.network.fc = nn.Sequential(nn.Dropout(dropout), last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.network(x)
        return logits
