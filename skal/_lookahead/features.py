"""What one pass over the candidates keeps of their gradients: enough for the covariance among all of them.

The gradient of a linear layer that sees one position per sample is an outer product: its two factors give its inner
products exactly, and are shorter than a sketch of it. All other gradients are projected, then sketched: a sketch is
linear, so ``ψ_x = R(φ_x − Φ_Lᵀ α_x)`` sketches what the labels leave of the gradient. The error of ``ψ_x·ψ_x'`` is then
relative to that remainder, not to the gradients, of which the remainder is a small part once there are many labels.

Index letters: n labelled samples, N candidates, d entries of the gradients that are no outer products, k sketch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_structure, tree_unflatten

from skal._core.samples import Samples
from skal._core.sharding import filled
from skal._lookahead.posterior import RidgeSolver, copies_of_labelled
from skal.exceptions import SkalError
from skal.reuse import reused
from skal.tangent._cotangents import kernel_cotangents
from skal.tangent._engine import Gradients, TangentEngine
from skal.tangent._factors import Outer
from skal.tangent._sketch import Sketch

__all__ = ["FeatureCovariance", "FeatureReader", "Features", "joined_features"]

# columns of float32 products that are added up before they are added to float64
_COLUMNS = 4096


class PlanChangedError(SkalError):
    """Samples turned up for which the engine changed how it computes gradients: what was read must be read again."""


class _Read(NamedTuple):
    """Gradients of some samples: outer products as factors, the rest written out or in a long sketch."""

    factors: list[tuple[Tensor, Tensor]]  # (n, i), (n, o) for each linear layer
    rest: Tensor  # (n, d)
    logits: Tensor  # (n, c)


class Features(NamedTuple):
    """What is kept of the candidates.

    Attributes
    ----------
    factors : list of ((N, i), (N, o)) tensors
    psi : (N, k) tensor
        Sketch of what the labels leave of the other gradients.
    alpha, k_factors : (N, n) float64 tensors
        ``(K + ρI)⁻¹ k_x``, and the outer products' part of ``k_x``.
    prior, variance : (N,) float64 tensors
        ``Θ(x, x)`` and ``S(x, x)``, exact or as exact as ``k_x``.
    logits : (N, c) float64 tensor
    copies : (N,) bool tensor
        Which are copies of labelled samples.
    """

    factors: list[tuple[Tensor, Tensor]]
    psi: Tensor
    alpha: Tensor
    k_factors: Tensor
    prior: Tensor
    variance: Tensor
    logits: Tensor
    copies: Tensor

    def take(self, rows: Tensor) -> Features:
        """Those of some candidates."""
        return Features([(a[rows], g[rows]) for a, g in self.factors], *(part[rows] for part in self[1:]))


def joined_features(parts: list[Features]) -> Features:
    """Features of several sets of candidates as those of one."""
    leaves = [tree_leaves(part) for part in parts]
    joined = [torch.cat(column) for column in zip(*leaves, strict=True)]
    return tree_unflatten(joined, tree_structure(parts[0]))


class FeatureReader:
    """Reads the labelled samples once, and then features of any candidates, one pass each.

    Parameters
    ----------
    engine : TangentEngine
    labelled : Samples
    kind : {"pntk", "logit"}
    n_features : int
        k; gradients that are shorter than this are kept as they are.
    ridge : float
    seed : int
        For the sketch.
    room : int
        Bytes for the features of one candidate; layers whose factors do not fit are sketched, too.

    Attributes
    ----------
    rho : float
    K_LL : (n, n) float64 tensor
        Kernel of the labelled samples.
    logits : (n, c) float64 tensor
        Of the labelled samples.
    solver : RidgeSolver
    bytes_per_sample : int
        Of the features of a candidate.
    """

    def __init__(
        self,
        engine: TangentEngine,
        labelled: Samples,
        kind: str,
        n_features: int,
        ridge: float,
        seed: int,
        room: int,
    ) -> None:
        self.engine, self.kind, self.k, self.ridge, self.seed = engine, kind, n_features, ridge, seed
        self._samples = labelled
        self._lay_out(labelled, room)
        read = filled(self._read(labelled, lambda read: read), len(labelled))
        self._labelled = read
        self.logits = read.logits.double()
        self._K_factors = _factor_gram(read.factors, read.factors, len(labelled), engine.device)
        self.K_LL = self._K_factors + self._rest_gram(read.rest)
        self.solver = RidgeSolver(self.K_LL, ridge)
        self.rho = self.solver.rho
        self._folded = self._fold(read.rest)
        widths = sum(a.shape[1] + g.shape[1] for a, g in read.factors) + self._folded.shape[1]
        self.bytes_per_sample = self._bytes(labelled, widths)

    def _bytes(self, labelled: Samples, width: int) -> int:
        """Of a candidate's features: in the network's precision, and what is always in float64."""
        return self.engine.element_size * width + 8 * (2 * len(labelled) + 4 * self.engine.n_classes + 2)

    def _lay_out(self, labelled: Samples, room: int) -> None:
        """Decide which layers are kept as factors, and in which form the others are compared with the labelled ones."""
        engine = self.engine
        forms: Gradients = {}

        def reduce(gradients: Iterator[Gradients], n: int) -> int:
            forms.update(next(gradients))
            return n

        list(engine.run(labelled.take(np.arange(1)), kernel_cotangents(self.kind, engine.n_classes), reduce))
        room = (room - self._bytes(labelled, 0)) // engine.element_size
        factored = {name: g.n_in + g.n_out for name, g in forms.items() if isinstance(g, Outer) and _is_plain(g)}
        self._factored: list[str] = []
        for name in sorted(factored, key=factored.__getitem__):
            room -= factored[name]
            if room < self.k:
                break
            self._factored.append(name)
        self._rest = [name for name in engine.names if name not in self._factored]
        d = sum(engine.sizes[name] for name in self._rest)
        n = len(labelled)
        self._long: Sketch | None = None
        if d > self.k and n * d * engine.element_size > engine.memory // 4:
            d = max(self.k, engine.memory // (4 * n * engine.element_size))
            self._long = Sketch(engine, d, self.seed)
        self._signs: Tensor | None = None
        if d > self.k:
            signs = np.random.default_rng([self.seed, 1]).integers(0, 2, d) * 2 - 1
            self._signs = torch.as_tensor(signs).to(engine.device, engine.network.dtype)
        written_out = engine.element_size * (d if self._long is None else 4 * d)
        self._chunk = max(1, min(engine.batch_size, engine.memory // (8 * written_out + engine.sample_bytes)))

    def _read(self, samples: Samples, then: Callable[[_Read], Any]) -> Iterator[Any]:
        """One forward and one backward pass; ``then`` of each chunk's gradients."""
        engine = self.engine

        def reduce(gradients: Iterator[Gradients], n: int) -> Any:
            found = next(gradients)
            factors = []
            for name in self._factored:
                gradient = found.get(name)
                if not isinstance(gradient, Outer) or not _is_plain(gradient):
                    raise PlanChangedError("The gradients' form changed.")
                factors.append((gradient.columns(slice(None)).flatten(1).clone(), gradient.g.flatten(1).clone()))
            others = {name: found[name] for name in self._rest if name in found}
            if self._long is not None:
                rest = self._long.project(others, n)
            else:
                rest = torch.zeros(n, sum(engine.sizes[name] for name in self._rest), device=engine.device)
                rest = rest.to(engine.network.dtype)
                position = 0
                for name in self._rest:
                    if name in others:
                        rest[:, position : position + engine.sizes[name]] = others[name].dense()
                    position += engine.sizes[name]
            return then(_Read(factors, rest, engine.logits()))

        return engine.run(samples, kernel_cotangents(self.kind, engine.n_classes), reduce, batch_size=self._chunk)

    def _fold(self, rest: Tensor) -> Tensor:
        """(n, d) -> (n, k): random signs, then every k-th entry into the same bucket. Without effect if d ≤ k."""
        if self._signs is None:
            return rest.double()
        n, d = rest.shape
        whole = d // self.k * self.k
        flipped = rest * self._signs
        folded = flipped[:, :whole].reshape(n, -1, self.k).sum(1)
        folded[:, : d - whole] += flipped[:, whole:]
        return folded

    def _rest_gram(self, rest: Tensor) -> Tensor:
        """(m, d) -> (n, m) inner products with the labelled samples, in float64."""
        other = self._labelled.rest
        if self._signs is None:
            return other.double() @ rest.double().T
        total = torch.zeros(len(other), len(rest), dtype=torch.float64, device=rest.device)
        for start in range(0, rest.shape[1], _COLUMNS):
            part = slice(start, start + _COLUMNS)
            total += other[:, part] @ rest[:, part].T
        return total

    def linearized(self, samples: Samples, residuals: Tensor) -> Tensor:
        """(m, c) outputs of the linearised network: one forward and one backward pass over any samples.

        Parameters
        ----------
        samples : Samples
        residuals : (n, c) float64 tensor
            Of the labelled samples.
        """
        coefficients = self.solver(residuals)

        def outputs(read: _Read) -> Tensor:
            return self._kernel(read)[1].T @ coefficients + read.logits.double()

        return torch.cat(list(self._read(samples, outputs)))

    def _kernel(self, read: _Read) -> tuple[Tensor, Tensor]:
        """(n, m) kernels with the labelled samples: the outer products' part, and all of it."""
        shape = len(self.logits), len(read.rest)
        k_factors = _factor_gram(self._labelled.factors, read.factors, shape, self.engine.device)
        return k_factors, k_factors + self._rest_gram(read.rest)

    def features(self, samples: Samples) -> Features:
        """One forward and one backward pass over some candidates, shared among the network's workers.

        Kept for the next criterion or query of the round where half of the room for features suffices, so that the
        other half holds the copy.
        """
        engine = self.engine
        plan = [(backend, sorted(covered)) for backend, covered in engine.plan]
        form = (self._factored, self.k, None if self._long is None else self._long.k, self._chunk, plan)
        reading = (type(engine.network).__name__, type(engine.network.criterion).__name__)  # of outputs as logits
        what = ("look-ahead features", self.kind, self.ridge, self.seed, form, reading)
        compute = partial(self._compute_features, samples)
        return reused(engine.network, samples, what, compute, also=(self._samples,), limit=engine.memory // 2)

    def _compute_features(self, samples: Samples) -> Features:
        def shard(part: Samples) -> Features:
            return filled(self._read(part, self._features), len(part))

        try:
            return self.engine.map(shard, samples, self._chunk)
        except PlanChangedError:
            if self.engine.network.sharding.jobs() == 1:
                raise
            return shard(samples)  # here, so that the engine of this process notices, too

    def _features(self, read: _Read) -> Features:
        k_factors, k = self._kernel(read)
        alpha = self.solver(k)
        folded = self._fold(read.rest)
        psi = torch.addmm(folded, alpha.T.to(folded.dtype), self._folded, alpha=-1)
        prior = _squared_norms(read.rest)
        for a, g in read.factors:
            prior += _squared_norms(a) * _squared_norms(g)
        variance = (prior - (k * alpha).sum(0)).clamp_min_(0)
        epsilon = torch.finfo(self.engine.network.dtype).eps
        copies = copies_of_labelled(k, self.K_LL.diagonal(), prior, epsilon)
        return Features(read.factors, psi, alpha.T, k_factors.T, prior, variance, read.logits.double(), copies)

    def kernel_rows(self, features: Features) -> Tensor:
        """(N, n) kernel of candidates with the labelled samples: ``K α + ρ α``."""
        return torch.addmm(self.rho * features.alpha, features.alpha, self.K_LL)

    def covariance(self, features: Features) -> FeatureCovariance:
        """Among the candidates that were read."""
        return FeatureCovariance(features, self._K_factors, self.rho)


def _is_plain(gradient: Outer) -> bool:
    """Whether it is one outer product."""
    return gradient.positions == 1 and gradient.groups == 1


def _squared_norms(rows: Tensor) -> Tensor:
    return rows.square().sum(1, dtype=torch.float64)


def _factor_gram(first: list, second: list, shape: int | tuple[int, int], device: torch.device) -> Tensor:
    """Σ over layers of ``(a·a')(g·g')`` for all pairs, in float64."""
    rows, columns = (shape, shape) if isinstance(shape, int) else shape
    total = torch.zeros(rows, columns, dtype=torch.float64, device=device)
    for (a, g), (a2, g2) in zip(first, second, strict=True):
        total += (a.double() @ a2.double().T).mul_(g.double() @ g2.double().T)
    return total


def _as_slice(index: Tensor) -> Tensor | slice:
    """Rows that stand side by side as a slice, which copies nothing."""
    if len(index) == 0:
        return index
    first, last = int(index[0]), int(index[-1])
    is_range = last - first + 1 == len(index) and bool((index.diff() == 1).all())
    return slice(first, last + 1) if is_range else index


class FeatureCovariance:
    """S from features.

    ``S(x, x') = Ψ_x·Ψ_x' + ρ α_x·α_x'`` with ``Ψ_x = φ_x − Φ_Lᵀ α_x``; the outer products' part of the first term is
    written out with the kernels of those layers, the rest is ``ψ_x·ψ_x'``.

    Parameters
    ----------
    features : Features
    K_factors : (n, n) float64 tensor
        The outer products' part of the labelled samples' kernel.
    rho : float
    """

    def __init__(self, features: Features, K_factors: Tensor, rho: float) -> None:
        self.features = features
        self.variance, self.prior = features.variance, features.prior
        self._K, self._rho = K_factors, rho

    def block(self, rows: Any, columns: Any) -> Tensor:
        """(r, e) part of S."""
        rows, columns = _as_slice(rows), _as_slice(columns)
        psi, alpha, k = self.features.psi, self.features.alpha, self.features.k_factors
        S = (psi[rows] @ psi[columns].T).double()
        for a, g in self.features.factors:
            S.addcmul_(a[rows].double() @ a[columns].double().T, g[rows].double() @ g[columns].double().T)
        beta = torch.addmm(k[columns], alpha[columns], self._K, alpha=-1).sub_(alpha[columns], alpha=self._rho)
        return S.addmm_(k[rows], alpha[columns].T, alpha=-1).addmm_(alpha[rows], beta.T, alpha=-1)

    def column(self, j: int) -> Tensor:
        """(N,) column of S; its entry j is the variance itself."""
        everything = torch.arange(len(self.variance), device=self.variance.device)
        column = self.block(everything, everything[j : j + 1])[:, 0]
        column[j] = self.variance[j]
        return column

    def distance(self, j: int) -> Tensor:
        """(N,) squared distance to candidate j: of the outer products as they are, of the rest in what labels leave."""
        total = _squared_norms(self.features.psi - self.features.psi[j])
        for a, g in self.features.factors:
            lengths = _squared_norms(a) * _squared_norms(g)
            total += lengths + lengths[j] - 2 * (a.double() @ a[j].double()) * (g.double() @ g[j].double())
        return total
