# SPDX-License-Identifier: BSD-3-Clause
"""The look-ahead of one query: scores of a pool, and greedy batches, in groups where the pool does not fit into memory.

:class:`skal.strategies.NTKLookahead` and :class:`skal.LinearizedLearner` both stand on this module.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from copy import copy

import numpy as np
import torch
from torch import Tensor

from skal._core.outputs import compares_outputs
from skal._lookahead.feature_reader import FeatureReader
from skal._lookahead.posterior import Posterior, precision_of_variances
from skal._lookahead.request import ONE_BY_ONE, Evaluation, Settings
from skal._lookahead.sources import FeatureSource, KernelSource, Source, TangentSource, exact_kernel
from skal._lookahead.variance import VarianceGains, logit_variance
from skal.base import top
from skal.context import QueryContext
from skal.exceptions import CrossEntropyWarning, InvalidParameterError, TwoLevelWarning
from skal.tangent._kernels import settle_kernel
from skal.validation import make_generator


def pool_scores(context: QueryContext, settings: Settings, source: Source | None = None) -> np.ndarray:
    """(N,) scores of the context's pool, from the network's own kernel or another source."""
    generator = make_generator(context.owner, settings.random_state)
    evaluation, reference = Evaluation.of(context, settings, generator), settle_reference(context, settings)
    if settings.retraining in ONE_BY_ONE:
        from skal._lookahead.comparators import retrained_scores

        return retrained_scores(context, settings, evaluation.rows, reference)
    n_kept = _n_kept(context, evaluation)
    source = source or make_source(context, settings, generator, n_kept)
    check_room(context, source, lambda source: source.room(len(evaluation)), n_kept)
    return _score_in_groups(context, source, evaluation, _score_by(context, settings, source, reference, evaluation))


def greedy_batch(
    context: QueryContext, settings: Settings, n_instances: int, source: Source | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Samples chosen one after the other, each as if those before had been labelled; their scores.

    ``variance`` needs no labels. The other criteria take the predicted ones.
    """
    N, generator = context.n_pool, make_generator(context.owner, settings.random_state)
    evaluation = Evaluation.of(context, settings, generator)
    if settings.criterion == "variance":
        source = source or make_source(context, settings, generator, _n_kept(context, evaluation, n_instances))
        return _variance_batch(context, source, evaluation, n_instances)
    source = make_source(context, settings, generator, N)
    check_room(context, source, lambda source: source.room(N), N)
    posterior = source.posterior(context.pool, np.arange(N), evaluation.rows, None)
    return choose(posterior, settings, settle_reference(context, settings), n_instances)


