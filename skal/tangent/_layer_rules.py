# SPDX-License-Identifier: BSD-3-Clause
"""What each kind of layer contributes: from its inputs and output gradients to per-sample gradients.

A rule is a function ``rule(layer, a, g)`` with a, the layer's input, and g, the gradient at its output, both with the
samples first. It returns one entry for each of the layer's own parameters: a tensor ``(n, *parameter.shape)``, or a
:class:`PerSampleGradient` in factored form.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from skal.tangent._factors import Bands, Outer, PerSampleGradient, Product, Rows, Scale

Contributions = dict[str, "Tensor | PerSampleGradient"]
Sizes = tuple[int, ...]  # along the axes of space
Rule = Callable[[Any, Tensor, Tensor], Contributions]
_RULES: dict[type[nn.Module], Rule] = {}


def register_rule(*layer_types: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Add a rule for your own layer, or replace one.

    Subclasses inherit it. ``backend="auto"`` compares the rule with autograd on a few samples before it trusts it.

    Parameters
    ----------
    *layer_types : subclasses of nn.Module
        Which own parameters.

    Returns
    -------
    callable
        A decorator for the rule.

    Examples
    --------
    >>> import torch
    >>> from skal.tangent import register_rule
    >>> class Scale(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = torch.nn.Parameter(torch.ones(()))
    ...     def forward(self, x):
    ...         return self.factor * x
    >>> @register_rule(Scale)
    ... def scale_rule(layer, a, g):
    ...     return {"factor": (a * g).flatten(1).sum(1)}
    """

    def register(rule: Rule) -> Rule:
        for layer_type in layer_types:
            _RULES[layer_type] = rule
        return rule

    return register


def find_rule(layer: nn.Module) -> Rule | None:
    """The rule of the layer's class or of its nearest ancestor."""
    return next((_RULES[cls] for cls in type(layer).__mro__ if cls in _RULES), None)


def users_rules(module: nn.Module) -> dict[type[nn.Module], Rule]:
    """The rules for the module's layers that did not come with skal: another process does not know them."""
    classes = {cls for layer in module.modules() for cls in type(layer).__mro__}
    return {cls: rule for cls, rule in _RULES.items() if cls in classes and not _is_ours(rule)}


def has_own_rule(layer: nn.Module) -> bool:
    """True if the layer is of exactly the class that one of this module's rules is for."""
    return type(layer) in _RULES and _is_ours(_RULES[type(layer)])


def _is_ours(rule: Rule) -> bool:
    return getattr(rule, "__module__", None) == __name__


def _over_positions(x: Tensor) -> Tensor:
    """Sum of each channel over the positions: (n, c, ...) -> (n, c)."""
    return x.reshape(*x.shape[:2], -1).sum(2)


@register_rule(nn.Linear)
def _linear(layer: nn.Linear, a: Tensor, g: Tensor) -> Contributions:
    inputs = a
    a, g = a.reshape(a.shape[0], -1, a.shape[-1]), g.reshape(g.shape[0], -1, g.shape[-1])  # (n, t, i), (n, t, o)
    if a.shape[1] == 1:
        return {"weight": Product(a[:, 0], g[:, 0], inputs), "bias": g[:, 0]}

    def apply(direction: Tensor, rows: slice) -> Tensor:
        return F.linear(a[rows], direction.reshape(layer.weight.shape)).transpose(1, 2)

    def columns(rows: slice) -> Tensor:
        return a[rows].transpose(1, 2)[:, None]

    weight = Outer(g.transpose(1, 2)[:, None], columns, layer.weight.shape[1], apply, inputs=inputs)
    return {"weight": weight, "bias": g.sum(1)}


def _both_sides(padding: Sizes) -> Sizes:
    """Padding of one size before and after each spatial dim: pairs, last dim first, as F.pad wants them."""
    return tuple(x for p in reversed(padding) for x in (p, p))


