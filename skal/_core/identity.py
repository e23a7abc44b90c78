# SPDX-License-Identifier: BSD-3-Clause
"""What makes two samples, two models or two data sets the same: digests of their content.

All digests are the same in another process. A cache has no attackers, so the fastest hash will do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, Subset

from skal._core.containers import dataset_input, n_rows
from skal.exceptions import InvalidTypeError

DIGEST_BYTES = 16


def sample_digests(X: Any) -> list[bytes]:
    """A digest of every sample; exact copies have the same.

    Parameters
    ----------
    X : array, tensor, data frame, sparse matrix, list, dict of these, or Dataset
        Of a Dataset every item is read, and its label does not count.

    Examples
    --------
    >>> keys = sample_digests(np.array([[1, 2], [3, 4], [1, 2]]))
    >>> keys[0] == keys[2], keys[0] == keys[1]
    (True, False)
    """
    if isinstance(X, Mapping):
        rows: Any = zip(*(sample_digests(X[name]) for name in sorted(X, key=repr)), strict=True)
        return [digest_bytes(b"".join(row)) for row in rows]
    if isinstance(X, Dataset):
        return [_item_digest(dataset_input(X[i])) for i in range(n_rows(X))]
    if sp.issparse(X):
        X = X.tocsr().sorted_indices()  # a copy: the caller's may be in any order
        parts = zip(np.split(X.indices, X.indptr[1:-1]), np.split(X.data, X.indptr[1:-1]), strict=True)
        return [digest_bytes(indices.astype(np.int64).tobytes() + data.tobytes()) for indices, data in parts]
    if hasattr(X, "iloc"):  # columns of a frame have types of their own
        return [_item_digest(row) for row in (X.itertuples(index=False, name=None) if X.ndim > 1 else X)]
    array = _as_array(X)
    if array.dtype.kind in "OUST":
        return [_item_digest(value) for value in array]
    array = np.ascontiguousarray(array)
    return [digest_bytes(row.tobytes()) for row in (array[:, None] if array.ndim == 1 else array)]


def _as_array(X: Any) -> np.ndarray:
    if isinstance(X, Tensor):
        X = X.detach().cpu()
        X = X.view(torch.int16) if X.dtype == torch.bfloat16 else X  # numpy has none
    return np.asarray(X)


def _item_digest(item: Any) -> bytes:
    """Digest of a Dataset's item: a number, text, array or tensor, or any object whose content can be read."""
    item = item.item() if isinstance(item, np.generic) else item
    if type(item) is tuple and all(isinstance(part, _PLAIN) for part in item):  # a table has many such rows
        return digest_bytes(repr(item).encode("utf-8", "surrogatepass"))
    if isinstance(item, (Tensor, np.ndarray)):
        array = _as_array(item)
        if not array.dtype.hasobject:
            return digest_bytes(array.tobytes())
    digest = object_digest(item)
    if digest is None:
        raise InvalidTypeError(
            f"The samples must have content that can be read. Got a {type(item).__name__} that does not show it. "
            "Return arrays, tensors, numbers or texts from the Dataset, or give the samples ids."
        )
    return digest_bytes(digest.encode())


def digest_bytes(content: bytes | memoryview) -> bytes:
    """A digest of 16 bytes; of a text, of its encoding.

    Examples
    --------
    >>> digest_bytes(b"a") == digest_bytes(b"a"), digest_bytes(b"a") == digest_bytes(b"b")
    (True, False)
    """
    return hashlib.blake2b(content, digest_size=DIGEST_BYTES).digest()


def data_digest(parts: Iterable[Any]) -> str:
    """A digest of arrays, or dicts of them, one after the other: types, shapes and content."""
    digest = hashlib.sha1(usedforsecurity=False)

    def add(value: Any) -> None:
        if isinstance(value, Mapping):
            for name, part in value.items():
                digest.update(repr(name).encode())
                add(part)
            return
        array = np.ascontiguousarray(_as_array(value))
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(array.reshape(-1).view(np.uint8).data)

    for part in parts:
        add(part)
    return digest.hexdigest()


