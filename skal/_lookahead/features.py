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
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import torch
from torch import Tensor

from skal._core.memory import rows_within
from skal._core.samples import Samples
from skal._core.sharding import Result, filled
from skal._lookahead.posterior import RidgeSolver, precision_of_variances
from skal.exceptions import SkalError
from skal.tangent._cotangents import kernel_cotangents
from skal.tangent._factors import Gradients, Outer, PerSampleGradient, gram_matrix
from skal.tangent._sketch import Sketch, signed_fold
from skal.tangent._tangent_engine import TangentEngine

Factors = list[tuple[Tensor, Tensor]]  # (n, i), (n, o) for each linear layer
# columns of float32 products that are added up before they are added to float64
_COLUMNS = 4096
_DOUBLE = 8  # bytes
_MANY = 16  # times as many rows as columns
# bytes of activations in one pass: what fits into the cache is quick, and so is memory that is used again at once
_PASS_BYTES = 2**24


class PlanChangedError(SkalError):
    """Samples turned up for which the engine changed how it computes gradients: what was read must be read again."""


class _Read(NamedTuple):
    """Gradients of some samples: outer products as factors, the rest written out or in a long sketch."""

    factors: Factors
    rest: list[Tensor]  # (n, d_j) each, d columns in all; which is which does not matter to inner products
    logits: Tensor  # (n, c)


class _Layout(NamedTuple):
    """How gradients are kept: these layers as factors; of the others so many entries, or a sketch, folded or not."""

    factored: list[str]
    length: int
    is_folded: bool


