# SPDX-License-Identifier: BSD-3-Clause
"""Find the layer that makes a network's outputs, and what it receives, without touching its ``forward``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._pytree import tree_map

from skal._core.guard import evaluating
from skal._core.losses import Loss, is_cross_entropy, loss_of
from skal._core.memory import fill_rows
from skal._core.network import Network
from skal._core.outputs import are_alike, check_floating
from skal._core.parallel import Sharding
from skal._core.pool import Samples
from skal.exceptions import SampleOrderWarning, UnsupportedLayerError


@dataclass(frozen=True)
class LastLayer:
    """The layer with parameters of its own that makes the network's outputs; of several, the one called last.

    Attributes
    ----------
    name : str
        Its name in ``module.named_modules()``.
    layer : nn.Module
    width : int
        Number of features that it receives per sample.
    gives_logits : bool
        Whether its output is the network's output, up to a softmax or logarithm that belongs to the loss: then the
        gradient of the loss with respect to its weight is ``q ⊗ input``, with q the derivative at the logits.
    call : int
        Which of the layer's calls in a forward pass makes the outputs; -1 is the last one.
    in_order : bool
        Whether it receives the samples of a batch in their order.

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
    call: int = -1
    in_order: bool = True

    @property
    def is_linear_end(self) -> bool:
        """True if the layer gives the logits by a weight (C, width)."""
        weight = getattr(self.layer, "weight", None)
        return self.gives_logits and weight is not None and weight.ndim == 2 and weight.shape[1] == self.width


class _Call(NamedTuple):
    """One call of a layer, whose output was cut off the graph and goes on as new leaves."""

    name: str
    layer: nn.Module
    leaves: list[Tensor]


def _first_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """A layer's input: its first argument, or else its first keyword argument."""
    first = next(iter([*args, *kwargs.values()]), None)
    return first if isinstance(first, Tensor) else None


