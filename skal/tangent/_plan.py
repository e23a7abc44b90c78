"""Which backend computes which parameter: the cheapest one that a comparison with autograd has shown to be right."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.network import Network
from skal.exceptions import UnsupportedLayerError
from skal.tangent._backpack import BackpackBackend
from skal.tangent._cotangents import probes, target_itself
from skal.tangent._factors import Gradients
from skal.tangent._func import FuncBackend, LoopBackend
from skal.tangent._layers import find_rule, has_own_rule
from skal.tangent._structured import StructuredBackend, UnsuitedLayerError

__all__ = ["BACKENDS", "Plan", "make_backends", "make_plan"]

BACKENDS: dict[str, Callable[[Network, set[str]], Any]] = {
    "structured": StructuredBackend,
    "func": FuncBackend,
    "backpack": BackpackBackend,
    "loop": LoopBackend,
}
N_CHECKED = 3  # samples that are compared with autograd
Parts = Sequence[tuple[str, frozenset[str]]]
_PLANS: WeakKeyDictionary[nn.Module, tuple[Any, dict[str, Plan]]] = WeakKeyDictionary()


class Plan(NamedTuple):
    """Names of backends with the parameters that each computes.

    Attributes
    ----------
    parts : tuple of (backend, parameters)
    idle : set of str
        Parameters without influence on the outputs of the samples that were looked at.
    n_checked : int
        How many these were.
    """

    parts: tuple[tuple[str, frozenset[str]], ...]
    idle: frozenset[str] = frozenset()
    n_checked: int = 0


def make_plan(network: Network, batch: Any, backend: str, *, rules: bool = True) -> Plan:
    """Assign every trainable parameter to a backend, and remember it for the module.

    Parameters
    ----------
    network : Network
        In eval mode.
    batch : a batch of a few samples on the network's device
    backend : {"auto", "structured", "func", "backpack"}
        Anything but "auto" has to do it alone, and raises if it cannot.
    rules : bool
        False replaces a plan with layer rules by one without.
    """
    module = network.module
    _refuse_mixing_layers(module)
    signature = (
        type(network.criterion),
        *((name, type(layer), find_rule(layer)) for name, layer in module.named_modules()),
        *((name, p.shape, p.dtype, p.requires_grad) for name, p in module.named_parameters()),
    )
    known_signature, plans = _PLANS.get(module, (None, {}))
    if known_signature != signature:
        plans = {}
        _PLANS[module] = (signature, plans)
    n = min(N_CHECKED, tree_leaves(batch)[0].shape[0])
    # what one sample shows of a network may not hold for several
    if backend not in plans or plans[backend].n_checked < n or not rules:
        candidates = ("structured", "func")[0 if rules else 1 :] if backend == "auto" else (backend,)
        plans[backend] = _checked_plan(network, tree_map(lambda x: x[:n], batch), n, backend, candidates)
    return plans[backend]


def make_backends(network: Network, parts: Parts, idle: frozenset[str]) -> list[Any]:
    """The backends of a plan; the first one also looks after the idle parameters."""
    (name, covered), *others = parts or [("structured", frozenset())]
    first = StructuredBackend(network, set(covered), set(idle))
    if name != "structured":
        first = BACKENDS[name](network, set(covered | idle))
    return [first, *(BACKENDS[name](network, set(covered)) for name, covered in others)]


def _refuse_mixing_layers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None:
            raise UnsupportedLayerError(
                f"Every sample's output must depend on that sample alone. Got the layer {name!r}, a "
                f"{type(layer).__name__} without running statistics, which mixes the samples of a batch. "
                "Set track_running_stats=True, or use GroupNorm."
            )


def _checked_plan(network: Network, batch: Any, n: int, backend: str, candidates: Sequence[str]) -> Plan:
    names = set(network.trainable())
    with torch.no_grad():
        target = network.logits(batch)
    target = probes(*target.shape).to(target)
    truth = next(LoopBackend(network, names).gradients(batch, target, [target_itself]))
    missing = set(truth)
    parts: list[tuple[str, frozenset[str]]] = []
    for candidate in candidates:
        right, error = _verified(candidate, network, batch, target, missing, truth) if missing else (set(), None)
        if right:
            parts.append((candidate, frozenset(right)))
            missing -= right
        if missing and backend != "auto":
            raise error if isinstance(error, UnsupportedLayerError) else _refusal(network, missing, backend, error)
    if missing:
        parts.append(("loop", frozenset(missing)))
    return Plan(tuple(parts), frozenset(names - set(truth)), n)


def _verified(
    backend: str, network: Network, batch: Any, target: Tensor, names: set[str], truth: Gradients
) -> tuple[set[str], Exception | None]:
    """The parameters for which the backend agrees with autograd, and what it stumbled over, if it did."""
    names, problem = set(names), None
    while True:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a backend that is tried out may complain; the comparison decides
                result = next(BACKENDS[backend](network, names).gradients(batch, target, [target_itself]))
            break
        except UnsuitedLayerError as error:  # the other layers may still be suited
            names -= error.parameters
            problem = problem or error
        except Exception as error:  # whatever a backend stumbles over, another one takes over
            return set(), error
    total = torch.stack([gradient.dense().double().norm() for gradient in truth.values()]).norm()
    right = {name for name in names & set(result) if _agree(result[name].dense(), truth[name].dense(), total)}
    if backend == "structured":
        right -= {name for name in right if not truth[name].dense().any() and not _is_plain(network, name)}
    return right, problem


def _agree(result: Tensor, truth: Tensor, total: Tensor) -> bool:
    if result.shape != truth.shape:
        return False
    # a wrong rule is wrong by a factor; rounding in float32 (TF32 on a GPU) is not
    loose, tight = (1e-2, 1e-5) if truth.dtype != torch.float64 else (1e-6, 1e-9)
    error = (result.double() - truth.double()).norm()
    return bool(error <= loose * truth.double().norm() + tight * total)


def _is_plain(network: Network, name: str) -> bool:
    """Whether a parameter's rule may be trusted where a gradient of zero leaves nothing to compare."""
    parameter = network.trainable()[name]
    holders = [x for x in network.module.modules() if any(p is parameter for p in x.parameters(recurse=False))]
    return all(has_own_rule(layer) for layer in holders)


def _refusal(network: Network, missing: set[str], backend: str, error: Exception | None) -> UnsupportedLayerError:
    """Say what the backend stumbled over, or name the first parameter that is not covered, its layer, and why."""
    name = min(missing)
    layer = network.module.get_submodule(name.rpartition(".")[0])
    why = "its gradients are not autograd's"
    if backend == "structured":
        why = "no rule for it" if find_rule(layer) is None else "its forward differs from what its rule expects"
    got = f"the parameter {name!r} of a {type(layer).__name__} layer ({why})"
    if error is not None:
        got = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return UnsupportedLayerError(
        f"With backend={backend!r} every layer must be one that it can handle. "
        f"Got {got}. Use backend='auto', or register a rule with skal.tangent.register_rule."
    )
