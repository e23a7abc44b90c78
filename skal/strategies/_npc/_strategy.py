# SPDX-License-Identifier: BSD-3-Clause
"""NPC: query the batch that keeps the tangent kernel best conditioned (Kong et al. 2022)."""

from __future__ import annotations

import time
import warnings
from math import log
from typing import Any

import numpy as np
from sklearn.base import clone
from torch import nn

from skal._core.containers import n_rows
from skal._core.copies import distinct_rows
from skal._core.cost import Passes, timed
from skal._core.guard import one_query
from skal.base import QueryStrategy, query_function
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError, RankDeficiencyWarning
from skal.strategies._npc._candidates import KERNEL_BYTES, CandidateKernel, Room
from skal.strategies._npc._spectral import draw_batches, smallest_eigenvalue
from skal.tangent._cotangents import kernel_cotangents
from skal.tangent._kept import keep_gradients, kept_bytes
from skal.tangent._kernels import settle_kernel
from skal.tangent._sketch import MOST_FEATURES
from skal.tangent._tangent_engine import TangentEngine
from skal.validation import check_choice, check_integer, make_generator

_PROBED = 8, 32  # candidates of queries that are made to forecast the time of larger ones
KERNELS = ["auto", "pntk", "last_layer", "logit", "trace"]


