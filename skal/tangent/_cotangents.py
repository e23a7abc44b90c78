# SPDX-License-Identifier: BSD-3-Clause
"""The scalars of the logits that are differentiated.

The gradient of a scalar with derivative v with respect to the logits f is ``J(x)ᵀ v``. A cotangent is a function
``(logits (n, C), target (n, ...) or None) -> v (n, C)`` that works row by row, so that it may also run under ``vmap``.
The target of a loss is the (n,) labels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from skal._core.last_layer import nodes_behind
from skal._core.losses import Loss
from skal.exceptions import UnsupportedLayerError

Cotangent = Callable[[Tensor, "Tensor | None"], Tensor]


def pull_back(
    v: Tensor, logits: Tensor, inputs: Sequence[Any], *, retain_graph: bool = False
) -> tuple[Tensor | None, ...]:
    """``Jᵀ v`` for each of the inputs (tensors, or edges of the graph); None for those without influence."""
    if not inputs or not logits.requires_grad:
        return (None,) * len(inputs)
    try:
        return torch.autograd.grad(logits, inputs, v, retain_graph=retain_graph, allow_unused=True)
    except RuntimeError as error:
        if logits.device.type == "xla" and any("BatchNorm" in node.name() for node in nodes_behind(logits)):
            raise UnsupportedLayerError(
                "On an XLA device the network must have no batch norm where its gradients are needed: torch_xla cannot "
                "differentiate one in eval mode. Got a network with batch norm. Move it to the processor, use "
                "a GroupNorm, or a strategy on outputs or embeddings, such as Margin, BADGE or UHerding."
            ) from error
        raise


@dataclass(frozen=True)
class LossCotangent:
    """The derivative of a loss: of the target, or of one label for all samples.

    Without either, the network's own prediction is taken for the label.
    """

    loss: Loss
    label: int | None = None

    def __call__(self, logits: Tensor, target: Tensor | None) -> Tensor:
        if self.label is not None:
            target = torch.full(logits.shape[:-1], self.label, device=logits.device)
        return self.loss.gradient(logits, self.loss.predict(logits) if target is None else target)


def sum_of_logits(logits: Tensor, target: Tensor | None = None) -> Tensor:
    """``Σ_c f_c / √C``: the pseudo-NTK."""
    return torch.full_like(logits, 1 / sqrt(logits.shape[-1]))


def one_logit(index: int) -> Cotangent:
    """``f_index``."""

    def cotangent(logits: Tensor, target: Tensor | None = None) -> Tensor:
        classes = torch.arange(logits.shape[-1], device=logits.device)
        return (classes == index).to(logits.dtype).expand_as(logits)

    return cotangent


def target_itself(logits: Tensor, target: Tensor | None = None) -> Tensor:
    """The target itself, for comparing backends."""
    assert target is not None
    return target


def probes(n_samples: int, n_classes: int) -> Tensor:
    """(n, C) numbers among which no two samples and no two classes look alike."""
    return torch.arange(1, n_samples * n_classes + 1, device="cpu").double().cos().reshape(n_samples, n_classes)


def kernel_cotangents(kind: str, n_classes: int) -> list[Cotangent]:
    """One cotangent for ``pntk`` and ``logit``, one per class for ``trace`` and ``entk``."""
    if kind == "pntk":
        return [sum_of_logits]
    return [one_logit(c) for c in range(1 if kind == "logit" else n_classes)]
