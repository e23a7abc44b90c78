# SPDX-License-Identifier: BSD-3-Clause
"""Which parameters are differentiated: all that are trained, or a part of them that says nearly as much for less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from skal._core.last_layer import find_last_layer
from skal._core.network import Network
from skal._core.pool import Samples
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.validation import Choice, Constraint

NAMES = ["all", "last", "last_blocks", "adapters"]
Layers = str | Callable[[str, nn.Parameter], bool]
_MOSTLY = 0.5  # share of a network's parameters that adapters may have at most


class LayersConstraint(Constraint):
    """One of the names, or a function of a parameter's name and the parameter."""

    def check(self, owner: str, name: str, value: Any) -> None:
        """Refuse anything else."""
        if isinstance(value, str):
            Choice(*NAMES).check(owner, name, value)
        elif not callable(value) or isinstance(value, type):
            expected = f"one of {', '.join(map(repr, NAMES))}, or a function of a parameter's name and the parameter"
            remedy = "Pass for example lambda name, parameter: name.startswith('encoder.layer.5')."
            raise InvalidTypeError.for_parameter(owner, name, expected, value, remedy)


def choose_parameters(
    network: Network, samples: Samples, parameters: dict[str, nn.Parameter], layers: Layers, owner: str
) -> dict[str, nn.Parameter]:
    """Some of the parameters that are trained; at least one.

    Parameters
    ----------
    network : Network
    samples : Samples
        Some, to find the last layer with.
    parameters : dict from name to parameter
        All that are trained.
    layers : {"all", "last", "last_blocks", "adapters"} or callable
        See :func:`skal.tangent.tangent_kernel`.
    owner : str
        Who is asking, for messages.
    """
    if layers == "all":
        return parameters
    if not isinstance(layers, str):
        chosen = {name: p for name, p in parameters.items() if layers(name, p)}
        if not chosen:
            expected, got = "a function that is true for some trained parameter", "one that is true for none"
            remedy = f"Their names are {', '.join(parameters)}."
            raise InvalidParameterError.for_parameter(owner, "layers", expected, got, remedy)
        return chosen
    if layers == "adapters":
        n_trained, n = (sum(p.numel() for p in some) for some in (parameters.values(), network.module.parameters()))
        if n_trained > _MOSTLY * n:
            expected, got = (
                "used with a network that is mostly frozen",
                f"one that trains {n_trained:,} of {n:,} numbers",
            )
            remedy = "Freeze what is not to be trained, as peft does, or use layers='last_blocks'."
            raise InvalidParameterError.for_parameter(owner, "layers", expected, got, remedy)
        return parameters
    last = find_last_layer(network, samples)
    own = {id(p) for p in last.layer.parameters()}
    if layers == "last_blocks":
        own |= _behind_last_block(network.module, set(map(id, parameters.values())))
    chosen = {name: p for name, p in parameters.items() if id(p) in own}
    if not chosen:
        raise InvalidParameterError(
            f"With layers={layers!r} the last layer of the network given to {owner} must be trainable. Got the "
            f"layer {last.name!r} in which no parameter has requires_grad. Unfreeze it, or use layers='all'."
        )
    return chosen


def _behind_last_block(module: nn.Module, trained: set[int]) -> set[int]:
    """Identities of the parameters from the last block on, in the order in which the module has them.

    Blocks are the parts of a list or sequence that are all of one class, and have parts themselves; of several such
    lists, the one with most trained parameters. Without blocks it is the last two layers.
    """
    lists = [_blocks(part, trained) for part in module.modules() if isinstance(part, (nn.ModuleList, nn.Sequential))]
    blocks = max(lists, key=lambda found: sum(_n_trained(block, trained) for block in found), default=[])
    if len(blocks) < 2:
        leaves = [part for part in module.modules() if any(id(p) in trained for p in part.parameters(recurse=False))]
        blocks = leaves[-2:][:1]
    first = next(id(p) for p in blocks[-1].parameters() if id(p) in trained)
    order = [id(p) for p in module.parameters()]
    return set(order[order.index(first) :])


def _blocks(parts: nn.ModuleList | nn.Sequential, trained: set[int]) -> list[nn.Module]:
    blocks = [part for part in parts if len(list(part.children())) > 1 and _n_trained(part, trained)]
    return blocks if len({type(block) for block in blocks}) == 1 else []


def _n_trained(module: nn.Module, trained: set[int]) -> int:
    return sum(p.numel() for p in module.parameters() if id(p) in trained)
