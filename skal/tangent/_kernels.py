"""Tangent kernels between two sets, block by block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal._core.samples import Samples
from skal.tangent._cotangents import kernel_cotangents
from skal.tangent._engine import Gradients, TangentEngine, non_finite_gradients
from skal.tangent._factors import Outer, PerSampleGradient, Rows
from skal.validation import check_choice

__all__ = ["tangent_kernel"]

KINDS = ["pntk", "logit", "trace", "entk"]
# a block: for each chunk its number of samples, and for each cotangent the gradients in the form to be kept
Chunk = tuple[int, list[Gradients]]


def tangent_kernel(
    net: Any,
    X: Any,
    Z: Any = None,
    *,
    kind: str = "pntk",
    layers: str = "all",
    backend: str = "auto",
    batch_size: int = 256,
    max_memory: int | str | None = None,
    autocast: torch.dtype | None = None,
) -> np.ndarray:
    """Inner products of the network's gradients at the samples of two sets.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
    X : array-like, tensor, Dataset or dict of arrays, n samples
    Z : the same, m samples, optional
        None is X; then the result is exactly symmetric.
    kind : {"pntk", "logit", "trace", "entk"}, default="pntk"
        With J the Jacobian of the logits: ``pntk`` is the gradient of ``Σ_c f_c / √C``, ``logit`` that of ``f_0``,
        ``trace`` is ``tr J(x) J(z)ᵀ``, and ``entk`` holds all C × C blocks ``J(x) J(z)ᵀ``.
    layers : {"all", "last"}, default="all"
        All trainable parameters, or those of the last parameterised layer.
    backend : {"auto", "structured", "func", "backpack"}, default="auto"
    batch_size : int, default=256
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
    engine = TangentEngine(
        net,
        X,
        backend=backend,
        layers=layers,
        batch_size=batch_size,
        max_memory=max_memory,
        autocast=autocast,
        owner="tangent_kernel",
    )
    return kernel_matrix(engine, X, None if Z is None else Samples(Z, name="Z"), kind).cpu().numpy()


def kernel_matrix(engine: TangentEngine, X: Samples, Z: Samples | None, kind: str) -> Tensor:
    """:func:`tangent_kernel` on an engine that is there already: a float64 tensor on its device."""
    check_choice("tangent_kernel", "kind", kind, KINDS)
    if engine.network.sharding.jobs() == 1 or kind == "entk":
        return _kernel_matrix(engine, X, Z, kind)
    step = _chunk_size(engine, len(kernel_cotangents(kind, engine.n_classes)))
    if Z is None:
        return _shared_symmetric(engine, X, kind, step)
    if len(X) > len(Z):
        return engine.map(lambda part: _kernel_matrix(engine, part, Z, kind), X, step)
    return engine.map(lambda part: _kernel_matrix(engine, X, part, kind).T, Z, step).T


def _shared_symmetric(engine: TangentEngine, X: Samples, kind: str, step: int) -> Tensor:
    """Strips of rows, each from the diagonal on: the longest first, so that the workers end together."""
    n = len(X)

    def strip(part: Samples) -> Tensor:
        rows = part.read(0, len(part))
        first, last = int(rows[0]), int(rows[-1])
        K = torch.zeros(len(part), n, dtype=torch.float64, device=engine.device)
        K[:, first:] = _kernel_matrix(engine, X.take(range(first, last + 1)), X.take(range(first, n)), kind)
        return K

    if n <= step:
        return _kernel_matrix(engine, X, None, kind)
    K = engine.map(strip, Samples(np.arange(n)), step).triu()
    return K + K.triu(1).T


