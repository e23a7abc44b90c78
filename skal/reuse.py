# SPDX-License-Identifier: BSD-3-Clause
"""Outputs, embeddings and gradients of an unchanged network on unchanged samples, computed once: if asked for.

Inside ``with feature_reuse():`` a result is kept under the contents of everything that it depends on: the module (all
that its pickle holds: parameters, buffers, plain attributes), the samples, and the preprocessing before the network.
Whatever is changed in place is another key, so that nothing outdated is ever returned. Samples that cannot be looked
at cheaply (a Dataset, arrays that are read from zarr, HDF5 or Dask, memory maps above 1 GiB) are not kept. Without the
context manager nothing is looked at and nothing is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha1
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.samples import Samples
from skal.validation import parse_memory

__all__ = ["feature_reuse", "reused"]

_CHUNK = 1024  # rows that are looked at at once
_MAX_MAPPED = 2**30  # bytes of a memory map; a larger one may not stay in memory, and would be read from the disk twice
Result = TypeVar("Result")


class _Store:
    """Results by their keys, within a bound; the one that was used longest ago goes first."""

    def __init__(self, memory: int) -> None:
        self.memory = memory
        self._kept: OrderedDict[bytes, Any] = OrderedDict()

    def get(self, key: bytes) -> Any | None:
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return _copy(self._kept[key])

    def put(self, key: bytes, result: Any) -> None:
        self._kept[key] = _copy(result)
        while sum(map(_size, self._kept.values())) > self.memory:
            self._kept.popitem(last=False)


# what is kept at present: None outside feature_reuse
kept: ContextVar[_Store | None] = ContextVar("skal_reuse", default=None)


@contextmanager
def feature_reuse(max_memory: int | str | None = "256MB") -> Iterator[None]:
    """Keep what queries compute from one query to the next, inside this block.

    For several strategies that ask about the same network and the same pool. A loop that trains between queries
    gains nothing: every training changes the network.

    Parameters
    ----------
    max_memory : int, str or None, default="256MB"
        For everything that is kept; what was used longest ago goes first. 0 or None keeps nothing, also inside another
        such block.

    Yields
    ------
    None
        Nothing: what is kept is found by the strategies themselves.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.reuse import feature_reuse
    >>> from skal.strategies import entropy, margin
    >>> learner, X_pool = make_learner()
    >>> with feature_reuse("1GB"):
    ...     first, second = margin(learner, X_pool), entropy(learner, X_pool)  # one pass over the pool
    """
    memory = 0 if max_memory in (0, None) else parse_memory("feature_reuse", "max_memory", max_memory)
    token = kept.set(_Store(memory) if memory else None)
    try:
        yield
    finally:
        kept.reset(token)


def reused(
    network: Any,
    samples: Samples,
    what: Any,
    compute: Callable[[], Result],
    *,
    also: Sequence[Any] = (),
    limit: int | None = None,
) -> Result:
    """``compute()``, or inside :func:`feature_reuse` what it gave when network and samples were the same.

    Parameters
    ----------
    network : Network
        What the result is computed with.
    samples : Samples
        What it is computed for.
    what : object
        What is computed from the two, with all parameters that it depends on; its repr tells it apart.
    compute : callable
        Returns tensors, or tuples of them.
    also : sequence of Samples and arrays
        What else the result depends on.
    limit : int, optional
        Bytes from which on a result is not kept, whatever room there is.

    Returns
    -------
    tensor, or tuple of tensors
        What ``compute`` gave.

    Examples
    --------
    >>> import torch
    >>> from skal.checks import make_learner
    >>> from skal.context import QueryContext
    >>> from skal.reuse import feature_reuse, reused
    >>> def norms():
    ...     print("computed")
    ...     return context.embeddings()[0].norm(dim=1)
    >>> context = QueryContext(*make_learner())
    >>> with feature_reuse():
    ...     first = reused(context.network, context.pool, "norms", norms)
    ...     again = reused(context.network, context.pool, "norms", norms)
    computed
    >>> torch.equal(first, again)
    True
    """
    store = kept.get()
    key = _key(network, samples, what, also) if store is not None and len(samples) > 1 else None
    if store is None or key is None:
        return compute()
    known: Result | None = store.get(key)
    if known is not None:
        return known
    result = compute()
    if _size(result) <= (store.memory if limit is None else min(store.memory, limit)):
        store.put(key, result)
    return result


def _copy(result: Any) -> Any:
    """What is given away may be written into; what is kept may not."""
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, result)


def _size(result: Any) -> int:
    return sum(x.numel() * x.element_size() for x in tree_leaves(result) if isinstance(x, Tensor))


def _key(network: Any, samples: Samples, what: Any, also: Sequence[Any]) -> bytes | None:
    everything = [samples, *(other for other in also if isinstance(other, Samples))]
    if not all(network.reads_arrays(part) and _can_be_looked_at(part.X) for part in everything):
        return None
    # sha1 is what processors do fastest; nobody attacks a cache of his own
    digest = sha1(repr((what, str(network.device))).encode(), usedforsecurity=False)
    try:
        digest.update(cloudpickle.dumps((network.module, network.criterion, [part.transform for part in everything])))
    except Exception:  # what cannot be pickled cannot be compared, and is computed each time
        return None
    for part in everything:
        digest.update(repr(len(part)).encode())
        for start in range(0, len(part), _CHUNK):
            _add(digest, part.read(start, min(start + _CHUNK, len(part))))
    for other in also:
        if not isinstance(other, Samples):
            _add(digest, other)
    return digest.digest()


def _can_be_looked_at(X: Any) -> bool:
    if isinstance(X, Mapping):
        return all(map(_can_be_looked_at, X.values()))
    if isinstance(X, Tensor):
        return X.device.type == "cpu" and X.layout == torch.strided and X.dtype != torch.bfloat16
    if isinstance(X, np.memmap) and X.nbytes > _MAX_MAPPED:
        return False
    return isinstance(X, np.ndarray) and not X.dtype.hasobject


def _add(digest: Any, rows: Any) -> None:
    if isinstance(rows, Mapping):
        for name, value in rows.items():
            digest.update(repr(name).encode())
            _add(digest, value)
        return
    array = rows.detach().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
    digest.update(repr((array.shape, array.dtype.str)).encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
