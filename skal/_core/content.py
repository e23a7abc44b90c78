# SPDX-License-Identifier: BSD-3-Clause
"""What an object computes with, as a digest that is the same in another process."""

from __future__ import annotations

import hashlib
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_PLAIN = (bool, int, float, complex, str, bytes, np.generic, torch.dtype, type(None))
_NAMED = (type, BuiltinFunctionType, ModuleType)
_COMPUTES = (*_PLAIN, *_NAMED, Tensor, np.ndarray, nn.Module, FunctionType, MethodType, partial)


def content_digest(value: Any, without: tuple[Any, ...] = ()) -> str | None:
    """A digest of everything that an object holds, or None if it cannot be looked at.

    Of a function that is its code, its defaults, and the numbers, arrays, modules, transformers and functions that it
    uses; of a module its parameters, buffers and attributes; of anything else what its pickle would have.

    Parameters
    ----------
    value : object
    without : tuple of objects
        Parts that do not count, wherever they stand.

    Examples
    --------
    >>> content_digest([1, "a"]) == content_digest([1, "a"]), content_digest([1, "a"]) == content_digest([1, "b"])
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
        # sha1 is what processors do fastest; nobody attacks what is remembered
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
            self._seen[id(value)] = len(self._seen), value  # a number is taken only as long as its object lives
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
