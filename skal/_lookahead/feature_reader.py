# SPDX-License-Identifier: BSD-3-Clause
"""What one pass over samples keeps of their gradients: enough for the covariance among all of them.

The gradient of a linear layer that sees one position per sample is an outer product: its two factors give its inner
products exactly, and are shorter than a sketch of it. All other gradients are projected, then sketched: a sketch is
linear, so ``ψ_x = R(φ_x − Φ_Lᵀ α_x)`` sketches what the labels leave of the gradient. The error of ``ψ_x·ψ_x'`` is then
relative to that remainder, not to the gradients, of which the remainder is a small part once there are many labels.

Index letters: n labelled samples, N candidates, d entries of the gradients that are no outer products, k sketch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from skal._core.memory import Result, fill_rows, new_rows, rows_within
from skal._core.pool import Samples
from skal._lookahead.posterior import RidgeSolver, precision_of_variances
from skal.exceptions import SkalError
from skal.tangent._cotangents import kernel_cotangents
from skal.tangent._factors import Gradients, Product
from skal.tangent._sketch import Sketch, signed_fold
from skal.tangent._tangent_engine import TangentEngine

Factors = list[tuple[Tensor, Tensor]]  # (n, i), (n, o) for each linear layer
# columns of float32 products that are added up before they are added to float64
_COLUMNS = 4096
_DOUBLE = 8  # bytes
# bytes of activations in one pass: what fits into the cache is quick, and so is memory that is used again at once
_PASS_BYTES = 2**24


class PlanChangedError(SkalError):
    """Samples turned up for which the engine changed how it computes gradients: what was read must be read again."""


class _Read(NamedTuple):
    """Gradients of some samples: outer products as factors, the rest written out or in a long sketch."""

    factors: Factors
    rest: list[Tensor]  # (n, d_j) each, d columns in all; which is which does not matter to inner products
    logits: Tensor  # (n, c)


class Features(NamedTuple):
    """The features of the candidates; all but factors and sketches in float64."""

    factors: Factors
    psi: Tensor  # (N, k), sketch of what the labels leave of the other gradients
    alpha: Tensor  # (N, n), (K + ρI)⁻¹ k_x
    k_factors: Tensor  # (N, n), the outer products' part of k_x
    prior: Tensor  # (N,), Θ(x, x)
    variance: Tensor  # (N,), S(x, x), as exact as k_x
    logits: Tensor  # (N, c)

    def take(self, rows: Tensor | slice) -> Features:
        """Features of some candidates; adjacent rows are not copied."""
        rows = _as_slice(rows) if isinstance(rows, Tensor) else rows
        factors = [(a[rows], g[rows]) for a, g in self.factors]
        return Features(factors, *(tensor[rows] for tensor in self[1:]))


class FeatureReader:
    """Reads the labelled samples once, and then features of any candidates, one pass each.

    ``lengths`` are k, and up to how many entries gradients are kept as they are. ``room`` are the bytes for the
    features of one candidate: layers whose factors do not fit are sketched, too.
    """

    def __init__(
        self,
        engine: TangentEngine,
        labelled: Samples,
        kind: str,
        lengths: tuple[int, int],
        ridge: float,
        seed: int,
        room: int,
    ) -> None:
        self.engine, self.ridge, self._seed, self._room = engine, ridge, seed, room
        self.k, self._exact_length = lengths
        self._cotangents, self._samples = kernel_cotangents(kind, engine.n_classes), labelled
        try:
            self._begin()
        except PlanChangedError:
            self._begin()

    def _begin(self) -> None:
        """Read the labelled samples, in the form in which the engine has their gradients now."""
        engine = self.engine
        self._lay_out()
        self.epsilon = precision_of_variances(engine.network.dtype, engine.network.precision)
        self._labelled = self._read(self._samples, lambda read: read)
        self.logits = self._labelled.logits.double()
        self._K_factors, self.K_LL = self._kernel(self._labelled)
        self.solver = RidgeSolver(self.K_LL, self.ridge)
        self._folded = self._fold(self._labelled.rest)

    def _lay_out(self) -> None:
        """Decide which layers are kept as factors, and in which form the others are compared with the labelled ones."""
        engine, n, size = self.engine, len(self._samples), self.engine.element_size
        forms: Gradients = {}
        list(engine.run(self._samples.take(range(1)), self._cotangents, lambda found, n: forms.update(next(found))))
        widths = {name: g.a.shape[1] + g.g.shape[1] for name, g in forms.items() if isinstance(g, Product)}
        in_float64 = _DOUBLE * (2 * n + 4 * engine.n_classes + 2)  # bytes of a sample, whatever the layout
        left = (self._room - in_float64) // size
        self._factored: list[str] = []
        for name in sorted(widths, key=widths.__getitem__):
            if left - widths[name] < self.k:
                break
            left -= widths[name]
            self._factored.append(name)
        self._rest = {name: entries for name, entries in engine.sizes.items() if name not in self._factored}
        whole = sum(self._rest.values())
        d = min(whole, rows_within(engine.memory, 4 * n * size, at_least=self.k))
        self._long = Sketch(engine, d, self._seed) if d < whole else None
        self._signs: Tensor | None = None
        if d > self.k and d > min(self._exact_length, left):
            signs = np.random.default_rng([self._seed, 1]).integers(0, 2, d) * 2 - 1
            self._signs = torch.as_tensor(signs, dtype=engine.network.precision, device=engine.device)
        kept = sum(widths[name] for name in self._factored) + (d if self._signs is None else self.k)
        self.bytes_per_sample = size * kept + in_float64
        self.chunk = engine.chunk_size(8 * size * (d if self._long is None else 4 * d))
        if engine.device.type == "cpu":
            self.chunk = min(self.chunk, rows_within(_PASS_BYTES, engine.activation_bytes, at_least=16))

    def _ask(self, samples: Samples, then: Callable[[_Read], Result]) -> Result:
        """:meth:`_read`; if gradients take another form halfway, the labelled samples are read again in that form."""
        try:
            return self._read(samples, then)
        except PlanChangedError:
            self._begin()
            return self._read(samples, then)

    def _read(self, samples: Samples, then: Callable[[_Read], Result]) -> Result:
        """``then`` of the gradients, from one forward and one backward pass that the network's workers share."""
        engine, precision = self.engine, self.engine.network.precision

        def reduce(gradients: Iterator[Gradients], n: int) -> Result:
            found = next(gradients)
            factors = []
            for name in self._factored:
                gradient = found.get(name)
                if not isinstance(gradient, Product):
                    raise PlanChangedError("The gradients' form changed.")
                factors.append((gradient.a.to(precision, copy=True), gradient.g.to(precision, copy=True)))
            others = {name: found[name] for name in self._rest if name in found}
            if self._long is not None:
                return then(_Read(factors, [self._long.project(others, n)], engine.logits()))
            zeros = torch.zeros((), dtype=precision, device=engine.device)
            rest = [zeros.expand(n, 0)]
            for name, size in self._rest.items():
                found_blocks = others[name].blocks() if name in others else [zeros.expand(n, size)]
                rest += [block.to(precision) for block in found_blocks]
            return then(_Read(factors, rest, engine.logits()))

        try:
            return engine.collect(samples, self._cotangents, reduce, batch_size=self.chunk)
        except PlanChangedError:
            if engine.network.jobs == 1:
                raise
            # here, so that the engine of this process notices, too
            return fill_rows(engine.run(samples, self._cotangents, reduce, batch_size=self.chunk), len(samples))

    def _fold(self, rest: list[Tensor]) -> Tensor:
        """(n, d) -> (n, k): random signs, then every k-th entry into the same bucket; short gradients as they are."""
        if self._signs is None:
            return torch.cat(rest, dim=1)
        return signed_fold(rest, self._signs, self.k)

    def _kernel(self, read: _Read) -> tuple[Tensor, Tensor]:
        """(n, m) kernels with the labelled samples in float64: the outer products' part, and all of it."""
        mine = self._labelled
        k_factors = torch.zeros(len(mine.logits), len(read.logits), dtype=torch.float64, device=self.engine.device)
        for (a, g), (a2, g2) in zip(mine.factors, read.factors, strict=True):
            k_factors += _products(a, a2).mul_(_products(g, g2))
        k = k_factors.clone()
        for mine_block, block in zip(mine.rest, read.rest, strict=True):
            k += _products(mine_block, block)
        return k_factors, k

    def predict(self, samples: Samples, residuals: Tensor) -> Tensor:
        """(m, c) outputs of the linearised network at any samples, from the (n, c) residuals of the labelled ones."""

        def outputs(read: _Read) -> Tensor:
            return self._kernel(read)[1].T @ self.solver(residuals) + read.logits.double()

        return self._ask(samples, outputs)

    def features(self, samples: Samples) -> Features:
        """Features of some candidates, from one pass."""
        return self._ask(samples, self._features)

    def _features(self, read: _Read) -> Features:
        k_factors, k = self._kernel(read)
        alpha = self.solver(k)
        sketch = self._fold(read.rest)
        psi = torch.addmm(sketch, alpha.T.to(sketch.dtype), self._folded, alpha=-1)
        prior = torch.zeros(len(read.logits), dtype=torch.float64, device=self.engine.device)
        for block in read.rest:
            prior += _squared_norms(block)
        for a, g in read.factors:
            prior += _squared_norms(a) * _squared_norms(g)
        variance = (prior - (k * alpha).sum(0)).clamp_min_(0)
        return Features(read.factors, psi, alpha.T, k_factors.T, prior, variance, read.logits.double())

    def kernel_rows(self, features: Features) -> Tensor:
        """(N, n) kernel of candidates with the labelled samples: ``K α + ρ α``."""
        return torch.addmm(self.solver.rho * features.alpha, features.alpha, self.K_LL)

    def covariance(self, here: Features, there: Features) -> Tensor:
        """(r, e) part of S, ``Ψ_x·Ψ_x' + ρ α_x·α_x'`` with ``Ψ_x = φ_x − Φ_Lᵀ α_x``, in the precision of the sketch.

        The outer products' part of the first term is written out with the kernels of those layers; the rest is
        ``ψ_x·ψ_x'``. What is solved for is so in float64; products as large as S are of one precision, for a GPU.
        """
        S = here.psi @ there.psi.T
        for (a, g), (a2, g2) in zip(here.factors, there.factors, strict=True):
            S.addcmul_(a @ a2.T, g @ g2.T)
        alpha = there.alpha
        beta = torch.addmm(there.k_factors, alpha, self._K_factors, alpha=-1).sub_(alpha, alpha=self.solver.rho)
        S.addmm_(here.k_factors.to(S.dtype), alpha.T.to(S.dtype), alpha=-1)
        return S.addmm_(here.alpha.to(S.dtype), beta.T.to(S.dtype), alpha=-1)


