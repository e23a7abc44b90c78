"""The passes that a strategy cannot do without, in plain torch, with nothing made of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

SIZES = (64, 256)  # of batches; the quicker one counts


def forward_alone(module: nn.Module, X: np.ndarray, size: int) -> None:
    """Outputs of all samples."""
    with torch.no_grad():
        for start in range(0, len(X), size):
            module(torch.from_numpy(X[start : start + size]))


def passes_alone(module: nn.Module, X: np.ndarray, size: int, n_backward: int = 1) -> None:
    """A forward pass with its graph, and backward passes to the outputs of all layers with parameters."""
    edges: list[Any] = []
    layers = [layer for layer in module.modules() if next(layer.parameters(recurse=False), None) is not None]
    handles = [
        layer.register_forward_hook(lambda layer, args, output: edges.append(get_gradient_edge(output)))
        for layer in layers
        if not isinstance(layer, nn.MultiheadAttention)
    ]
    try:
        for start in range(0, len(X), size):
            edges.clear()
            output = module(torch.from_numpy(X[start : start + size]))
            v = torch.ones_like(output)
            for number in range(n_backward):
                torch.autograd.grad(output, edges, v, retain_graph=number < n_backward - 1)
    finally:
        for handle in handles:
            handle.remove()


def applied_again(module: nn.Module, X: np.ndarray, size: int) -> Callable[[], None]:
    """Every linear map and convolution once more, as inner products with a direction take it; inputs are there."""
    calls: list[Callable[[], Tensor]] = []

    def record(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if isinstance(layer, nn.MultiheadAttention):
            pairs = [(layer.in_proj_weight, args[0]), (layer.out_proj.weight, args[0])]
            calls.extend(partial(F.linear, x.detach(), weight.detach()) for weight, x in pairs)
        elif isinstance(layer, nn.Linear):
            calls.append(partial(F.linear, args[0].detach(), layer.weight.detach()))
        else:
            settings = layer.stride, layer.padding, layer.dilation, layer.groups
            calls.append(partial(F.conv2d, args[0].detach(), layer.weight.detach(), None, *settings))

    kinds = (nn.Linear, nn.Conv2d, nn.MultiheadAttention)
    handles = [x.register_forward_hook(record, with_kwargs=True) for x in module.modules() if isinstance(x, kinds)]
    module(torch.from_numpy(X[:size]))  # with gradients: without, torch's fused encoder calls none of its layers
    for handle in handles:
        handle.remove()

    def run() -> None:
        with torch.no_grad():
            for _ in range(0, len(X), size):
                for call in calls:
                    call()

    return run


def bounds(learner: Any, X: np.ndarray, n_classes: int = 10) -> dict[str, dict[str, Callable[[], object]]]:
    """By what they are for: the same work at each batch size, of which the quickest counts."""
    module, labelled = learner.estimator.module_.eval(), learner.X_training
    both = np.concatenate([X, labelled])
    return {
        "a forward pass": {f"{size}": partial(forward_alone, module, X, size) for size in SIZES},
        "CoreSet: with the labelled samples": {f"{size}": partial(forward_alone, module, both, size) for size in SIZES},
        "DynamicAL: forward and backward, with the labelled samples": {
            f"{size}": partial(passes_alone, module, both, size) for size in SIZES
        },
        "DynamicAL: each layer once more": {f"{size}": applied_again(module, X, size) for size in SIZES},
        "EGL: forward and a backward pass for each class": {
            f"{size}": partial(passes_alone, module, X, size, n_classes) for size in SIZES
        },
    }


def covariances_alone(module: nn.Module, n: int, e: int, dtype: torch.dtype) -> Callable[[], None]:
    """Kernels of n samples with e others from the factors of linear layers, summed over the layers: (n, e) products."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    widths = [(layer.in_features + 1, layer.out_features) for layer in layers]
    factors = [[torch.ones(n, width, dtype=dtype) for width in pair] for pair in widths]
    some = [[values[:e].T.contiguous() for values in pair] for pair in factors]

    def run() -> None:
        for start in range(0, n, 1024):
            rows = slice(start, start + 1024)
            for (a, g), (a2, g2) in zip(factors, some, strict=True):
                (a[rows] @ a2).mul_(g[rows] @ g2)

    return run


def picks_alone(n: int, e: int, b: int, dtype: torch.dtype) -> Callable[[], None]:
    """A product of the (n, e) covariances with a column for each of b picks."""
    S, w = torch.ones(n, e, dtype=dtype), torch.ones(e, dtype=dtype)

    def run() -> None:
        for _ in range(b):
            S @ w

    return run
