# SPDX-License-Identifier: BSD-3-Clause
"""Runs a network's per-sample gradients through a reduction, chunk by chunk, within a memory bound."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.containers import all_finite
from skal._core.guard import evaluating
from skal._core.last_layer import nodes_behind, two_orders
from skal._core.memory import DEFAULT_MEMORY, Result, fill_rows, is_out_of_memory, rows_within
from skal._core.network import Network
from skal._core.pool import Samples
from skal._core.precision import with_doubles
from skal.exceptions import InvalidParameterError, NonFiniteError, OutputError, SkalError, UnsupportedLayerError
from skal.tangent._cotangents import Cotangent
from skal.tangent._factors import AllNorms, Gradients
from skal.tangent._layer_rules import register_rule, users_rules
from skal.tangent._layers import Layers, LayersConstraint, choose_parameters
from skal.tangent._plan import N_CHECKED, Plan, make_backends, make_plan, refuse_mixing_layers, reordered_layers
from skal.validation import Choice, Integer, parse_memory

# activations of a chunk on a processor: they stay near the cache, and the allocator keeps their pages; and how many
# samples there are at least, so that layers have something to work on
_CHUNK_BYTES = 2**24
_CHUNK_ROWS = 32
# from the gradients of a chunk for each cotangent, and its number of samples, to what is kept of them
Reduction = Callable[[Iterator[Gradients], int], Result]


class TangentEngine:
    """Per-sample gradients of one network.

    Parameters
    ----------
    net : skorch net, nn.Module or Network
        The network.
    samples : Samples
        Some samples, to look at the network with.
    backend : {"auto", "structured", "func", "backpack"}
        How gradients are computed.
    layers : {"all", "last", "last_blocks", "adapters"} or callable
        Which trainable parameters; see :func:`skal.tangent.tangent_kernel`.
    batch_size : int
        Samples per network pass, at most.
    max_memory : int, str or None
        Bound on the working memory beyond the network itself; None is 1 GB.
    autocast : torch.dtype or None
        Run the network's passes in this lower precision; None is off, whatever context the caller is in.
    owner : str
        Who is asking, for messages.

    Examples
    --------
    >>> from skal.checks import make_learner
    >>> from skal.context import QueryContext
    >>> engine = QueryContext(*make_learner()).engine  # a TangentEngine
    >>> engine.n_classes, engine.batch_size
    (4, 256)
    """

    def __init__(
        self,
        net: Any,
        samples: Samples,
        *,
        backend: str = "auto",
        layers: Layers = "all",
        batch_size: int = 256,
        max_memory: int | str | None = None,
        autocast: torch.dtype | None = None,
        owner: str = "skal.tangent",
    ) -> None:
        self.autocast: torch.dtype | None = None  # the plan is checked in full precision
        self.network = net if isinstance(net, Network) else Network(with_doubles(net))
        self.memory = parse_memory(owner, "max_memory", max_memory) or DEFAULT_MEMORY
        parameters = check_parameters(self.network, samples, owner)
        refuse_mixing_layers(self.network.module)
        with self._active():
            batch = next(self.network.batches(samples, N_CHECKED))
            logits = self.network.check_logits(batch)
            self.n_classes = logits.shape[1]
            _refuse_reentrant_checkpoints(logits)
            reordered, outputs = reordered_layers(self.network, *two_orders(self.network, samples))
            self._check_steady(batch, logits, *map(self.network.to_logits, outputs))
            plan = make_plan(self.network, batch, backend, reordered=reordered)
            self.activation_bytes = activation_bytes(self.network, tree_map(lambda x: x[:1].clone(), batch))
        parameters = choose_parameters(self.network, samples, parameters, layers, owner)
        self.sizes = {name: p.numel() for name, p in parameters.items()}
        self.precision = self.network.precision
        self.element_size = self.precision.itemsize
        self.device = self.network.device
        self.batch_size = batch_size
        self._may_fall_back = backend == "auto"
        self._use(plan)
        self.autocast = autocast

    def _check_steady(self, few: Any, logits: Tensor, first: Tensor, second: Tensor) -> None:
        """Compare the logits of a few samples with those in two orders of others, which begin with the same sample."""
        one = torch.cat([logits[:1], logits[:1], first.roll(-1, 0)])
        self.network.check_steady(few, one.detach(), torch.cat([first[:1], first[-1:], second]))

    def _use(self, plan: Plan) -> None:
        wanted = frozenset(self.sizes)
        self.plan = [(backend, covered & wanted) for backend, covered in plan.parts if covered & wanted]
        self._idle = plan.idle & wanted
        self.backends = make_backends(self.network, self.plan, self._idle)
        # the gradients at the layers' outputs take as much again as the activations, and so does what passes through a
        # backward pass and the rules at a time; other backends write gradients out
        self.sample_bytes = 3 * self.activation_bytes + 3 * self.element_size * sum(
            self.sizes[name] for backend, covered in self.plan if backend != "structured" for name in covered
        )
        self.batch_size = self.chunk_size()

    @property
    def names(self) -> list[str]:
        """The parameters that are differentiated."""
        return list(self.sizes)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of one sample's gradient, written out."""
        return self.element_size * sum(self.sizes.values())

    def chunk_size(self, kept_bytes: int = 0) -> int:
        """The number of samples that one pass may take.

        Parameters
        ----------
        kept_bytes : int, default=0
            What the caller keeps of each sample.

        Returns
        -------
        int
            At least 1.
        """
        rows = min(self.batch_size, rows_within(self.memory, self.sample_bytes + kept_bytes))
        if self.device.type != "cpu":
            return rows
        return min(rows, rows_within(_CHUNK_BYTES, self.activation_bytes, at_least=_CHUNK_ROWS))

    def __getstate__(self) -> dict[str, Any]:
        """State for a worker: backends know parameters by their identity, and are made anew there."""
        state = {name: value for name, value in self.__dict__.items() if name != "backends"}
        return state | {"_rules": users_rules(self.network.module)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for layer_type, rule in state.pop("_rules").items():
            register_rule(layer_type)(rule)
        self.__dict__.update(state)
        self.backends = make_backends(self.network, self.plan, self._idle)

    @contextmanager
    def _active(self) -> Iterator[None]:
        """Eval mode with gradients."""
        with evaluating(self.network.module), torch.enable_grad():
            if self.autocast is None:
                yield
            else:
                with torch.autocast(self.device.type, self.autocast):
                    yield

    def collect(
        self,
        samples: Samples,
        cotangents: list[Cotangent],
        reduce: Reduction[Result],
        *,
        target: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Result:
        """The results of :meth:`run` for all chunks, which the workers share.

        Parameters
        ----------
        samples : Samples
            What goes through the network.
        cotangents : list of Cotangent
            What the gradients are of: a function of the logits each.
        reduce : callable
            Takes the gradients for each cotangent, and the number of samples; what it returns is kept.
        target : tensor, optional
            One entry per sample, for cotangents that depend on labels.
        batch_size : int, optional
            Samples per pass, at most; by default the engine's.

        Returns
        -------
        tensor, or tuple of tensors
            The chunks' results, one after the other.
        """

        def shard(part: Samples) -> Result:
            with self._active():
                return fill_rows(self._chunks(part, cotangents, reduce, target, batch_size), len(part))

        if target is not None:  # it has a row for each of all the samples
            return shard(samples)
        return self.network.collect(shard, samples, batch_size or self.batch_size)

    def run(
        self,
        samples: Samples,
        cotangents: list[Cotangent],
        reduce: Reduction[Result],
        *,
        target: Tensor | None = None,
        batch_size: int | None = None,
    ) -> Generator[Result, None, None]:
        """``reduce(gradients for each cotangent, n)`` of one chunk after the other.

        A chunk that does not fit into memory is halved until it does. When samples turn up that use the network in a
        way that the plan was not checked for, ``auto`` goes on without layer rules.

        Parameters
        ----------
        samples : Samples
            What goes through the network.
        cotangents : list of Cotangent
            What the gradients are of: a function of the logits each.
        reduce : callable
            Takes the gradients for each cotangent, and the number of samples; what it returns is kept.
        target : tensor, optional
            One entry per sample, for cotangents that depend on labels.
        batch_size : int, optional
            Samples per pass, at most; by default the engine's.

        Yields
        ------
        tensor, or tuple of tensors
            What ``reduce`` returned for a chunk.
        """
        chunks = self._chunks(samples, cotangents, reduce, target, batch_size)
        while True:
            with self._active():  # not between two chunks, where somebody else may use the network
                found = list(islice(chunks, 1))
            if not found:
                return
            yield from found

    def _chunks(
        self,
        samples: Samples,
        cotangents: list[Cotangent],
        reduce: Reduction[Result],
        target: Tensor | None,
        batch_size: int | None,
    ) -> Iterator[Result]:
        first = 0
        for batch in self.network.batches(samples, batch_size or self.batch_size):
            n = tree_leaves(batch)[0].shape[0]
            rows = None if target is None else target[first : first + n]
            yield from self._reduce(batch, rows, cotangents, reduce)
            first += n

    def _reduce(
        self, batch: Any, target: Tensor | None, cotangents: list[Cotangent], reduce: Reduction[Result]
    ) -> list[Result]:
        n = tree_leaves(batch)[0].shape[0]
        try:
            result = reduce(self._gradients(batch, target, cotangents), n)
        except UnsupportedLayerError:
            if not self._may_fall_back:
                raise
            self._may_fall_back = False
            self._use(make_plan(self.network, batch, "auto", rules=False))
            step = min(n, self.batch_size)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if isinstance(error, SkalError) or n == 1 or not is_out_of_memory(error):
                raise
            step = (n + 1) // 2
            self.batch_size = min(self.batch_size, step)
        else:
            # outputs that are NaN may have gradients of zero
            if not all(all_finite(x) for x in (self.logits(), *tree_leaves(result)) if isinstance(x, Tensor)):
                self.network.check_logits(batch)  # raises, if it is the outputs
                raise non_finite_gradients()
            return [result]
        results = []
        for start in range(0, n, step):
            part = slice(start, start + step)
            rows = tree_map(lambda x, part=part: x[part], batch)
            results += self._reduce(rows, None if target is None else target[part], cotangents, reduce)
        return results

    def _gradients(self, batch: Any, target: Tensor | None, cotangents: list[Cotangent]) -> Iterator[Gradients]:
        streams = [backend.gradients(batch, target, cotangents) for backend in self.backends]
        for parts in zip(*streams, strict=True):
            yield {name: gradient for part in parts for name, gradient in part.items()}

    def logits(self) -> Tensor:
        """Logits of the current chunk: for a reduction, after it has asked for gradients.

        Returns
        -------
        (n, C) tensor
            On the network's device.
        """
        logits: Tensor = self.backends[0].logits
        return logits

    def scores(
        self, gradients: Gradients, n: int, direction: Mapping[str, Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """Squared norms of the whole gradients, and their inner products with a direction.

        Parameters
        ----------
        gradients : Gradients
            For one cotangent.
        n : int
            Samples in the chunk.
        direction : dict of tensors, optional
            By parameter; those that it leaves out count as zero.

        Returns
        -------
        squared_norms, dots : (n,) float64 tensors
            The inner products are zero without a direction.
        """
        norms: list[Tensor] = []
        dots: list[Tensor] = []
        for name, gradient in gradients.items():
            along = None if direction is None else direction.get(name)
            own_norms, own_dots = gradient.scores(None if along is None else along.to(self.precision))
            norms.append(own_norms)
            if own_dots is not None:
                dots.append(own_dots)
        nothing = torch.zeros(0, n, dtype=torch.float64, device=self.device)
        first, second = (torch.stack(x).sum(0, dtype=torch.float64) if x else nothing.sum(0) for x in (norms, dots))
        return first, second

    def all_norms(self, gradients: Iterable[Gradients], n: int, k: int) -> Tensor:
        """Squared norms of the whole gradients for each of k cotangents.

        Parameters
        ----------
        gradients : iterable of Gradients
            One for each cotangent; each is released before the next one is computed, where possible.
        n : int
            Samples in the chunk.
        k : int
            Number of cotangents.

        Returns
        -------
        (n, k) float64 tensor
            One column per cotangent.
        """
        by_parameter: dict[str, AllNorms] = {}
        for number, by_name in enumerate(gradients):
            while by_name:
                name, gradient = by_name.popitem()
                by_parameter.setdefault(name, AllNorms(k)).add(number, gradient)
        norms = torch.zeros(k, n, dtype=torch.float64, device=self.device)
        for found in by_parameter.values():
            found.add_to(norms)
        return norms.T


def open_engine(
    owner: str,
    net: Any,
    samples: Samples,
    layers: Layers,
    backend: str,
    batch_size: int,
    max_memory: int | str | None,
    autocast: torch.dtype | None,
) -> TangentEngine:
    """The engine of a public function, whose parameters nobody has checked yet."""
    LayersConstraint().check(owner, "layers", layers)
    Choice("auto", "structured", "func", "backpack").check(owner, "backend", backend)
    Integer(1).check(owner, "batch_size", batch_size)
    Choice(None, torch.bfloat16, torch.float16).check(owner, "autocast", autocast)
    how: dict[str, Any] = {"layers": layers, "backend": backend, "batch_size": batch_size}
    return TangentEngine(net, samples, **how, max_memory=max_memory, autocast=autocast, owner=owner)


def _refuse_reentrant_checkpoints(logits: Tensor) -> None:
    """Their parameters are in no graph, and would pass for parameters without influence."""
    if any(node.name() == "CheckpointFunctionBackward" for node in nodes_behind(logits)):
        raise UnsupportedLayerError(
            "The network's checkpointing must leave the graph whole. Got a forward that calls "
            "torch.utils.checkpoint with use_reentrant=True. Pass use_reentrant=False there."
        )


def check_parameters(network: Network, samples: Samples, owner: str) -> dict[str, nn.Parameter]:
    """The trainable parameters; there must be one at least, and a sample to look at the network with."""
    if len(samples) == 0:
        raise InvalidParameterError(f"The X given to {owner} must hold at least one sample. Got none. Pass more.")
    parameters = network.trainable()
    if not parameters:
        raise InvalidParameterError(
            f"The network given to {owner} must have at least one trainable parameter. Got a "
            f"{type(network.module).__name__} in which none has requires_grad. Unfreeze the layers to use."
        )
    if len(devices := sorted({str(p.device) for p in parameters.values()})) > 1:
        raise UnsupportedLayerError(
            f"The trainable parameters of the network given to {owner} must live on one device. Got {devices}. Move "
            "them to one, freeze those elsewhere with requires_grad_(False), or use a strategy on outputs or "
            "embeddings, such as Margin, BADGE or UHerding."
        )
    return parameters


def activation_bytes(network: Network, sample: Any) -> int:
    """Bytes that autograd keeps for one sample's backward pass, parameters and buffers not counted."""
    own = {t.untyped_storage()._cdata for t in (*network.module.parameters(), *network.module.buffers())}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            seen[storage._cdata] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        logits = network.logits(sample)  # alive until counted: its graph keeps the tensors, so no address comes twice
    del logits
    return sum(seen.values())


def no_gradients(owner: str) -> OutputError:
    """The error for a kernel that is zero."""
    return OutputError(
        f"{owner} needs a network whose outputs depend on its trainable parameters: their gradients must not all be "
        "zero. Got zeros, or numbers that are lost in rounding. Look for dead units (lower the learning rate, scale "
        "the inputs), unfreeze more layers, or use kernel='trace'."
    )


def non_finite_gradients() -> NonFiniteError:
    """The error for gradients that are not finite although the outputs are."""
    return NonFiniteError(
        "The network's gradients must be finite. Got NaN or infinity instead, although its outputs are finite. "
        "Look for a division by zero or a square root at zero in the network."
    )
