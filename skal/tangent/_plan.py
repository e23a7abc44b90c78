# SPDX-License-Identifier: BSD-3-Clause
"""Which backend computes which parameter: the cheapest one that a comparison with autograd has shown to be right."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.last_layer import keeps_order, row_digests
from skal._core.network import Network
from skal.exceptions import UnsupportedLayerError
from skal.tangent._backends import BackpackBackend, FuncBackend, LoopBackend
from skal.tangent._cotangents import probes, target_itself
from skal.tangent._factors import Gradients, PerSampleGradient
from skal.tangent._layer_rules import find_rule, has_own_rule
from skal.tangent._structured import StructuredBackend, UnsuitedLayerError

BACKENDS: dict[str, Callable[[Network, set[str]], Any]] = {
    "structured": StructuredBackend,
    "func": FuncBackend,
    "backpack": BackpackBackend,
    "loop": LoopBackend,
}
N_CHECKED = 3  # samples that are compared with autograd
Parts = Sequence[tuple[str, frozenset[str]]]
# how the layers of a module are handled: no data and no outputs; found out once, and gone with the module
_PLANS: WeakKeyDictionary[nn.Module, tuple[Any, frozenset[str], dict[str, Plan]]] = WeakKeyDictionary()


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


def make_plan(
    network: Network, batch: Any, backend: str, *, rules: bool = True, reordered: frozenset[str] = frozenset()
) -> Plan:
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
    reordered : set of str
        Layers that do not receive the samples of a batch in their order: only what passes single samples is right for
        them, whatever the comparison says.
    """
    module = network.module
    signature = (
        type(network.criterion),
        *((name, type(layer), find_rule(layer)) for name, layer in module.named_modules()),
        *((name, p.shape, p.dtype, p.requires_grad) for name, p in module.named_parameters()),
    )
    known_signature, known_reordered, plans = _PLANS.get(module, (None, frozenset(), {}))
    if known_signature == signature:
        reordered |= known_reordered  # samples that happen to be in order do not show it
    if (known_signature, known_reordered) != (signature, reordered):
        plans = {}
        _PLANS[module] = (signature, reordered, plans)
    n = min(N_CHECKED, tree_leaves(batch)[0].shape[0])
    # what one sample shows of a network may not hold for several
    if backend not in plans or plans[backend].n_checked < n or not rules:
        candidates = ("structured", "func")[0 if rules else 1 :] if backend == "auto" else (backend,)
        few = tree_map(lambda x: x[:n], batch)
        plans[backend] = _compare_backends(network, few, n, backend, candidates, reordered)
    return plans[backend]


def make_backends(network: Network, parts: Parts, idle: frozenset[str]) -> list[Any]:
    """The backends of a plan; the first one also looks after the idle parameters."""
    (name, covered), *others = parts or [("structured", frozenset())]
    first = StructuredBackend(network, set(covered), set(idle))
    if name != "structured":
        first = BACKENDS[name](network, set(covered | idle))
    return [first, *(BACKENDS[name](network, set(covered)) for name, covered in others)]


def refuse_mixing_layers(module: nn.Module) -> None:
    """Refuse layers that are known to mix the samples of a batch."""
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None:
            raise UnsupportedLayerError(
                f"Every sample's output must depend on that sample alone. Got the layer {name!r}, a "
                f"{type(layer).__name__} without running statistics, which mixes the samples of a batch. "
                "Set track_running_stats=True, or use GroupNorm."
            )


def _compare_backends(
    network: Network, batch: Any, n: int, backend: str, candidates: Sequence[str], reordered: frozenset[str]
) -> Plan:
    names = set(network.trainable())
    with torch.no_grad():
        target = network.logits(batch)
    target = probes(*target.shape).to(target)
    truth = next(LoopBackend(network, names).gradients(batch, target, [target_itself]))
    missing = set(truth)
    parts: list[tuple[str, frozenset[str]]] = []
    refused = _parameters_of(network, reordered)
    for candidate in candidates:
        right, error = _verify(candidate, network, batch, target, missing, truth) if missing else (set(), None)
        right -= refused if candidate != "func" else set()
        if right:
            parts.append((candidate, frozenset(right)))
            missing -= right
        if missing and backend != "auto":
            raise (
                error
                if isinstance(error, UnsupportedLayerError)
                else _refusal(network, missing, backend, error, refused)
            )
    if missing:
        parts.append(("loop", frozenset(missing)))
    return Plan(tuple(parts), frozenset(names - set(truth)), n)


def _parameters_of(network: Network, layers: frozenset[str]) -> set[str]:
    """The trainable parameters that are some layers' own."""
    own = {id(p) for name in layers for p in network.module.get_submodule(name).parameters(recurse=False)}
    return {name for name, p in network.trainable().items() if id(p) in own}