def make_source(
    context: QueryContext, settings: Settings, generator: np.random.Generator, n_kept: int
) -> TangentSource:
    """The source of posteriors, with the labelled samples read and room for features of ``n_kept`` candidates."""
    if settings.retraining != "linearized":
        from skal._lookahead.comparators import wide_source

        return wide_source(context, settings)
    memory, ridge = context.memory, settings.ridge
    engine = context.tangent_engine(settings.backend, layers=settings.layers, memory=memory // 4)
    asked = context.meaning.kernel if settings.kernel == "auto" and engine.n_classes > 1 else settings.kernel
    kernel = settle_kernel(engine, context.pool, asked, context.owner)
    lengths = settings.sketch_lengths(kernel)
    if lengths is None:
        epsilon = precision_of_variances(context.network.dtype, torch.float64)
        return KernelSource(context, exact_kernel(engine, kernel), ridge=ridge, epsilon=epsilon, memory=memory // 2)
    # a quarter for features, as much again for a copy, for the engine, and for products of features
    seed, room = int(generator.integers(2**31)), memory // 4 // n_kept
    reader = FeatureReader(engine, context.labelled, kernel, lengths, ridge, seed, room)
    return FeatureSource(context, reader, memory // 4)


def settle_reference(context: QueryContext, settings: Settings) -> str:
    """The reference that change is measured from; a warning if it differs from the one asked for."""
    if settings.reference == "linearized" or settings.criterion == "variance":  # variances compare nothing with labels
        return settings.reference
    criterion = context.network.criterion
    # the others have real outputs, or none of the network's
    if compares_outputs(criterion) or settings.retraining in ("gp", "one_step", "retrain"):
        return settings.reference
    warnings.warn(
        f"NTKLookahead assumes squared loss, but the network uses {type(criterion).__name__}. Labels are compared "
        "with probabilities, and change is measured from the linearised network. Train with "
        "skal.nets.SquaredLoss, or pass reference='linearized' to silence this warning.",
        CrossEntropyWarning,
        stacklevel=2,
    )
    return "linearized"


def choose(posterior: Posterior, settings: Settings, reference: str, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
    """The best of the free candidates, and their scores; for a greedy batch the posterior is used up."""
    if settings.batch == "top":
        free = posterior.free.nonzero()[:, 0].cpu().numpy()
        scores = posterior.scores(settings.criterion, reference).cpu().numpy()
        chosen = top(scores, n_instances)
        return free[chosen], scores[chosen]
    picked = np.empty(n_instances, dtype=np.int64)
    metrics = np.empty(n_instances)
    for i in range(n_instances):
        if i:
            posterior.condition(picked[i - 1], int(posterior.outputs.labels[picked[i - 1]]))
        gains = posterior.scores(settings.criterion, reference)
        best = int(gains.argmax())
        picked[i], metrics[i] = int(posterior.free.nonzero()[best, 0]), float(gains[best])
    return picked, metrics


def check_room(context: QueryContext, source: Source, room: Callable[[Source], int], n_needed: int) -> None:
    """Refuse a bound on the memory that holds fewer samples at a time than are needed, and name one that does."""
    if room(source) >= n_needed:
        return
    larger, share = copy(source), context.memory / source.memory if source.memory else 4
    while room(larger) < n_needed:
        larger.memory += 1 + larger.memory // 20
    got = "1GB" if context.memory_bound is None else f"{context.memory_bound} bytes"
    raise InvalidParameterError(
        f"The setting max_memory must hold {n_needed} samples at a time for {context.owner}. Got {got}, which "
        f"holds {room(source)}; about {math.ceil(share * larger.memory)} bytes would do. Raise it with "
        "skal.set_config, choose among fewer samples with subset, or lower evaluation or n_features."
    )


def _score_by(
    context: QueryContext, settings: Settings, source: Source, reference: str, evaluation: Evaluation
) -> Callable[[Posterior, np.ndarray, Tensor], Tensor]:
    """A function that scores some entries of a posterior."""
    if settings.criterion != "variance":
        return lambda posterior, entries, rows: posterior.scores(settings.criterion, reference, rows)
    fits = source.room(len(evaluation)) >= context.n_pool + evaluation.n_before
    tau = (
        None if fits else logit_variance(source.outputs(context.pool).logits, context.meaning)
    )  # over the whole pool, however it is cut
    return lambda posterior, entries, rows: _gains(context, source, evaluation, posterior, entries, tau).scores()[rows]


def _score_in_groups(
    context: QueryContext,
    source: Source,
    evaluation: Evaluation,
    score: Callable[[Posterior, np.ndarray, Tensor], Tensor],
) -> np.ndarray:
    """(N,) scores, group by group where the pool does not fit into memory at once."""
    pool, N, e, room = context.pool, context.n_pool, len(evaluation), source.room(len(evaluation))
    if room >= N + evaluation.n_before:
        posterior, entries = evaluation.whole(source, pool, N)
        rows = torch.arange(evaluation.n_before, len(entries), device=posterior.own.device)
        return score(posterior, entries, rows).cpu().numpy()
    others = evaluation.others(np.arange(N))
    scores = np.empty(N)
    for start in range(0, len(others), room - e):
        posterior, entries = evaluation.group(source, pool, others[start : start + room - e], N)
        rows = torch.arange(len(entries), device=posterior.own.device)
        new = slice(e if start else evaluation.n_before, None)
        scores[entries[new]] = score(posterior, entries, rows[new]).cpu().numpy()
    return scores


def _variance_batch(
    context: QueryContext, source: Source, evaluation: Evaluation, n_instances: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices in the order of choice, and their scores when they were chosen.

    A pool that does not fit is chosen from in two stages, as in distributed greedy maximisation: every group names a
    batch of its own, and the batch is chosen among those. The first pick is the same as at once.
    """
    N, e = context.n_pool, len(evaluation)
    n_numbers = e + 4 * n_instances  # a pick leaves two numbers per candidate, one of them with a copy
    others = evaluation.others(np.arange(N))
    n_needed = min(N + evaluation.n_before, e + shortlist_room(len(others), n_instances))
    check_room(context, source, lambda source: source.greedy_room(n_numbers), n_needed)
    room = source.greedy_room(n_numbers)

    def choose_among(
        posterior: Posterior, entries: np.ndarray, candidates: np.ndarray, tau: float | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The batch among some rows of the pool, while the evaluation set stands for all that count."""
        gains = _gains(context, source, evaluation, posterior, entries, tau)
        posterior.free[:] = torch.as_tensor(np.isin(entries, candidates), device=posterior.free.device)
        chosen, scores = gains.choose(min(n_instances, len(candidates)))
        return entries[chosen.cpu().numpy()], scores.cpu().numpy()

    if room >= N + evaluation.n_before:
        return choose_among(*evaluation.whole(source, context.pool, None), np.arange(N), None)
    warnings.warn(
        f"max_memory holds only {room} of {N + evaluation.n_before} samples, so {context.owner} selects in two stages "
        "and the batch may differ. Raise max_memory, or set subset.",
        TwoLevelWarning,
        stacklevel=2,
    )
    tau = logit_variance(source.outputs(context.pool).logits, context.meaning)

    def best_of(candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        group = evaluation.group(source, context.pool, evaluation.others(candidates), None)
        return choose_among(*group, candidates, tau)

    step = room - e
    groups = [others[start : start + step] for start in range(0, len(others), step)]
    if evaluation.target is None:
        groups[0] = np.concatenate([evaluation.rows, groups[0]])
    return best_of(np.sort(np.concatenate([best_of(group)[0] for group in groups])))


def _gains(
    context: QueryContext,
    source: Source,
    evaluation: Evaluation,
    posterior: Posterior,
    entries: np.ndarray,
    tau: float | None,
) -> VarianceGains:
    """Gains of the entries of a posterior; τ is that of the pool's samples."""
    outputs, posterior.n_total = posterior.outputs, evaluation.n_total
    tau = logit_variance(outputs.logits[evaluation.n_before :], context.meaning) if tau is None else tau
    importance = source.importance(outputs.beliefs, tau, posterior.rho, posterior.scale)
    return VarianceGains(posterior, importance, context.owner, evaluation.weights_of(entries))


def _n_kept(context: QueryContext, evaluation: Evaluation, n_instances: int = 0) -> int:
    """Count the samples that need room: the evaluation samples, and the batches of all groups."""
    e, n = len(evaluation), context.n_pool + evaluation.n_before
    shortlisted = shortlist_room(n - e, n_instances) if n_instances else 0
    return min(n, e + max(1, e // 4, shortlisted))


def shortlist_room(n_others: int, n_instances: int) -> int:
    """The smallest s with ``n_instances ⌈n_others / s⌉ ≤ s``: of groups of s samples, all batches are one more group.

    Examples
    --------
    >>> shortlist_room(18_000, 20)
    600
    """
    low, high = 0, max(1, n_others, n_instances)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if n_instances * -(-n_others // middle) <= middle else (middle, high)
    return high
