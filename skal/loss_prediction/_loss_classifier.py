# SPDX-License-Identifier: BSD-3-Clause
"""A skorch classifier that learns to predict its own loss (Yoo & Kweon 2019)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from skorch import NeuralNetClassifier
from skorch.dataset import unpack_data
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from skal._core.estimators import check_net_takes_weights
from skal.exceptions import InvalidParameterError
from skal.loss_prediction._module import LossPredictingModule, find_layers, ranking_loss
from skal.validation import Constrained, Constraint, Integer, Real


class LossPredictionClassifier(Constrained, NeuralNetClassifier):
    """A skorch classifier that learns, beside its task, to rank samples by their loss.

    The module that is given becomes the ``backbone`` of a :class:`LossPredictingModule`; its ``forward`` stays as it
    is. :class:`skal.strategies.LearningLoss` queries by the predicted losses.

    Parameters
    ----------
    module : nn.Module class or instance
        The network of the task alone; it returns the input of the criterion.
    *args
        As in ``skorch.NeuralNetClassifier``.
    layers : list of str or None, default=None
        The layers whose outputs the loss is predicted from, by their names in ``module.named_modules()``. None takes up
        to four convolutional or linear layers, evenly spread, without the last.
    hidden : int, default=128
        Features that each of them is mapped to.
    loss_weight : float, default=1.0
        Of the ranking loss, beside the criterion.
    margin : float, default=1.0
        By how much the predicted losses of a pair should differ.
    cut_after : int or None or "auto", default="auto"
        After this many epochs the ranking loss no longer trains the backbone. ``auto`` is 60 % of ``max_epochs``, the
        paper's 120 of 200; None is never.
    widths : list of int or None, default=None
        Channels of the layers' outputs. None looks at the data, which only ``fit`` and ``partial_fit`` have: set
        it, and ``layers``, to initialise the net without data, for ``load_params``.
    **kwargs
        As in ``skorch.NeuralNetClassifier``. The criterion needs a ``reduction`` attribute, as torch's have.

    Examples
    --------
    >>> import torch
    >>> from skal.datasets import load
    >>> from skal.nets import CNN
    >>> digits = load("digits")
    >>> module = CNN(in_channels=1, image_size=8)
    >>> net = LossPredictionClassifier(module, criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> net.fit(digits.X_train[:50], digits.y_train[:50]).module_.layers
    ['conv1', 'conv2', 'fc1', 'fc2']
    """

    constraints: ClassVar[dict[str, Constraint]] = {
        "hidden": Integer(1, 10**7),
        "loss_weight": Real(0),
        "margin": Real(0),
        "cut_after": Integer(0, optional=True, words=("auto",)),
    }

    def __init__(
        self,
        module: Any,
        *args: Any,
        layers: Any = None,
        hidden: int = 128,
        loss_weight: float = 1.0,
        margin: float = 1.0,
        cut_after: int | str | None = "auto",
        widths: Any = None,
        **kwargs: Any,
    ) -> None:
        self.layers = layers
        self.hidden = hidden
        self.loss_weight = loss_weight
        self.margin = margin
        self.cut_after = cut_after
        self.widths = widths
        super().__init__(module, *args, **kwargs)

    def fit(self, X: Any, y: Any, **fit_params: Any) -> LossPredictionClassifier:
        """Initialise and train, or continue training with ``warm_start``."""
        check_net_takes_weights(self, fit_params)
        with self._data_at_hand(X, y):
            fitted: LossPredictionClassifier = super().fit(X, y, **fit_params)
            return fitted

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, **fit_params: Any) -> LossPredictionClassifier:
        """Continue training, after initialising if that has not been done."""
        check_net_takes_weights(self, fit_params)
        with self._data_at_hand(X, y):
            fitted: LossPredictionClassifier = super().partial_fit(X, y, classes, **fit_params)
            return fitted

    def initialize_for(self, X: Any, y: Any = None) -> LossPredictionClassifier:
        """Initialise without training; the samples show the layers' widths.

        Parameters
        ----------
        X : array-like, tensor, Dataset or dict of arrays
            Samples as ``fit`` takes them; a few are enough.
        y : array-like, optional
            Their labels, where the Dataset needs them.

        Returns
        -------
        LossPredictionClassifier
            Itself.
        """
        with self._data_at_hand(X, y):
            initialized: LossPredictionClassifier = self.initialize()
            return initialized

    @contextmanager
    def _data_at_hand(self, X: Any, y: Any) -> Iterator[None]:
        """Inside, :meth:`initialize_module` can take two samples to find the layers' widths with."""
        self._data = (X, y)
        try:
            yield
        finally:
            self.__dict__.pop("_data", None)  # fit calls partial_fit, which has done it then

    def initialize_module(self) -> LossPredictionClassifier:
        """Make the module, and put the loss prediction beside it."""
        self.check_params()
        super().initialize_module()
        module: nn.Module = self.module_  # type: ignore[has-type]
        if any(isinstance(part, LossPredictingModule) for part in module.modules()):
            return self
        layers, widths = self.layers, self.widths
        if layers is None or widths is None:
            layers, widths = self._find_layers(module)
        self.module_ = LossPredictingModule(module, layers, widths, self.hidden)
        return self

    def _find_layers(self, module: nn.Module) -> tuple[list[str], list[int]]:
        if not hasattr(self, "_data"):
            raise InvalidParameterError(
                f"The 'widths' and 'layers' parameters of {type(self).__name__} must be given when it is initialised "
                "without data. Got None instead. Call fit, or set both of them, for example from net.module_.layers."
            )
        iterator = self.get_iterator(self.get_dataset(*self._data), training=False)
        batch = tree_map(lambda x: x[:2] if isinstance(x, Tensor) else x, unpack_data(next(iter(iterator)))[0])
        return find_layers(module, batch, self.layers)

    def on_epoch_begin(self, net: Any, dataset_train: Any = None, dataset_valid: Any = None, **kwargs: Any) -> None:
        """Cut the gradient to the backbone when it is time."""
        super().on_epoch_begin(net, dataset_train=dataset_train, dataset_valid=dataset_valid, **kwargs)
        limit: Any = round(0.6 * self.max_epochs) if self.cut_after == "auto" else self.cut_after
        done = len(self.history) - 1 - self._epochs_before
        for part in self.module_.modules():
            if isinstance(part, LossPredictingModule):
                part.detached = limit is not None and done >= limit

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Count epochs from here."""
        super().on_train_begin(net, X=X, y=y, **kwargs)
        self._epochs_before = len(self.history)

    def get_loss(self, y_pred: Any, y_true: Any, X: Any = None, training: bool = False) -> Tensor:
        """The criterion, and while training the ranking loss too."""
        if not (training and isinstance(y_pred, tuple)):
            task: Tensor = super().get_loss(y_pred, y_true, X=X, training=training)
            return task
        output, predicted = y_pred
        task = super().get_loss(output, y_true, X=X, training=training)
        losses = self._sample_losses(output.detach(), y_true)
        loss: Tensor = task + self.loss_weight * ranking_loss(predicted, losses, self.margin)
        return loss

    def _sample_losses(self, output: Tensor, y_true: Any) -> Tensor:
        criterion: Any = getattr(self.criterion_, "_orig_mod", self.criterion_)
        if not hasattr(criterion, "reduction"):
            raise InvalidParameterError(
                f"The criterion of {type(self).__name__} must have a 'reduction' attribute that can be 'none', to give "
                f"one loss per sample. Got {type(criterion).__name__}, which has none. Use torch.nn.CrossEntropyLoss."
            )
        before, criterion.reduction = criterion.reduction, "none"
        try:
            with torch.no_grad():
                losses: Tensor = super().get_loss(output, y_true).reshape(len(output), -1).mean(dim=1)
                return losses
        finally:
            criterion.reduction = before
