# SPDX-License-Identifier: BSD-3-Clause
"""A torch module seen as a map from a batch of inputs to logits, and left exactly as it was found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import numpy as np
import torch
from skorch import NeuralNet
from skorch.dataset import Dataset as SkorchDataset
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import DataLoader, Dataset

from skal._core import outputs
from skal._core.containers import check_finite, dataset_input, is_lazy, place
from skal._core.device_copy import DeviceCopy
from skal._core.estimators import explain_pass
from skal._core.feeding import load_batches
from skal._core.guard import device_of, evaluating
from skal._core.losses import Loss, loss_of
from skal._core.memory import Result, fill_rows, rows_within
from skal._core.parallel import Sharding
from skal._core.pool import Samples
from skal._core.tasks import CLASSIFICATION, Task, find_task
from skal.exceptions import NetworkError, NoNetworkError, NotFittedError

# parts of a skorch net that no worker needs; skorch pickles some of them apart, which would cut tied objects in two
_FOR_TRAINING = (
    "module",
    "module_",
    "criterion_",
    "optimizer_",
    "history_",
    "callbacks",
    "callbacks_",
    "train_split",
    "accelerator",  # of skorch.hf
)
# for each thread: bytes of a layer's output, at most, and samples that are enough to work on
_TENSOR_BYTES = 2**22
_ROWS = 16
_FEW = 8  # samples that are looked at before all are passed


class Network:
    """A module, how to feed it, and how to read its outputs as logits.

    Parameters
    ----------
    net : skorch NeuralNet (initialised or fitted) or nn.Module
        A skorch net's criterion says what its outputs are. A bare module is taken to return logits.
    sharding : Sharding, optional
        Workers that share the passes over many samples. With None, this process makes them alone.
    task : {"classification", "regression", "multilabel"}, optional
        What the outputs are for; by default what a skorch net is by itself.

    Attributes
    ----------
    net : skorch NeuralNet or None
        None for a bare module.
    module : nn.Module
        Without what ``torch.compile`` wraps around it.
    criterion : nn.Module or None
        The fitted criterion, None for a bare module.
    device : torch.device
        Where the parameters live.
    dtype : torch.dtype
        Floating-point type of the parameters.
    precision : torch.dtype
        Floating-point type of what is computed from outputs and gradients: that of the parameters, or float32.

    Examples
    --------
    >>> network = Network(nn.Linear(4, 3))
    >>> network.logits(torch.zeros(2, 4)).shape
    torch.Size([2, 3])
    """

    def __init__(self, net: NeuralNet | nn.Module, sharding: Sharding | None = None, task: Task | None = None) -> None:
        self.sharding = sharding
        self._rows_per_pass = 0  # unknown yet
        self._is_steady = False  # not looked at yet
        if isinstance(net, nn.Module):
            self.net, self.module = None, getattr(net, "_orig_mod", net)  # the module behind torch.compile
        elif isinstance(net, NeuralNet):
            if getattr(net, "module_", None) is None:
                raise NotFittedError(
                    f"The network must be fitted, or at least initialised. Got an unfitted {type(net).__name__} "
                    "instead. Call fit(X, y), or initialize() for a network with random weights."
                )
            self.net, self.module = net, getattr(net.module_, "_orig_mod", net.module_)
        else:
            raise NoNetworkError(
                "The network must be a skorch net or a torch nn.Module. "
                f"Got {type(net).__name__} instead. Wrap the module in skorch.NeuralNetClassifier."
            )
        self.criterion = outputs.criterion_of(self.net)
        self.task = task or (CLASSIFICATION if self.net is None else find_task(self.net))
        self.device = device_of(self.module)
        if self.device.type == "meta":
            check_values_exist(self.module)
        floating = (p.dtype for p in self.module.parameters() if p.is_floating_point())
        self.dtype = next(floating, torch.get_default_dtype())
        self.precision = torch.promote_types(self.dtype, torch.float32)

    def __getstate__(self) -> dict[str, Any]:
        """State for a worker: the module once, and the net without what only training needs."""
        state = self.__dict__ | {"sharding": None}
        if self.net is not None:
            shell = object.__new__(type(self.net))
            shell.__dict__.update(vars(self.net))
            for name in _FOR_TRAINING:
                if name in shell.__dict__:
                    shell.__dict__[name] = None
            state["net"] = shell, vars(self.net).get("criterion_")
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["net"] is not None:
            shell, criterion = state["net"]
            shell.__dict__.update(module_=state["module"], criterion_=criterion)
            state = state | {"net": shell}
        self.__dict__.update(state)

    @cached_property
    def loss(self) -> Loss:
        """The loss that the network is trained with, as a function of :meth:`logits`."""
        return loss_of(self.criterion, self.task)

    def trainable(self) -> dict[str, nn.Parameter]:
        """The parameters with ``requires_grad``.

        Returns
        -------
        dict of parameters
            By name, in the module's order, tied ones once.
        """
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    def batches(self, samples: Samples, batch_size: int) -> Iterator[Any]:
        """Batches on the network's device, copies of the samples: a module may write into its input.

        Arrays and tensors are sliced; a Dataset, or a net with its own dataset class or collate function, goes
        through the net's loader: all rows, in their order, whatever its settings say.

        Parameters
        ----------
        samples : Samples
            What goes through the network.
        batch_size : int
            Samples per pass.

        Yields
        ------
        tensor, or dict or tuple of tensors
            What the module is called with.
        """
        where = self.device, self.dtype
        if self.reads_arrays(samples):
            if samples.there is None or self.device.type == "cpu":
                yield from (place(chunk, *where) for chunk in samples.chunks(batch_size))
            else:
                yield from self._batches_there(samples, batch_size, samples.there)
            return
        is_dataset = isinstance(samples.X, Dataset)
        # taking all rows of a Dataset reads none of them; other containers are copied chunk by chunk
        size = len(samples) if is_dataset else max(batch_size, 4096)
        for first, chunk in zip(range(0, len(samples), size), samples.chunks(size), strict=True):
            numbers = samples.row_numbers(first, first + size)
            watched = None if samples.watch is None else (samples.watch, samples.rows)
            for number, batch in enumerate(load_batches(self.net, chunk, batch_size, samples.name, numbers, watched)):
                batch = dataset_input(batch)
                if is_dataset:
                    start = number * batch_size
                    check_finite(batch, samples.name, numbers[start : start + batch_size])
                yield place(batch, *where)
        if samples.watch is not None:
            samples.watch.check_size()

    def _batches_there(self, samples: Samples, batch_size: int, there: DeviceCopy) -> Iterator[Any]:
        """Batches of samples that stay on the device until the query ends."""
        where = self.device, self.dtype
        for start in range(0, len(samples), batch_size):
            part = samples.take(range(start, min(start + batch_size, len(samples))))

            def move(part: Samples = part) -> Any:
                return place(next(part.chunks(len(part))), *where)

            yield there.batch(part.rows, where, move)

    def passes(self, samples: Samples, batch_size: int) -> Iterator[Any]:
        """Batches for passes without gradients: on a processor in parts that stay near its cache.

        Larger tensors come from fresh pages of memory, which the system clears first, and leave the cache before the
        next layer reads them: residual networks take 1.4 to 2 times as long for 256 samples at a time as for 64.

        Parameters
        ----------
        samples : Samples
            What goes through the network.
        batch_size : int
            Samples per pass, at most.

        Yields
        ------
        tensor, or dict or tuple of tensors
            What the module is called with.
        """
        for batch in self.batches(samples, batch_size):
            leaves, structure = tree_flatten(batch)
            sizes = [len(leaf) for leaf in leaves if isinstance(leaf, Tensor) and leaf.ndim]
            n = sizes[0] if sizes and self.device.type == "cpu" else 0
            n_parts = -(-n // self._find_rows_per_pass(batch)) if n > 4 * _ROWS else 1
            if n_parts == 1:
                yield batch
                continue
            size = -(-n // n_parts)  # parts of one size: a last one of few samples would take as long
            for start in range(0, n, size):
                yield tree_unflatten(_take(leaves, slice(start, start + size)), structure)

    def reads_arrays(self, samples: Samples) -> bool:
        """True if batches are slices of arrays, not what a Dataset or the net's own loader makes.

        Parameters
        ----------
        samples : Samples
            What would go through the network.

        Returns
        -------
        bool
            True where nobody else's code makes the batches.
        """
        X = samples.X
        parts = X.values() if isinstance(X, Mapping) else [X]
        plain = all(isinstance(x, (np.ndarray, Tensor)) or is_lazy(x) for x in parts) or samples.transform is not None
        if self.net is None:
            return not isinstance(X, Dataset)
        own_loading = self.net.dataset is not SkorchDataset or self.net.iterator_valid is not DataLoader
        own_loading = own_loading or "collate_fn" in self.net.get_params_for("iterator_valid")
        return plain and not own_loading

    def output(self, batch: Any, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """What the module returns; of several outputs the one for the loss.

        Parameters
        ----------
        batch : tensor, or dict or tuple of tensors
            From :meth:`batches`.
        parameters : dict of tensors, optional
            Used instead of the module's own.

        Returns
        -------
        tensor
            One row per sample.
        """
        args, kwargs = ((), dict(batch)) if isinstance(batch, Mapping) else ((batch,), {})
        try:
            if parameters is None:
                output: Tensor = self.module(*args, **kwargs)
            else:
                output = torch.func.functional_call(self.module, parameters, args, kwargs)
        except Exception as error:
            explanation = explain_pass(error, self.module, batch)
            if explanation is None:
                raise
            raise explanation from error
        result: Tensor = outputs.read_output(output, self.criterion, batch, self.task)
        return result

    def logits(self, batch: Any, parameters: dict[str, Tensor] | None = None) -> Tensor:
        """Outputs before any softmax, as part of the graph.

        Parameters
        ----------
        batch : tensor, or dict or tuple of tensors
            From :meth:`batches`.
        parameters : dict of tensors, optional
            Used instead of the module's own.

        Returns
        -------
        (n, C) tensor
            In :attr:`precision`, even under autocast.
        """
        return self.to_logits(self.output(batch, parameters).to(self.precision))

    def to_logits(self, output: Tensor) -> Tensor:
        """Logits of the module's output, as the criterion understands it.

        Parameters
        ----------
        output : tensor
            What the module returned.

        Returns
        -------
        (n, C) tensor
            Before any softmax.
        """
        return outputs.to_logits(output, self.criterion, self.task)

    def to_proba(self, output: Tensor) -> Tensor:
        """Class probabilities of the module's output.

        Parameters
        ----------
        output : tensor
            What the module returned.

        Returns
        -------
        (n, C) tensor
            As the net's ``predict_proba`` gives them.
        """
        return outputs.to_proba(output, self.net, self.task)

    def logits_to_proba(self, logits: Tensor) -> Tensor:
        """Class probabilities of logits, by the nonlinearity that the user gave the net; otherwise the softmax.

        Where skorch chooses and does not know the criterion (``"auto"``), it leaves outputs as they are.

        Parameters
        ----------
        logits : (n, C) tensor
            Before any softmax.

        Returns
        -------
        (n, C) tensor
            Distributions.
        """
        chosen = self.net is not None and self.net.predict_nonlinearity != "auto"
        read = outputs.probabilities_of_logits(self.net) if chosen else None
        return torch.softmax(logits, dim=-1) if read is None else read(logits)

    def check_output(self, output: Tensor) -> None:
        """Refuse outputs that are not finite, not (n, C), or not what the criterion expects.

        Parameters
        ----------
        output : tensor
            What the module returned.
        """
        outputs.check_form(output, self.criterion, self.task)
        outputs.check_values(output, self.criterion, self.task)

    def check_logits(self, batch: Any) -> Tensor:
        """Logits of outputs that are checked to be what they should be, as part of the graph.

        Parameters
        ----------
        batch : tensor, or dict or tuple of tensors
            From :meth:`batches`.

        Returns
        -------
        (n, C) tensor
            Before any softmax.
        """
        output = self.output(batch)
        self.check_output(output)
        if torch.is_grad_enabled() and not output.requires_grad and self.trainable():
            raise NetworkError(
                "The network's outputs must have gradients with respect to its parameters. Got outputs without, so "
                "that all gradients would be zero. Its forward runs under torch.no_grad or torch.inference_mode, or "
                "detaches what it computes: remove that."
            )
        return self.to_logits(output)

    def check_steady(self, few: Any, one: Tensor, other: Tensor) -> None:
        """Warn, once, if the outputs of a sample depend on its batch, or change from pass to pass.

        Parameters
        ----------
        few : tensor, or dict or tuple of tensors
            A small batch, to be passed again if outputs differ.
        one, other : tensors
            Outputs of the same samples from two passes.
        """
        if self._is_steady or one.shape != other.shape:
            return
        self._is_steady = True

        def repeat() -> Tensor:  # passes a copy: a module may write into its input
            with torch.no_grad():
                return self.output(tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, few))

        outputs.check_steady(one, other, max(torch.finfo(x).eps for x in (self.dtype, one.dtype)), repeat)

    def look(self, samples: Samples) -> None:
        """Pass a few samples in this process, whose warnings reach the user.

        Parameters
        ----------
        samples : Samples
            All that are going to be passed.
        """
        if not self._is_steady:
            few = samples.take(range(min(len(samples), _FEW)))
            for _ in self._output_batches(few, _FEW):
                pass

    def all_outputs(self, samples: Samples, batch_size: int) -> Tensor:
        """Outputs of all samples, checked, without gradient.

        Parameters
        ----------
        samples : Samples
            What goes through the network.
        batch_size : int
            Samples per pass.

        Returns
        -------
        (n, ...) tensor
            On the network's device.
        """

        if self.sharding is not None:
            self.look(samples)

        def shard(part: Samples) -> Tensor:
            whole = fill_rows(self._output_batches(part, batch_size), len(part))
            outputs.check_values(whole, self.criterion, self.task)
            return whole

        return self.collect(shard, samples, batch_size)

    def _output_batches(self, samples: Samples, batch_size: int) -> Iterator[Tensor]:
        """Outputs batch by batch; only the first one's values are checked here, for an early error."""
        with evaluating(self.module), torch.no_grad():
            for number, batch in enumerate(self.passes(samples, batch_size)):
                few, rows = (None, []) if number or self._is_steady else _every_other(batch)
                output = self.output(batch)
                outputs.check_form(output, self.criterion, self.task)
                if number == 0:
                    outputs.check_values(output, self.criterion, self.task)
                if rows:
                    self.check_steady(few, self.output(few), output[rows])
                yield output

    def collect(self, function: Callable[[Samples], Result], samples: Samples, step: int) -> Result:
        """``function(samples)``, shared among the workers if there are any.

        Parameters
        ----------
        function : callable
            From Samples to tensors, or tuples of them, with one row per sample. It may run in another process.
        samples : Samples
            What it is called with, in parts.
        step : int
            Parts are cut at multiples of this.

        Returns
        -------
        tensor, or tuple of tensors
            On the network's device.
        """
        if self.sharding is None or len(samples) <= step:
            return function(samples)
        return fill_rows(self.map(function, samples, step), len(samples))

    def map(
        self, function: Callable[[Samples], Result], samples: Samples, step: int, *, alone: bool = False
    ) -> Iterator[Result]:
        """``function`` of one part of the samples after the other, in their order, shared among the workers.

        Parameters
        ----------
        function : callable
            From Samples to anything. It may run in another process.
        samples : Samples
            What it is called with, in parts.
        step : int
            Parts are cut at multiples of this.
        alone : bool, default=False
            Do it all in this process, for results that take longer to send than to make.

        Returns
        -------
        iterator
            One result if there are no workers.
        """
        if self.sharding is None:
            return iter([function(samples)])
        return self.sharding.map(function, samples, step, self.device, alone=alone)

    @property
    def jobs(self) -> int:
        """The number of workers that share the passes."""
        return 1 if self.sharding is None else self.sharding.jobs()

    def all_logits(self, samples: Samples, batch_size: int) -> Tensor:
        """Logits of all samples, without gradient.

        Parameters
        ----------
        samples : Samples
            What goes through the network.
        batch_size : int
            Samples per pass.

        Returns
        -------
        (n, C) tensor
            On the network's device.
        """
        with torch.no_grad():
            return self.to_logits(self.all_outputs(samples, batch_size))

    def n_classes(self, samples: Samples) -> int:
        """Count the network's logits, from the outputs of two samples.

        A batch norm without running statistics cannot take one.

        Parameters
        ----------
        samples : Samples
            The first two are passed through the network.

        Returns
        -------
        int
            As many as there are logits.
        """
        with evaluating(self.module), torch.no_grad():
            return self.check_logits(next(self.batches(samples, 2))).shape[1]

    def _find_rows_per_pass(self, batch: Any) -> int:
        """The number of samples whose activations fit into the cache, from the largest layer in a pass of two samples.

        Hooks also keep torch from its fused layers, which do not show their outputs.
        """
        if self._rows_per_pass or isinstance(self.module, torch.jit.ScriptModule):  # scripts take no hooks
            return self._rows_per_pass or 4 * _ROWS
        largest = 0

        def look(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            nonlocal largest
            times = 3 if isinstance(layer, nn.MultiheadAttention) else 1  # queries, keys and values at once
            sizes = (leaf.numel() * leaf.element_size() for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
            largest = max([largest, *(times * size for size in sizes)])

        leaves, structure = tree_flatten(batch)
        few = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in _take(leaves, slice(0, 2))]
        with ExitStack() as stack, evaluating(self.module), torch.no_grad():
            for layer in self.module.modules():
                stack.callback(layer.register_forward_hook(look).remove)
            self.output(tree_unflatten(few, structure))
        threads = torch.get_num_threads()
        self._rows_per_pass = rows_within(threads * _TENSOR_BYTES, largest // 2, at_least=threads * _ROWS)
        return self._rows_per_pass


def _take(leaves: list[Any], rows: slice) -> list[Any]:
    return [leaf[rows] if isinstance(leaf, Tensor) and leaf.ndim else leaf for leaf in leaves]


def _every_other(batch: Any) -> tuple[Any, list[int]]:
    """A few samples of a batch from its end, two at least, and where they stand in it.

    No positions if it is not clear which parts of the batch are a sample's.
    """
    leaves, structure = tree_flatten(batch)
    sizes = {len(leaf) if isinstance(leaf, Tensor) and leaf.ndim else 0 for leaf in leaves}
    n = sizes.pop() if len(sizes) == 1 else 0
    rows = list(range(n - 1, max(-1, n - _FEW), -2))
    rows = 2 * rows if len(rows) == 1 else rows  # a batch norm without running statistics cannot take one
    return tree_unflatten([leaf[rows] for leaf in leaves] if rows else leaves, structure), rows


def check_values_exist(module: nn.Module) -> None:
    """Refuse weights without values, such as those on "meta"."""
    try:
        next(module.parameters()).flatten()[0].item()
    except RuntimeError as error:
        raise NetworkError(
            "The network's weights must have values. Got weights on the meta device. Load them, for example with "
            "module.load_state_dict(weights, assign=True), or make the module on a real device."
        ) from error
