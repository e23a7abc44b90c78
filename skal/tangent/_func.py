# SPDX-License-Identifier: BSD-3-Clause
"""Per-sample gradients by ``torch.func`` (works for anything that ``vmap`` can trace), and one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from skal._core.network import Network
from skal.tangent._cotangents import Cotangent, pull_back
from skal.tangent._factors import Dense, Gradients


class FuncBackend:
    """``vmap`` over ``grad``: every gradient is written out."""

    logits: Tensor

    def __init__(self, network: Network, names: set[str]) -> None:
        self.network = network
        self.parameters = {name: p.detach() for name, p in network.trainable().items() if name in names}

    def gradients(self, batch: Any, target: Tensor | None, cotangents: list[Cotangent]) -> Iterator[Gradients]:
        """For each cotangent the per-sample gradients by parameter."""
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
        """For each cotangent the per-sample gradients by parameter; a parameter without influence is left out."""
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
