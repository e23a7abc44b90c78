# SPDX-License-Identifier: BSD-3-Clause
"""The networks of a benchmark: the same for all strategies, with dropout or loss prediction for some."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn
from torch.utils.data import DataLoader

from skal import nets
from skal._vocabulary import NETS
from skal.bench._protocol import Protocol, check_net
from skal.callbacks import FreshOptimizer, OneCycle, StopAtTrainAccuracy
from skal.exceptions import InvalidParameterError
from skal.loss_prediction import LossPredictionClassifier
from skal.strategies import BALD, EPIG, LearningLoss

_NETS: dict[str, type[nn.Module]] = {name: getattr(nets, cls) for name, cls in NETS.items()}
_FOR_FEATURES = ("mlp", "logistic")
ABSENT = -30.0  # logit of a class without a label, whose probability is 0 in scikit-learn


def name_addition(strategy: Any) -> str:
    """Name what a strategy adds to the network of all strategies: ``dropout``, ``loss prediction`` or nothing."""
    if isinstance(strategy, (BALD, EPIG)):
        return "dropout"
    return "loss prediction" if isinstance(strategy, LearningLoss) else ""


def make_net(protocol: Protocol, shape: tuple[int, ...], n_classes: int, strategy: Any) -> Any:
    """An unfitted skorch net for samples of this shape, (C, H, W) or (D,), as the protocol trains it.

    From one torch seed it starts with the same weights for every strategy: dropout has none, and the loss prediction
    is initialised after the network it sits beside.
    """
    if protocol.task != "classification":
        return _make_for_rows(protocol, shape, n_classes)
    check_net(protocol.net, protocol.task)
    _check_shape(protocol.net, shape)
    addition = name_addition(strategy)
    if protocol.net == "logistic":
        return _make_logistic(protocol, shape, n_classes, strategy, addition)
    settings: dict[str, Any] = {"train_split": None, "verbose": 0, "callbacks__print_log": None}
    settings |= {"max_epochs": protocol.max_epochs, "iterator_valid__batch_size": 128}
    settings |= _choose_module(protocol, shape, n_classes, addition == "dropout")
    if protocol.semi_supervised is not None:
        return _make_fixmatch(protocol, settings, addition)
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


def _make_for_rows(protocol: Protocol, shape: tuple[int, ...], n_outputs: int) -> Any:
    """An unfitted estimator that predicts numbers, or several labels at once."""
    regresses, params = protocol.task == "regression", dict(protocol.net_params)
    check_net(protocol.net, protocol.task)
    if protocol.net == "forest":
        return (RandomForestRegressor if regresses else RandomForestClassifier)(**{"n_estimators": 100} | params)
    if protocol.net == "linear":
        return Ridge(**params)
    if protocol.net == "logistic":
        return MultiOutputClassifier(LogisticRegression(**{"max_iter": 1000} | params))
    _check_shape(protocol.net, shape)
    return (NeuralNetRegressor if regresses else NeuralNetClassifier)(
        **_choose_module(protocol, shape, n_outputs, False),
        criterion=nn.MSELoss if regresses else nn.BCEWithLogitsLoss,
        optimizer=torch.optim.Adam,
        optimizer__weight_decay=protocol.weight_decay,
        lr=protocol.lr,
        max_epochs=protocol.max_epochs,
        batch_size=protocol.batch_size,
        warm_start=protocol.warm_start,
        callbacks=[("fresh", FreshOptimizer())],
        train_split=None,
        verbose=0,
    )


def _check_shape(net: str, shape: tuple[int, ...]) -> None:
    if len(shape) == 3 and net != "logistic":
        return
    if len(shape) == 1 and net in _FOR_FEATURES:
        return
    expected = "one of 'mlp', 'logistic' for features" if len(shape) == 1 else "a network for samples of this shape"
    remedy = f"A sample has the shape {shape}: choose another, or pass a net of your own."
    raise InvalidParameterError.for_parameter("run_benchmark", "net", expected, net, remedy)


def _make_logistic(protocol: Protocol, shape: tuple[int, ...], n_classes: int, strategy: Any, addition: str) -> Any:
    if addition == "loss prediction":
        raise InvalidParameterError(
            "The strategies of a benchmark of logistic regression must do without learning_loss. Got learning_loss: "
            "it predicts losses from hidden layers. Leave it out, or set net='mlp'."
        )
    if not getattr(strategy, "needs_network", False):
        return LogisticRegression(**{"max_iter": 1000} | dict(protocol.net_params))
    settings: dict[str, Any] = {"module__n_features": shape[0], "module__n_classes": n_classes}
    settings |= {"module__dropout": protocol.dropout if addition == "dropout" else 0.0}
    settings |= {"criterion": nn.CrossEntropyLoss, "iterator_valid__batch_size": 512}
    own = dict(protocol.net_params)
    return LogisticNet(DropoutLinear, train_split=None, verbose=0, callbacks="disable", **settings, **own)


def _make_fixmatch(protocol: Protocol, settings: dict[str, Any], addition: str) -> Any:
    if addition == "loss prediction":
        raise InvalidParameterError(
            "The strategies of a semi-supervised benchmark must do without learning_loss. Got learning_loss: its loss "
            "prediction has no place in FixMatchClassifier. Leave it out, or run a supervised benchmark."
        )
    from skal.semi_supervised import FixMatchClassifier, StrongImage, WeakImage  # only a paper's protocols need it

    own = dict(protocol.semi_supervised or {})
    if own.pop("flip", False):
        own["augment"] = (WeakImage(flip=True), StrongImage(flip=True))
    return FixMatchClassifier(**(settings | own))


def _choose_module(protocol: Protocol, shape: tuple[int, ...], n_classes: int, dropout: bool) -> dict[str, Any]:
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
    """A network with dropout before its last layer ``fc``; it starts with the same weights as without."""

    def __init__(self, network: type[nn.Module], dropout: float, **params: Any) -> None:
        super().__init__()
        self.network: Any = network(**params)
        last: Any = self.network.fc
        self.network.fc = nn.Sequential(nn.Dropout(dropout), last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        logits: torch.Tensor = self.network(x)
        return logits


class WholeBatches(DataLoader[Any]):
    """Minibatches cut from arrays at once, where skorch's own loader fetches them sample by sample.

    The batches are those of a ``DataLoader``, in the same order from the same seed.

    Examples
    --------
    >>> from skorch.dataset import Dataset
    >>> data = Dataset(np.arange(6.0).reshape(3, 2), np.arange(3))
    >>> [y.tolist() for X, y in WholeBatches(data, batch_size=2)]
    [[0, 1], [2]]
    """

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        X, y = (getattr(self.dataset, name, None) for name in "Xy")
        arrays = isinstance(X, np.ndarray) and (y is None or isinstance(y, np.ndarray))
        return self._cut(X, y) if arrays else super().__iter__()

    def _cut(self, X: Any, y: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        # a loader draws a seed for its workers, even without any; like its batches, this one's are on the host
        torch.empty((), dtype=torch.int64, device="cpu").random_()
        sampler: Any = self.batch_sampler
        for rows in sampler:
            labels = torch.zeros(len(rows), 1, device="cpu") if y is None else torch.from_numpy(y[rows])
            yield torch.from_numpy(X[rows]), labels


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
