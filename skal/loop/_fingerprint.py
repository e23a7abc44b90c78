# SPDX-License-Identifier: BSD-3-Clause
"""By what data and parameters a folder is known to be of the same run: text that is the same in another process."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import nn
from torch.utils.data import Dataset

from skal._core.containers import n_rows, take_rows
from skal._core.identity import code_digest

# skal's own classes and functions are known by their names: where they lie, and their code, may change
_SKALS_OWN = re.compile(r"\bskal\.(?:\w+\.)*(\w+)(?: [0-9a-f]{16}\b)?")
# what changes how a run is shown, or how fast it is, but not its result
_NOT_COMPARED = {"callbacks", "checkpoint"}
_NOWHERE_COMPARED = {"verbose", "progress", "n_jobs", "folder"}


def fingerprint_data(X: Any, *, max_bytes: int = 2**28, n_sampled: int = 1000) -> dict[str, Any]:
    """Type, shape and a hash of the content.

    More than ``max_bytes`` are recognised by ``n_sampled`` rows spread evenly. A Dataset's items may change from one
    reading to the next, so that only its length counts.

    Examples
    --------
    >>> fingerprint_data(np.zeros((2, 3)))["shape"]
    [2, 3]
    """
    if isinstance(X, Mapping) and not sp.issparse(X):
        return {str(key): fingerprint_data(value) for key, value in X.items()}
    if isinstance(X, Dataset):
        return {"type": type(X).__name__, "length": n_rows(X)}
    shape = [int(n) for n in X.shape] if hasattr(X, "shape") else [len(X)]
    size = int(np.sum(X.memory_usage()) if hasattr(X, "iloc") else getattr(X, "nbytes", 0))
    sampled = size > max_bytes
    if sampled:
        X = take_rows(X, np.unique(np.linspace(0, shape[0] - 1, n_sampled).astype(np.int64)))
    return {"shape": shape, "sampled": sampled, "sha256": _hash(X)}


def _hash(X: Any) -> str:
    digest = hashlib.sha256()
    for part in _parts(X):
        digest.update(part)
    return digest.hexdigest()


def _parts(X: Any) -> Iterator[bytes]:
    if isinstance(X, torch.Tensor):
        X = X.detach().cpu().contiguous()
        yield str(X.dtype).encode()
        X = X.view(torch.uint8).numpy() if X.ndim else X.reshape(1).view(torch.uint8).numpy()
    if hasattr(X, "iloc"):
        import pandas as pd

        yield str(list(getattr(X, "columns", []))).encode()
        X = pd.util.hash_pandas_object(X, index=False).to_numpy()
    if sp.issparse(X):
        X = X.tocsr()
        yield from (part for array in (X.data, X.indices, X.indptr) for part in _parts(array))
        return
    array = np.asarray(X)
    yield f"{array.dtype} {array.shape}".encode()
    yield str(array.tolist()).encode() if array.dtype.kind == "O" else np.ascontiguousarray(array).tobytes()


def describe_params(params: dict[str, Any]) -> dict[str, str]:
    """The parameters of a loop that bear on its result, as text that is the same in another process."""
    params = {name: value for name, value in _compared(params).items() if name not in _NOT_COMPARED}
    return without_own_paths({name: describe(value) for name, value in params.items()})


def without_own_paths(descriptions: dict[str, str]) -> dict[str, str]:
    """Descriptions that do not depend on where in skal something lies; those of older checkpoints did.

    Examples
    --------
    >>> without_own_paths({"query_strategy": "skal.strategies._uncertainty.margin 0123456789abcdef"})
    {'query_strategy': 'skal.margin'}
    """
    return {name: _SKALS_OWN.sub(r"skal.\1", text) for name, text in descriptions.items()}


def _compared(params: dict[str, Any]) -> dict[str, Any]:
    """Without what bears on no result, and without the attributes that skorch lists among a net's parameters."""
    names = (name for name in params if name.split("__")[-1] not in _NOWHERE_COMPARED and not name.startswith("_"))
    return {name: params[name] for name in sorted(names)}


def describe(value: Any, depth: int = 6) -> str:
    """A value as text that depends on its content, never on where in memory it stands.

    Examples
    --------
    >>> describe({"lr": 0.1, "optimizer": torch.optim.SGD})
    "{'lr': 0.1, 'optimizer': torch.optim.sgd.SGD}"
    """
    inner = partial(describe, depth=depth - 1)
    if value is None or isinstance(value, (bool, int, float, str, bytes, np.generic)) or depth == 0:
        return repr(value) if depth else type(value).__name__
    if isinstance(value, (type, torch.dtype, torch.device)):
        return f"{value.__module__}.{value.__qualname__}" if isinstance(value, type) else str(value)
    if isinstance(value, (np.ndarray, torch.Tensor)) or hasattr(value, "iloc") or sp.issparse(value):
        return f"{type(value).__name__} {_hash(value)}"
    if isinstance(value, nn.Module):
        return f"{value} {inner(dict(value.state_dict()))}"
    if isinstance(value, (np.random.Generator, np.random.RandomState)):
        return f"{type(value).__name__} {inner(generator_state(value))}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {inner(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(inner(part) for part in value) + "]"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(inner(part) for part in value)) + "}"
    if isinstance(value, partial):
        return f"partial {inner([value.func, list(value.args), value.keywords])}"
    if isinstance(value, MethodType):
        return f"{inner(value.__func__)} of {inner(value.__self__)}"
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__qualname__} {code_digest(value.__code__)}"
    if hasattr(value, "get_params"):
        return f"{inner(type(value))} {inner(_compared(value.get_params(deep=False)))}"
    name = getattr(value, "__qualname__", getattr(value, "__name__", ""))  # functions written in C
    return f"{inner(type(value))} {name} {inner(getattr(value, '__dict__', {}))}"


def generator_state(generator: Any) -> Any:
    """Of a numpy generator, old or new, as plain data."""
    is_new = isinstance(generator, np.random.Generator)
    return generator.bit_generator.state if is_new else generator.get_state(legacy=False)
