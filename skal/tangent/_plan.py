"""Which backend computes which parameter: the cheapest one that a comparison with autograd has shown to be right."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from skal.exceptions import UnsupportedLayerError
from skal.network import Network
from skal.tangent._backpack import BackpackBackend
from skal.tangent._cotangents import probe
from skal.tangent._factors import PerSampleGradient
from skal.tangent._func import FuncBackend, LoopBackend
from skal.tangent._layers import find_rule
from skal.tangent._structured import StructuredBackend

__all__ = ["BACKENDS", "Plan", "make_plan"]

BACKENDS: dict[str, Callable[[Network, set[str]], Any]] = {
    "structured": StructuredBackend,
    "func": FuncBackend,
    "backpack": BackpackBackend,
    "loop": LoopBackend,
}
N_CHECKED = 3  # samples that are compared with autograd
_PLANS: WeakKeyDictionary[nn.Module, tuple[Any, dict[str, Plan]]] = WeakKeyDictionary()


class Plan(NamedTuple):
    """Names of backends with the parameters that each computes."""

    parts: tuple[tuple[str, frozenset[str]], ...]
    reasons: tuple[str, ...] = ()


def make_plan(network: Network, batch: Any, backend: str) -> Plan:
    """Assign every trainable parameter to a backend, and remember it for the module.

    Parameters
    ----------
    network : Network
        In eval mode.
    batch : a batch of a few samples on the network's device
    backend : {"auto", "structured", "func", "backpack"}
        Anything but "auto" has to do it alone, and raises if it cannot.
    """
    module = network.module
    _refuse_mixing_layers(module)
    signature = (type(network.criterion), *((name, p.shape, p.requires_grad) for name, p in module.named_parameters()))
    known_signature, plans = _PLANS.get(module, (None, {}))
    if known_signature != signature:
        plans = {}
        _PLANS[module] = (signature, plans)
    if backend not in plans:
        plans[backend] = _checked_plan(network, batch, backend)
    return plans[backend]


def _refuse_mixing_layers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None:
            raise UnsupportedLayerError(
                f"Every sample's output must depend on that sample alone. Got the layer {name!r}, a "
                f"{type(layer).__name__} without running statistics, which mixes the samples of a batch. "
                "Set track_running_stats=True, or use GroupNorm."
            )


def _checked_plan(network: Network, batch: Any, backend: str) -> Plan:
    n = min(N_CHECKED, tree_leaves(batch)[0].shape[0])
    batch = _first_rows(batch, n)
    names = set(network.trainable())
    truth = next(LoopBackend(network, names).gradients(batch, None, [probe]))
    missing = set(truth)  # a parameter without influence on the outputs needs no backend
    parts: list[tuple[str, frozenset[str]]] = []
    reasons: list[str] = []
    for candidate in ("structured", "func") if backend == "auto" else (backend,):
        right, reason = _verified(candidate, network, batch, missing, truth)
        if right:
            parts.append((candidate, frozenset(right)))
            missing -= right
        if missing:
            reasons.append(f"{candidate}: {reason or _describe(network, missing)}")
        if not missing:
            break
    if missing and backend == "auto":
        parts.append(("loop", frozenset(missing)))
    elif missing:
        raise UnsupportedLayerError(
            f"With backend={backend!r} every layer must be one that it can handle. "
            f"Got {reasons[-1]}. Use backend='auto', or register a rule with skal.tangent.register_rule."
        )
    return Plan(tuple(parts), tuple(reasons))


def _verified(
    backend: str, network: Network, batch: Any, names: set[str], truth: dict[str, PerSampleGradient]
) -> tuple[set[str], str]:
    """The parameters for which the backend agrees with autograd, and why it failed, if it did."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a backend that is tried out may complain; the comparison decides
            result = next(BACKENDS[backend](network, names).gradients(batch, None, [probe]))
    except Exception as error:  # whatever a backend stumbles over, another one takes over
        return set(), f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    total = torch.stack([gradient.dense().double().norm() for gradient in truth.values()]).norm()
    return {name for name in names & set(result) if _agree(result[name].dense(), truth[name].dense(), total)}, ""


def _agree(result: Tensor, truth: Tensor, total: Tensor) -> bool:
    # a wrong rule is wrong by a factor; rounding in float32 (TF32 on a GPU) is not
    loose, tight = (1e-2, 1e-5) if truth.dtype != torch.float64 else (1e-6, 1e-9)
    error = (result.double() - truth.double()).norm()
    return bool(error <= loose * truth.double().norm() + tight * total)


def _describe(network: Network, missing: set[str]) -> str:
    """Name the first parameter that is not covered, its layer, and why."""
    name = sorted(missing)[0]
    layer = network.module.get_submodule(name.rpartition(".")[0])
    why = "no rule for it" if find_rule(layer) is None else "its forward differs from what its rule expects"
    return f"the parameter {name!r} of a {type(layer).__name__} layer ({why})"


def _first_rows(batch: Any, n: int) -> Any:
    from torch.utils._pytree import tree_map

    return tree_map(lambda x: x[:n], batch)