def reordered_layers(network: Network, batch: Any, second: Any) -> tuple[frozenset[str], list[Tensor]]:
    """Names of the layers with a rule to which samples come in another order than to the network, and both outputs.

    Parameters
    ----------
    network : Network
        In eval mode.
    batch, second : from :func:`skal._core.last_layer.two_orders`
        The same samples in two orders.
    """
    (first, one), (then, other) = (_input_digests(network, some) for some in (batch, second))
    n, epsilon = tree_leaves(batch)[0].shape[0], torch.finfo(network.dtype).eps
    reordered = frozenset(
        name
        for name, digests in first.items()
        if len(digests) == len(then.get(name, []))  # or it is used by some batches alone, which the backends notice
        and not all(keeps_order(a, b, epsilon) for a, b in zip(digests, then[name], strict=True) if len(a) == n)
    )
    return reordered, [one, other]


def _input_digests(network: Network, batch: Any) -> tuple[dict[str, list[Tensor]], Tensor]:
    """(n, 2) digests of what each layer with a rule receives, for each of its calls, and the network's outputs."""
    digests: dict[str, list[Tensor]] = {}

    def record(name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        value = args[0] if args else next(iter(kwargs.values()), None)
        if isinstance(value, Tensor) and value.ndim > 0:
            if isinstance(layer, nn.MultiheadAttention):
                value = value if layer.batch_first or value.ndim < 3 else value.transpose(0, 1)
                digests.setdefault(f"{name}.out_proj".lstrip("."), []).append(row_digests(value))
            digests.setdefault(name, []).append(row_digests(value))

    with ExitStack() as stack, torch.no_grad():
        for name, layer in network.module.named_modules():
            if find_rule(layer) is not None or isinstance(layer, nn.MultiheadAttention):
                handle = layer.register_forward_pre_hook(partial(record, name), with_kwargs=True)
                stack.callback(handle.remove)
        output = network.output(batch)
    return digests, output


def _verify(
    backend: str, network: Network, batch: Any, target: Tensor, names: set[str], truth: Gradients
) -> tuple[set[str], Exception | None]:
    """The parameters for which the backend agrees with autograd, and the error that it raised, if any."""
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
        except Exception as error:  # if one backend fails, another one takes over
            return set(), error
    total = torch.stack([gradient.dense().double().norm() for gradient in truth.values()]).norm()
    epsilon = torch.finfo(network.dtype).eps
    right = {name for name in names & set(result) if _agree(result[name], truth[name].dense(), total, epsilon)}
    if backend == "structured":
        right -= {name for name in right if not truth[name].dense().any() and not _is_plain(network, name)}
    return right, problem


def _agree(gradient: PerSampleGradient, truth: Tensor, total: Tensor, epsilon: float) -> bool:
    try:
        result = gradient.dense()
    except Exception:  # multiplied out only now, and a layer with another forward has other sizes
        return False
    if result.shape != truth.shape:
        return False
    # a wrong rule is wrong by a factor; rounding in half precision or float32 (TF32 on a GPU) is not
    loose, tight = (max(1e-2, 16 * epsilon), max(1e-5, epsilon)) if truth.dtype != torch.float64 else (1e-6, 1e-9)
    error = (result.double() - truth.double()).norm()
    return bool(error <= loose * truth.double().norm() + tight * total)


def _is_plain(network: Network, name: str) -> bool:
    """True if a parameter's rule may be trusted where a gradient of zero leaves nothing to compare."""
    parameter = network.trainable()[name]
    holders = [x for x in network.module.modules() if any(p is parameter for p in x.parameters(recurse=False))]
    return all(has_own_rule(layer) for layer in holders)


def _refusal(
    network: Network, missing: set[str], backend: str, error: Exception | None, reordered: set[str]
) -> UnsupportedLayerError:
    """The backend's own error in words, or the first parameter that it does not cover, its layer and the reason."""
    name = min(missing)
    layer = network.module.get_submodule(name.rpartition(".")[0])
    why = "its gradients are not autograd's"
    if backend == "structured":
        why = "no rule for it" if find_rule(layer) is None else "its forward differs from what its rule expects"
    if name in reordered:
        why = "it does not receive the samples of a batch in their order"
    got = f"the parameter {name!r} of a {type(layer).__name__} layer ({why})"
    if error is not None:
        got = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return UnsupportedLayerError(
        f"With backend={backend!r} every layer must be one that it can handle. "
        f"Got {got}. Use backend='auto', or register a rule with skal.tangent.register_rule."
    )
