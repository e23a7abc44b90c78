# SPDX-License-Identifier: BSD-3-Clause
"""Monte Carlo dropout with one mask per pass, shared by all samples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.utils._pytree import tree_leaves, tree_map

from skal.context import Network, QueryContext, Samples, evaluating, fill_rows, rows_within
from skal.exceptions import UnsupportedLayerError
from skal.strategies._replay import Replay, replay_bytes

_CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout)
_ALPHA = (nn.AlphaDropout, nn.FeatureAlphaDropout)
_SATURATION = -1.7580993408473766  # alpha dropout replaces dropped units by SELU's limit at −∞
_PREFIX_BYTES = 2**26  # bytes of what a chunk computes before its first dropout layer
_MASK_BYTES = 2**24  # bytes of masks that are kept from chunk to chunk
MOST_PASSES = 10**5
Shapes = dict[tuple[int, int], tuple[int, ...]]


def seeds_of(strategy: Any, generator: np.random.Generator) -> list[int]:
    """One for each of the strategy's passes."""
    return [int(seed) for seed in generator.integers(2**31, size=strategy.n_passes)]


def over_passes(
    context: QueryContext, samples: Samples, seeds: list[int], reduce: Callable[[Tensor], Tensor]
) -> Tensor:
    """Apply ``reduce`` to the probabilities (T, n, C) of every chunk, for all samples."""
    owner, network, batch_size = context.owner, context.network, context.batch_size
    memory = min(_PREFIX_BYTES, context.memory // 8)
    network.look(samples)

    def shard(part: Samples) -> Tensor:
        chunks = dropout_outputs(network, part, batch_size, seeds, owner, memory)
        return fill_rows((reduce(_probabilities(network, outputs)) for outputs in chunks), len(part))

    return network.collect(shard, samples, batch_size)


def _probabilities(network: Network, outputs: Tensor) -> Tensor:
    """(T, n, ...) outputs -> (T, n, C) probabilities in float64."""
    proba = network.to_proba(outputs.flatten(0, 1)).double()
    return proba.reshape(*outputs.shape[:2], -1)


def dropout_outputs(
    network: Network, samples: Samples, batch_size: int, seeds: list[int], owner: str, memory: int = _PREFIX_BYTES
) -> Iterator[Tensor]:
    """For each chunk of samples the outputs (T, n, ...) of one pass per seed: dropout on, everything else in eval mode.

    A seed stands for one mask per dropout layer, which has the shape of one sample's features and is applied to every
    sample: outputs depend neither on the chunks nor on the order of the samples. What comes before the first dropout
    layer is computed once for all passes.

    Parameters
    ----------
    network : Network
    samples : Samples
    batch_size : int
    seeds : list of int
        One per pass.
    owner : str
        Who is asking, for messages.
    memory : int
        Bytes for what a chunk computes before its first dropout layer; chunks are cut accordingly.

    Raises
    ------
    UnsupportedLayerError
        If a forward pass calls no dropout layer with p > 0.
    """
    layers = [m for m in network.module.modules() if isinstance(m, _DropoutNd) and m.p > 0]
    few = next(network.batches(samples.take(range(min(2, len(samples)))), 2))
    masks = Masks(layers, _shapes_of_one(network, layers, few, owner))

    def one_pass(batch: Any, replay: Replay | None, number: int) -> Tensor:
        if replay is None:
            with masks.apply(seeds[number]):
                return network.output(batch)
        with masks.apply(seeds[number], replay.part):
            outputs: Tensor = replay.run(lambda: network.output(batch))
            return outputs

    with evaluating(network.module), torch.no_grad():
        kept_bytes = replay_bytes(partial(one_pass, few), min(2, len(seeds)))
    if kept_bytes is not None:
        batch_size = min(batch_size, rows_within(memory, kept_bytes // tree_leaves(few)[0].shape[0]))
    # whole batches: smaller parts would go through what follows the first dropout once more for each mask
    for batch in network.batches(samples, batch_size):
        # all passes of a chunk at once, so that no one else sees the network between two of them
        with evaluating(network.module), torch.no_grad():
            replay = None if kept_bytes is None else Replay()
            outputs = [one_pass(batch, replay, number) for number in range(len(seeds))]
            for output in outputs:
                network.check_output(output)
        yield torch.stack(outputs)


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
        with evaluating(network.module), torch.no_grad(), _change_outputs(look, layers):
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


class Masks:
    """The masks of a network's dropout layers, given the seed of a pass.

    Parameters
    ----------
    layers : list of dropout layers
    shapes : dict
        From :func:`_shapes_of_one`.
    """

    def __init__(self, layers: list[Any], shapes: Shapes) -> None:
        self._layers, self._shapes = layers, shapes
        self._made: dict[Any, Tensor] = {}
        self._room = _MASK_BYTES

    def apply(self, seed: int, before: Callable[[], None] = lambda: None) -> AbstractContextManager[None]:
        """Inside, the layers drop what this seed's masks say; ``before`` is called before anything is dropped."""

        def drop(position: int, call: int, x: Tensor) -> Tensor:
            before()
            shape = self._shapes.get((position, call))
            if shape is None or len(shape) != x.ndim:
                shape = (1, *x.shape[1:])
            # sizes beside the samples may differ from chunk to chunk (padding), but not within one
            shape = tuple(1 if known == 1 else size for known, size in zip(shape, x.shape, strict=True))
            key = seed, position, call
            return apply_dropout(self._layers[position], x, self._mask(self._layers[position], x, shape, key))

        return _change_outputs(drop, self._layers)

    def _mask(self, layer: Any, x: Tensor, shape: tuple[int, ...], key: tuple[int, ...]) -> Tensor:
        """Made once, and kept for the other chunks while there is room."""
        what = (*key, shape, x.dtype, x.device)
        if what in self._made:
            return self._made[what]
        mask = draw_mask(layer, shape, key).to(x)
        if mask.numel() * mask.element_size() <= self._room:
            self._room -= mask.numel() * mask.element_size()
            self._made[what] = mask
        return mask


@contextmanager
def _change_outputs(change: Callable[[int, int, Tensor], Tensor], layers: list[Any]) -> Iterator[None]:
    """Let ``change(position of the layer, number of its call, input)`` stand for what the layers return."""
    calls = [0] * len(layers)
    with ExitStack() as stack:
        for position, layer in enumerate(layers):

            def hook(_: nn.Module, args: tuple[Any, ...], output: Tensor, position: int = position) -> Tensor:
                changed = change(position, calls[position], output)
                calls[position] += 1  # not if it failed: the pass may begin again
                return changed

            stack.callback(layer.register_forward_hook(hook).remove)
        yield


def draw_mask(layer: Any, shape: tuple[int, ...], seed: tuple[int, ...]) -> Tensor:
    """The features that a layer keeps, 1 or 0, in a given shape; they depend on the seed alone."""
    if isinstance(layer, _CHANNELS):  # whole channels: dimension 1 of a batch
        shape = shape[:2] + (1,) * (len(shape) - 2)
    generator = torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0]))
    mask: Tensor = (torch.rand(shape, generator=generator, device="cpu") < 1 - layer.p).float()
    return mask


def apply_dropout(layer: Any, x: Tensor, mask: Tensor) -> Tensor:
    """Dropout as the layer does it in training, with this mask."""
    keep = 1 - layer.p
    if keep == 0:
        return torch.zeros_like(x)
    if isinstance(layer, _ALPHA):
        scale = (keep * (1 + layer.p * _SATURATION**2)) ** -0.5
        saturated: Tensor = scale * (x * mask + _SATURATION * (1 - mask)) - scale * _SATURATION * layer.p
        return saturated
    dropped: Tensor = x * (mask / keep)
    return dropped
