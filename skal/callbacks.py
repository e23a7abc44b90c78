# SPDX-License-Identifier: BSD-3-Clause
"""The papers' training protocol between rounds, as skorch callbacks.

``NeuralNetClassifier(..., warm_start=True, max_epochs=cap, callbacks=[FreshOptimizer(), StopAtTrainAccuracy(0.99)])``
continues training from round to round, with a new optimiser each time, until the training set is fitted. With
``warm_start=False`` skorch re-initialises the network each time: the papers' alternative. Nothing here reads
validation or test data.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from skorch import NeuralNet
from skorch.callbacks import Callback
from skorch.dataset import unpack_data
from torch import Tensor

from skal._core.guard import preserve_rng
from skal.validation import Choice, Constrained, Constraint, Integer, Real

__all__ = ["FreshOptimizer", "OneCycle", "StopAtTrainAccuracy"]


class FreshOptimizer(Callback):
    """Start every ``fit`` of a warm-started net with a new optimiser.

    skorch keeps the optimiser, and with it momentum and Adam's moments from labels of earlier rounds. A learning rate
    scheduler must come after this callback and be told to start again as well, which skorch's does with
    ``LRScheduler(policy, last_epoch=-1, ...)``.

    Examples
    --------
    >>> from skorch import NeuralNetClassifier
    >>> from skal.nets import MLP
    >>> from skal.callbacks import FreshOptimizer
    >>> net = NeuralNetClassifier(MLP(2, 2), warm_start=True, callbacks=[FreshOptimizer()])
    """

    def on_train_begin(self, net: NeuralNet, **kwargs: Any) -> None:
        """Replace the optimiser."""
        net.initialize_optimizer()


class OneCycle(Callback):
    """The learning rate rises to the net's ``lr`` and falls to almost zero over the epochs of one ``fit``.

    ``torch.optim.lr_scheduler.OneCycleLR`` with the number of steps of this ``fit``, which grows with the labels:
    skorch's ``LRScheduler`` would need to be told. Put it after :class:`FreshOptimizer`.

    Parameters
    ----------
    cycle_momentum : bool, default=False
        Whether the momentum falls while the learning rate rises; the optimiser must have one.

    Examples
    --------
    >>> from skorch import NeuralNetClassifier
    >>> from skal.nets import MLP
    >>> from skal.callbacks import FreshOptimizer, OneCycle
    >>> net = NeuralNetClassifier(MLP(2, 2), warm_start=True, callbacks=[FreshOptimizer(), OneCycle()])
    """

    def __init__(self, cycle_momentum: bool = False) -> None:
        self.cycle_momentum = cycle_momentum

    def on_train_begin(self, net: NeuralNet, **kwargs: Any) -> None:
        """Forget the cycle of the last ``fit``."""
        self.scheduler_: Any = None

    def on_epoch_begin(self, net: NeuralNet, dataset_train: Any = None, **kwargs: Any) -> None:
        """Start the cycle with the first epoch, when the data is known."""
        if self.scheduler_ is None:
            steps = len(net.get_iterator(dataset_train, training=True)) * net.max_epochs
            self.scheduler_ = torch.optim.lr_scheduler.OneCycleLR(
                net.optimizer_, max_lr=net.lr, total_steps=max(2, steps), cycle_momentum=self.cycle_momentum
            )

    def on_batch_end(self, net: NeuralNet, training: bool = False, **kwargs: Any) -> None:
        """One step of the cycle, except after the last: the next ``fit`` has its own."""
        if training and self.scheduler_.last_epoch < self.scheduler_.total_steps - 1:
            self.scheduler_.step()


class StopAtTrainAccuracy(Constrained, Callback):
    """End training as soon as the accuracy on the training set, in eval mode, reaches a threshold.

    The net's ``max_epochs`` is the cap.

    Parameters
    ----------
    threshold : float, default=0.99
        Accuracy to stop at.
    every : int, default=1
        Epochs between two measurements; each costs a forward pass over the training set.
    exact : bool, default=True
        If False, a measurement ends with the batch that puts the threshold out of reach, mostly the first of them.
        Training ends after the same epoch, and only the accuracies on the way are not known.

    Attributes
    ----------
    accuracy_ : float
        The latest one, NaN before the first measurement and after one that ended early. The net's history has it for
        every epoch, as ``train_acc``.

    Examples
    --------
    >>> import numpy as np, torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal.nets import MLP
    >>> from skal.callbacks import StopAtTrainAccuracy
    >>> X, y = np.array([[-1.0], [1.0]], dtype="float32"), np.array([0, 1])
    >>> net = NeuralNetClassifier(
    ...     MLP(1, 2), criterion=torch.nn.CrossEntropyLoss, lr=1.0, max_epochs=100, train_split=None, verbose=0,
    ...     callbacks=[StopAtTrainAccuracy()],
    ... ).fit(X, y)
    >>> len(net.history) < 100, net.history[-1, "train_acc"]
    (True, 1.0)
    """

    constraints: ClassVar[dict[str, Constraint]] = {
        "threshold": Real(0, 1),
        "every": Integer(1),
        "exact": Choice(True, False),
    }

    def __init__(self, threshold: float = 0.99, every: int = 1, exact: bool = True) -> None:
        self.threshold = threshold
        self.every = every
        self.exact = exact

    def initialize(self) -> StopAtTrainAccuracy:
        """Check the parameters."""
        self.check_params()
        return self

    def on_train_begin(self, net: NeuralNet, **kwargs: Any) -> None:
        """Count the epochs of this ``fit`` alone: a warm-started net's history continues."""
        self.epochs_before_ = len(net.history)
        self.accuracy_ = float("nan")

    def on_epoch_end(self, net: NeuralNet, dataset_train: Any = None, **kwargs: Any) -> None:
        """Measure the accuracy, and stop the way skorch's own early stopping does."""
        due = (len(net.history) - self.epochs_before_) % self.every == 0
        if due:
            self.accuracy_ = _accuracy(net, dataset_train, 0.0 if self.exact else self.threshold)
        net.history.record("train_acc", self.accuracy_)
        if due and self.accuracy_ >= self.threshold:
            raise KeyboardInterrupt


def _accuracy(net: NeuralNet, dataset: Any, least: float) -> float:
    """Share of right predictions; NaN as soon as it must be below ``least``."""
    right = total = 0
    with preserve_rng():  # a data loader draws a seed: measuring must not change the training
        for batch in net.get_iterator(dataset, training=False):
            output = net.evaluation_step(batch, training=False)
            output = output[0] if isinstance(output, tuple) else output
            y = torch.as_tensor(unpack_data(batch)[1], device=output.device)
            right += int((_predict_classes(net, output) == y.reshape(-1)).sum())
            total += len(y)
            if (len(dataset) - total + right) / len(dataset) < least:
                return float("nan")
    return right / total


def _predict_classes(net: NeuralNet, output: Tensor) -> Tensor:
    """Class numbers; one output per sample is a binary classifier's logit, or its probability of class 1."""
    if output.ndim > 1 and output.shape[-1] > 1:
        return output.argmax(-1)
    is_logit = isinstance(net.criterion_, torch.nn.BCEWithLogitsLoss)
    return (output.reshape(-1) > (0 if is_logit else 0.5)).long()
