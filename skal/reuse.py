"""Outputs, embeddings and gradient features of an unchanged network on unchanged samples are computed once.

In one round several strategies, and the arms of one, ask for the same pass over the same pool. A result is kept under
the contents of everything that it depends on: the module (all that its pickle holds: parameters, buffers, plain
attributes), the samples, and the preprocessing before the network. Whatever is changed in place is another key, so that
nothing outdated is ever returned. Samples that cannot be looked at cheaply (a Dataset, arrays that are read from zarr,
HDF5 or Dask, memory maps above 1 GiB) are not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha1
from threading import Lock
from typing import Any, TypeVar

import cloudpickle
import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.samples import Samples
from skal.validation import parse_memory

__all__ = ["clear", "feature_reuse", "reused"]

DEFAULT_MEMORY = 256 * 10**6
_CHUNK = 1024  # rows that are looked at at once
_MAX_MAPPED = 2**30  # bytes of a memory map; a larger one may not stay in memory, and would be read from the disk twice
_memory = DEFAULT_MEMORY
_kept: OrderedDict[bytes, Any] = OrderedDict()
_lock = Lock()
Result = TypeVar("Result")


@contextmanager
def feature_reuse(max_memory: int | str | None = "256MB") -> Iterator[None]:
    """How much memory features of an unchanged network may take from one query to the next; 0 or None for none.

    Parameters
    ----------
    max_memory : int, str or None, default="256MB"
        Outside this context it is 256 MB.

    Examples
    --------
    >>> from skal.reuse import feature_reuse
    >>> with feature_reuse(None):  # every query computes everything anew
    ...     pass
    """
    global _memory
    before = _memory
    _memory = 0 if max_memory in (0, None) else parse_memory("feature_reuse", "max_memory", max_memory) or 0
    _shrink()
    try:
        yield
    finally:
        _memory = before
        _shrink()


def clear() -> None:
    """Forget everything that is kept.

    Examples
    --------
    >>> from skal.reuse import clear
    >>> clear()  # gives the memory back at once; the next query computes everything anew
    """
    with _lock:
        _kept.clear()


def reused(
    network: Any,
    samples: Samples,
    what: Any,
    compute: Callable[[], Result],
    *,
    also: Sequence[Any] = (),
    limit: int | None = None,
) -> Result:
    """``compute()``, or what it gave when network and samples were the same.

    Parameters
    ----------
    network : Network
    samples : Samples
    what : object
        What is computed from the two, with all parameters that it depends on; its repr tells it apart.
    compute : callable
        Returns tensors, or tuples of them.
    also : sequence of Samples and arrays
        What else the result depends on.
    limit : int, optional
        Bytes from which on a result is not kept, whatever room there is.

    Examples
    --------
    >>> import torch
    >>> from skal.checks import make_learner
    >>> from skal.context import QueryContext
    >>> from skal.reuse import reused
    >>> def norms():
    ...     print("computed")
    ...     return context.embeddings()[0].norm(dim=1)
    >>> context = QueryContext(*make_learner())
    >>> first = reused(context.network, context.pool, "norms", norms)
    computed
    >>> torch.equal(reused(context.network, context.pool, "norms", norms), first)  # not computed again
    True
    """
    key = _key(network, samples, what, also) if _memory and len(samples) > 1 else None
    if key is None:
        return compute()
    with _lock:
        known = _kept.get(key)
        if known is not None:
            _kept.move_to_end(key)
    if known is not None:
        return _copy(known)
    result = compute()
    if _size(result) <= (_memory if limit is None else min(_memory, limit)):
        with _lock:
            _kept[key] = _copy(result)
        _shrink()
    return result


def _copy(result: Any) -> Any:
    """What is given away may be written into; what is kept may not."""
    return tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, result)


def _shrink() -> None:
    with _lock:
        while _kept and sum(map(_size, _kept.values())) > _memory:
            _kept.popitem(last=False)


def _size(result: Any) -> int:
    return sum(x.numel() * x.element_size() for x in tree_leaves(result) if isinstance(x, Tensor))


def _key(network: Any, samples: Samples, what: Any, also: Sequence[Any]) -> bytes | None:
    everything = [samples, *(other for other in also if isinstance(other, Samples))]
    if not all(network.reads_arrays(part) and _can_be_looked_at(part.X) for part in everything):
        return None
    # sha1 is what processors do fastest; nobody attacks a cache of his own
    digest = sha1(repr((what, str(network.device))).encode(), usedforsecurity=False)
    try:
        digest.update(cloudpickle.dumps((network.module, [part.transform for part in everything])))
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