def _cut_calls(network: Network, batch: object) -> tuple[list[_Call], Tensor]:
    """Every call of a parameterised layer in one forward pass, in order, and the network's output.

    Each output is cut off from what came before, so that the graph behind the network's output ends at the layers that
    make it, in frozen networks too. A module that calls others with parameters (a transformer with a class token of its
    own) is no layer.
    """
    calls: list[_Call] = []
    calls_before: list[int] = []

    def hook_for(name: str) -> Any:
        def cut(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if len(calls) != calls_before.pop() or _first_input(args, kwargs) is None:
                return output
            leaves: list[Tensor] = []

            def renew(x: Any) -> Any:
                if not isinstance(x, Tensor) or not x.is_floating_point() or x.is_inference():
                    return x
                leaves.append(x.detach().requires_grad_())
                return leaves[-1].clone()  # what follows may overwrite it, which a leaf forbids

            output = tree_map(renew, output)
            calls.append(_Call(name, layer, leaves))
            return output

        return cut

    if isinstance(network.module, torch.jit.ScriptModule):
        raise UnsupportedLayerError(
            "A network whose layers are looked at must be a plain nn.Module. Got a module of torch.jit, which does not "
            "let its layers be watched. Give the net the module that it was made from, or use a strategy that needs "
            "outputs alone (margin, entropy)."
        )
    with ExitStack() as stack:
        for name, module in network.module.named_modules():
            if next(module.parameters(recurse=False), None) is not None:
                before = module.register_forward_pre_hook(lambda layer, args: calls_before.append(len(calls)))
                stack.callback(before.remove)
                stack.callback(module.register_forward_hook(hook_for(name), with_kwargs=True).remove)
        return calls, network.output(batch)


def _leaves_behind(output: Tensor) -> set[int]:
    """Identities of the leaves that the graph behind a tensor ends in."""
    nodes = list(nodes_behind(output))
    if any(node.name() == "CheckpointFunctionBackward" for node in nodes):
        return set()  # re-entrant checkpointing hides what is inside
    return {id(getattr(node, "variable", None)) for node in nodes}


def find_last_layer(network: Network, samples: Samples) -> LastLayer:
    """Run a few samples through the network, and follow its output back to the layer that makes it.

    Parameters
    ----------
    network : Network
    samples : Samples
        At least one row.
    """
    with evaluating(network.module):
        with torch.enable_grad():
            rows = ordered_rows(samples)[::2]
            few = next(network.batches(samples.take(rows), len(rows)))
            calls, output = _cut_calls(network, few)
        if not isinstance(output, Tensor):
            network.check_output(output)  # raises; the values of a tensor are checked by those who read them
        check_floating(output)
        if not calls:
            raise UnsupportedLayerError(
                "The network must call at least one layer with parameters of its own (Linear, Conv2d, ...). "
                f"Got {type(network.module).__name__}, whose forward calls none. Use layers from torch.nn."
            )
        behind = _leaves_behind(output)
        makers = [call for call in calls if any(id(leaf) in behind for leaf in call.leaves)]
        found = (makers or calls)[-1]  # nothing is behind outputs that were made under no_grad
        own = [call is found for call in calls if call.name == found.name]
        number = -1 if own[-1] else own.index(True)  # the last one, even if other samples take more calls
        with torch.no_grad():
            return _look_at(network, samples, found, number, (few, output))


def _look_at(network: Network, samples: Samples, found: _Call, number: int, seen: tuple[Any, Tensor]) -> LastLayer:
    """Describe what the layer receives and returns for a few samples, in a second order if one does not tell enough.

    ``seen`` is a batch of every other of these samples, with its outputs.
    """
    orders = two_orders(network, samples)
    passes = [_observe(network, next(orders), found.name, number)]
    features, given, output = passes[0]
    network.check_steady(*seen, output[::2])
    epsilon = torch.finfo(network.dtype).eps
    in_order = type(found.layer) is nn.Linear and _gives_rows(features, given, output, epsilon)
    if not in_order:
        passes.append(_observe(network, next(orders), found.name, number))
        finite = bool(torch.isfinite(features).all())  # other features are refused when they are read
        in_order = features.shape[0] == output.shape[0] and (not finite or keeps_order(features, passes[1][0], epsilon))
    if not in_order:  # one sample has no other order
        passes = [_observe(network, next(network.batches(samples, 1)), found.name, number)]
    width = passes[0][0].numel() // passes[0][2].shape[0]
    gives_logits = all(_are_logits(given, output, network.criterion) for _, given, output in passes)
    return LastLayer(found.name, found.layer, width, gives_logits, number, in_order)


def _gives_rows(features: Tensor, given: Tensor | None, output: Tensor, epsilon: float) -> bool:
    """True if a linear layer made the network's output row by row, so that it has received the samples in their order.

    What it gave is the output to the last bit, and no two rows are alike but the first and the last, which are the same
    sample: samples in another order would have shown.
    """
    if given is None or given.shape != output.shape or features.ndim != 2:
        return False
    if len(output) < 4:  # three such rows read the same backwards
        return False
    rows = output[:-1]
    distinct = int((rows[:, None] == rows).all(2).sum()) == len(rows)  # each is the same as itself alone
    return distinct and torch.equal(given, output) and ends_as_it_begins(output, epsilon)


def _observe(network: Network, batch: Any, name: str, number: int) -> tuple[Tensor, Any, Tensor]:
    """Input and output of one call of a layer, and the network's output."""
    seen: list[tuple[Tensor, Any]] = []

    def record(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        first = _first_input(args, kwargs)
        assert first is not None  # or it would not have been found
        seen.append((first.detach().clone(), output.detach().clone() if isinstance(output, Tensor) else None))

    handle = network.module.get_submodule(name).register_forward_hook(record, with_kwargs=True)
    try:
        output = network.output(batch)
    finally:
        handle.remove()
    return *seen[number], output


def _are_logits(given: Tensor | None, output: Tensor, criterion: nn.Module | None) -> bool:
    """True if the loss depends on what the layer gave as it does on logits.

    That is so if it is the network's output; for a softmax before NLLLoss; and for a log-softmax, which changes nothing
    about the cross-entropy. A softmax before the squared loss has a derivative of its own.
    """
    if given is None or given.shape != output.shape:
        return False
    rounding = 4 * torch.finfo(output.dtype).eps  # large in bfloat16
    given, output = given.double(), output.double()
    reads = [given]
    if criterion is None or isinstance(criterion, nn.NLLLoss):
        reads.append(torch.softmax(given, -1))
    if criterion is None or is_cross_entropy(criterion):
        reads.append(torch.log_softmax(given, -1))
    return any(torch.allclose(read, output, rtol=max(1e-3, rounding), atol=max(1e-5, rounding)) for read in reads)


def embeddings(network: Network, samples: Samples, batch_size: int, last: LastLayer) -> tuple[Tensor, Tensor, Tensor]:
    """The last layer's inputs (n, d), the network's logits (n, C) and its outputs, on its device, in one pass.

    Warns
    -----
    SampleOrderWarning
        If the layer receives the samples of a batch in another order: they then go through the network one by one.
    """
    if not last.in_order:
        warnings.warn(
            f"The layer {last.name!r} does not receive the samples of a batch in their order, so they are embedded one "
            "by one, which is slow. Restore the order before that layer to pass whole batches.",
            SampleOrderWarning,
            stacklevel=2,
        )
        batch_size = 1

    # behind a softmax the logits still have the digits that log(p + ε) has lost
    behind_softmax = last.gives_logits and isinstance(network.criterion, nn.NLLLoss)

    def shard(part: Samples) -> tuple[Tensor, ...]:
        return fill_rows(_embedding_batches(network, part, batch_size, last, behind_softmax), len(part))

    features, outputs, *given = network.collect(shard, samples, batch_size)
    return features, given[0] if given else network.to_logits(outputs), outputs


def _embedding_batches(
    network: Network, samples: Samples, batch_size: int, last: LastLayer, with_given: bool
) -> Iterator[tuple[Tensor, ...]]:
    """Inputs of the last layer, the network's outputs, and if asked for what the layer gave, batch by batch."""
    seen: list[tuple[Tensor, Any]] = []

    def record(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        first = _first_input(args, kwargs)
        assert first is not None  # or it would not have been found
        seen.append((first.detach().clone(), output.detach().clone() if with_given else None))

    with evaluating(network.module), torch.no_grad():
        handle = network.module.get_submodule(last.name).register_forward_hook(record, with_kwargs=True)
        try:
            for batch in network.passes(samples, batch_size):
                seen.clear()
                output = network.output(batch)
                network.check_output(output)
                features, given = seen[last.call]
                features = features.reshape(output.shape[0], -1)
                yield (features, output, given) if with_given else (features, output)
        finally:
            handle.remove()


class LastOutput(Network):
    """A network whose logits are what its last layer gives, before the softmax that the module ends in."""

    def __init__(self, net: Any, last: LastLayer, sharding: Sharding | None = None) -> None:
        super().__init__(net, sharding)
        self.last = last

    @cached_property
    def loss(self) -> Loss:
        """The loss that the network is trained with, as a function of the last layer's outputs."""
        return loss_of(self.criterion, behind_softmax=self.dtype)

    def logits(self, batch: Any, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """(n, C) outputs of the last layer, as part of the graph."""
        seen: list[Tensor] = []
        layer = self.module.get_submodule(self.last.name)  # by name: a backend may work on a copy of the module
        handle = layer.register_forward_hook(lambda layer, args, output: seen.append(output))
        try:
            self.output(batch, parameters)
        finally:
            handle.remove()
        return seen[self.last.call]

    def all_logits(self, samples: Samples, batch_size: int) -> Tensor:
        """(n, C) outputs of the last layer for all samples, without gradient."""

        def shard(part: Samples) -> Tensor:
            with evaluating(self.module), torch.no_grad():
                return fill_rows((self.logits(batch) for batch in self.passes(part, batch_size)), len(part))

        return self.collect(shard, samples, batch_size)


# Whether a layer receives the samples of a batch in the order in which the network does.
#
# A module may sort its batch, by length for example, and restore the order at the end. Row i of a layer inside then
# belongs to another sample. Passing a batch in two orders shows that: the rows must change places alike. The second
# order begins with the second row and ends with the first. Modules that turn their batch around, or sort it, treat it
# differently from the first. Modules that shift it do not, but the first sample, which comes twice, shows them: no
# other neighbours in the circle of rows are the same.

N_ORDERED = 8  # samples that are passed in two orders, one of them twice


def ordered_rows(samples: Samples) -> np.ndarray:
    """Positions of a few samples from all over the given ones, with the first again at the end."""
    rows = np.linspace(0, len(samples) - 1, min(N_ORDERED, len(samples))).round().astype(np.int64)
    return np.append(rows, rows[0])


def two_orders(network: Network, samples: Samples) -> Iterator[Any]:
    """A batch of a few samples, and the same rolled."""
    rows = ordered_rows(samples)
    for some in (rows, np.roll(rows, -1)):
        yield next(network.batches(samples.take(some), len(rows)))


def row_digests(x: Tensor) -> Tensor:
    """(n, ...) -> (n, 2) numbers in float64 that tell rows apart: a fixed projection, and the length."""
    rows = x.detach().reshape(x.shape[0], -1).double()
    weights = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=rows.device).cos()
    return torch.stack([rows @ weights, rows.norm(dim=1)], dim=1)


def keeps_order(x: Tensor, second: Tensor, epsilon: float) -> bool:
    """True if the second tensor is x with its first row moved to the end, and x ends with its first row."""
    return x.shape == second.shape and are_alike(x.roll(-1, 0), second, x, epsilon) and ends_as_it_begins(x, epsilon)


def ends_as_it_begins(x: Tensor, epsilon: float) -> bool:
    """True if the first row of x is its last, up to rounding."""
    return are_alike(x[0], x[-1], x, epsilon)


def nodes_behind(tensor: Tensor) -> Iterator[Node]:
    """Every node of the graph that a tensor was made by, once."""
    nodes, seen = [tensor.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield node
            nodes += [following for following, _ in node.next_functions]
