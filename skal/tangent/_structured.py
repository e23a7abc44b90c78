# SPDX-License-Identifier: BSD-3-Clause
"""Per-sample gradients from layer rules: one forward pass, and one backward pass to the layers' outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from skal._core.network import Network
from skal.exceptions import UnsupportedLayerError
from skal.tangent._cotangents import Cotangent, pull_back
from skal.tangent._factors import Dense, Gradients, PerSampleGradient, Total
from skal.tangent._layer_rules import Rule, find_rule


class UnsuitedLayerError(UnsupportedLayerError):
    """A layer was used in a way that its rule does not cover.

    Attributes
    ----------
    parameters : set of str
        The parameters concerned, by their names in ``network.trainable()``.
    """

    def __init__(self, message: str, parameters: set[str]) -> None:
        super().__init__(message)
        self.parameters = parameters


class _Call(NamedTuple):
    """One call of a layer in a forward pass."""

    name: str
    layer: nn.Module
    input: Tensor
    version: int
    output: GradientEdge
    positions_first: bool = False  # (t, n, ...) or (t·n, ...), not (n, ...)

    def for_rule(self, x: Tensor, n_samples: int, precision: torch.dtype) -> Tensor:
        """The layer's input, or the gradient at its output, with the samples in the first dimension.

        Under autocast, or in half precision, layers see short floats; what is made of them should not be short.
        """
        x = x.to(precision) if x.is_floating_point() else x
        if not self.positions_first or x.shape[-2] % n_samples:
            return x
        return x.reshape(-1, n_samples, x.shape[-1]).transpose(0, 1)


class StructuredBackend:
    """Layer rules; see :mod:`skal.tangent._layer_rules`.

    Parameters
    ----------
    network : Network
    names : set of str
        The parameters to differentiate, by their names in ``network.trainable()``.
    idle : set of str
        Parameters that should have no influence on the outputs; it is an error if they have.

    Attributes
    ----------
    logits : (n, C) tensor
        Of the batch whose gradients were asked for last.
    """

    def __init__(self, network: Network, names: set[str], idle: set[str] | None = None) -> None:
        self.network, self._precision = network, network.precision
        self._idle = {name: get_gradient_edge(network.trainable()[name]) for name in sorted(idle or ())}
        # tied parameters have one name here, whichever module holds them
        self._names = {id(p): name for name, p in network.trainable().items() if name in names}
        self._layers = {
            name: layer
            for name, layer in network.module.named_modules()
            if find_rule(layer) is not None and any(id(p) in self._names for p in layer.parameters(recurse=False))
        }
        self._projections = {
            id(layer.weight): (name, layer)
            for name, module in network.module.named_modules()
            if isinstance(module, nn.MultiheadAttention)
            for layer in _projections(module)
            if any(id(p) in self._names for p in layer.parameters())
        }
        every_layer = [*self._layers.values(), *(layer for _, layer in self._projections.values())]
        self._rules = {id(layer): self._rule_of(layer) for layer in every_layer}

    def _rule_of(self, layer: nn.Module) -> tuple[Rule, list[tuple[str, str]]]:
        """A layer's rule, and which of its results are asked for under which names."""
        rule = find_rule(layer)
        assert rule is not None  # only layers with a rule are hooked
        own = ((name, self._names.get(id(p))) for name, p in layer.named_parameters(recurse=False))
        return rule, [(name, known) for name, known in own if known is not None]

    def gradients(self, batch: Any, target: Tensor | None, cotangents: list[Cotangent]) -> Iterator[Gradients]:
        """Per-sample gradients by parameter, for each cotangent; a parameter without influence is left out."""
        logits, calls = self._forward(batch)
        self.logits = logits.detach()
        # the idle parameters cost nothing here while they are idle
        edges = [call.output for call in calls] + list(self._idle.values())
        inputs: dict[int, Tensor] = {}
        for number, cotangent in enumerate(cotangents):
            v, is_last = cotangent(self.logits, target), number == len(cotangents) - 1
            at_outputs = pull_back(v, logits, edges, retain_graph=not is_last)
            if self._idle:
                self._check_idle(at_outputs[len(calls) :])
            yield self._apply_rules(calls, inputs, list(at_outputs[: len(calls)]), logits.shape[0])

    def _check_idle(self, gradients: Sequence[Tensor | None]) -> None:
        used = {name for name, gradient in zip(self._idle, gradients, strict=True) if gradient is not None}
        if used:
            raise UnsuitedLayerError(
                f"The parameter {min(used)!r} must take part in every sample's output or in none. Got samples that use "
                "it after samples that did not. Use backend='func' or 'auto'.",
                used,
            )

    def _forward(self, batch: Any) -> tuple[Tensor, list[_Call]]:
        calls: list[_Call] = []

        def record(name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            value = args[0] if args else next(iter(kwargs.values()), None)
            if isinstance(output, Tensor) and isinstance(value, Tensor) and output.requires_grad:
                # the edge still means this output if an activation overwrites the tensor in place
                calls.append(_Call(name, layer, value.detach(), value._version, get_gradient_edge(output)))

        def record_projection(value: Any, weight: Any, output: Any) -> None:
            if id(weight) in self._projections and output.requires_grad:
                name, layer = self._projections[id(weight)]
                edge = get_gradient_edge(output)
                calls.append(_Call(name, layer, value.detach(), value._version, edge, positions_first=True))

        with ExitStack() as stack:
            for name, layer in self._layers.items():
                handle = layer.register_forward_hook(partial(record, name), with_kwargs=True)
                stack.callback(handle.remove)
            if self._projections:
                stack.enter_context(_watch_projections(record_projection))
            logits = self.network.logits(batch)
        return logits, calls

    def _apply_rules(
        self, calls: list[_Call], inputs: dict[int, Tensor], at_outputs: list[Tensor | None], n_samples: int
    ) -> Gradients:
        """Gradients for one cotangent; the calls' inputs are kept, since those for all cotangents share them."""
        found: dict[str, list[PerSampleGradient]] = {}
        with torch.no_grad():
            for position, call in enumerate(calls):
                g, at_outputs[position] = at_outputs[position], None
                if g is None:
                    continue
                if position not in inputs:
                    inputs[position] = call.for_rule(call.input, n_samples, self._precision)
                a, g = inputs[position], call.for_rule(g, n_samples, self._precision)
                self._check_call(call, a, g, n_samples)
                rule, wanted = self._rules[id(call.layer)]
                results = rule(call.layer, a, g)
                for own_name, name in wanted:
                    result = results.get(own_name)
                    if result is not None:
                        gradient = result if isinstance(result, PerSampleGradient) else Dense(result)
                        found.setdefault(name, []).append(gradient)
        return {name: parts[0] if len(parts) == 1 else Total(parts) for name, parts in found.items()}

    def _check_call(self, call: _Call, a: Tensor, g: Tensor, n_samples: int) -> None:
        if a.shape[:1] != (n_samples,) or g.shape[:1] != (n_samples,):
            problem = (
                f"The layer {call.name!r} must receive the samples in its first dimension. Got an input of shape "
                f"{tuple(call.input.shape)} for {n_samples} samples."
            )
        elif call.input._version != call.version:
            problem = (
                f"The input of the layer {call.name!r} must still be what it was in the forward pass. "
                "Got a tensor that was changed in place since."
            )
        else:
            return
        own = {self._names[id(p)] for p in call.layer.parameters(recurse=False) if id(p) in self._names}
        raise UnsuitedLayerError(f"{problem} Use backend='func' or 'auto'.", own)


def _projections(attention: nn.MultiheadAttention) -> list[nn.Linear]:
    """The linear maps inside an attention layer, as layers that hold its own parameters.

    ``F.multi_head_attention_forward`` gets their weights without calling any layer. Its inputs have the positions
    first. Projections of different inputs, as in cross-attention, are parts of one weight and have no rule.
    """
    pairs = [(attention.out_proj.weight, attention.out_proj.bias)]
    if attention.in_proj_weight is not None:
        pairs.append((attention.in_proj_weight, attention.in_proj_bias))
    layers = []
    for weight, bias in pairs:
        layer = nn.Linear(1, 1, bias=False, device="meta")
        layer.weight, layer.bias = weight, bias
        layers.append(layer)
    return layers


@contextmanager
def _watch_projections(see: Callable[[Any, Any, Any], None]) -> Iterator[None]:
    """Inside, ``see(input, weight, output)`` is called for every call of ``F.linear``."""
    linear = F.linear

    def watch(input: Any, weight: Any, bias: Any = None) -> Any:
        output = linear(input, weight, bias)
        see(input, weight, output)
        return output

    F.linear = watch
    try:
        yield
    finally:
        F.linear = linear
