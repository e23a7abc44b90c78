"""What each kind of layer contributes: from its inputs and output gradients to per-sample gradients.

A rule is a function ``rule(layer, a, g)`` with a, the layer's input, and g, the gradient at its output, both with the
samples first. It returns one entry for each of the layer's own parameters: a tensor ``(n, *parameter.shape)``, or a
:class:`PerSampleGradient` in factored form.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from skal.tangent._factors import Bands, Dense, Outer, PerSampleGradient, Rows

__all__ = ["find_rule", "has_own_rule", "register_rule", "users_rules"]

Rule = Callable[[Any, Tensor, Tensor], "dict[str, Tensor | PerSampleGradient]"]
_RULES: dict[type[nn.Module], Rule] = {}
_OURS: dict[type[nn.Module], Rule] = {}


def register_rule(*layer_types: type[nn.Module]) -> Callable[[Rule], Rule]:
    """Add a rule for your own layer, or replace one.

    Subclasses inherit it. ``backend="auto"`` compares the rule with autograd on a few samples before it trusts it.

    Parameters
    ----------
    *layer_types : subclasses of nn.Module that own parameters

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
    return {cls: rule for cls, rule in _RULES.items() if cls in classes and _OURS.get(cls) is not rule}


def has_own_rule(layer: nn.Module) -> bool:
    """Whether the layer is of exactly the class that one of this module's rules is for."""
    return type(layer) in _OURS and find_rule(layer) is _OURS[type(layer)]


def _summed(g: Tensor, keep: int) -> Tensor:
    """Sum of (n, ..., last ``keep`` dims) over the dims between."""
    middle = tuple(range(1, g.ndim - keep))
    return g.sum(middle) if middle else g


@register_rule(nn.Linear)
def _linear(layer: nn.Linear, a: Tensor, g: Tensor) -> dict[str, Tensor | PerSampleGradient]:
    a, g = a.reshape(a.shape[0], -1, a.shape[-1]), g.reshape(g.shape[0], -1, g.shape[-1])  # (n, t, i), (n, t, o)

    def apply(direction: Tensor, rows: slice) -> Tensor:
        return F.linear(a[rows], direction.reshape(layer.weight.shape)).transpose(1, 2)

    weight = Outer(
        g.transpose(1, 2)[:, None], lambda rows: a[rows].transpose(1, 2)[:, None], layer.weight.shape[1], apply
    )
    return {"weight": weight, "bias": g.sum(1)}