def _kernel_matrix(engine: TangentEngine, X: Samples, Z: Samples | None, kind: str) -> Tensor:
    symmetric = Z is None
    Z = X if Z is None else Z
    per_sample = engine.n_classes if kind == "entk" else 1
    K = torch.empty(len(X) * per_sample, len(Z) * per_sample, dtype=torch.float64, device=engine.device)
    top = 0
    for block, n_block in _blocks(engine, X, kind):
        left = top if symmetric else 0  # what is below the diagonal has been computed as its mirror image
        for n_chunk, chunk in _chunks(engine, Z.take(range(left, len(Z))), kind):
            row = top
            for n, kept in block:
                rows = slice(row * per_sample, (row + n) * per_sample)
                columns = slice(left * per_sample, (left + n_chunk) * per_sample)
                part = _inner_products(kept, chunk, kind, K.new_zeros(n, n_chunk))
                K[rows, columns] = part
                if symmetric:
                    K[columns, rows] = part.T
                row += n
            left += n_chunk
        top += n_block
    if not bool(torch.isfinite(K).all()):
        for samples in [X] if symmetric else [X, Z]:
            engine.network.all_outputs(samples, engine.batch_size)  # raises, if outputs are
        raise non_finite_gradients()
    return (K + K.T).div_(2) if symmetric else K


def kernel_diagonal(engine: TangentEngine, samples: Samples, kind: str) -> Tensor:
    """(n,) squared norms of the gradients, in float64: one pass, no pairs. Not for ``entk``."""

    def reduce(gradients: Iterator[Gradients], n: int) -> Tensor:
        total = torch.zeros(n, dtype=torch.float64, device=engine.device)
        for by_name in gradients:
            for gradient in by_name.values():
                total += gradient.scores()[0]
        return total

    cotangents = kernel_cotangents(kind, engine.n_classes)
    return engine.map(lambda part: torch.cat(list(engine.run(part, cotangents, reduce))), samples)


def _inner_products(first: list[Gradients], second: list[Gradients], kind: str, zeros: Tensor) -> Tensor:
    if kind != "entk":
        return sum((_gram(a, b, zeros) for a, b in zip(first, second, strict=True)), zeros)
    blocks = torch.stack([torch.stack([_gram(a, b, zeros) for b in second]) for a in first])  # (C, C, n, m)
    C, _, n, m = blocks.shape
    return blocks.permute(2, 0, 3, 1).reshape(n * C, m * C)


def _gram(first: Gradients, second: Gradients, zeros: Tensor) -> Tensor:
    # in the order of the first: a set's order, and with it the rounding, differs from process to process
    return sum((gradient.gram(second[name]) for name, gradient in first.items() if name in second), zeros)


def _chunks(engine: TangentEngine, samples: Samples, kind: str, batch_size: int | None = None) -> Iterator[Chunk]:
    def reduce(gradients: Iterator[Gradients], n: int) -> Chunk:
        return n, [{name: g.kernel_form() for name, g in by_name.items()} for by_name in gradients]

    cotangents = kernel_cotangents(kind, engine.n_classes)
    size = batch_size or _chunk_size(engine, len(cotangents))
    return engine.run(samples, cotangents, reduce, batch_size=size)


def _chunk_size(engine: TangentEngine, n_cotangents: int) -> int:
    """A quarter of the memory for what is kept of a chunk of Z, at worst all of its gradients written out."""
    written_out = engine.element_size * sum(engine.sizes.values()) * n_cotangents
    return max(1, min(engine.batch_size, engine.memory // (4 * written_out + engine.sample_bytes)))


def _blocks(engine: TangentEngine, samples: Samples, kind: str) -> Iterator[tuple[list[Chunk], int]]:
    """As many chunks of X at a time as half of the memory holds."""
    block: list[Chunk] = []
    n_block = kept_bytes = 0
    for n, chunk in _chunks(engine, samples, kind):
        chunk_bytes = engine.element_size * sum(_kept_entries(g) for by_name in chunk for g in by_name.values())
        if block and kept_bytes + chunk_bytes > engine.memory // 2:
            yield block, n_block
            block, n_block, kept_bytes = [], 0, 0
        block.append((n, chunk))
        n_block += n
        kept_bytes += chunk_bytes
    yield block, n_block


def _kept_entries(gradient: PerSampleGradient) -> int:
    entries = gradient.size
    if isinstance(gradient, Outer):
        entries = gradient.n_in + gradient.n_out
    elif isinstance(gradient, Rows):
        entries = gradient.positions * (gradient.width + 2)  # an index is as long as two numbers
    return gradient.n * entries
