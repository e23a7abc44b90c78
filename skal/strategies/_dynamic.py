# SPDX-License-Identifier: BSD-3-Clause
"""dynamicAL: query what would speed up training the most (Wang et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from skal.base import ScoreStrategy, query_function, top
from skal.context import QueryContext, TangentEngine, rows_within
from skal.exceptions import InvalidParameterError
from skal.tangent._cotangents import LossCotangent
from skal.tangent._gradients import loss_gradient, loss_scores
from skal.tangent._kept import keep_gradients, kept_bytes
from skal.tangent._sketch import MOST_FEATURES, loss_features
from skal.validation import Choice, Integer, Real, make_generator

_SKETCH = 4096  # length of the sketches where exact gradients do not fit
_COLUMNS = 16  # samples whose inner products with all others are computed at once
_KEPT_COLUMNS = 4 * _COLUMNS  # and how many of these products are kept


class DynamicAL(ScoreStrategy):
    """Query the samples that would change the training dynamics most.

    With ``g_u`` the gradient of the training loss at a pool sample, its predicted label taken for the true one, and
    ``g_S`` the gradient summed over the labelled set, the score is ``‖g_u‖² + γ g_u·g_S``. One forward and one
    backward pass over the pool, plus one over the labelled set. The method is dynamicAL [1]_.

    Parameters
    ----------
    gamma : float, default=2.0
        Weight of the interaction with the labelled set. 2 is the paper's; 0 leaves the gradient's length; ``inf``
        ranks by ``g_u·g_S`` alone.
    batch : {"top", "greedy"}, default="top"
        ``top`` takes the highest scores, as the paper does. ``greedy`` also counts how the batch's samples interact:
        it maximises ``‖Σ_Q g‖² + γ g_S·Σ_Q g``, one sample after the other.
    n_features : {"auto"}, int or None, default="auto"
        For ``greedy``: how the interactions are computed. ``auto`` keeps what describes the gradients (inputs and
        output gradients of linear layers, the weights' gradients of others) and is exact, if that fits into
        ``max_memory``, and takes sketches of length 4096 if it does not. A number is the length of the sketches. None
        is always exact, with one more pass over the pool per queried sample where the gradients do not fit.
    backend : {"auto", "structured", "backpack", "func"}, default="auto"
        How per-sample gradients are computed; see :mod:`skal.tangent`.
    subset : int or None, default=None
        Score only this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset, and the sketch.

    See Also
    --------
    EGL : Scores the expected length of the gradient alone, over all labels.
    NTKLookahead : Predicts the network after training instead of its first step.
    skal.tangent.gradient_scores : The norms and inner products behind the score.

    References
    ----------
    .. [1] Wang et al., "Deep Active Learning by Leveraging Training Dynamics", NeurIPS 2022.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.nets import MLP
    >>> from skal.strategies import DynamicAL, dynamic_al
    >>> digits = load("digits")
    >>> net = NeuralNetClassifier(MLP(64, 10), criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> learner = ActiveLearner(net, DynamicAL(), X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool = digits.X_train[50:250]
    >>> indices, samples = learner.query(X_pool, n_instances=5)
    >>> samples.shape
    (5, 1, 8, 8)
    >>> bool((dynamic_al(learner, X_pool, 5) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = {
        "gamma": Real(remedy="Use 2 for the paper's score, 0, or float('inf')."),
        "batch": Choice("top", "greedy"),
        "n_features": Integer(1, MOST_FEATURES, optional=True, words=("auto",)),
        "backend": Choice("auto", "structured", "backpack", "func"),
    }
    why_these_tasks = "It takes the prediction for the label, and of a number that leaves a gradient of zero."

    def __init__(
        self,
        *,
        gamma: float = 2.0,
        batch: str = "top",
        n_features: int | str | None = "auto",
        backend: str = "auto",
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.gamma = gamma
        self.batch = batch
        self.n_features = n_features
        self.backend = backend
        self.subset = subset
        self.random_state = random_state

    @property
    def needs_labels(self) -> bool:  # type: ignore[override]
        """True if the learner must hold labelled samples; γ = 0 leaves them out of the score."""
        return self.gamma != 0

    def _engine(self, context: QueryContext) -> TangentEngine:
        # greedy keeps gradients, for which three quarters of the bound are left
        memory = context.memory // 4 if self._interacts else None
        return context.tangent_engine(self.backend, network=context.network, memory=memory)

    @property
    def _interacts(self) -> bool:
        """True if the samples of a batch interact; with influence alone they do not."""
        return self.batch == "greedy" and not np.isinf(float(self.gamma))

    def _pool_scores(self, context: QueryContext, engine: TangentEngine) -> Tensor:
        """(N,) scores of the pool; another γ or batch in the same query takes the same pass."""

        def compute() -> tuple[Tensor, Tensor]:
            network, direction = context.network, None
            if self.needs_labels:
                direction = loss_gradient(network, context.labelled, context.class_labels, batch_size=engine.batch_size)
            return loss_scores(engine, context.pool, None, direction)

        what = ("loss scores", self.backend, engine.batch_size, self.needs_labels)
        also = (context.labelled, context.class_labels) if self.needs_labels else ()
        norms, dots = context.remember(what, compute, also=also)
        return dynamic_scores(norms, dots, float(self.gamma))

    def _score(self, context: QueryContext) -> np.ndarray:
        return self._pool_scores(context, self._engine(context)).cpu().numpy()

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        if not self._interacts:
            return super()._select(context, n_instances)
        engine = self._engine(context)
        if self._keeps_all(context, engine):
            return self._exact_greedy(context, engine, n_instances)
        scores = self._check_finite(self._pool_scores(context, engine))
        if self.n_features is None:

            def with_all(best: int, gains: Tensor) -> Tensor:
                chosen = loss_gradient(engine.network, context.pool.take(np.array([best])), None)
                return loss_scores(engine, context.pool, None, chosen)[1]

            return greedy_batch(scores, with_all, n_instances)
        row_bytes = self._sketch_length * engine.network.precision.itemsize
        room = rows_within(3 * engine.memory, row_bytes, at_least=0)
        candidates = np.sort(top(scores.cpu().numpy(), min(context.n_pool, max(room, n_instances))))
        seed = int(make_generator(type(self).__name__, self.random_state).integers(2**31))
        features = loss_features(engine, context.pool.take(candidates), self._sketch_length, seed)
        scores = scores[torch.as_tensor(candidates, device=scores.device)]
        picked, gains = greedy_batch(scores, lambda best, gains: features @ features[best], n_instances)
        return candidates[picked], gains

    def _exact_greedy(
        self, context: QueryContext, engine: TangentEngine, n_instances: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """One pass over the pool; scores and inner products come from what it leaves."""
        network, direction = context.network, None
        if self.needs_labels:
            direction = loss_gradient(network, context.labelled, context.class_labels, batch_size=engine.batch_size)
        kept = keep_gradients(engine, context.pool, [LossCotangent(network.loss)])
        norms, dots = engine.scores(kept.gradients[0], kept.n, direction)
        scores = self._check_finite(dynamic_scores(norms, dots, float(self.gamma)))
        columns: dict[int, Tensor] = {}

        def products(best: int, gains: Tensor) -> Tensor:
            # those that may be chosen next are taken along: one product of matrices instead of several with vectors
            if best not in columns:
                others = gains.topk(min(len(columns) + _COLUMNS, len(gains))).indices.tolist()
                some = [best, *(row for row in others if row != best and row not in columns)][:_COLUMNS]
                while len(columns) + len(some) > _KEPT_COLUMNS:  # the oldest go
                    del columns[next(iter(columns))]
                columns.update((row, x.clone()) for row, x in zip(some, kept.with_some(some).unbind(1), strict=True))
            return columns.pop(best)

        return greedy_batch(scores, products, n_instances)

    def _check_finite(self, scores: Tensor) -> Tensor:
        if not bool(torch.isfinite(scores).all()):
            raise InvalidParameterError.for_parameter(
                type(self).__name__, "gamma", "small enough for finite scores", self.gamma, "Use float('inf')."
            )
        return scores

    @property
    def _sketch_length(self) -> int:
        return _SKETCH if self.n_features == "auto" else int(self.n_features)  # type: ignore[arg-type]

    def _keeps_all(self, context: QueryContext, engine: TangentEngine) -> bool:
        """True if ``greedy`` keeps the exact gradients of the pool."""
        kept = kept_bytes(engine, context.pool, [LossCotangent(engine.network.loss)])
        # and products with some others while they are made
        of_one = kept + 8 * _KEPT_COLUMNS + 20 * _COLUMNS + 64
        return self.n_features in ("auto", None) and context.n_pool * of_one <= 3 * engine.memory


def dynamic_scores(squared_norms: Tensor, dots: Tensor, gamma: float) -> Tensor:
    """``‖g‖² + γ g·g_S``, or ``g·g_S`` for γ = ±∞: (N,), (N,) -> (N,)."""
    if np.isinf(gamma):
        return dots if gamma > 0 else -dots
    return squared_norms + gamma * dots


def greedy_batch(
    scores: Tensor, products: Callable[[int, Tensor], Tensor], n_instances: int
) -> tuple[np.ndarray, np.ndarray]:
    """Greedy maximisation of ``Σ_Q score + Σ_{i≠j∈Q} g_i·g_j``.

    Parameters
    ----------
    scores : (N,) float64 tensor
        What each sample is worth alone, ``‖g‖² + γ g·g_S``.
    products : callable, (int, (N,) tensor) -> (N,) tensor
        Inner products of one sample's gradient with all of them, or estimates; what each would gain is given as well.
    n_instances : int

    Returns
    -------
    picked : (n_instances,) array, in the order of choice
    gains : (n_instances,) array
        What each added to the objective.

    Examples
    --------
    >>> g = torch.tensor([[2.0, 0.0], [0.0, 1.9], [1.0, 0.0]])  # the third goes the way of the first
    >>> greedy_batch(g.square().sum(1).double(), lambda best, gains: g @ g[best], 2)[0]
    array([0, 2])
    """
    gains = scores.clone()
    picked: list[int] = []
    won: list[float] = []
    while True:
        picked.append(int(gains.argmax()))
        won.append(float(gains[picked[-1]]))
        if len(picked) == n_instances:
            return np.array(picked), np.array(won)
        gains += 2 * products(picked[-1], gains).double()
        gains[picked] = -torch.inf


dynamic_al = query_function(DynamicAL, "dynamic_al", __name__)
