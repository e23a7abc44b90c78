"""Monte Carlo dropout with one mask per pass, shared by all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_map

from skal._core.network import Network, evaluating
from skal._core.samples import Samples
from skal._core.sharding import filled
from skal.context import QueryContext
from skal.exceptions import UnsupportedLayerError

_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_SATURATION = -1.7580993408473766  # what alpha dropout puts in the place of a dropped unit: SELU's limit at −∞
Shapes = dict[tuple[int, int], tuple[int, ...]]


def seeds_of(strategy: Any, generator: np.random.Generator) -> list[int]:
    """One for each of the strategy's passes."""
    return [int(seed) for seed in generator.integers(2**31, size=strategy.n_passes)]


def over_passes(
    context: QueryContext, samples: Samples, seeds: list[int], reduce: Callable[[Iterator[Tensor]], Tensor]
) -> Tensor:
    """What ``reduce`` makes of the probabilities (n, C) of every pass over a chunk, for all samples."""
    owner, network, batch_size = context.owner, context.network, context.batch_size

    def shard(part: Samples) -> Tensor:
        chunks = dropout_outputs(network, part, batch_size, seeds, owner)
        results = (reduce(network.to_proba(output).double() for output in outputs) for outputs in chunks)
        return filled(results, len(part))

    return filled(network.sharding.map(shard, samples, batch_size, network.device), len(samples))


def dropout_outputs(
    network: Network, samples: Samples, batch_size: int, seeds: list[int], owner: str
) -> Iterator[Iterator[Tensor]]:
    """For each chunk of samples the (n, C) outputs of one pass per seed, dropout on and everything else in eval mode.

    A seed stands for one mask per dropout layer, which has the shape of one sample's features and is applied to every
    sample: outputs depend neither on the chunks nor on the order of the samples.

    Parameters
    ----------
    network : Network
    samples : Samples
    batch_size : int
    seeds : list of int
        One per pass.
    owner : str
        Who is asking, for messages.

    Raises
    ------
    UnsupportedLayerError
        If a forward pass calls no dropout layer with p > 0.
    """
    layers = [m for m in network.module.modules() if isinstance(m, _DropoutNd) and m.p > 0]
    shapes: Shapes | None = None

    def passes(batch: Any, shapes: Shapes) -> Iterator[Tensor]:
        for seed in seeds:
            # for one pass at a time, so that no one else sees the network between two of them
            with evaluating(network.module), torch.no_grad(), _masked(layers, shapes, seed):
                output = network.output(batch)
            network.check_output(output)
            yield output

    for batch in network.batches(samples, batch_size):
        shapes = shapes or _shapes_of_one(network, layers, batch, owner)
        yield passes(batch, shapes)


def _shapes_of_one(network: Network, layers: list[Any], batch: Any, owner: str) -> Shapes:
    """Shapes of the dropout layers' inputs for a single sample, by layer and call, with 1 for the samples' dimension.

    A dimension that grows with the number of samples is one that the mask must not depend on.
    """
    found: list[Shapes] = []
    for number in (1, 2):
        shapes: Shapes = {}

        def look(position: int, call: int, x: Tensor, shapes: Shapes = shapes) -> Tensor:
            shapes[position, call] = tuple(x.shape)
            return x

        copies = tree_map(lambda x, number=number: torch.cat([x[:1]] * number), batch)
        with evaluating(network.module), torch.no_grad(), _outputs_changed_by(look, layers):
            network.check_output(network.output(copies))
        found.append(shapes)
    if not found[0]:
        raise UnsupportedLayerError(
            f"The network given to {owner} must have dropout layers (nn.Dropout and its relatives, with p > 0) which "
            f"its forward calls. Got a {type(network.module).__name__} without; F.dropout and the dropout inside "
            "attention and recurrent layers are not seen. Add nn.Dropout before the last layer and train again."
        )
    return {
        key: tuple(1 if a != b else a for a, b in zip(shape, found[1].get(key, shape), strict=True))
        for key, shape in found[0].items()
    }


def _masked(layers: list[Any], shapes: Shapes, seed: int) -> AbstractContextManager[None]:
    """Inside, the layers drop what this seed's masks say."""

    def drop(position: int, call: int, x: Tensor) -> Tensor:
        shape = shapes.get((position, call))
        if shape is None or len(shape) != x.ndim:
            shape = (1, *x.shape[1:])
        # sizes beside the samples may differ from chunk to chunk (padding), but not within one
        shape = tuple(1 if known == 1 else size for known, size in zip(shape, x.shape, strict=True))
        return apply_dropout(layers[position], x, shape, (seed, position, call))

    return _outputs_changed_by(drop, layers)


@contextmanager
def _outputs_changed_by(change: Callable[[int, int, Tensor], Tensor], layers: list[Any]) -> Iterator[None]:
    """Let ``change(position of the layer, number of its call, input)`` stand for what the layers return."""
    calls = [0] * len(layers)
    with ExitStack() as stack:
        for position, layer in enumerate(layers):

            def hook(_: nn.Module, args: tuple, output: Tensor, position: int = position) -> Tensor:
                calls[position] += 1
                return change(position, calls[position] - 1, output)

            stack.callback(layer.register_forward_hook(hook).remove)
        yield


def apply_dropout(layer: Any, x: Tensor, shape: tuple[int, ...], seed: tuple[int, ...]) -> Tensor:
    """Dropout as the layer does it in training, with a mask of the given shape that depends on the seed alone."""
    if isinstance(layer, _CHANNELS):  # whole channels: dimension 1 of a batch
        shape = shape[:2] + (1,) * (len(shape) - 2)
    keep = 1 - layer.p
    if keep == 0:
        return torch.zeros_like(x)
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
    mask = (torch.rand(shape, generator=generator, device="cpu") < keep).to(x)
    if isinstance(layer, _ALPHA):
        scale = (keep * (1 + layer.p * _SATURATION**2)) ** -0.5
        return scale * (x * mask + _SATURATION * (1 - mask)) - scale * _SATURATION * layer.p
    return x * (mask / keep)