def _spatial_padding(layer: Any, size: Sizes, out: Sizes) -> tuple[int, ...]:
    """The padding of a convolution that takes ``size`` to ``out``: (before, after) pairs, last dim first.

    A convolution that pads its input by itself is taken to do so like padding="same": as TensorFlow does.
    """
    axes = list(zip(size, out, layer.kernel_size, layer.stride, layer.dilation, strict=True))
    if layer.padding != "same":
        own: Sizes = (0,) * len(size) if layer.padding == "valid" else layer.padding
        if all((n + 2 * p - d * (k - 1) - 1) // s + 1 == m for p, (n, m, k, s, d) in zip(own, axes, strict=True)):
            return _both_sides(own)
    pairs = [divmod(max(0, (m - 1) * s + d * (k - 1) + 1 - n), 2) for n, m, k, s, d in axes]
    return tuple(x for half, odd in reversed(pairs) for x in (half, half + odd))


def unfold(x: Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes, out: Sizes, groups: int) -> Tensor:
    """Patches of a padded input: (n, c, *spatial) -> (n, γ, c/γ · ∏kernel, ∏out), a strided view that is copied once.

    Works for any number of spatial dims, and is about twice as fast as ``F.unfold`` on a CPU.
    """
    x = x.contiguous()
    n, c = x.shape[:2]
    inner = x.stride()[2:]
    view = x.as_strided(
        (n, c, *kernel, *out),
        (
            *x.stride()[:2],
            *(s * d for s, d in zip(inner, dilation, strict=True)),
            *(s * d for s, d in zip(inner, stride, strict=True)),
        ),
    )
    return view.reshape(n, groups, c // groups * prod(kernel), prod(out))


def _convolution_weight(layer: Any, a: Tensor, g: Tensor, padding: tuple[int, ...], mode: str) -> PerSampleGradient:
    """Gradient of the weight of a convolution that takes a to an output with the gradient g."""
    spatial = len(layer.kernel_size)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    out = tuple(g.shape[2:])
    pointwise = all(k == 1 for k in layer.kernel_size) and all(s == 1 for s in layer.stride) and not any(padding)

    def pad_rows(rows: slice) -> Tensor:
        return F.pad(a[rows], padding, mode=mode) if any(padding) else a[rows]

    def columns(rows: slice) -> Tensor:
        if pointwise:
            return a[rows].reshape(-1, layer.groups, a.shape[1] // layer.groups, prod(out))
        return unfold(pad_rows(rows), layer.kernel_size, layer.stride, layer.dilation, out, layer.groups)

    def apply(direction: Tensor, rows: slice) -> Tensor:
        weight = direction.reshape(layer.weight.shape)
        convolved = convolve(pad_rows(rows), weight, None, layer.stride, 0, layer.dilation, layer.groups)
        everything = slice(None)
        # the output padding of a transposed convolution leaves more
        return convolved[(everything, everything, *(slice(size) for size in out))]

    def make_bands(rows: slice) -> list[Tensor]:
        # unfolded along the second spatial dim alone, the output rows of each kernel row are contiguous
        x = pad_rows(rows)
        wide = x.unsqueeze(2).flatten(0, 1)  # (n·c, 1, h, w): the kernel's first offset stays a dim of its own
        height = x.shape[2]
        unfolded = unfold(
            wide, (1, layer.kernel_size[1]), (1, layer.stride[1]), (1, layer.dilation[1]), (height, out[1]), 1
        ).reshape(x.shape[0], layer.groups, -1, height * out[1])
        starts = [offset * layer.dilation[0] * out[1] for offset in range(layer.kernel_size[0])]
        return [unfolded[..., start : start + out[0] * out[1]] for start in starts]

    if layer.groups == 1 and prod(out) == 1:
        return Product(columns(slice(None)).flatten(1), g.flatten(1), inputs=a)
    by_group = g.reshape(g.shape[0], layer.groups, g.shape[1] // layer.groups, -1)
    banded = spatial == 2 and layer.stride[0] == 1 and layer.kernel_size[0] > 1
    bands = Bands(make_bands, layer.kernel_size[0], layer.kernel_size[1]) if banded else None
    return Outer(by_group, columns, prod(layer.weight.shape[1:]), apply, bands, inputs=a)


@register_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _convolution(layer: Any, a: Tensor, g: Tensor) -> Contributions:
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padding = _spatial_padding(layer, a.shape[2:], g.shape[2:])
    weight = _convolution_weight(layer, a, g, padding, mode)
    return {"weight": weight, "bias": _over_positions(g)}


@register_rule(nn.ConvTranspose2d)
def _transposed_convolution(layer: Any, a: Tensor, g: Tensor) -> Contributions:
    # the transpose of a convolution from outputs to inputs: inputs and output gradients change places
    weight = _convolution_weight(layer, g, a, _both_sides(layer.padding), "constant")
    return {"weight": weight, "bias": _over_positions(g)}


def _scale_and_shift(
    a: Tensor,
    g: Tensor,
    normalise: Callable[[Tensor], Tensor],
    sum_positions: Callable[[Tensor], Tensor] = _over_positions,
) -> Contributions:
    """The affine part of a normalisation, element by element."""
    return {"weight": Scale(g, lambda rows: normalise(a[rows]), sum_positions, inputs=a), "bias": sum_positions(g)}


def _statistics(layer: Any, a: Tensor) -> tuple[Tensor, Tensor]:
    """Statistics of a batch norm in the precision of the rules."""
    return layer.running_mean.to(a.dtype), layer.running_var.to(a.dtype)


@register_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(layer: Any, a: Tensor, g: Tensor) -> Contributions:
    return _scale_and_shift(a, g, lambda a: F.batch_norm(a, *_statistics(layer, a), eps=layer.eps))


@register_rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def _instance_norm(layer: Any, a: Tensor, g: Tensor) -> Contributions:
    mean, var = _statistics(layer, a) if layer.track_running_stats else (None, None)
    return _scale_and_shift(a, g, lambda a: F.instance_norm(a, mean, var, use_input_stats=mean is None, eps=layer.eps))


@register_rule(nn.GroupNorm)
def _group_norm(layer: nn.GroupNorm, a: Tensor, g: Tensor) -> Contributions:
    return _scale_and_shift(a, g, lambda a: F.group_norm(a, layer.num_groups, eps=layer.eps))


@register_rule(nn.LayerNorm)
def _layer_norm(layer: nn.LayerNorm, a: Tensor, g: Tensor) -> Contributions:
    shape = layer.normalized_shape

    def sum_positions(x: Tensor) -> Tensor:
        return x.reshape(len(x), -1, *shape).sum(1)

    return _scale_and_shift(a, g, lambda a: F.layer_norm(a, shape, eps=layer.eps), sum_positions)


@register_rule(nn.PReLU)
def _prelu(layer: nn.PReLU, a: Tensor, g: Tensor) -> Contributions:
    product = a.clamp(max=0) * g
    return {
        "weight": product.flatten(1).sum(1, keepdim=True) if layer.num_parameters == 1 else _over_positions(product)
    }


@register_rule(nn.Embedding)
def _embedding(layer: nn.Embedding, a: Tensor, g: Tensor) -> Contributions:
    inputs = a
    index, g = a.reshape(a.shape[0], -1), g.reshape(g.shape[0], -1, g.shape[-1])
    if layer.padding_idx is not None:
        g = g * (index != layer.padding_idx)[..., None]
    return {"weight": Rows(index, g, layer.num_embeddings, inputs=inputs)}