class _Itself:
    """Compares an object by identity, whatever it calls equal, and keeps it alive: its address is not reused."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def dataset_place(dataset: Any, row: int) -> tuple[Hashable, int]:
    """The Dataset that a row of a Subset or ConcatDataset is taken from, and its place there.

    Samples of a Dataset are recognised by their places, so that nothing has to be read.
    """
    while True:
        if isinstance(dataset, Subset):
            dataset, row = dataset.dataset, int(dataset.indices[row])
        elif isinstance(dataset, ConcatDataset):
            number = int(np.searchsorted(dataset.cumulative_sizes, row, side="right"))
            row -= dataset.cumulative_sizes[number - 1] if number else 0
            dataset = dataset.datasets[number]
        else:
            return _Itself(dataset), row


def copy_groups(digests: Sequence[bytes], known: Iterable[bytes] = ()) -> np.ndarray:
    """Integers that exact copies share.

    Parameters
    ----------
    digests : n digests
        Of samples, from :meth:`Samples.digests`.
    known : digests, optional
        Of other samples; their copies get −1.

    Returns
    -------
    (n,) int64 array
        The position of the first copy, or −1.

    Examples
    --------
    >>> from skal.context import copy_groups
    >>> copy_groups([b"a", b"b", b"a", b"c"], known=[b"c"])
    array([ 0,  1,  0, -1])
    """
    groups = dict.fromkeys(known, -1)
    return np.array([groups.setdefault(digest, row) for row, digest in enumerate(digests)], dtype=np.int64)


Weights = list[tuple[Tensor, int]]


def weights_of(module: nn.Module) -> Weights:
    """Parameters and buffers with their versions, which torch counts up whenever it writes to them.

    Versions show a change without reading the values; the tensors are kept, so that their addresses are not reused.
    """
    return [(weight, weight._version) for weight in (*module.parameters(), *module.buffers())]


def are_same_weights(first: Weights, second: Weights) -> bool:
    """True if nothing has been written to a module's weights from one look to the other, in this process.

    Examples
    --------
    >>> module = nn.Linear(1, 1)
    >>> before = weights_of(module)
    >>> are_same_weights(before, weights_of(module))
    True
    >>> _ = nn.init.zeros_(module.weight)
    >>> are_same_weights(before, weights_of(module))
    False
    """
    return [(id(weight), version) for weight, version in first] == [(id(weight), version) for weight, version in second]


_PLAIN = (bool, int, float, complex, str, bytes, np.generic, torch.dtype, type(None))
_NAMED = (type, BuiltinFunctionType, ModuleType)
_COMPUTES = (*_PLAIN, *_NAMED, Tensor, np.ndarray, nn.Module, FunctionType, MethodType, partial)


def object_digest(value: Any, without: tuple[Any, ...] = ()) -> str | None:
    """A digest of everything that an object holds, or None if it cannot be looked at.

    For a function: its code, its defaults, and the numbers, arrays, modules, transformers and functions that it uses.
    For a module: its parameters, buffers and attributes. For anything else: what its pickle would hold.

    Parameters
    ----------
    value : object
    without : tuple of objects
        Parts that do not count, wherever they stand.

    Examples
    --------
    >>> object_digest([1, "a"]) == object_digest([1, "a"]), object_digest([1, "a"]) == object_digest([1, "b"])
    (True, False)
    """
    walk = _Walk(without)
    try:
        walk.add(value)
    except Exception:  # an object may refuse to be looked at in any way it likes
        return None
    return walk.digest.hexdigest()


def code_digest(code: CodeType) -> str:
    """A hash of a function's code, so that two lambdas are not the same; where it stands in its file does not count."""
    constants = [code_digest(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts]
    return hashlib.sha256(repr((code.co_code, constants, code.co_names)).encode()).hexdigest()[:16]


class _Walk:
    """Goes through an object, whatever it is made of."""

    def __init__(self, without: tuple[Any, ...]) -> None:
        # sha1 is the fastest on most processors, and a cache has no attackers
        self.digest = hashlib.sha1(usedforsecurity=False)
        self._seen: dict[int, tuple[int, Any]] = {id(part): (-1, part) for part in without}

    def add(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._say(repr(value))
        elif isinstance(value, _NAMED):
            self._say(f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}")
        elif id(value) in self._seen:
            self._say(f"no. {self._seen[id(value)][0]}")
        else:
            self._seen[id(value)] = len(self._seen), value  # an id is unique only while its object lives
            self._say(type(value).__qualname__)
            self._add_parts(value)

    def _add_parts(self, value: Any) -> None:
        if isinstance(value, Tensor):
            value = value.detach().cpu().contiguous()
            self._say(f"{value.dtype} {tuple(value.shape)}")
            self.digest.update(value.reshape(-1).view(torch.uint8).numpy())
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._say(f"{value.dtype} {value.shape}")
            self.digest.update(np.ascontiguousarray(value).data)
        elif isinstance(value, dict):
            self._add_all([part for item in value.items() for part in item])
        elif isinstance(value, (list, tuple)):
            self._add_all(value)
        elif isinstance(value, (set, frozenset)):
            self._add_all(sorted(value, key=repr))
        elif isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, MethodType):
            self._add_all([value.__func__, value.__self__])
        elif isinstance(value, partial):
            self._add_all([value.func, value.args, value.keywords])
        elif isinstance(value, nn.Module):  # features are those of evaluation
            self.add({name: part for name, part in vars(value).items() if name != "training"})
        else:
            self._add_all(value.__reduce_ex__(2)[1:])

    def _add_all(self, parts: Any) -> None:
        self._say(str(len(parts)))
        for part in parts:
            self.add(list(part) if hasattr(part, "__next__") else part)

    def _add_function(self, function: FunctionType) -> None:
        around = function.__globals__
        used = [around[name] for name in function.__code__.co_names if name in around]
        used += [cell.cell_contents for cell in function.__closure__ or ()]
        self._say(f"{function.__module__}.{function.__qualname__} {code_digest(function.__code__)}")
        # a list of calls, a cache or a connection changes whenever the function is called
        known = [part if isinstance(part, _COMPUTES) or hasattr(part, "transform") else type(part) for part in used]
        self._add_all([function.__defaults__, function.__kwdefaults__, known])

    def _say(self, text: str) -> None:
        self.digest.update(text.encode() + b"\0")
