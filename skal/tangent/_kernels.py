# SPDX-License-Identifier: BSD-3-Clause
"""Tangent kernels between two sets, block by block."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal._core.pool import Samples
from skal.exceptions import InvalidParameterError, VanishingKernelWarning
from skal.tangent._cotangents import kernel_cotangents, one_logit
from skal.tangent._factors import Gradients
from skal.tangent._kept import KeptGradients
from skal.tangent._layers import Layers
from skal.tangent._tangent_engine import TangentEngine, non_finite_gradients, open_engine
from skal.validation import Choice

KINDS = ["pntk", "logit", "trace", "entk"]
_N_SEEN = 8  # samples, and classes, that show whether a kernel vanishes


def tangent_kernel(
    net: Any,
    X: Any,
    Z: Any = None,
    *,
    kind: str = "pntk",
    layers: Layers = "all",
    backend: str = "auto",
    batch_size: int = 256,
    max_memory: int | str | None = None,
    autocast: torch.dtype | None = None,
) -> np.ndarray:
    """Inner products of the network's gradients at the samples of two sets.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
        A module is taken to return logits.
    X : array-like, tensor, Dataset or dict of arrays, n samples
        The first set.
    Z : the same, m samples, optional
        None is X; then the result is exactly symmetric.
    kind : {"pntk", "logit", "trace", "entk"}, default="pntk"
        With J the Jacobian of the logits: ``pntk`` is the gradient of ``Σ_c f_c / √C``, ``logit`` that of ``f_0``,
        ``trace`` is ``tr J(x) J(z)ᵀ``, and ``entk`` holds all C × C blocks ``J(x) J(z)ᵀ``.
    layers : {"all", "last", "last_blocks", "adapters"} or callable, default="all"
        Which trained parameters are differentiated. ``last`` are those of the layer that makes the outputs,
        ``last_blocks`` those of the last block, as transformers and residual networks have them, and of all that comes
        behind it. ``adapters`` is all that is trained in a network that is mostly frozen: LoRA and the like; others are
        refused. A function ``f(name, parameter)`` is true for those that it wants.
    backend : {"auto", "structured", "func", "backpack"}, default="auto"
        How gradients are computed; ``auto`` takes layer rules where there are some.
    batch_size : int, default=256
        Samples per network pass, at most.
    max_memory : int, str or None
        Bound on the working memory besides the result, such as ``"2GB"``; None is 1 GB. When the gradients of X do not
        fit, the passes over Z are repeated for each block of X that does.
    autocast : torch.dtype or None, default=None
        ``torch.bfloat16`` or ``torch.float16`` runs the network's passes in that precision; None never does.

    Returns
    -------
    (n, m) float64 array, (nC, mC) for ``entk``
        For ``kernel="precomputed"`` of scikit-learn as it is.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Linear(2, 4, bias=False)
    >>> tangent_kernel(net, torch.tensor([[1.0, 0.0], [1.0, 2.0]]))  # of a linear layer: the inputs' inner products
    array([[1., 1.],
           [1., 5.]])
    """
    X = Samples(X, name="X")
    Choice(*KINDS).check("tangent_kernel", "kind", kind)
    engine = open_engine("tangent_kernel", net, X, layers, backend, batch_size, max_memory, autocast)
    return kernel_matrix(engine, X, None if Z is None else Samples(Z, name="Z"), kind).cpu().numpy()


def kernel_matrix(engine: TangentEngine, X: Samples, Z: Samples | None, kind: str) -> Tensor:
    """:func:`tangent_kernel` on an engine that is there already: a float64 tensor on its device."""
    alone = engine.network.jobs == 1 or kind == "entk"
    step = _chunk_size(engine, kind)
    if Z is None:
        K = _kernel(engine, X, X, kind, overlap=True) if alone else _shared_upper_half(engine, X, kind, step)
        return K.add_(K.triu_().triu(1).T)
    if alone:
        return _kernel(engine, X, Z, kind)
    if len(X) > len(Z):
        return engine.network.collect(lambda part: _kernel(engine, part, Z, kind), X, step)
    return engine.network.collect(lambda part: _kernel(engine, X, part, kind).T, Z, step).T


def _shared_upper_half(engine: TangentEngine, X: Samples, kind: str, step: int) -> Tensor:
    """Strips of rows, each from the diagonal on: the longest first, so that the workers end together."""
    n = len(X)

    def strip(part: Samples) -> Tensor:
        rows = part.read(0, len(part))
        first, last = int(rows[0]), int(rows[-1])
        K = torch.zeros(len(part), n, dtype=torch.float64, device=engine.device)
        own, onwards = X.take(range(first, last + 1)), X.take(range(first, n))
        K[:, first:] = _kernel(engine, own, onwards, kind, overlap=True)
        return K

    return engine.network.collect(strip, Samples(np.arange(n)), step)


def _kernel(engine: TangentEngine, X: Samples, Z: Samples, kind: str, *, overlap: bool = False) -> Tensor:
    """The kernel between two sets. If the samples of X come first in Z (overlap), only what is above the diagonal."""
    per_sample = engine.n_classes if kind == "entk" else 1
    K = torch.zeros(len(X) * per_sample, len(Z) * per_sample, dtype=torch.float64, device=engine.device)
    top = 0
    for block in _blocks(engine, X, kind):
        bottom = top + sum(chunk.n for chunk in block)
        # the block's own gradients are here already, and the part left of it is the mirror image of an earlier one
        own, left, rest = (block, top, bottom) if overlap else ([], 0, 0)
        others = _chunks(engine, Z.take(range(rest, len(Z))), kind) if rest < len(Z) else []
        for second in chain(own, others):
            row = top
            for first in block:
                if overlap and row > left:
                    break
                rows = slice(row * per_sample, (row + first.n) * per_sample)
                columns = slice(left * per_sample, (left + second.n) * per_sample)
                K[rows, columns] = first.all_grams(second) if kind == "entk" else first.gram(second)
                row += first.n
            left += second.n
        top = bottom
    if not bool(torch.isfinite(K).all()):
        for samples in (X, Z):
            engine.network.all_outputs(samples, engine.batch_size)  # raises, if it is the outputs
        raise non_finite_gradients()
    return K


def _chunk_size(engine: TangentEngine, kind: str) -> int:
    """A quarter of the memory for what is kept of a chunk of Z, at worst all of its gradients written out."""
    return engine.chunk_size(4 * engine.gradient_bytes * len(kernel_cotangents(kind, engine.n_classes)))


def _chunks(engine: TangentEngine, samples: Samples, kind: str) -> Iterator[KeptGradients]:
    def reduce(gradients: Iterator[Gradients], n: int) -> KeptGradients:
        forms = [{name: g.kernel_form() for name, g in by_name.items()} for by_name in gradients]
        return KeptGradients(forms, n, engine.device)

    cotangents = kernel_cotangents(kind, engine.n_classes)
    return engine.run(samples, cotangents, reduce, batch_size=_chunk_size(engine, kind))


def _blocks(engine: TangentEngine, samples: Samples, kind: str) -> Iterator[list[KeptGradients]]:
    """Parts of X, each of as many chunks as half of the memory holds."""
    block: list[KeptGradients] = []
    kept_bytes = 0
    for chunk in _chunks(engine, samples, kind):
        if block and kept_bytes + chunk.n_bytes > engine.memory // 2:
            yield block
            block, kept_bytes = [], 0
        block.append(chunk)
        kept_bytes += chunk.n_bytes
    yield block


def kernel_diagonal(engine: TangentEngine, samples: Samples, kind: str) -> Tensor:
    """(n,) squared norms of the gradients, in float64: one pass, no pairs. Not for ``entk``."""

    def reduce(gradients: Iterator[Gradients], n: int) -> Tensor:
        zeros = torch.zeros(n, dtype=torch.float64, device=engine.device)
        return sum((g.lengths().square() for by_name in gradients for g in by_name.values()), zeros)

    return engine.collect(samples, kernel_cotangents(kind, engine.n_classes), reduce)


def settle_kernel(engine: TangentEngine, samples: Samples, kernel: str, owner: str) -> str:
    """The kernel to use where this one was asked for; ``auto`` is ``pntk``, or ``trace`` where that vanishes.

    Where the outputs sum to a constant (a softmax under squared loss, centred logits) the sum of logits has no
    gradient, and the pseudo-NTK is rounding. The trace kernel, over C the mean of the single outputs' kernels, knows no
    such sum; it takes C backward passes instead of one.

    Warns
    -----
    VanishingKernelWarning
        If ``pntk`` was asked for and vanishes.
    """
    if kernel not in ("auto", "pntk", "logit"):
        return kernel
    rows = np.linspace(0, len(samples) - 1, min(_N_SEEN, len(samples))).round().astype(np.int64)
    classes = np.unique(np.linspace(0, engine.n_classes - 1, min(_N_SEEN, engine.n_classes)).round().astype(int))
    asked = kernel_cotangents("logit" if kernel == "logit" else "pntk", engine.n_classes)

    def reduce(gradients: Iterator[Gradients], n: int) -> Tensor:
        return torch.stack([sum((g.lengths().square() for g in one.values()), zeros[:n]) for one in gradients], dim=1)

    zeros = torch.zeros(len(rows), dtype=torch.float64, device=engine.device)
    squares = engine.collect(samples.take(rows), asked + [one_logit(int(c)) for c in classes], reduce).mean(0)
    own, single = float(squares[0]), float(squares[1:].mean())
    bound = max(1e-9, 64 * torch.finfo(engine.network.dtype).eps ** 2)  # gradients that cancel leave their rounding
    vanishes = own <= bound * single
    if kernel == "logit" and vanishes and single > 0:
        expected, remedy = "'trace', 'pntk' or 'auto' for this network", "Its first logit has no gradient."
        raise InvalidParameterError.for_parameter(owner, "kernel", expected, kernel, remedy)
    if kernel == "pntk" and vanishes and single > 0:
        warnings.warn(
            f"The pseudo-NTK that {owner} uses vanishes (its diagonal is {own:.2g}, that of single outputs "
            f"{single:.2g}): the network's outputs sum to a constant, so the answer is rounding. Use kernel='auto' or "
            "'trace'.",
            VanishingKernelWarning,
            stacklevel=2,
        )
    if kernel == "auto":
        return "trace" if vanishes and single > 0 else "pntk"
    return kernel