class Features(NamedTuple):
    """What is kept of the candidates; numbers of samples × labels and single ones are in float64."""

    factors: Factors
    psi: Tensor  # (N, k), sketch of what the labels leave of the other gradients
    alpha: Tensor  # (N, n), (K + ρI)⁻¹ k_x
    k_factors: Tensor  # (N, n), the outer products' part of k_x
    prior: Tensor  # (N,), Θ(x, x)
    variance: Tensor  # (N,), S(x, x), as exact as k_x
    logits: Tensor  # (N, c)

    def take(self, rows: Tensor | slice) -> Features:
        """Those of some candidates; rows that stand side by side are not copied."""
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
        self.engine, self.kind, self.ridge, self.seed = engine, kind, ridge, seed
        self.k, self._exact_length = lengths
        self._cotangents = kernel_cotangents(kind, engine.n_classes)
        self._n = len(labelled)
        self._lay_out(labelled, room)
        products = torch.float64 if self._signs is None else engine.network.precision
        self.epsilon = precision_of_variances(engine.network.dtype, products)
        self._labelled = self._read(labelled, lambda read: read)
        self.logits = self._labelled.logits.double()
        self._K_factors, self.K_LL = self._kernel(self._labelled)
        self.solver = RidgeSolver(self.K_LL, ridge)
        self._folded = self._fold(self._labelled.rest)
        self.bytes_per_sample = self.bytes_within(room, engine.memory)

    def _lay_out(self, labelled: Samples, room: int) -> None:
        """Decide which layers are kept as factors, and in which form the others are compared with the labelled ones."""
        engine = self.engine
        forms: Gradients = {}
        list(engine.run(labelled.take(range(1)), self._cotangents, lambda found, n: forms.update(next(found))))
        self._widths = {name: g.n_in + g.n_out for name, g in forms.items() if _is_one_product(g)}
        layout = self._layout(room, engine.memory)
        self._factored, d = layout.factored, layout.length
        self._rest = {name: size for name, size in engine.sizes.items() if name not in self._factored}
        self._long = Sketch(engine, d, self.seed) if d < sum(self._rest.values()) else None
        self._signs: Tensor | None = None
        if layout.is_folded:
            signs = np.random.default_rng([self.seed, 1]).integers(0, 2, d) * 2 - 1
            self._signs = torch.as_tensor(signs, dtype=engine.network.precision, device=engine.device)
        self.chunk = engine.chunk_size(8 * engine.element_size * (d if self._long is None else 4 * d))
        if engine.device.type == "cpu":
            self.chunk = min(self.chunk, rows_within(_PASS_BYTES, engine.activation_bytes, at_least=16))

    @property
    def _always(self) -> int:
        """Bytes of a sample that are kept in float64, whatever the layout."""
        return _DOUBLE * (2 * self._n + 4 * self.engine.n_classes + 2)

    def _layout(self, room: int, engine_memory: int) -> _Layout:
        """What is kept of gradients in ``room`` bytes for each sample."""
        engine, left = self.engine, (room - self._always) // self.engine.element_size
        factored: list[str] = []
        for name in sorted(self._widths, key=self._widths.__getitem__):
            if left - self._widths[name] < self.k:
                break
            left -= self._widths[name]
            factored.append(name)
        d = sum(size for name, size in engine.sizes.items() if name not in factored)
        d = min(d, rows_within(engine_memory, 4 * self._n * engine.element_size, at_least=self.k))
        too_long = d > self._exact_length or d * _DOUBLE > left * engine.element_size
        return _Layout(factored, d, is_folded=d > self.k and too_long)

    def bytes_within(self, room: int, engine_memory: int) -> int:
        """Bytes that a sample takes if there is this much room for it: more than that where nothing fits."""
        layout, element_size = self._layout(room, engine_memory), self.engine.element_size
        rest = element_size * self.k if layout.is_folded else _DOUBLE * layout.length
        return element_size * sum(self._widths[name] for name in layout.factored) + rest + self._always

    @property
    def form(self) -> tuple[Any, ...]:
        """What tells the features of one reader from those of another on the same network and samples."""
        engine = self.engine
        plan = tuple((backend, tuple(sorted(covered))) for backend, covered in engine.plan)
        reading = (type(engine.network).__name__, type(engine.network.criterion).__name__)  # of outputs as logits
        sketch = (self.k, self.seed, None if self._long is None else self._long.k)
        return (self.kind, self.ridge, tuple(self._factored), self.chunk, sketch, plan, reading)

    def _read(self, samples: Samples, then: Callable[[_Read], Result]) -> Result:
        """``then`` of the gradients, from one forward and one backward pass that the network's workers share."""
        engine = self.engine

        def reduce(gradients: Iterator[Gradients], n: int) -> Result:
            found = next(gradients)
            factors = []
            for name in self._factored:
                gradient = found.get(name)
                if not _is_one_product(gradient):
                    raise PlanChangedError("The gradients' form changed.")
                factors.append((gradient.columns(slice(None)).flatten(1).clone(), gradient.g.flatten(1).clone()))
            others = {name: found[name] for name in self._rest if name in found}
            rest = self._blocks(others, n) if self._long is None else [self._long.project(others, n)]
            return then(_Read(factors, rest, engine.logits()))

        try:
            return engine.collect(samples, self._cotangents, reduce, batch_size=self.chunk)
        except PlanChangedError:
            if engine.network.sharding.jobs() == 1:
                raise
            # here, so that the engine of this process notices, too
            return filled(engine.run(samples, self._cotangents, reduce, batch_size=self.chunk), len(samples))

    def _blocks(self, gradients: Gradients, n: int) -> list[Tensor]:
        """The gradients that are no outer products, zeros for parameters that have none: (n, d_j) each."""
        zeros = torch.zeros((), dtype=self.engine.network.precision, device=self.engine.device)
        blocks = [zeros.expand(n, 0)]
        for name, size in self._rest.items():
            blocks += gradients[name].blocks() if name in gradients else [zeros.expand(n, size)]
        return blocks

    def _fold(self, rest: list[Tensor]) -> Tensor:
        """(n, d) -> (n, k): random signs, then every k-th entry into the same bucket; short gradients as they are."""
        if self._signs is None:
            return torch.cat(rest, dim=1).double()
        return signed_fold(rest, self._signs, self.k)

    def _kernel(self, read: _Read) -> tuple[Tensor, Tensor]:
        """(n, m) kernels with the labelled samples in float64: the outer products' part, and all of it."""
        mine = self._labelled
        k_factors = torch.zeros(len(mine.logits), len(read.logits), dtype=torch.float64, device=self.engine.device)
        for (a, g), (a2, g2) in zip(mine.factors, read.factors, strict=True):
            k_factors += self._products(a, a2).mul_(self._products(g, g2))
        k = k_factors.clone()
        for mine_block, block in zip(mine.rest, read.rest, strict=True):
            k += self._products(mine_block, block)
        return k_factors, k

    def _inner(self, x: Tensor, z: Tensor) -> Tensor:
        """(n, m) inner products, in the precision of the network where there is a sketch."""
        if self._signs is not None:
            return x @ z.T
        if len(x) > _MANY * len(z):  # a copy of all rows in float64 would leave the cache before it is used
            return gram_matrix(z, x).T
        return x.double() @ z.double().T

    def _products(self, x: Tensor, z: Tensor) -> Tensor:
        """(n, m) inner products in float64, also where those of short parts are not."""
        if self._signs is None:
            return self._inner(x, z)
        total = torch.zeros(len(x), len(z), dtype=torch.float64, device=x.device)
        for some, others in zip(x.split(_COLUMNS, dim=1), z.split(_COLUMNS, dim=1), strict=True):
            total += some @ others.T
        return total

    def _squared_norms(self, x: Tensor) -> Tensor:
        """(n,) in float64, as exact as the products are."""
        dtype = torch.float64 if self._signs is None else x.dtype
        squares: Tensor = torch.linalg.vector_norm(x, dim=1, dtype=dtype).double().square_()
        return squares

    def linearized(self, samples: Samples, residuals: Tensor) -> Tensor:
        """(m, c) outputs of the linearised network at any samples, from the (n, c) residuals of the labelled ones."""
        coefficients = self.solver(residuals)
        return self._read(samples, lambda read: self._kernel(read)[1].T @ coefficients + read.logits.double())

    def features(self, samples: Samples) -> Features:
        """Of some candidates: one pass."""
        return self._read(samples, self._features)

    def _features(self, read: _Read) -> Features:
        k_factors, k = self._kernel(read)
        alpha = self.solver(k)
        sketch = self._fold(read.rest)
        psi = torch.addmm(sketch, alpha.T.to(sketch.dtype), self._folded, alpha=-1)
        prior = torch.zeros(len(read.logits), dtype=torch.float64, device=self.engine.device)
        for block in read.rest:
            prior += self._squared_norms(block)
        for a, g in read.factors:
            prior += self._squared_norms(a) * self._squared_norms(g)
        variance = (prior - (k * alpha).sum(0)).clamp_min_(0)
        return Features(read.factors, psi, alpha.T, k_factors.T, prior, variance, read.logits.double())

    def kernel_rows(self, features: Features) -> Tensor:
        """(N, n) kernel of candidates with the labelled samples: ``K α + ρ α``."""
        return torch.addmm(self.solver.rho * features.alpha, features.alpha, self.K_LL)

    def covariance(self, here: Features, there: Features) -> Tensor:
        """(r, e) part of S, ``Ψ_x·Ψ_x' + ρ α_x·α_x'`` with ``Ψ_x = φ_x − Φ_Lᵀ α_x``, in the precision of the sketch.

        The outer products' part of the first term is written out with the kernels of those layers; the rest is
        ``ψ_x·ψ_x'``. What is subtracted is made in float64.
        """
        S = here.psi @ there.psi.T
        for (a, g), (a2, g2) in zip(here.factors, there.factors, strict=True):
            S.addcmul_(self._inner(a, a2), self._inner(g, g2))
        alpha = there.alpha
        beta = torch.addmm(there.k_factors, alpha, self._K_factors, alpha=-1).sub_(alpha, alpha=self.solver.rho)
        return S.sub_((here.k_factors @ alpha.T).addmm_(here.alpha, beta.T))


def _is_one_product(gradient: PerSampleGradient | None) -> TypeGuard[Outer]:
    return isinstance(gradient, Outer) and gradient.positions == 1 and gradient.groups == 1


def _as_slice(index: Tensor) -> Tensor | slice:
    """Rows that stand side by side as a slice."""
    if len(index) == 0:
        return index
    first, last = int(index[0]), int(index[-1])
    is_range = last - first + 1 == len(index) and bool((index.diff() == 1).all())
    return slice(first, last + 1) if is_range else index
