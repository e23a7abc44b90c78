"""A skorch classifier whose predictions come from a moving average of its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from skorch import NeuralNetClassifier
from torch import Tensor, nn

from skal.semi_supervised._ema import ParameterAverage

__all__ = ["AveragingClassifier", "spared_from_decay"]


class AveragingClassifier(NeuralNetClassifier):
    """Trains its parameters, and predicts with their average: a subclass has the parameter ``ema_decay``.

    During training the average steps in for every prediction, and for the validation loss. Afterwards it is what
    ``module_`` holds; the trained parameters are kept, and training goes on from them.
    """

    ema_decay: float

    _trained: dict[str, Tensor] | None = None  # the parameters whose place the average has taken
    _average: ParameterAverage | None = None  # only while training

    def train_step(self, batch: Any, **fit_params: Any) -> dict[str, Any]:
        """One step of the optimiser, and of the average."""
        step = super().train_step(batch, **fit_params)
        if self._average is not None:
            self._average.update()
        return step

    def on_train_begin(self, net: Any, X: Any = None, y: Any = None, **kwargs: Any) -> None:
        """Put the trained parameters back, and start an average."""
        super().on_train_begin(net, X=X, y=y, **kwargs)
        if self._trained is not None:
            _write(self.module_, self._trained)
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
        with self._predicting():
            return super().validation_step(batch, **fit_params)

    def evaluation_step(self, batch: Any, training: bool = False) -> Any:
        """The average's outputs."""
        with self._predicting():
            return super().evaluation_step(batch, training=training)

    @contextmanager
    def _predicting(self) -> Iterator[None]:
        if self._average is None:
            yield
            return
        with self._average.applied():
            yield

    def initialize_module(self) -> AveragingClassifier:
        """Make the module; what had been trained before is forgotten."""
        self._trained = self._average = None
        super().initialize_module()
        return self

    def load_params(self, *args: Any, **kwargs: Any) -> None:
        """As in skorch; ``partial_fit`` then goes on from what was loaded."""
        super().load_params(*args, **kwargs)
        self._trained = None

    def get_state(self) -> dict[str, Any]:
        """What ``partial_fit`` needs beside what skorch saves: the parameters that were trained, not averaged."""
        return {} if self._trained is None else {"trained": {k: v.clone() for k, v in self._trained.items()}}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take back what :meth:`get_state` gave."""
        trained = state.get("trained")
        self._trained = None if trained is None else {k: v.to(self.device) for k, v in trained.items()}


def spared_from_decay(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An optimiser's parameter groups, with biases and normalisation layers in groups without weight decay.

    Those are the parameters of one dimension.

    Examples
    --------
    >>> linear = nn.Linear(3, 2)
    >>> groups = spared_from_decay([{"params": list(linear.parameters())}])
    >>> [([tuple(p.shape) for p in group["params"]], group.get("weight_decay")) for group in groups]
    [([(2, 3)], None), ([(2,)], 0.0)]
    """
    split = []
    for group in groups:
        decayed = [p for p in group["params"] if p.ndim > 1]
        spared = [p for p in group["params"] if p.ndim <= 1]
        split += [{**group, "params": decayed}] if decayed else []
        split += [{**group, "params": spared, "weight_decay": 0.0}] if spared else []
    return split


@torch.no_grad()
def _write(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    for name, parameter in module.named_parameters():
        parameter.copy_(values[name])
