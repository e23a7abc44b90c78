"""Find a network's last parameterised layer, and what it receives, without touching its ``forward``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from skal._core.network import Network, evaluating
from skal._core.samples import Samples
from skal._core.sharding import Sharding, filled
from skal.exceptions import UnsupportedLayerError

__all__ = ["LastLayer", "LastOutput", "embeddings", "find_last_layer"]


@dataclass(frozen=True)
class LastLayer:
    """The layer that a forward pass called last among those with parameters of their own.

    Attributes
    ----------
    name : str
        Its name in ``module.named_modules()``.
    layer : nn.Module
    width : int
        Number of features that it receives per sample.
    gives_logits : bool
        Whether its output is the network's output, up to a softmax or logarithm: then the gradient of the loss with
        respect to its weight is ``(softmax(f) - onehot) ⊗ input``.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.context import QueryContext
    >>> last = QueryContext(*make_learner()).last_layer  # a LastLayer
    >>> last.width, last.gives_logits
    (16, True)
    """

    name: str
    layer: nn.Module
    width: int
    gives_logits: bool


def _calls(network: Network, batch: object) -> tuple[list[tuple[str, nn.Module, Tensor, Tensor]], Tensor]:
    """Every call of a parameterised module in one forward pass, in order: name, module, input, output.

    A module that calls others with parameters (a transformer with a class token of its own) is no layer.
    """
    calls: list[tuple[str, nn.Module, Tensor, Tensor]] = []
    calls_before: list[int] = []
    handles = []
    for name, module in network.module.named_modules():
        if next(module.parameters(recurse=False), None) is not None:

            def record(layer: nn.Module, args: tuple, kwargs: dict, output: object, name: str = name) -> None:
                is_layer = len(calls) == calls_before.pop()
                first = _first_input(args, kwargs)
                if is_layer and first is not None and isinstance(output, Tensor):
                    calls.append((name, layer, first.detach().clone(), output.detach().clone()))

            handles.append(module.register_forward_pre_hook(lambda layer, args: calls_before.append(len(calls))))
            handles.append(module.register_forward_hook(record, with_kwargs=True))
    try:
        return calls, network.output(batch)
    finally:
        for handle in handles:
            handle.remove()


def _first_input(args: tuple, kwargs: dict[str, Any]) -> Tensor | None:
    """What a layer is given: its first argument, or the first one that is passed by its name."""
    first = next(iter([*args, *kwargs.values()]), None)
    return first if isinstance(first, Tensor) else None


def find_last_layer(network: Network, samples: Samples) -> LastLayer:
    """Run one or two samples through the network and see which layer comes last.

    Parameters
    ----------
    network : Network
    samples : Samples
        At least one row.
    """
    with evaluating(network.module), torch.no_grad():
        batch = next(network.batches(samples, 2))
        calls, output = _calls(network, batch)
        if not isinstance(output, Tensor):
            network.check_output(output)  # raises; what tensors must be like is a matter of who reads them
        if not calls:
            raise UnsupportedLayerError(
                "The network must call at least one layer with parameters of its own (Linear, Conv2d, ...). "
                f"Got {type(network.module).__name__}, whose forward calls none. Use layers from torch.nn."
            )
        name, layer, features, layer_output = calls[-1]
        gives_logits = layer_output.shape == output.shape and any(
            torch.allclose(read(layer_output), output, rtol=1e-3, atol=1e-5)
            for read in (lambda f: f, lambda f: torch.softmax(f, -1), lambda f: torch.log_softmax(f, -1))
        )
        return LastLayer(name, layer, features[0].numel(), gives_logits)


def embeddings(network: Network, samples: Samples, batch_size: int, last: LastLayer) -> tuple[Tensor, Tensor]:
    """The last layer's inputs (n, d) and the network's logits (n, C), on the network's device, in one pass."""

    def shard(part: Samples) -> tuple[Tensor, Tensor]:
        return filled(_embedding_batches(network, part, batch_size, last.name), len(part))

    features, outputs = filled(network.sharding.map(shard, samples, batch_size, network.device), len(samples))
    with torch.no_grad():
        return features, network.to_logits(outputs)


def _embedding_batches(
    network: Network, samples: Samples, batch_size: int, name: str
) -> Iterator[tuple[Tensor, Tensor]]:
    seen: list[Tensor] = []

    def record(layer: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        first = _first_input(args, kwargs)
        assert first is not None  # or it would not have been found
        seen.append(first.detach().flatten(1).clone())

    with evaluating(network.module), torch.no_grad():
        handle = network.module.get_submodule(name).register_forward_pre_hook(record, with_kwargs=True)
        try:
            for batch in network.batches(samples, batch_size):
                seen.clear()
                output = network.output(batch)
                network.check_output(output)
                yield seen[-1], output
        finally:
            handle.remove()


class LastOutput(Network):
    """A network whose logits are what its last layer gives, before the softmax that the module ends in."""

    def __init__(self, net: Any, last: LastLayer, sharding: Sharding | None = None) -> None:
        super().__init__(net, sharding)
        self.last = last

    def logits(self, batch: Any, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """(n, C) outputs of the last layer, as part of the graph."""
        seen: list[Tensor] = []
        layer = self.module.get_submodule(self.last.name)  # by name: a backend may work on a copy of the module
        handle = layer.register_forward_hook(lambda layer, args, output: seen.append(output))
        try:
            self.output(batch, parameters)
        finally:
            handle.remove()
        return seen[-1]

    def all_logits(self, samples: Samples, batch_size: int) -> Tensor:
        """(n, C) outputs of the last layer for all samples, without gradient."""

        def shard(part: Samples) -> Tensor:
            with evaluating(self.module), torch.no_grad():
                return filled((self.logits(batch) for batch in self.batches(part, batch_size)), len(part))

        return filled(self.sharding.map(shard, samples, batch_size, self.device), len(samples))
