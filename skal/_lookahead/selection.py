# SPDX-License-Identifier: BSD-3-Clause
"""Batches by expected reduction of variance from a whole pool, in groups where it does not fit into memory."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor

from skal._lookahead.posterior import Posterior
from skal._lookahead.sources import PosteriorSource, in_groups, too_little_memory
from skal._lookahead.variance import VarianceGains, logit_variance
from skal.context import QueryContext
from skal.exceptions import TwoLevelWarning


def variance_scores(context: QueryContext, source: PosteriorSource, evaluation: np.ndarray) -> Tensor:
    """(N,) scores of the first pick."""
    tau = None if source.room(len(evaluation)) >= context.n_pool else _tau_of_pool(context, source)
    return in_groups(
        source, context.pool, evaluation, lambda posterior, rows: _gains(context, source, posterior, tau).scores()[rows]
    )


def variance_batch(
    context: QueryContext, source: PosteriorSource, evaluation: np.ndarray, n_instances: int
) -> tuple[np.ndarray, np.ndarray]:
    """Indices in the order of choice, and their scores when they were chosen.

    A pool that does not fit is chosen from in two stages, as in distributed greedy maximisation: every group names a
    batch of its own, and the batch is chosen among those. The first pick is the same as at once.
    """
    N, e = context.n_pool, len(evaluation)
    room = batch_room(context, source, e, n_instances)
    if room >= N:
        posterior = source.posterior(context.pool, np.arange(N), evaluation, None)
        chosen, gains = _gains(context, source, posterior, None).choose(n_instances)
        return chosen.cpu().numpy(), gains.cpu().numpy()
    others, step = np.setdiff1d(np.arange(N), evaluation), room - e
    warnings.warn(
        f"max_memory holds only {room} of {N} samples, so {context.owner} selects in two stages and the batch may "
        "differ. Raise max_memory, or set subset.",
        TwoLevelWarning,
        stacklevel=2,
    )
    tau = _tau_of_pool(context, source)
    shortlist: list[np.ndarray] = []
    for start in range(0, len(others), step):
        candidates = others[start : start + step]
        candidates = candidates if start else np.concatenate([evaluation, candidates])
        shortlist.append(_best_of(context, source, evaluation, candidates, tau, n_instances)[0])
    return _best_of(context, source, evaluation, np.sort(np.concatenate(shortlist)), tau, n_instances)


def batch_room(context: QueryContext, source: PosteriorSource, n_evaluation: int, n_instances: int) -> int:
    """How many candidates of a batch fit into memory at a time; too few for two stages are refused."""
    n_numbers = n_evaluation + 4 * n_instances  # a pick leaves two numbers per candidate, one of them with a copy
    room, N = source.greedy_room(n_numbers), context.n_pool
    smallest = min(N, n_evaluation + shortlist_room(N - n_evaluation, n_instances))
    if room < smallest:
        raise too_little_memory(context, room, lambda bound: source.greedy_room(n_numbers, bound) >= smallest)
    return room


def check_room(context: QueryContext, source: PosteriorSource, n_evaluation: int) -> None:
    """Refuse a bound that the evaluation samples and a quarter as many candidates do not fit into."""
    n_kept = candidates_at_a_time(context.n_pool, n_evaluation)
    if source.room(n_evaluation) < n_kept:
        room = source.room(n_evaluation)
        raise too_little_memory(context, room, lambda bound: source.room(n_evaluation, bound) >= n_kept)


def candidates_at_a_time(n: int, n_evaluation: int, n_shortlisted: int = 0) -> int:
    """How many of n candidates there should be room for, beside the evaluation samples, which count too."""
    return min(n, n_evaluation + max(1, n_evaluation // 4, n_shortlisted))


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


def _best_of(
    context: QueryContext,
    source: PosteriorSource,
    evaluation: np.ndarray,
    candidates: np.ndarray,
    tau: float,
    n_instances: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The batch among some rows of the pool, while the evaluation set stands for all of it."""
    group = np.concatenate([evaluation, np.setdiff1d(candidates, evaluation)])
    posterior = source.posterior(context.pool, group, np.arange(len(evaluation)), None)
    posterior.n_total = context.n_pool
    gains = _gains(context, source, posterior, tau)
    posterior.free[:] = torch.as_tensor(np.isin(group, candidates), device=posterior.free.device)
    chosen, scores = gains.choose(min(n_instances, len(candidates)))
    return group[chosen.cpu().numpy()], scores.cpu().numpy()


def _gains(context: QueryContext, source: PosteriorSource, posterior: Posterior, tau: float | None) -> VarianceGains:
    tau = logit_variance(posterior.outputs.logits) if tau is None else tau
    importance = source.importance(posterior.outputs.beliefs, tau, posterior.rho, posterior.scale)
    return VarianceGains(posterior, importance, context.owner)


def _tau_of_pool(context: QueryContext, source: PosteriorSource) -> float:
    """Over all candidates, however they are grouped."""
    return logit_variance(source.outputs(context.pool).logits)