class NPC(QueryStrategy):
    """Query the batch with the largest smallest eigenvalue of the tangent kernel on labelled set and batch together.

    NPC [1]_ is made for training: gradient descent on a wide network with squared loss converges at a rate that this
    eigenvalue bounds from below.
    The search over random batches is exact: it returns the batch that an eigenvalue computation for every candidate
    would return, at a fraction of the cost.

    Exact copies count once: a batch holds no two, and none of a labelled sample, while other samples remain.

    Parameters
    ----------
    kernel : {"auto", "pntk", "last_layer", "logit", "trace"}, default="auto"
        ``auto`` is ``pntk``, or ``trace`` where the outputs sum to a constant and the pseudo-NTK vanishes.
        ``pntk``, ``logit`` and ``trace`` are those of :func:`skal.tangent.tangent_kernel` in all trainable parameters.
        ``last_layer``, the paper's, is the trace in the last layer's parameters: of rank d + 1 for d inputs of that
        layer, so that it cannot tell batches apart once labelled set and batch together are larger.
    search : {"random", "greedy"}, default="random"
        ``random`` takes the best of ``n_candidates`` random batches. ``greedy`` adds one sample after the other, each
        the one that keeps the eigenvalue highest.
    n_candidates : int or None, default=None
        Number of random batches; None is the pool's size, 1000 at most. For ``greedy`` the number of random samples
        to choose from; None is the whole pool up to 1000 or five batches.
    n_features : int or None, default=None
        None searches with the exact kernel. A number k lets a sketch of that length propose a batch first; the others
        are then held against its exact eigenvalue, so that the answer is the same. Only the batches that the
        kernel between labelled set and pool cannot rule out have their own part of the exact kernel computed. Without
        effect for ``greedy``, and where k is not larger than labelled set and batch together.
    subset : int or None, default=None
        Choose among only this many random samples of the pool.
    backend : {"auto", "structured", "backpack", "func"}, default="auto"
        How per-sample gradients are computed; see :mod:`skal.tangent`.
    batch_size : int, default=256
        Samples per network pass, at most.
    max_memory : int, str or None, default=None
        Bound on the working memory, such as ``"2GB"``; None is 1 GB. Candidates whose kernel does not fit are searched
        group by group.
    random_state : None, int, Generator or RandomState, default=None
        For the candidates, the sketch and the choice of the subset.
    n_jobs : int or None, default=None
        Workers that share the passes over the pool, as in scikit-learn: None is 1, or what ``joblib.parallel_config``
        says; -1 is all processors.
    progress : bool, default=False
        Show a bar over the parts of the pool.

    Warns
    -----
    RankDeficiencyWarning
        If the kernel's rank is too low for any batch to have a non-zero eigenvalue, by its size or by its spectrum.
        The batch is then the one with the largest ``log det(K + ρI)``, ρ = 0.001 times the mean diagonal.

    See Also
    --------
    NTKLookahead : Uses the same kernels to predict how a label would change the network.
    CoreSet : Spreads a batch over the network's last layer.
    skal.tangent.tangent_kernel : The kernel itself.

    Notes
    -----
    The metrics of a batch are the winning eigenvalue, for every sample of it; with ``greedy`` the eigenvalue after each
    sample, the last of which is the batch's; 0 where it is zero up to rounding.

    References
    ----------
    .. [1] Kong et al., "A Neural Pre-Conditioning Active Learning Algorithm to Reduce Label Complexity", NeurIPS 2022.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.nets import MLP
    >>> from skal.strategies import NPC, npc
    >>> digits = load("digits")
    >>> net = NeuralNetClassifier(MLP(64, 10), criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> learner = ActiveLearner(net, NPC(n_candidates=20, random_state=0), digits.X_train[:20], digits.y_train[:20])
    >>> X_pool = digits.X_train[20:220]
    >>> indices, samples = learner.query(X_pool, n_instances=5)
    >>> samples.shape
    (5, 1, 8, 8)
    >>> bool((npc(learner, X_pool, 5, n_candidates=20, random_state=0) == indices).all())  # the same, as a function
    True
    """

    def __init__(
        self,
        *,
        kernel: str = "auto",
        search: str = "random",
        n_candidates: int | None = None,
        n_features: int | None = None,
        subset: int | None = None,
        backend: str = "auto",
        batch_size: int = 256,
        max_memory: int | str | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        progress: bool = False,
    ) -> None:
        self.kernel = kernel
        self.search = search
        self.n_candidates = n_candidates
        self.n_features = n_features
        self.subset = subset
        self.backend = backend
        self.batch_size = batch_size
        self.max_memory = max_memory
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.progress = progress

    @property
    def draws_from_pool(self) -> bool:  # type: ignore[override]
        """Whether the answer comes from random draws: of batches, or of the samples that greedy chooses from.

        Greedy search draws by itself, too, where the pool is larger than what it looks at.
        """
        return self.search == "random" or self.n_candidates is not None

    def _check_params(self) -> None:
        super()._check_params()
        owner = type(self).__name__
        check_choice(owner, "kernel", self.kernel, KERNELS)
        check_choice(owner, "search", self.search, ["random", "greedy"])
        check_integer(owner, "n_candidates", self.n_candidates, 1, 10**7, optional=True)
        check_integer(owner, "n_features", self.n_features, 1, MOST_FEATURES, optional=True)

    def check_n_instances(self, n_instances: Any, n_pool: int) -> None:
        """Refuse a number of samples that cannot be chosen from a pool of this size, or among the candidates."""
        super().check_n_instances(n_instances, n_pool)
        if self.search == "greedy" and self.n_candidates is not None and n_instances > self.n_candidates:
            expected = f"at most n_candidates ({self.n_candidates}), the samples that search='greedy' chooses from"
            remedy = "Ask for fewer samples, or raise n_candidates."
            raise InvalidParameterError.for_parameter(type(self).__name__, "n_instances", expected, n_instances, remedy)

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        network, engine = context.logit_network, self._engine(context)
        seen: set[bytes] = set()
        labelled = context.labelled if context.n_labelled else None
        if labelled is not None:
            labelled = labelled.take(distinct_rows(network, labelled, self.batch_size, seen))
        distinct = distinct_rows(network, context.pool, self.batch_size, seen)
        if len(distinct) < n_instances:  # all that are distinct, and as many copies as it takes
            copies = np.setdiff1d(np.arange(context.n_pool), distinct)
            return np.concatenate([distinct, copies])[:n_instances], np.zeros(n_instances)
        kind = settle_kernel(engine, context.pool, self.kernel, context.owner)
        kind = "trace" if kind == "last_layer" else kind
        kernel = CandidateKernel(engine, context.pool, labelled, kind, context.memory // 2)
        generator = make_generator(type(self).__name__, self.random_state)
        n_candidates = self._n_candidates(context.n_pool, n_instances)
        is_greedy = self.search == "greedy"
        if is_greedy:
            self._check_room(kernel, n_instances, context)
            n_candidates = min(n_candidates, kernel.room.matrix)
        if not is_greedy:
            batches = distinct[draw_batches(len(distinct), n_instances, n_candidates, generator)]
        elif n_candidates < len(distinct):
            distinct = np.sort(generator.choice(distinct, n_candidates, replace=False))
        needed, max_rank, rank = kernel.n + n_instances, self._max_rank(engine, context, kind), None
        if needed <= max_rank:
            found = kernel.greedy(distinct, n_instances) if is_greedy else self._best(kernel, batches, generator)
            rank = kernel.rank(batches[0] if found is None else found[0])
            if found is not None and rank == needed:
                return found
        self._warn("last_layer" if self.kernel == "last_layer" else kind, kernel.n, n_instances, max_rank, rank)
        batch = kernel.greedy_logdet(distinct, n_instances) if is_greedy else kernel.largest_logdet(batches)
        return batch, np.zeros(n_instances)

    def _check_room(self, kernel: CandidateKernel, n_instances: int, context: QueryContext) -> None:
        """Greedy search keeps the kernel on all its candidates."""
        if kernel.room.matrix < n_instances:
            expected = f"at least {2 * KERNEL_BYTES * (kernel.n + n_instances) ** 2:,} bytes, for the kernel on a batch"
            remedy = "Raise it, query fewer samples at a time, or use search='random'."
            raise InvalidParameterError.for_parameter(context.owner, "max_memory", expected, context.max_memory, remedy)

    def _engine(self, context: QueryContext) -> TangentEngine:
        layers = "last" if self.kernel == "last_layer" else "all"
        return context.engine(self.backend, layers=layers, memory=context.memory // 2)

    def _n_candidates(self, n: int, n_instances: int) -> int:
        """Samples that greedy search chooses from, or random batches, of a pool of n."""
        return self.n_candidates or (max(1000, 5 * n_instances) if self.search == "greedy" else min(n, 1000))

    def _points(self, n: int, n_instances: int) -> int:
        """How many samples of n the candidates hold, on average: each of m random batches misses one by 1 − b/n."""
        n_candidates = self._n_candidates(n, n_instances)
        if self.search == "greedy":
            return min(n, n_candidates)
        return round(n * (1 - (1 - min(1.0, n_instances / n)) ** n_candidates))

    def _kind(self) -> str:
        """The kernel that is counted with; ``auto`` is nearly always this one."""
        return {"auto": "pntk", "last_layer": "trace"}.get(self.kernel, self.kernel)

    def _room(self, context: QueryContext, engine: TangentEngine) -> Room:
        kept = kept_bytes(engine, context.pool, kernel_cotangents(self._kind(), engine.n_classes))
        return Room(context.memory // 2, context.n_labelled, kept)

    def _passes(self, context: QueryContext, n: int, n_instances: int) -> Passes:
        """Gradients of candidates and labelled samples once, where they fit into memory."""
        u, labelled = self._points(n, n_instances), context.n_labelled
        room = self._room(context, self._engine(context))
        n_candidates = self._n_candidates(n, n_instances)
        if self.search == "greedy":
            pool = u if room.fits_whole(u) else (2 if labelled else 1) * u
        else:
            pool = room.n_read(u, n_candidates, n_instances)
        own = labelled if room.keeps_labelled else 2 * labelled
        times = context.n_classes if self._kind() == "trace" else 1
        return Passes(pool, times * pool, own, times * own)

    def _memory(self, context: QueryContext, n: int, n_instances: int) -> int:
        u, engine = self._points(n, n_instances), self._engine(context)
        room, n_candidates = self._room(context, engine), self._n_candidates(n, n_instances)
        needed = room.bytes_for(u, n_candidates, n_instances)
        if self.search == "greedy":
            u = min(u, room.matrix)
            needed = KERNEL_BYTES * (u + context.n_labelled) ** 2 + (u * room.kept if room.fits_whole(u) else 0)
        return 96 * n + min(context.memory // 2, needed) + engine.chunk_bytes()

    def _work(self, n: int, n_instances: int) -> float:
        return float(self._points(n, n_instances)) ** 2

    def _seconds(self, context: QueryContext, learner: Any, X_pool: Any, n_instances: int) -> float:
        """From two small numbers of candidates on the whole pool: each takes its points' gradients, and its own test.

        The points of many candidates are the same, and of m candidates only about ln m have their eigenvalue computed:
        so gradients and eigenvalues are timed by themselves.
        """
        n, (few, more) = n_rows(X_pool, "X_pool"), _PROBED
        wanted = self._n_candidates(n, n_instances)
        if self.search == "greedy" or wanted <= more:
            return super()._seconds(context, learner, X_pool, n_instances)
        first, second = (timed(self._with(m), learner, X_pool, n_instances, n) for m in _PROBED)
        with one_query(context.inner_estimator):
            engine = self._engine(context)
            room, part = self._room(context, engine), context.pool.take(range(min(n, 4 * engine.batch_size)))
            cotangents = kernel_cotangents(self._kind(), engine.n_classes)
            start = time.perf_counter()
            keep_gradients(engine, part, cotangents)
            per_point = (time.perf_counter() - start) / len(part)
            start = time.perf_counter()
            smallest_eigenvalue(np.diag(np.arange(1.0, context.n_labelled + n_instances + 1)) + 1)
            per_record = time.perf_counter() - start
        read = {m: room.n_read(self._with(m)._points(n, n_instances), m, n_instances) for m in (few, more, wanted)}
        besides = per_point * (read[more] - read[few]) + per_record * log(more / few)
        per_batch = max(0.0, second - first - besides) / (more - few)
        rest = per_point * max(0, read[wanted] - read[more]) + per_record * log(wanted / more)
        return second + rest + per_batch * (wanted - more)

    def _with(self, n_candidates: int) -> NPC:
        copy: NPC = clone(self).set_params(n_candidates=n_candidates)
        return copy

    def _max_rank(self, engine: TangentEngine, context: QueryContext, kind: str) -> int:
        """The dimension of the space in which the gradients lie."""
        if self.kernel == "last_layer":
            last, layer = context.last_layer, context.last_layer.layer
            if isinstance(layer, nn.Linear) and last.width == layer.in_features:
                bias = layer.bias is not None and layer.bias.requires_grad
                return last.width * layer.weight.requires_grad + bias
        per_parameter = engine.n_classes if kind == "trace" else 1
        return per_parameter * sum(engine.sizes.values())

    def _best(
        self, kernel: CandidateKernel, batches: np.ndarray, generator: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """The batch with the largest λ_min, and that value for each of its samples; None if all are zero."""
        b = batches.shape[1]
        winner, value = None, -np.inf
        if self.n_features is not None and self.n_features > kernel.n + b:
            winner, value = kernel.sketched_best(batches, self.n_features, int(generator.integers(2**31)))
        rivals = batches if winner is None else kernel.not_ruled_out(batches, value)
        winner, value = kernel.best(rivals, value, winner)
        return None if winner is None else (winner, np.full(b, value))

    def _warn(self, kernel: str, n: int, n_instances: int, max_rank: int, rank: int | None) -> None:
        if rank is None:
            found = f"The sizes of the network allow a rank of at most {max_rank}."
        else:
            found = f"The best candidate batch has rank {rank} up to rounding."
        remedies = {
            "last_layer": "Use kernel='pntk', which takes all layers.",
            "trace": "Query fewer samples at a time, or use a wider network.",
        }
        warnings.warn(
            f"The {kernel} kernel of NPC cannot tell batches apart: that takes rank {n + n_instances} ({n} "
            f"distinct labelled samples and {n_instances} to query). {found} All smallest eigenvalues are zero, so "
            "the batch is chosen by the log-determinant with a ridge. "
            + remedies.get(kernel, "Use kernel='trace', query fewer samples at a time, or use a wider network."),
            RankDeficiencyWarning,
            stacklevel=2,
        )


npc = query_function(NPC, "npc", __name__)
