# SPDX-License-Identifier: BSD-3-Clause
"""Gradients as vectors: written out, or sketched into k numbers whose inner products estimate theirs.

The sketch flips signs at random and adds the entries into k buckets. A weight matrix (o, i) gets the signs ``u_o v_i``
and the bucket ``(o · s + i + offset) mod k``, with the stride s the first number from i upwards without a common
divisor with k. No two entries are flipped together, so that the estimate of every inner product is unbiased; rows start
at different buckets, so that a few strong inputs or outputs do not pile up; and the signs can be put on the layer's
inputs and output gradients before they are multiplied, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skal._core.pool import Samples
from skal.tangent._cotangents import Cotangent, LossCotangent, kernel_cotangents
from skal.tangent._factors import Gradients, Outer, PerSampleGradient, Product, Rows, pieces
from skal.tangent._kernels import KINDS
from skal.tangent._layers import Layers
from skal.tangent._tangent_engine import TangentEngine, open_engine
from skal.validation import Choice, Integer

MOST_FEATURES = 10**8
_PIECE_BYTES = 2**20  # bytes of gradients that are written out at once


def tangent_features(
    net: Any,
    X: Any,
    *,
    kind: str = "pntk",
    n_features: int | None = 4096,
    random_state: int = 0,
    layers: Layers = "all",
    backend: str = "auto",
    batch_size: int = 256,
    max_memory: int | str | None = None,
    autocast: torch.dtype | None = None,
) -> np.ndarray:
    """Vectors whose inner products are, or estimate, the tangent kernel.

    Parameters
    ----------
    net : fitted skorch net or nn.Module
        A module is taken to return logits.
    X : array-like, tensor, Dataset or dict of arrays
        The samples.
    kind : {"pntk", "logit", "trace", "entk"}, default="pntk"
        See :func:`tangent_kernel`.
    n_features : int or None, default=4096
        Length k of the sketch; its error falls like ``k ** -0.5``. None gives the exact gradients.
    random_state : int, default=0
        The same number gives the same projection for every call on the same network.
    layers : {"all", "last", "last_blocks", "adapters"} or callable, default="all"
        Which trained parameters are differentiated; see :func:`tangent_kernel`.
    backend : {"auto", "structured", "func", "backpack"}, default="auto"
        How gradients are computed.
    batch_size : int, default=256
        Samples per network pass, at most.
    max_memory : int, str or None
        Bound on the working memory besides the result; None is 1 GB.
    autocast : torch.dtype or None, default=None
        Run the network's passes in this lower precision; None never does.

    Returns
    -------
    (n, k) array of the network's floating-point type
        With ``n_features=None`` (n, P), or (n, C·P) for ``trace``; one row per sample and class for ``entk``.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Linear(2, 3, bias=False)
    >>> features = tangent_features(net, torch.tensor([[1.0, 0.0], [1.0, 2.0]]), n_features=None)
    >>> (features @ features.T).round(5)
    array([[1., 1.],
           [1., 5.]], dtype=float32)
    """
    samples = Samples(X)
    Choice(*KINDS).check("tangent_features", "kind", kind)
    Integer(1, MOST_FEATURES, optional=True).check("tangent_features", "n_features", n_features)
    Integer(0, None).check("tangent_features", "random_state", random_state)
    engine = open_engine("tangent_features", net, samples, layers, backend, batch_size, max_memory, autocast)
    return feature_matrix(engine, samples, kind, n_features, random_state).cpu().numpy()


def feature_matrix(
    engine: TangentEngine, samples: Samples, kind: str, n_features: int | None, random_state: int = 0
) -> Tensor:
    """:func:`tangent_features` on an engine that is there already: a tensor on its device."""
    cotangents = kernel_cotangents(kind, engine.n_classes)
    return _vectors(engine, samples, cotangents, n_features, random_state, apart=kind == "entk")


def loss_features(engine: TangentEngine, samples: Samples, n_features: int | None, random_state: int = 0) -> Tensor:
    """Gradients of the training loss with the predicted labels, written out (n, P) or sketched (n, k)."""
    return _vectors(engine, samples, [LossCotangent(engine.network.loss)], n_features, random_state)


def _vectors(
    engine: TangentEngine,
    samples: Samples,
    cotangents: list[Cotangent],
    n_features: int | None,
    random_state: int,
    apart: bool = False,
) -> Tensor:
    """The gradients of a sample for all cotangents: a row for each if they are to be kept apart, one row otherwise."""
    sketches: list[Sketch] = []
    size = engine.chunk_size(2 * engine.gradient_bytes * len(cotangents))
    if n_features is not None:
        # sketches that are added up need signs of their own; those that are kept apart must be comparable
        streams = [0 if apart else stream for stream in range(len(cotangents))]
        sketches = [Sketch(engine, n_features, random_state, stream) for stream in streams]
        size = engine.chunk_size(2 * n_features * engine.element_size * len(sketches))

    def reduce(gradients: Iterator[Gradients], n: int) -> Tensor:
        if sketches:
            parts = [sketch.project(by_name, n) for sketch, by_name in zip(sketches, gradients, strict=True)]
        else:
            parts = [write_out(engine, by_name, n, engine.sizes) for by_name in gradients]
        if apart:
            return torch.stack(parts, dim=1)
        if len(parts) == 1:
            return parts[0]
        return torch.stack(parts).sum(0) if sketches else torch.cat(parts, dim=1)

    vectors = engine.collect(samples, cotangents, reduce, batch_size=size)
    return vectors.flatten(0, 1) if apart else vectors


def write_out(engine: TangentEngine, gradients: Gradients, n: int, sizes: dict[str, int]) -> Tensor:
    """(n, Σ sizes) gradients of these parameters side by side, zeros for those that have none."""
    zeros = torch.zeros((), dtype=engine.network.precision, device=engine.device)
    parts = [gradients[name].dense() if name in gradients else zeros.expand(n, size) for name, size in sizes.items()]
    return torch.cat([zeros.expand(n, 0), *parts], dim=1)


def fold(flat: Tensor, k: int) -> Tensor:
    """(n, d) -> (n, k): every k-th entry added into the same bucket."""
    n, d = flat.shape
    whole = d // k * k
    buckets = flat[:, :whole].reshape(n, -1, k).sum(1) if whole else flat.new_zeros(n, k)
    buckets[:, : d - whole] += flat[:, whole:]
    return buckets


def signed_fold(blocks: list[Tensor], signs: Tensor, k: int) -> Tensor:
    """(n, d_j) each, of d columns in all, and (d,) signs -> (n, k): the signs, then :func:`fold`, in one reading."""
    buckets = blocks[0].new_zeros(len(blocks[0]), k)
    place = 0
    for block in blocks:
        start = 0
        while start < block.shape[1]:
            first = place % k
            size = min(k - first, block.shape[1] - start)
            some = block[:, start : start + size]
            buckets[:, first : first + size].addcmul_(some, signs[place : place + size])
            place, start = place + size, start + size
    return buckets


class _Signs(NamedTuple):
    rows: Tensor  # (o,)
    columns: Tensor  # (i,)
    stride: int
    offset: int


class Sketch:
    """A fixed random projection of a network's gradients to k numbers.

    Parameters
    ----------
    engine : TangentEngine
    k : int
    random_state, stream : int
        Together they determine the projection, on whatever device.
    """

    def __init__(self, engine: TangentEngine, k: int, random_state: int, stream: int = 0) -> None:
        self.k, self.dtype, self.device = k, engine.network.precision, engine.device
        self._piece_bytes = min(_PIECE_BYTES, engine.memory // 4)  # there are up to three of them at a time
        self.signs: dict[str, _Signs] = {}
        for position, (name, parameter) in enumerate(engine.network.trainable().items()):
            generator = np.random.default_rng([random_state, stream, position])
            n_out = parameter.shape[0] if parameter.ndim > 1 else 1
            n_in = parameter.numel() // max(1, n_out)
            stride = n_in
            while gcd(stride, k) > 1:
                stride += 1
            offset = int(generator.integers(k))
            self.signs[name] = _Signs(self._draw(generator, n_out), self._draw(generator, n_in), stride, offset)

    def _draw(self, generator: np.random.Generator, size: int) -> Tensor:
        return torch.as_tensor(generator.integers(0, 2, size) * 2 - 1).to(self.device, self.dtype)

    def project(self, gradients: Gradients, n: int) -> Tensor:
        """(n, k) sketches of the gradients of n samples."""
        out = torch.zeros(n, self.k, dtype=self.dtype, device=self.device)
        for name, gradient in gradients.items():
            signs = self.signs[name]
            if isinstance(gradient, Rows):
                self._add_rows(gradient, signs, out)
                continue
            for rows in pieces(n, gradient.written_out_entries, self._piece_bytes):
                self._add(self._matrices(gradient, signs, rows), signs.offset, out[rows])
        return out

    def _matrices(self, gradient: PerSampleGradient, signs: _Signs, rows: slice) -> Tensor:
        """Sign-flipped gradients of some samples as rows of length ``stride``, flat: (n, o · stride)."""
        n_in = len(signs.columns)
        # flip the factors' signs where they are smaller than the gradient, the gradient's where it is
        if isinstance(gradient, Product):
            a = gradient.a.new_zeros(len(gradient.a[rows]), signs.stride)
            torch.mul(gradient.a[rows], signs.columns, out=a[:, :n_in])
            return ((gradient.g[rows] * signs.rows)[:, :, None] * a[:, None, :]).flatten(1)
        if isinstance(gradient, Outer) and gradient.positions <= gradient.n_out:
            g = gradient.g[rows] * signs.rows.reshape(gradient.groups, gradient.n_out, 1)
            columns = gradient.columns(rows)
            padded = columns.new_zeros(*columns.shape[:2], signs.stride, columns.shape[3])
            torch.mul(columns, signs.columns[:, None], out=padded[:, :, :n_in])
            return torch.matmul(g, padded.transpose(-1, -2)).flatten(1)
        dense = gradient.dense(rows)
        padded = dense.new_zeros(len(dense), len(signs.rows), signs.stride)
        torch.mul(dense.reshape(len(dense), -1, n_in), signs.rows[:, None] * signs.columns, out=padded[..., :n_in])
        return padded.flatten(1)

    def _add(self, flat: Tensor, offset: int, out: Tensor) -> None:
        """Add the entries into their buckets."""
        buckets = fold(flat, self.k)
        out[:, offset:] += buckets[:, : self.k - offset]
        out[:, :offset] += buckets[:, self.k - offset :]

    def _add_rows(self, gradient: Rows, signs: _Signs, out: Tensor) -> None:
        inner = torch.arange(gradient.width, device=out.device)
        buckets = (gradient.index[..., None] * signs.stride + inner + signs.offset) % self.k
        values = gradient.g * signs.rows[gradient.index][..., None] * signs.columns
        out.scatter_add_(1, buckets.flatten(1), values.flatten(1))
