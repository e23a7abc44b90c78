# SPDX-License-Identifier: BSD-3-Clause
"""How many samples to pass at once on a processor: few enough that what the layers make of them stays near the cache.

Larger tensors come from fresh pages of memory, which the system clears first, and leave the cache before the next layer
reads them: residual networks take 1.4 to 2 times as long for 256 samples at a time as for 64.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.evaluation import evaluating
from skal._core.memory import rows_within

if TYPE_CHECKING:
    from skal._core.network import Network

# for each thread: bytes of a layer's output, at most, and samples that are enough to work on
_TENSOR_BYTES = 2**22
_ROWS = 16
_FEW = 4 * _ROWS  # samples that are never cut
# by module: the largest output of a layer for one sample of a kind
_KNOWN: WeakKeyDictionary[nn.Module, dict[Any, int]] = WeakKeyDictionary()


def near_cache(network: Network, batches: Iterator[Any]) -> Iterator[Any]:
    """The batches, on a processor in parts that stay near its cache; for passes without gradients.

    Parameters
    ----------
    network : Network
    batches : iterator of tensors, or of dicts or tuples of them
        From ``network.batches``.

    Examples
    --------
    >>> from skal._core.network import Network
    >>> network = Network(nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.Flatten(), nn.Linear(32 * 64 * 64, 2)))
    >>> images = torch.zeros(512, 1, 64, 64).split(256)
    >>> {len(part) for part in near_cache(network, iter(images))} == {16 * torch.get_num_threads()}
    True
    """
    whole = None  # the shape of a batch that is small enough, as most are
    for batch in batches:
        if whole is not None and isinstance(batch, Tensor) and batch.shape == whole:
            yield batch
            continue
        n = next((len(leaf) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.ndim), 0)
        n_parts = _n_parts(network, batch, n)
        if n_parts == 1:
            whole = batch.shape if isinstance(batch, Tensor) else None
            yield batch
            continue
        rows = -(-n // n_parts)  # parts of one size: a last one of few samples would take as long
        for start in range(0, n, rows):
            yield tree_map(lambda x, some=slice(start, start + rows): x[some] if isinstance(x, Tensor) else x, batch)


def _n_parts(network: Network, batch: Any, n: int) -> int:
    """Into how many parts to cut a batch of n samples."""
    if n <= _FEW or not all(leaf.is_cpu for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)):
        return 1
    threads = torch.get_num_threads()
    rows = rows_within(threads * _TENSOR_BYTES, _largest_tensor(network, batch), at_least=threads * _ROWS)
    return -(-n // rows)


def _largest_tensor(network: Network, batch: Any) -> int:
    """Bytes of the largest output of a layer for one sample; looked up once for samples of the same shape."""
    kind = tuple((leaf.shape[1:], leaf.dtype) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
    known = _KNOWN.setdefault(network.module, {})
    if kind not in known:
        few = tree_map(lambda x: x[:2].clone() if isinstance(x, Tensor) else x, batch)
        known[kind] = _largest_output(network, few) // 2
    return known[kind]


def _largest_output(network: Network, batch: Any) -> int:
    """Bytes of the largest output of a layer; hooks also keep torch from its fused layers, which do not show theirs."""
    largest = 0

    def look(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        nonlocal largest
        # attention makes queries, keys and values at once
        times = 3 if isinstance(layer, nn.MultiheadAttention) else 1
        sizes = [leaf.numel() * leaf.element_size() for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
        largest = max([largest, *(times * size for size in sizes)])

    with ExitStack() as stack, evaluating(network.module), torch.no_grad():
        for layer in network.module.modules():
            stack.callback(layer.register_forward_hook(look).remove)
        network.output(batch)
    return largest
