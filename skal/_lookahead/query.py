# SPDX-License-Identifier: BSD-3-Clause
"""The look-ahead of one query: scores of a pool, greedy batches, labels that come one after the other.

:class:`skal.strategies.NTKLookahead` and :class:`skal.LinearizedLearner` both stand on this module.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from skal._core.outputs import compares_outputs
from skal._core.samples import Samples
from skal._lookahead.features import FeatureReader
from skal._lookahead.newton import LabelSteps
from skal._lookahead.posterior import KernelBlocks, Outputs, Posterior, precision_of_variances
from skal._lookahead.selection import (
    batch_room,
    candidates_at_a_time,
    check_room,
    shortlist_room,
    variance_batch,
    variance_scores,
)
from skal._lookahead.sources import FeatureSource, KernelSource, Source, exact_kernel, in_groups
from skal._lookahead.variance import VarianceGains, newton_importance
from skal.base import top
from skal.context import QueryContext
from skal.exceptions import CrossEntropyWarning, InvalidParameterError
from skal.tangent._kernels import settle_kernel
from skal.validation import make_generator

ONE_BY_ONE = ["direct", "one_step", "retrain"]
EXACT_LENGTH = 4096


@dataclass(frozen=True)
class Settings:
    """What is asked for; the parameters of :class:`skal.strategies.NTKLookahead` of the same names."""

    criterion: str
    kernel: str
    retraining: str
    reference: str
    batch: str
    n_features: int | str | None
    evaluation: int | str | None
    ridge: float
    backend: str
    random_state: Any

    @classmethod
    def of(cls, strategy: Any) -> Settings:
        """Those of a strategy, with what its criterion goes with where it leaves a choice."""
        given = {field.name: getattr(strategy, field.name) for field in fields(cls)}
        variance = given["criterion"] == "variance"
        if given["batch"] == "auto":
            given["batch"] = "greedy" if variance else "top"
        if isinstance(given["ridge"], str):
            given["ridge"] = 1e-2 if variance else 1e-4
        return cls(**given)

    @property
    def sketch_length(self) -> int | None:
        """Length of the sketch; None for the exact kernel."""
        if self.n_features is None or self.kernel in ("entk", "trace") or self.retraining != "linearized":
            return None
        if self.n_features == "auto":  # sums of squares over many samples forgive more than sums of lengths do
            return 1024 if self.criterion == "variance" else EXACT_LENGTH
        return int(self.n_features)

    @property
    def exact_length(self) -> int:
        """Up to how many entries gradients are kept as they are, where there is a sketch for longer ones."""
        return EXACT_LENGTH if self.n_features == "auto" else self.sketch_length or 0

    def check_evaluation(self, owner: str, n: int) -> None:
        """Refuse more evaluation samples than there are."""
        if isinstance(self.evaluation, int) and self.evaluation > n:
            expected = f"at most the number of samples that take part ({n})"
            remedy = "Pass None for all of them, or 'auto' for at most 2000."
            raise InvalidParameterError.for_parameter(owner, "evaluation", expected, self.evaluation, remedy)

    def n_evaluation(self, n: int) -> int:
        """Over how many samples of a pool of n the change is summed."""
        size = 2000 if self.evaluation == "auto" else self.evaluation
        return n if size is None else min(n, int(size))

    def evaluation_rows(self, n: int, generator: np.random.Generator) -> np.ndarray:
        """Which these are."""
        size = self.n_evaluation(n)
        return np.arange(n) if size == n else np.sort(generator.choice(n, size=size, replace=False))


def pool_scores(context: QueryContext, settings: Settings) -> np.ndarray:
    """(N,) scores of the context's pool."""
    settings.check_evaluation(context.owner, context.n_pool)
    reference = settled_reference(context, settings)
    if settings.retraining in ONE_BY_ONE:
        from skal._lookahead.comparators import retrained_scores

        return retrained_scores(context, settings, reference)
    source, evaluation = _prepared(context, settings, in_groups=True)
    if settings.criterion == "variance":
        return variance_scores(context, source, evaluation).cpu().numpy()
    return _scores(source, context.pool, evaluation, settings.criterion, reference).cpu().numpy()


