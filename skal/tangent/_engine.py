"""Runs a network's per-sample gradients through a reduction, chunk by chunk, within a memory bound."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map

from skal.exceptions import InvalidParameterError, NonFiniteError, SkalError
from skal.last_layer import find_last_layer
from skal.network import Network, evaluating
from skal.samples import Samples
from skal.tangent._cotangents import Cotangent
from skal.tangent._factors import PerSampleGradient
from skal.tangent._plan import BACKENDS, N_CHECKED, make_plan
from skal.validation import check_choice, check_integer, check_memory

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
        owner: str = "skal.tangent",
    ) -> None:
        check_choice(owner, "backend", backend, ["auto", "structured", "func", "backpack"])
        check_choice(owner, "layers", layers, ["all", "last"])
        check_integer(owner, "batch_size", batch_size, 1)
        self.network = net if isinstance(net, Network) else Network(net)
        self.memory = check_memory(owner, "max_memory", max_memory) or DEFAULT_MEMORY
        if len(samples) == 0:
            raise InvalidParameterError(f"The X given to {owner} must hold at least one sample. Got none. Pass more.")
        trainable = self.network.trainable()
        if not trainable:
            raise InvalidParameterError(
                f"The network given to {owner} must have at least one trainable parameter. Got a "
                f"{type(self.network.module).__name__} in which none has requires_grad. Unfreeze the layers to use."
            )
        with evaluating(self.network.module), torch.enable_grad():
            batch = next(self.network.batches(samples, N_CHECKED))
            with torch.no_grad():
                output = self.network.output(batch)
                self.network.check_output(output)
                self.n_classes = int(self.network.to_logits(output).shape[1])
            plan = make_plan(self.network, batch, backend)
            activations = _activation_bytes(self.network, tree_map(lambda x: x[:1].clone(), batch))
        self.names = list(trainable)
        if layers == "last":
            last = find_last_layer(self.network, samples)
            own = {id(p) for p in last.layer.parameters()}
            self.names = [name for name, p in trainable.items() if id(p) in own]
        wanted = set(self.names)
        self.plan = [(name, covered & wanted) for name, covered in plan.parts if covered & wanted]
        self.backends = [BACKENDS[name](self.network, set(covered)) for name, covered in self.plan]
        self.sizes = {name: trainable[name].numel() for name in self.names}
        # gradients at the layers' outputs take as much again as the activations; other backends write gradients out
        self.sample_bytes = 2 * activations + sum(
            3 * trainable[name].element_size() * self.sizes[name]
            for backend_name, covered in self.plan
            if backend_name != "structured"
            for name in covered
        )
        self.batch_size = max(1, min(batch_size, self.memory // max(1, self.sample_bytes)))

    @property
    def device(self) -> torch.device:
        """The network's device."""
        return self.network.device

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

        A chunk that does not fit into memory is halved until it does.
        """
        first = 0
        with evaluating(self.network.module), torch.enable_grad():
            for batch in self.network.batches(samples, batch_size or self.batch_size):
                n = tree_leaves(batch)[0].shape[0]
                rows = None if target is None else target[first : first + n]
                first += n
                yield from self._halving(batch, rows, cotangents, reduce)

    def _halving(self, batch: Any, target: Tensor | None, cotangents: list, reduce: Callable) -> list[Any]:
        n = tree_leaves(batch)[0].shape[0]
        try:
            result = reduce(self._gradients(batch, target, cotangents), n)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if isinstance(error, SkalError) or n == 1 or not _is_out_of_memory(error):
                raise
        else:
            self._check_result(result, batch)
            return [result]
        halves = []
        for part in (slice(0, n // 2), slice(n // 2, n)):
            rows = tree_map(lambda x, part=part: x[part], batch)
            halves += self._halving(rows, None if target is None else target[part], cotangents, reduce)
        self.batch_size = max(1, n // 2)
        return halves

    def _gradients(self, batch: Any, target: Tensor | None, cotangents: list[Cotangent]) -> Iterator[Gradients]:
        streams = [backend.gradients(batch, target, cotangents) for backend in self.backends]
        for parts in zip(*streams, strict=True):
            merged: Gradients = {}
            for part in parts:
                merged.update(part)
            yield merged

    def _check_result(self, result: Any, batch: Any) -> None:
        tensors = [x for x in tree_leaves(result) if isinstance(x, Tensor) and x.is_floating_point()]
        if all(bool(torch.isfinite(x).all()) for x in tensors):
            return
        with torch.no_grad():
            self.network.check_output(self.network.output(batch))  # raises, if it is the outputs
        raise NonFiniteError(
            "The network's gradients must be finite. Got NaN or infinity instead, although its outputs are finite. "
            "Look for a division by zero or a square root at zero in the network."
        )


def _is_out_of_memory(error: BaseException) -> bool:
    text = str(error).lower()
    return (
        isinstance(error, (torch.OutOfMemoryError, MemoryError))
        or "can't allocate memory" in text
        or "not enough memory" in text
        or "out of memory" in text
    )


def _activation_bytes(network: Network, sample: Any) -> int:
    """Bytes that autograd keeps for one sample's backward pass, parameters and buffers not counted."""
    own = {t.untyped_storage().data_ptr() for t in (*network.module.parameters(), *network.module.buffers())}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = network.logits(sample)  # alive until counted: its graph keeps the tensors, so no address comes twice
    del logits
    return sum(seen.values())
