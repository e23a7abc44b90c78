# SPDX-License-Identifier: BSD-3-Clause
"""NPC: query the batch that keeps the tangent kernel best conditioned (Kong et al. 2022)."""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
from torch import nn

from skal.base import ANY_TASK, QueryStrategy, query_function
from skal.context import QueryContext, TangentEngine, copy_groups
from skal.exceptions import InvalidParameterError, RankDeficiencyWarning
from skal.strategies._candidates import KERNEL_BYTES, CandidateKernel
from skal.strategies._spectral import draw_batches
from skal.tangent._kernels import settle_kernel
from skal.tangent._sketch import MOST_FEATURES
from skal.validation import Choice, Integer, make_generator

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
    random_state : None, int, Generator or RandomState, default=None
        For the candidates, the sketch and the choice of the subset.

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

    tasks = ANY_TASK
    constraints: ClassVar = {
        "kernel": Choice(*KERNELS),
        "search": Choice("random", "greedy"),
        "n_candidates": Integer(1, 10**7, optional=True),
        "n_features": Integer(1, MOST_FEATURES, optional=True),
        "backend": Choice("auto", "structured", "backpack", "func"),
    }

    def __init__(
        self,
        *,
        kernel: str = "auto",
        search: str = "random",
        n_candidates: int | None = None,
        n_features: int | None = None,
        subset: int | None = None,
        backend: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.kernel = kernel
        self.search = search
        self.n_candidates = n_candidates
        self.n_features = n_features
        self.subset = subset
        self.backend = backend
        self.random_state = random_state

    @property
    def draws_from_pool(self) -> bool:  # type: ignore[override]
        """True if chance takes part: it draws batches, or the samples that greedy chooses from.

        Greedy search draws by itself, too, where the pool is larger than what it looks at.
        """
        return self.search == "random" or self.n_candidates is not None

    def check_n_instances(self, n_instances: Any, n_pool: int) -> None:
        """Refuse a number of samples that cannot be chosen from a pool of this size, or among the candidates."""
        super().check_n_instances(n_instances, n_pool)
        if self.search == "greedy" and self.n_candidates is not None and n_instances > self.n_candidates:
            expected = f"at most n_candidates ({self.n_candidates}), the samples that search='greedy' chooses from"
            remedy = "Ask for fewer samples, or raise n_candidates."
            raise InvalidParameterError.for_parameter(type(self).__name__, "n_instances", expected, n_instances, remedy)

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        engine = self._engine(context)
        labelled, known = context.labelled if context.n_labelled else None, list[bytes]()
        if labelled is not None:
            known = labelled.digests()
            labelled = labelled.take(np.unique(copy_groups(known)))
        groups = copy_groups(context.pool.digests(), known)
        distinct = np.unique(groups[groups >= 0])
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
        return context.tangent_engine(self.backend, layers=layers, memory=context.memory // 2)

    def _n_candidates(self, n: int, n_instances: int) -> int:
        """Samples that greedy search chooses from, or random batches, of a pool of n."""
        return self.n_candidates or (max(1000, 5 * n_instances) if self.search == "greedy" else min(n, 1000))

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
            winner, value = kernel.best_by_sketch(batches, self.n_features, int(generator.integers(2**31)))
        rivals = batches if winner is None else kernel.keep_possible(batches, value)
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