def greedy_batch(context: QueryContext, settings: Settings, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples chosen one after the other, each as if those before had been labelled; their scores.

    ``variance`` needs no labels. For the others they are those that are predicted.
    """
    settings.check_evaluation(context.owner, context.n_pool)
    source, evaluation = _prepared_batch(context, settings, n_instances)
    if settings.criterion == "variance":
        return variance_batch(context, source, evaluation, n_instances)
    posterior = source.posterior(context.pool, np.arange(context.n_pool), evaluation, None)
    return choose(posterior, settings, settled_reference(context, settings), n_instances)


def sequential(context: QueryContext, settings: Settings) -> tuple[Source, KernelBlocks]:
    """The pool, read once, for true labels that come one after the other; and what it was read by."""
    settings.check_evaluation(context.owner, context.n_pool)
    source, evaluation = _prepared(context, settings)
    return source, source.blocks(context.pool, evaluation)


def label_steps(
    context: QueryContext, settings: Settings, source: Source, n_trained: int, tau: float
) -> LabelSteps | None:
    """How labels that the network has not been trained on change its outputs; None if residuals say so."""
    if settings.criterion != "variance" or compares_outputs(context.network.criterion):
        return None
    f = source.labelled_logits()
    return LabelSteps(f, torch.as_tensor(context.class_labels, device=f.device), n_trained, tau)


def choose_by_variance(
    posterior: Posterior, settings: Settings, outputs: Outputs, tau: float, n_instances: int
) -> tuple[np.ndarray, np.ndarray]:
    """The same by the criterion ``variance``, with the outputs as they are now."""
    importance = newton_importance(outputs.beliefs, tau, posterior.rho, posterior.scale)
    gains = VarianceGains(posterior, importance)
    if settings.batch == "greedy":
        chosen, scores = gains.choose(n_instances)
        return chosen.cpu().numpy(), scores.cpu().numpy()
    ranked = gains.scores().masked_fill_(~posterior.free, -torch.inf).cpu().numpy()
    best = top(ranked, n_instances)
    return best, ranked[best]


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


def settled_reference(context: QueryContext, settings: Settings) -> str:
    """Where change is measured from, with a warning if that is not what was asked for."""
    criterion = context.network.criterion
    if settings.reference == "linearized" or compares_outputs(criterion):
        return settings.reference
    if settings.criterion == "variance":  # which compares nothing with labels
        return settings.reference
    if settings.retraining in ("gp", "one_step", "retrain"):  # real outputs, or none of the network's
        return settings.reference
    warnings.warn(
        f"NTKLookahead assumes squared loss, but the network uses {type(criterion).__name__}. Labels are compared "
        "with probabilities, and change is measured from the linearised network. Train with "
        "skal.nets.SquaredLoss, or pass reference='linearized' to silence this warning.",
        CrossEntropyWarning,
        stacklevel=2,
    )
    return "linearized"


def make_source(context: QueryContext, settings: Settings, generator: np.random.Generator, n_kept: int) -> Source:
    """What posteriors are computed from, the labelled samples read; features of ``n_kept`` candidates have room."""
    if settings.retraining != "linearized":
        from skal._lookahead.comparators import wide_source

        return wide_source(context, settings)
    memory, ridge = context.memory, settings.ridge
    engine = context.engine(settings.backend, memory=memory // 4)
    settings = replace(settings, kernel=settle_kernel(engine, context.pool, settings.kernel, context.owner))
    k = settings.sketch_length
    if k is None:
        epsilon = precision_of_variances(context.network.dtype, torch.float64)
        kernel = exact_kernel(engine, settings.kernel)
        return KernelSource(context, kernel, ridge=ridge, epsilon=epsilon, memory=memory // 2)
    seed = int(generator.integers(2**31))
    room = memory // 4 // n_kept  # as much again for a copy, the engine, and products of features

    def make_reader() -> FeatureReader:
        lengths = (k, settings.exact_length)
        return FeatureReader(engine, context.labelled, settings.kernel, lengths, ridge, seed, room)

    return FeatureSource(context, make_reader, memory // 4, n_kept)


def _prepared(
    context: QueryContext, settings: Settings, in_groups: bool = False, n_shortlisted: int = 0
) -> tuple[Source, np.ndarray]:
    """A source, and the rows over which the change is summed.

    A memory bound is refused if the pool does not fit, or the evaluation set with a few more samples at a time. Where
    a batch is chosen in two stages, with room for so many shortlisted samples, whoever chooses it sees to that.
    """
    N, generator = context.n_pool, make_generator(context.owner, settings.random_state)
    evaluation = settings.evaluation_rows(N, generator)
    e = len(evaluation) if in_groups else N
    source = make_source(context, settings, generator, candidates_at_a_time(N, e, n_shortlisted))
    if not n_shortlisted:
        check_room(context, source, e)
    return source, evaluation


def _prepared_batch(context: QueryContext, settings: Settings, n_instances: int) -> tuple[Source, np.ndarray]:
    """The same for a greedy batch, which ``variance`` may choose in two stages."""
    if settings.criterion != "variance":
        return _prepared(context, settings)
    N = context.n_pool
    n_shortlisted = shortlist_room(N - settings.n_evaluation(N), n_instances)
    return _prepared(context, settings, in_groups=True, n_shortlisted=n_shortlisted)


def check_memory(context: QueryContext, settings: Settings, n_instances: int) -> None:
    """Refuse a bound that a query would refuse, before it is made."""
    if settings.batch == "top":
        if settings.retraining not in ONE_BY_ONE:
            _prepared(context, settings, in_groups=True)
        return
    source, evaluation = _prepared_batch(context, settings, n_instances)
    if settings.criterion == "variance":
        batch_room(context, source, len(evaluation), n_instances)


def _scores(source: Source, pool: Samples, evaluation: np.ndarray, criterion: str, reference: str) -> Tensor:
    """(N,) scores by all criteria but ``variance``."""
    return in_groups(source, pool, evaluation, lambda posterior, rows: posterior.scores(criterion, reference, rows))
