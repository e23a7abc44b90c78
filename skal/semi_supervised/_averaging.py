# SPDX-License-Identifier: BSD-3-Clause
"""A skorch classifier whose predictions come from an exponential moving average of its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from skal.exceptions import NonFiniteError


class ParameterAverage:
    """``average ← d·average + (1 − d)·parameter`` after step t = 1, 2, …

    Here ``d = min(decay, (1 + t)/(10 + t))``: less in the first steps, so that the initial weights do not stay in the
    average of a short training. Buffers are not averaged: the module has one set of them, so batch norm's statistics
    are the latest.

    Parameters
    ----------
    module : nn.Module
    decay : float

    Examples
    --------
    >>> import torch
    >>> linear = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.zeros_(linear.weight)
    >>> average = ParameterAverage(linear, 0.5)
    >>> _ = torch.nn.init.ones_(linear.weight)
    >>> average.update()
    >>> with average.use():
    ...     print(round(linear.weight.item(), 4))  # d = 2/11
    0.8182
    """

    def __init__(self, module: nn.Module, decay: float) -> None:
        self.parameters = dict(module.named_parameters())
        self.values = {name: p.detach().clone() for name, p in self.parameters.items()}
        self.decay = decay
        self.n_updates = 0

    @torch.no_grad()
    def update(self) -> None:
        """Take the parameters' present values in."""
        self.n_updates += 1
        decay = min(self.decay, (1 + self.n_updates) / (10 + self.n_updates))
        for name, parameter in self.parameters.items():
            self.values[name].lerp_(parameter.detach(), 1 - decay)

    def swap(self) -> None:
        """Exchange the parameters' values and the averages."""
        for name, parameter in self.parameters.items():
            parameter.data, self.values[name] = self.values[name], parameter.data

    @contextmanager
    def use(self) -> Iterator[None]:
        """The averages in the module inside, its own values outside."""
        self.swap()
        try:
            yield
        finally:
            self.swap()


class AveragingClassifier(NeuralNetClassifier):
    """Trains its parameters, and predicts with their average: a subclass has the parameter ``ema_decay``.

    During training the average is used for every prediction, and for the validation loss. Afterwards ``module_`` holds
    it; the trained parameters are kept, and training continues from them.
    """

    ema_decay: float

    _trained: dict[str, Tensor] | None = None  # the parameters whose place the average has taken
    _average: ParameterAverage | None = None  # only while training

    def train_step(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """One step of the optimiser, and of the average."""
        step: dict[str, Any] = super().train_step(batch, **fit_params)
        if self._average is not None:
            self._average.update()
        return step

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Put the trained parameters back, and start an average."""
        super().on_train_begin(net, X=X, y=y, **kwargs)
        if self._trained is not None:
            self.module_.load_state_dict(self._trained, strict=False)  # the buffers are the latest already
        self._trained = None
        self._average = ParameterAverage(self.module_, self.ema_decay)

    def on_train_end(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Put the average in the place of the trained parameters, which are kept for ``partial_fit``."""
        if self._average is not None:
            self._average.swap()
            self._trained, self._average = self._average.values, None
        super().on_train_end(net, X=X, y=y, **kwargs)

    def validation_step(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """The average's outputs and loss."""
        with self._average.use() if self._average is not None else nullcontext():
            step: dict[str, Any] = super().validation_step(batch, **fit_params)
            return step

    def evaluation_step(self, batch: Any, training: bool = False) -> Any:
        """The average's outputs."""
        with self._average.use() if self._average is not None else nullcontext():
            return super().evaluation_step(batch, training=training)

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, C) class probabilities, by the average of the parameters; refused if training has diverged."""
        proba: np.ndarray = super().predict_proba(X)
        if not np.isfinite(proba).all():
            raise NonFiniteError(
                f"The probabilities of {type(self).__name__} must be finite. Got NaN or infinity instead. Training has "
                "probably diverged: lower the learning rate or scale the inputs, and fit again."
            )
        return proba

    def initialize_module(self) -> AveragingClassifier:
        """Make the module; earlier training is forgotten."""
        self._trained = self._average = None
        super().initialize_module()
        return self

    def load_params(self, *args: Any, **kwargs: Any) -> None:
        """As in skorch; ``partial_fit`` then continues from the loaded parameters."""
        super().load_params(*args, **kwargs)
        self._trained = None

    def get_state(self) -> dict[str, Any]:
        """The state that ``partial_fit`` needs and skorch does not save.

        Returns
        -------
        dict
            The parameters that were trained, not averaged.
        """
        return {} if self._trained is None else {"trained": {k: v.clone() for k, v in self._trained.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the state from :meth:`get_state`.

        Parameters
        ----------
        state : dict
            From a classifier with the same module.
        """
        trained = state.get("trained")
        self._trained = None if trained is None else {k: v.to(self.device) for k, v in trained.items()}


def without_decay_of_vectors(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An optimiser's parameter groups, with biases and normalisation layers in groups without weight decay.

    Those are the parameters of one dimension.

    Examples
    --------
    >>> linear = nn.Linear(3, 2)
    >>> groups = without_decay_of_vectors([{"params": list(linear.parameters())}])
    >>> [([tuple(p.shape) for p in group["params"]], group.get("weight_decay")) for group in groups]
    [([(2, 3)], None), ([(2,)], 0.0)]
    """
    split = []
    for group in groups:
        split.append({**group, "params": [p for p in group["params"] if p.ndim > 1]})
        split.append({**group, "params": [p for p in group["params"] if p.ndim <= 1], "weight_decay": 0.0})
    return [group for group in split if group["params"]]
