# SPDX-License-Identifier: BSD-3-Clause
"""Features of a pool for one query: kept if there is room for them, compared by their directions, copies known."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from skal.context import QueryContext, Samples, fill_rows, rows_within
from skal.exceptions import FeatureError

_BLOCK_BYTES = 2**24  # bytes of features that are read at once
_CACHE_BYTES = 2**20  # bytes of features that are used several times, near the processor
_ROWS = 4096  # rows that are compared at once


class PoolFeatures:
    """Features of the pool: kept if there is room for them, otherwise computed whenever they are asked for.

    Parameters
    ----------
    context : QueryContext
    features
        See :meth:`~skal.context.QueryContext.features`.
    normalize : bool
        Whether rows are scaled to length 1; rows of zeros stay as they are.
    room : int, optional
        Bytes for the features; by default half of a bound, and any number where there is none.

    Attributes
    ----------
    width, row_bytes : int
        d, and the bytes of a sample's features.
    block_bytes : int
        Of what is worked on at once, at most a sixteenth of the memory.
    """

    def __init__(
        self, context: QueryContext, features: Any, *, normalize: bool = True, room: int | None = None
    ) -> None:
        self._context, self._normalize = context, normalize
        self._features = features
        self.width, self.block_bytes = 0, min(_BLOCK_BYTES, context.memory // 16)
        self._dtype: torch.dtype | None = None  # of the pool's features
        first = self.of(context.pool.take(range(1)))
        self.width, self.device, self._dtype = first.shape[1], first.device, first.dtype
        self.row_bytes = self.width * first.element_size()
        # as they come, normalised, and on the way through a network
        self._step = min(_ROWS, rows_within(self.block_bytes, 3 * self.row_bytes))
        if room is None and context.memory_bound is not None:
            room = context.memory // 2
        # twice: as they come, and normalised
        fits = room is None or 2 * context.n_pool * self.row_bytes <= room
        self._kept = self.of(None) if fits else None
        self._refuse_constant(first)

    def _refuse_constant(self, first: Tensor) -> None:
        """Raise unless something differs from the first sample; a look at some is enough for most pools."""
        n = self._context.n_pool
        if n == 1:  # nothing to choose
            return
        few = torch.linspace(0, n - 1, min(n, 64), device=self.device).round().long()
        for rows in (few, *torch.arange(n, device=self.device).split(self._step)):
            if not bool((self(rows) == first).all()):
                return
        labelled = self._context.n_labelled
        if not labelled or bool((self.of(self._context.labelled) == first).all()):
            got = f"the same for all {n + labelled} of them"
            raise FeatureError.for_features(self._context.owner, "different for different samples", got)

    def of(self, samples: Samples | None) -> Tensor:
        """(n, d) features of other samples."""
        values = self._context.features(self._features, samples)
        if self.width and values.shape[1] != self.width:
            got = f"{self.width} columns for one sample, and {values.shape[1]} for {len(values)}"
            raise FeatureError.for_features(self._context.owner, "of one length for all samples", got)
        if not self._normalize:  # distances of long rows need more digits
            return values.double()
        values = values if self._dtype is None else values.to(self._dtype)
        lengths = torch.linalg.vector_norm(values, dim=1, keepdim=True)
        tiny = torch.finfo(values.dtype).tiny
        # squares that are too small or too large for a float
        if len(lengths) and (float(lengths.min()) < tiny**0.5 or float(lengths.max()) == np.inf):
            values = values / values.abs().amax(1, keepdim=True).clamp_min(tiny)
            lengths = torch.linalg.vector_norm(values, dim=1, keepdim=True)
        normed: Tensor = values / lengths.clamp_min(tiny)
        return normed

    def copy_keys(self, samples: Samples | None = None) -> Tensor:
        """Numbers of the pool's samples, or of others, that are equal for copies and different for others: (n,).

        A network rounds a sample's features otherwise at another place of a batch, so that there the inputs tell.
        """
        features, kept = self._features, self._kept if samples is None else None
        samples = self._context.pool if samples is None else samples
        from_network = self._context.has_network if features == "auto" else features != "input"
        if isinstance(features, nn.Module) or (isinstance(features, str) and from_network):
            return self._keys_by_content(samples)
        if kept is not None:
            return row_keys(kept)
        starts = range(0, len(samples), self._step)
        parts = (samples.take(range(start, min(start + self._step, len(samples)))) for start in starts)
        return torch.cat([row_keys(self.of(part)) for part in parts])

    def _keys_by_content(self, samples: Samples) -> Tensor:
        digests = np.frombuffer(b"".join(samples.digests()), dtype=np.int64)[::2]  # half of 16 bytes is enough
        return torch.as_tensor(digests.copy(), device=self.device)

    def gather(self, rows: np.ndarray) -> Tensor:
        """(r, d) features of some rows of the pool, in ascending order; read part by part, kept ones not copied."""
        if self._kept is not None and len(rows) == len(self._kept):
            return self._kept
        parts = (self(torch.as_tensor(some, device=self.device)) for some in np.split(rows, self._cuts(len(rows))))
        return fill_rows(parts, len(rows))

    def _cuts(self, n: int) -> np.ndarray:
        return np.arange(self._step, n, self._step)

    def __call__(self, rows: Tensor | slice) -> Tensor:
        """(r, d) features of some rows of the pool; of a slice of them no copy is made."""
        if self._kept is not None:
            return self._kept[rows]
        return self.of(
            self._context.pool.take(range(rows.start, rows.stop) if isinstance(rows, slice) else rows.cpu().numpy())
        )


def row_keys(points: Tensor) -> Tensor:
    """Numbers by which copies are recognised: equal for equal rows, different for others: (n, d) -> (n,)."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(points.shape[1], generator=generator, dtype=torch.float64).to(points.device)
    step = rows_within(_CACHE_BYTES, 8 * points.shape[1])
    return torch.cat([block.to(torch.float64, copy=True).mul_(weights).sum(1) for block in points.split(step)])