class Covariances:
    """S among the candidates from their features, which stand with the evaluation samples first: (r,), (m,) -> (r, m).

    What is compared often then stands side by side, and need not be copied.
    """

    def __init__(self, reader: FeatureReader, features: Features, evaluation: Tensor) -> None:
        self.e = len(evaluation)
        rank = torch.arange(len(features.prior), device=evaluation.device) + self.e
        rank[evaluation] = torch.arange(self.e, device=evaluation.device)
        self._order = rank.argsort()
        self._place = self._order.argsort()
        self._reader, self._features = reader, features.take(self._order)

    def __call__(self, rows: Tensor, columns: Tensor) -> Tensor:
        here, there = (self._features.take(self._place[some]) for some in (rows, columns))
        return self._reader.covariance(here, there).double()

    def with_evaluation(self, made: int) -> Tensor:
        """(N, e) of all candidates with the evaluation samples, ``made`` entries at a time, in the sketch's precision.

        Those among the evaluation samples are symmetric: little more than half of them is made.
        """
        e, order, reader, features = self.e, self._order, self._reader, self._features
        S = new_rows(len(order), features.psi.new_empty(0, e))
        step = rows_within(made, e)
        narrow = max(1, step // 4)  # the wider a part, the more of it is on both sides of the diagonal
        for start in range(0, e, narrow):
            stop = min(e, start + narrow)
            part = reader.covariance(features.take(slice(start, stop)), features.take(slice(start, e)))
            S[order[start:stop], start:] = part
            S[order[stop:e], start:stop] = part[:, stop - start :].T
        for start in range(e, len(order), step):
            rows = slice(start, start + step)
            S[order[rows]] = reader.covariance(features.take(rows), features.take(slice(0, e)))
        return S


def _products(x: Tensor, z: Tensor) -> Tensor:
    """(n, m) inner products, those of short parts in the precision of the gradients, added up in float64."""
    total = torch.zeros(len(x), len(z), dtype=torch.float64, device=x.device)
    for some, others in zip(x.split(_COLUMNS, dim=1), z.split(_COLUMNS, dim=1), strict=True):
        total += some @ others.T
    return total


def _squared_norms(x: Tensor) -> Tensor:
    """(n,) in float64, as exact as the products are."""
    squares: Tensor = torch.linalg.vector_norm(x, dim=1).double().square_()
    return squares


def _as_slice(index: Tensor) -> Tensor | slice:
    """Rows that stand side by side as a slice."""
    if len(index) == 0:
        return index
    first, last = int(index[0]), int(index[-1])
    is_range = last - first + 1 == len(index) and bool((index.diff() == 1).all())
    return slice(first, last + 1) if is_range else index
