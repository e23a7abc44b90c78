"""A second device with values, on any machine: what lies there is computed by the processor, and mixes with nothing.

Tensors there say that they are on "meta". Operations on tensors of both devices are refused as on a GPU, save those
that torch allows there: copies, single numbers, and positions to index with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "meta"
_MAY_MIX = {"_to_copy", "copy_", "_local_scalar_dense", "index", "index_put", "index_put_"}


class There(Tensor):
    """A tensor on the device, around one of the processor."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> There:
        layout = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        return Tensor._make_wrapper_subclass(cls, inner.shape, **layout, device=DEVICE)

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"There({self.inner})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What torch's binding makes of lists would have no values on "meta"."""
        with torch._C.DisableTorchFunctionSubclass():
            if func is Tensor.tolist:
                return args[0].cpu().tolist()
            if func is Tensor.new_tensor:
                return torch.tensor(args[1], dtype=args[0].dtype).to(DEVICE)
            if func in (Tensor.__getitem__, Tensor.__setitem__):
                places = args[1] if isinstance(args[1], tuple) else (args[1],)
                args = args[0], tuple(_places(x) if isinstance(x, list) else x for x in places), *args[2:]
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


def _places(index: list[Any]) -> Tensor:
    return torch.tensor(index, dtype=None if index else torch.int64)


def _is_there(device: Any) -> bool:
    return device is not None and torch.device(device).type == DEVICE


def _tensors(tree: Any) -> Iterator[Tensor]:
    """The tensors among an operation's arguments, or of its result: alone, or in lists."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (list, tuple)):
        for each in tree:
            yield from _tensors(each)


def _change(function: Callable[[Any], Any], tree: Any) -> Any:
    """The same lists with other tensors in them; torch's own way takes ten times as long, for each operation."""
    if isinstance(tree, Tensor):
        return function(tree)
    return type(tree)([_change(function, each) for each in tree]) if isinstance(tree, (list, tuple)) else tree


def _inner(tensor: Tensor) -> Tensor:
    return tensor.inner if isinstance(tensor, There) else tensor


def _compute(func: Any, args: Any, kwargs: dict[str, Any], doubles: bool = True) -> Any:
    name, tensors = func.overloadpacket.__name__, [*_tensors(args), *_tensors(list(kwargs.values()))]
    there = [isinstance(x, There) for x in tensors]
    stays = args and isinstance(args[0], There) if name == "copy_" else any(there)
    stays = _is_there(kwargs["device"]) if kwargs.get("device") is not None else stays
    alone = all(here or not x.ndim for x, here in zip(tensors, there, strict=True))
    if any(there) and not alone and name not in _MAY_MIX and "device" not in kwargs:
        raise RuntimeError(f"{name} must have all tensors on one device. Got tensors on two devices.")
    named = {key: _change(_inner, value) for key, value in kwargs.items()}
    result = func(*_change(_inner, args), **(named | {"device": torch.device("cpu")} if "device" in named else named))
    if name.endswith("_") and func._schema.is_mutable:
        return args[0]
    if "out" in kwargs:
        return kwargs["out"]
    if stays and not doubles and any(x.dtype == torch.float64 for x in _tensors(result)):
        raise TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64.")
    return _change(There, result) if stays else result


class _Operations(TorchDispatchMode):
    def __init__(self, doubles: bool) -> None:
        super().__init__()
        self._doubles = doubles

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {}, self._doubles)


class SecondDevice(TorchFunctionMode):
    """Inside, the device exists; without ``doubles`` it refuses double precision, as Apple's do."""

    def __init__(self, doubles: bool = True) -> None:
        super().__init__()
        self._operations = _Operations(doubles)

    def __enter__(self) -> Any:
        self._operations.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._operations.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and _is_there(kwargs.get("device")):
            device = kwargs.pop("device")  # what is made on "meta" at once has no values
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)
