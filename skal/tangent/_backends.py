# SPDX-License-Identifier: BSD-3-Clause
"""Per-sample gradients without layer rules, written out: by ``torch.func``, one by one, or by BackPACK.

A backend is made of a network and the names of parameters. Its ``gradients(batch, target, cotangents)`` yields for each
cotangent the per-sample gradients by parameter; parameters without influence may be left out. ``logits`` are then those
of the batch.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.memory import is_out_of_memory
from skal._core.network import Network
from skal.exceptions import UnsupportedLayerError
from skal.tangent._cotangents import Cotangent, pull_back
from skal.tangent._factors import Dense, Gradients

# what BackPACK and its hooks say about every network, and what does not matter for first-order gradients
_EXPECTED_WARNINGS = (
    "Full backward hook is firing when gradients are computed with respect to module outputs",
    "Extension saving to grad_batch does not have an extension for Module",
    "Encountered node that may break second-order extensions",
)


class FuncBackend:
    """``vmap`` over ``grad``: every gradient is written out."""

    logits: Tensor

    def __init__(self, network: Network, names: set[str]) -> None:
        self.network = network
        self.parameters = {name: p.detach() for name, p in network.trainable().items() if name in names}

    def gradients(self, batch: Any, target: Tensor | None, cotangents: list[Cotangent]) -> Iterator[Gradients]:
        """Per-sample gradients by parameter, for each cotangent."""
        in_dims = (None, 0, None if target is None else 0)
        for cotangent in cotangents:

            def scalar(
                parameters: dict[str, Tensor], sample: Any, target: Tensor | None, cotangent: Cotangent = cotangent
            ) -> tuple[Tensor, Tensor]:
                logits = self.network.logits(tree_map(lambda x: x.unsqueeze(0), sample), parameters)
                v = cotangent(logits.detach(), None if target is None else target.unsqueeze(0))
                return (logits * v).sum(), logits[0]

            per_sample = torch.func.vmap(torch.func.grad(scalar, has_aux=True), in_dims=in_dims, randomness="same")
            # no_grad: parameters that are not asked for must not record a graph of their own; vmap knows no fused
            # attention, and would go through the samples one by one
            with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
                gradients, self.logits = per_sample(self.parameters, batch, target)
            yield {name: Dense(gradient.to(self.network.precision)) for name, gradient in gradients.items()}


class LoopBackend:
    """One backward pass per sample: slow, and right for every network that autograd can differentiate."""

    logits: Tensor

    def __init__(self, network: Network, names: set[str]) -> None:
        self.network = network
        self.parameters = {name: p for name, p in network.trainable().items() if name in names}

    def gradients(self, batch: Any, target: Tensor | None, cotangents: list[Cotangent]) -> Iterator[Gradients]:
        """Per-sample gradients by parameter, for each cotangent; a parameter without influence is left out."""
        for cotangent in cotangents:
            rows: dict[str, list[Tensor | None]] = {name: [] for name in self.parameters}
            all_logits = []
            for i in range(tree_leaves(batch)[0].shape[0]):
                logits = self.network.logits(tree_map(lambda x, i=i: x[i : i + 1], batch))
                all_logits.append(logits.detach())
                v = cotangent(all_logits[-1], None if target is None else target[i : i + 1])
                gradients = pull_back(v, logits, list(self.parameters.values()))
                for name, gradient in zip(self.parameters, gradients, strict=True):
                    rows[name].append(gradient.to_dense() if gradient is not None else None)
            self.logits = torch.cat(all_logits)
            yield {
                name: Dense(
                    torch.stack([torch.zeros_like(self.parameters[name]) if g is None else g for g in gradients]).to(
                        self.network.precision
                    )
                )
                for name, gradients in rows.items()
                if any(g is not None for g in gradients)
            }


@contextmanager
def _without_expected_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        for message in _EXPECTED_WARNINGS:
            warnings.filterwarnings("ignore", message=message, category=UserWarning)
        yield


class BackpackBackend:
    """BackPACK on a copy of the module: it leaves hooks behind, and the user's module must stay as it is.

    Its hooks do not survive operations in place. A network that has them in its ``forward`` goes through BackPACK's
    converter, which traces it and writes it anew.
    """

    def __init__(self, network: Network, names: set[str]) -> None:
        self._original, self._names = network.module, names
        self.network = copy.copy(network)
        self._prepare(convert=False)
        self._settled = False

    def _prepare(self, convert: bool) -> None:
        from backpack import extend

        module = copy.deepcopy(self._original).eval()
        trainable = {name: p for name, p in module.named_parameters() if p.requires_grad}
        for layer in module.modules():
            if getattr(layer, "inplace", False):
                setattr(layer, "inplace", False)  # noqa: B010 - mypy takes a module's attributes for tensors
        with _without_expected_warnings():
            self.network.module = extend(module, use_converter=convert)
        # the converter renames parameters, and keeps the objects
        kept = {id(p) for p in self.network.module.parameters()}
        self.parameters: dict[str, nn.Parameter] = {
            name: p for name, p in trainable.items() if name in self._names and id(p) in kept
        }

    def gradients(self, batch: Any, target: Tensor | None, cotangents: list[Cotangent]) -> Iterator[Gradients]:
        """Per-sample gradients by parameter, for each cotangent; a parameter without influence is left out."""
        for cotangent in cotangents:
            try:
                found = self._batch_grad(batch, target, cotangent)
            except Exception as error:
                if self._settled:
                    raise
                try:
                    self._prepare(convert=True)
                except Exception:  # not every forward can be traced: what BackPACK said first is what matters
                    raise error from None
                found = self._batch_grad(batch, target, cotangent)
            self._settled = True
            yield found

    def _batch_grad(self, batch: Any, target: Tensor | None, cotangent: Cotangent) -> Gradients:
        from backpack import backpack

        with _without_expected_warnings():
            logits = self.network.logits(batch)
            self.logits = logits.detach()
            v = cotangent(self.logits, target)
            with backpack(_batch_grad_extension()):
                (logits * v).sum().backward()
        found: Gradients = {}
        for name, p in self.parameters.items():
            if hasattr(p, "grad_batch"):
                found[name] = Dense(p.grad_batch.to(self.network.precision))
                del p.grad_batch
            elif p.grad is not None:
                layer = type(self._original.get_submodule(name.rpartition(".")[0])).__name__
                raise _unknown(f"no per-sample gradient for the parameter {name!r} of a {layer} layer")
            p.grad = None
        return found


def _unknown(what: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"BackPACK must know every layer. Got {what}. Use backend='structured', 'func' or 'auto'."
    )


def _batch_grad_extension() -> Any:
    from backpack.extensions import BatchGrad

    class NamingBatchGrad(BatchGrad):
        """BatchGrad whose errors name the layer."""

        def __call__(self, module: nn.Module, g_inp: Any, g_out: Any) -> None:
            try:
                super().__call__(module, g_inp, g_out)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                raise _unknown(f"a {type(module).__name__} layer ({error})") from error

    return NamingBatchGrad()