def _spatial_padding(layer: Any) -> tuple[int, ...]:
    """Padding of each spatial dim on both sides: (before, after) pairs, last dim first, as F.pad wants them."""
    if layer.padding == "same":
        pairs = [divmod(d * (k - 1), 2) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        return tuple(x for half, odd in reversed(pairs) for x in (half, half + odd))
    padding = (0,) * len(layer.kernel_size) if layer.padding == "valid" else layer.padding
    return tuple(x for p in reversed(padding) for x in (p, p))


def unfold(x: Tensor, kernel: tuple, stride: tuple, dilation: tuple, out: tuple, groups: int) -> Tensor:
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


@register_rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
def _conv(layer: Any, a: Tensor, g: Tensor) -> dict[str, Tensor | PerSampleGradient]:
    spatial = len(layer.kernel_size)
    convolve = (F.conv1d, F.conv2d, F.conv3d)[spatial - 1]
    padding, out = _spatial_padding(layer), tuple(g.shape[2:])
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    pointwise = all(k == 1 for k in layer.kernel_size) and all(s == 1 for s in layer.stride) and not any(padding)

    def padded(rows: slice) -> Tensor:
        return F.pad(a[rows], padding, mode=mode) if any(padding) else a[rows]

    def columns(rows: slice) -> Tensor:
        if pointwise:
            return a[rows].reshape(-1, layer.groups, a.shape[1] // layer.groups, prod(out))
        return unfold(padded(rows), layer.kernel_size, layer.stride, layer.dilation, out, layer.groups)

    def apply(direction: Tensor, rows: slice) -> Tensor:
        return convolve(
            padded(rows), direction.reshape(layer.weight.shape), None, layer.stride, 0, layer.dilation, layer.groups
        )

    def make_bands(rows: slice) -> list[Tensor]:
        # unfolded along the second spatial dim alone, the output rows of each kernel row are contiguous
        x = padded(rows)
        wide = x.unsqueeze(2).flatten(0, 1)  # (n·c, 1, h, w): the kernel's first offset stays a dim of its own
        height = x.shape[2]
        unfolded = unfold(
            wide, (1, layer.kernel_size[1]), (1, layer.stride[1]), (1, layer.dilation[1]), (height, out[1]), 1
        ).reshape(x.shape[0], layer.groups, -1, height * out[1])
        starts = [offset * layer.dilation[0] * out[1] for offset in range(layer.kernel_size[0])]
        return [unfolded[..., start : start + out[0] * out[1]] for start in starts]

    by_group = g.reshape(g.shape[0], layer.groups, g.shape[1] // layer.groups, -1)
    banded = spatial == 2 and layer.stride[0] == 1 and layer.kernel_size[0] > 1
    bands = Bands(make_bands, layer.kernel_size[0], layer.kernel_size[1]) if banded else None
    weight = Outer(by_group, columns, prod(layer.weight.shape[1:]), apply, bands)
    return {"weight": weight, "bias": g.flatten(2).sum(2)}


@register_rule(nn.ConvTranspose2d)
def _conv_transpose(layer: Any, a: Tensor, g: Tensor) -> dict[str, Tensor | PerSampleGradient]:
    # the transpose of a convolution from outputs to inputs: inputs and output gradients change places
    pads = tuple(x for p in reversed(layer.padding) for x in (p, p))
    out = tuple(a.shape[2:])
    kernel, stride, dilation, groups = layer.kernel_size, layer.stride, layer.dilation, layer.groups

    def columns(rows: slice) -> Tensor:
        return unfold(F.pad(g[rows], pads), kernel, stride, dilation, out, groups)

    def apply(direction: Tensor, rows: slice) -> Tensor:
        weight = direction.reshape(layer.weight.shape)
        convolved = F.conv2d(F.pad(g[rows], pads), weight, None, stride, 0, dilation, groups)
        return convolved[:, :, : out[0], : out[1]]

    by_group = a.reshape(a.shape[0], groups, a.shape[1] // groups, -1)
    weight = Outer(by_group, columns, prod(layer.weight.shape[1:]), apply)
    return {"weight": weight, "bias": g.flatten(2).sum(2)}


def _channel_scale(normalised: Tensor, g: Tensor) -> dict[str, Tensor | PerSampleGradient]:
    """Scale and shift of each channel: (n, c, ...) -> (n, c) each."""
    positions = tuple(range(2, g.ndim))
    product = normalised * g
    return {
        "weight": product.sum(positions) if positions else product,
        "bias": g.sum(positions) if positions else g,
    }


def _by_pieces(a: Tensor, g: Tensor, work: Callable[[Tensor, Tensor], dict]) -> dict[str, Tensor | PerSampleGradient]:
    """Element-wise rules a few samples at a time, so that intermediate results stay in the cache."""
    whole = Dense(g)
    parts = [work(a[rows], g[rows]) for rows in whole.pieces(whole.size)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


@register_rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
def _batch_norm(layer: Any, a: Tensor, g: Tensor) -> dict[str, Tensor | PerSampleGradient]:
    shape = (1, -1, *[1] * (a.ndim - 2))
    mean = layer.running_mean.reshape(shape)
    scale = (layer.running_var + layer.eps).rsqrt()

    def work(a: Tensor, g: Tensor) -> dict:
        result = _channel_scale(a - mean, g)
        return {"weight": result["weight"] * scale, "bias": result["bias"]}

    return _by_pieces(a, g, work)


@register_rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
def _instance_norm(layer: Any, a: Tensor, g: Tensor) -> dict[str, Tensor | PerSampleGradient]:
    mean, var = (layer.running_mean, layer.running_var) if layer.track_running_stats else (None, None)

    def work(a: Tensor, g: Tensor) -> dict:
        return _channel_scale(F.instance_norm(a, mean, var, use_input_stats=mean is None, eps=layer.eps), g)

    return _by_pieces(a, g, work)


@register_rule(nn.GroupNorm)
def _group_norm(layer: nn.GroupNorm, a: Tensor, g: Tensor) -> dict[str, Tensor | PerSampleGradient]:
    return _by_pieces(a, g, lambda a, g: _channel_scale(F.group_norm(a, layer.num_groups, eps=layer.eps), g))


@register_rule(nn.LayerNorm)
def _layer_norm(layer: nn.LayerNorm, a: Tensor, g: Tensor) -> dict[str, Tensor | PerSampleGradient]:
    keep = len(layer.normalized_shape)

    def work(a: Tensor, g: Tensor) -> dict:
        normalised = F.layer_norm(a, layer.normalized_shape, eps=layer.eps)
        return {"weight": _summed(normalised * g, keep), "bias": _summed(g, keep)}

    return _by_pieces(a, g, work)


@register_rule(nn.PReLU)
def _prelu(layer: nn.PReLU, a: Tensor, g: Tensor) -> dict[str, Tensor | PerSampleGradient]:
    product = a.clamp(max=0) * g
    if layer.num_parameters == 1:
        return {"weight": product.flatten(1).sum(1, keepdim=True)}
    return {"weight": product.flatten(2).sum(2) if product.ndim > 2 else product}


@register_rule(nn.Embedding)
def _embedding(layer: nn.Embedding, a: Tensor, g: Tensor) -> dict[str, Tensor | PerSampleGradient]:
    index, g = a.reshape(a.shape[0], -1), g.reshape(g.shape[0], -1, g.shape[-1])
    if layer.padding_idx is not None:
        g = g * (index != layer.padding_idx)[..., None]
    return {"weight": Rows(index, g, layer.num_embeddings)}


_OURS.update(_RULES)
