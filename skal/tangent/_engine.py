"""Runs a network's per-sample gradients through a reduction, chunk by chunk, within a memory bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.last_layer import find_last_layer
from skal._core.memory import activation_bytes, is_out_of_memory
from skal._core.network import Network, evaluating
from skal._core.samples import Samples
from skal._core.sharding import filled
from skal.exceptions import InvalidParameterError, NonFiniteError, SkalError, UnsupportedLayerError
from skal.tangent._cotangents import Cotangent
from skal.tangent._factors import PerSampleGradient
from skal.tangent._layers import register_rule, users_rules
from skal.tangent._plan import N_CHECKED, Plan, make_backends, make_plan
from skal.tangent._structured import StructuredBackend
from skal.validation import check_choice, check_integer, parse_memory

__all__ = ["TangentEngine"]

DEFAULT_MEMORY = 10**9
Gradients = dict[str, PerSampleGradient]


class TangentEngine:
    """Per-sample gradients of one network.

    Parameters
    ----------
    net : skorch net, nn.Module or Network
    samples : Samples
        Some samples, to look at the network with.
    backend : {"auto", "structured", "func", "backpack"}
    layers : {"all", "last"}
        All trainable parameters, or those of the last parameterised layer.
    batch_size : int
        Samples per network pass, at most.
    max_memory : int, str or None
        Bound on the working memory beyond the network itself; None is 1 GB.
    autocast : torch.dtype or None
        Run the network's passes in this lower precision; None is off, whatever context the caller is in.
    owner : str
        Who is asking, for messages.
    """

    def __init__(
        self,
        net: Any,
        samples: Samples,
        *,
        backend: str = "auto",
        layers: str = "all",
        batch_size: int = 256,
        max_memory: int | str | None = None,
        autocast: torch.dtype | None = None,
        owner: str = "skal.tangent",
    ) -> None:
        check_choice(owner, "backend", backend, ["auto", "structured", "func", "backpack"])
        check_choice(owner, "layers", layers, ["all", "last"])
        check_integer(owner, "batch_size", batch_size, 1)
        check_choice(owner, "autocast", autocast, [None, torch.bfloat16, torch.float16])
        self.autocast: torch.dtype | None = None  # the plan is checked in full precision
        self.network = net if isinstance(net, Network) else Network(net)
        self.memory = parse_memory(owner, "max_memory", max_memory) or DEFAULT_MEMORY
        if len(samples) == 0:
            raise InvalidParameterError(f"The X given to {owner} must hold at least one sample. Got none. Pass more.")
        trainable = check_trainable(self.network, owner)
        with self._active():
            batch = next(self.network.batches(samples, N_CHECKED))
            with torch.no_grad():
                output = self.network.output(batch)
                self.network.check_output(output)
                self.n_classes = int(self.network.to_logits(output).shape[1])
            plan = make_plan(self.network, batch, backend)
            self._activations = activation_bytes(self.network, tree_map(lambda x: x[:1].clone(), batch))
        self.names = list(trainable)
        if layers == "last":
            last = find_last_layer(self.network, samples)
            own = {id(p) for p in last.layer.parameters()}
            self.names = [name for name, p in trainable.items() if id(p) in own]
            if not self.names:
                raise InvalidParameterError(
                    f"With layers='last' the last layer of the network given to {owner} must be trainable. Got the "
                    f"layer {last.name!r} in which no parameter has requires_grad. Unfreeze it, or use layers='all'."
                )
        self.sizes = {name: trainable[name].numel() for name in self.names}
        self.element_size = max(trainable[name].element_size() for name in self.names)
        self.batch_size = batch_size
        self._may_fall_back = backend == "auto"
        self._follow(plan)
        self.autocast = autocast

    def _follow(self, plan: Plan) -> None:
        wanted = frozenset(self.names)
        self.plan = [(name, covered & wanted) for name, covered in plan.parts if covered & wanted]
        self._idle = plan.idle & wanted
        self.backends = make_backends(self.network, self.plan, self._idle)
        # the gradients at the layers' outputs take as much again as the activations, and so does what passes through a
        # backward pass and the rules at a time; other backends write gradients out
        self.sample_bytes = 3 * self._activations + 3 * self.element_size * sum(
            self.sizes[name] for backend, covered in self.plan if backend != "structured" for name in covered
        )
        self.batch_size = max(1, min(self.batch_size, self.memory // max(1, self.sample_bytes)))

    def __getstate__(self) -> dict[str, Any]:
        """For a worker: backends know parameters by their identity, and are made anew there."""
        state = {name: value for name, value in self.__dict__.items() if name not in ("backends", "_batch")}
        return state | {"_rules": users_rules(self.network.module)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for layer_type, rule in state.pop("_rules").items():
            register_rule(layer_type)(rule)
        self.__dict__.update(state)
        self.backends = make_backends(self.network, self.plan, self._idle)

    @contextmanager
    def _active(self) -> Iterator[None]:
        """Eval mode with gradients: for one chunk at a time, so that no one else sees it between two chunks."""
        with evaluating(self.network.module), torch.enable_grad():
            if self.autocast is None:
                yield
            else:
                with torch.autocast(self.device.type, self.autocast):
                    yield

    def chunk_bytes(self) -> int:
        """Bytes that a chunk of samples takes, as far as can be told beforehand."""
        return min(self.memory, self.batch_size * self.sample_bytes)

    @property
    def device(self) -> torch.device:
        """The network's device."""
        return self.network.device

    def map(self, function: Callable[[Samples], Any], samples: Samples, batch_size: int | None = None) -> Any:
        """``function(part)`` of all parts of the samples as one, shared among the network's workers."""
        parts = self.network.sharding.map(function, samples, batch_size or self.batch_size, self.device)
        return filled(parts, len(samples))

    def run(
        self,
        samples: Samples,
        cotangents: list[Cotangent],
        reduce: Callable[[Iterator[Gradients], int], Any],
        *,
        target: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Iterator[Any]:
        """``reduce(gradients for each cotangent, n)`` of one chunk after the other.

        A chunk that does not fit into memory is halved until it does. When samples turn up that use the network in a
        way that the plan was not checked for, ``auto`` goes on without layer rules.
        """
        batches = iter(self.network.batches(samples, batch_size or self.batch_size))
        first = 0
        while True:
            with self._active():
                batch = next(batches, None)
                if batch is None:
                    return
                n = tree_leaves(batch)[0].shape[0]
                rows = None if target is None else target[first : first + n]
                results = self._reduced(batch, rows, cotangents, reduce)
            first += n
            yield from results

    def _reduced(self, batch: Any, target: Tensor | None, cotangents: list, reduce: Callable) -> list[Any]:
        n = tree_leaves(batch)[0].shape[0]
        try:
            self._batch = batch
            result = reduce(self._gradients(batch, target, cotangents), n)
        except UnsupportedLayerError:
            if not self._may_fall_back:
                raise
            self._may_fall_back = False
            self._follow(make_plan(self.network, batch, "auto", rules=False))
            step = min(n, self.batch_size)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if isinstance(error, SkalError) or n == 1 or not is_out_of_memory(error):
                raise
            step = (n + 1) // 2
            self.batch_size = min(self.batch_size, step)
        else:
            self._check_result(result, batch)
            return [result]
        results = []
        for start in range(0, n, step):
            part = slice(start, start + step)
            rows = tree_map(lambda x, part=part: x[part], batch)
            results += self._reduced(rows, None if target is None else target[part], cotangents, reduce)
        return results

    def _gradients(self, batch: Any, target: Tensor | None, cotangents: list[Cotangent]) -> Iterator[Gradients]:
        streams = [backend.gradients(batch, target, cotangents) for backend in self.backends]
        for parts in zip(*streams, strict=True):
            merged: Gradients = {}
            for part in parts:
                merged.update(part)
            yield merged

    def logits(self) -> Tensor:
        """(n, C) logits of the chunk at hand: for a reduction, once it has been given gradients."""
        for backend in self.backends:
            if isinstance(backend, StructuredBackend):
                return backend.logits  # they come with the gradients
        with torch.no_grad():
            return self.network.logits(self._batch)

    def _check_result(self, result: Any, batch: Any) -> None:
        tensors = [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.is_floating_point()]
        if not all(bool(torch.isfinite(x).all()) for x in tensors):
            with torch.no_grad():
                self.network.check_output(self.network.output(batch))  # raises, if it is the outputs
            raise non_finite_gradients()


def check_trainable(network: Network, owner: str) -> dict[str, nn.Parameter]:
    """The trainable parameters, of which there must be one at least."""
    trainable = network.trainable()
    if not trainable:
        raise InvalidParameterError(
            f"The network given to {owner} must have at least one trainable parameter. Got a "
            f"{type(network.module).__name__} in which none has requires_grad. Unfreeze the layers to use."
        )
    return trainable


def non_finite_gradients() -> NonFiniteError:
    """What to raise when gradients are not finite although the outputs are."""
    return NonFiniteError(
        "The network's gradients must be finite. Got NaN or infinity instead, although its outputs are finite. "
        "Look for a division by zero or a square root at zero in the network."
    )
