"""An exponential moving average of a module's parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["ParameterAverage"]


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
    >>> with average.applied():
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
    def applied(self) -> Iterator[None]:
        """The averages in the module inside, its own values outside."""
        self.swap()
        try:
            yield
        finally:
            self.swap()
