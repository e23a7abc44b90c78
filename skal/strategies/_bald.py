# SPDX-License-Identifier: BSD-3-Clause
"""BALD: what the dropout masks disagree about (Houlsby et al. 2011; Gal et al. 2017), and BatchBALD (Kirsch 2019)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from skal.base import ScoreStrategy, query_function, top
from skal.context import QueryContext, rows_within
from skal.exceptions import InvalidParameterError
from skal.strategies._dropout import MOST_PASSES, over_passes, seeds_of
from skal.strategies._information import BLOCK_BYTES, joint_information, mutual_information
from skal.validation import Choice, Integer, make_generator

_MOST_SAMPLES = 10**7  # joint labels that are drawn


class BALD(ScoreStrategy):
    """Query where the predictions of networks with different dropout masks disagree.

    The score [1]_ [2]_ is the mutual information between the label and the mask, ``H(mean_t p_t) − mean_t H(p_t)``,
    over ``n_passes`` forward passes in which dropout alone is on; batch norm stays on its running statistics. One mask
    per pass is shared by all samples, so that scores do not depend on how the pool is cut or ordered. BatchBALD [3]_ is
    ``batch="joint"``.

    Parameters
    ----------
    n_passes : int, default=20
        Forward passes, each with a mask of its own.
    batch : {"top", "joint"}, default="top"
        ``top`` takes the highest scores. ``joint`` is BatchBALD: it adds, one by one, the sample that raises the mutual
        information between all labels of the batch and the mask most, so that samples that say the same count once.
    n_samples : int, default=1024
        For ``joint``: joint labels of the batch are all enumerated while there are at most this many. If there are
        more, this many are drawn.
    subset : int or None, default=None
        Score only this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the masks, the drawn labels, and the choice of the subset.

    See Also
    --------
    Entropy : Scores all uncertainty, also that on which the masks agree.
    BADGE : A batch that is diverse as well, without dropout.

    References
    ----------
    .. [1] Houlsby et al., "Bayesian Active Learning for Classification and Preference Learning", arXiv:1112.5745, 2011.
    .. [2] Gal, Islam and Ghahramani, "Deep Bayesian Active Learning with Image Data", ICML 2017.
    .. [3] Kirsch, van Amersfoort and Gal, "BatchBALD: Efficient and Diverse Batch Acquisition for Deep Bayesian Active
       Learning", NeurIPS 2019.

    Examples
    --------
    >>> import torch
    >>> from skorch import NeuralNetClassifier
    >>> from skal import ActiveLearner
    >>> from skal.datasets import load
    >>> from skal.nets import CNN
    >>> from skal.strategies import BALD, bald
    >>> digits = load("digits")
    >>> module = CNN(in_channels=1, image_size=8, dropout=0.25)
    >>> net = NeuralNetClassifier(module, criterion=torch.nn.CrossEntropyLoss, train_split=None, verbose=0)
    >>> strategy = BALD(n_passes=5, random_state=0)
    >>> learner = ActiveLearner(net, strategy, X_training=digits.X_train[:50], y_training=digits.y_train[:50])
    >>> X_pool = digits.X_train[50:250]
    >>> indices, samples = learner.query(X_pool, n_instances=5)
    >>> samples.shape
    (5, 1, 8, 8)
    >>> bool((bald(learner, X_pool, 5, n_passes=5, random_state=0) == indices).all())  # the same, as a function
    True
    """

    constraints: ClassVar = {
        "n_passes": Integer(2, MOST_PASSES, remedy="Masks can only disagree if there are two."),
        "batch": Choice("top", "joint"),
        "n_samples": Integer(1, _MOST_SAMPLES),
    }

    def __init__(
        self,
        *,
        n_passes: int = 20,
        batch: str = "top",
        n_samples: int = 1024,
        subset: int | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_passes = n_passes
        self.batch = batch
        self.n_samples = n_samples
        self.subset = subset
        self.random_state = random_state

    def _score(self, context: QueryContext) -> np.ndarray:
        return self._information(context, seeds_of(self, make_generator(type(self).__name__, self.random_state)))

    def _information(self, context: QueryContext, seeds: list[int]) -> np.ndarray:
        return over_passes(context, context.pool, seeds, mutual_information).clamp_min(0).cpu().numpy()

    def _select(self, context: QueryContext, n_instances: int) -> tuple[np.ndarray, np.ndarray]:
        if self.batch == "top":
            return super()._select(context, n_instances)
        generator = make_generator(type(self).__name__, self.random_state)
        seeds, room = seeds_of(self, generator), self._room(context, n_instances)
        candidates = np.arange(context.n_pool)
        if room < context.n_pool:
            candidates = np.sort(top(self._information(context, seeds), room))
            context = context.restrict(candidates)
        rows = over_passes(context, context.pool, seeds, lambda proba: proba.permute(1, 2, 0))  # (N, C, T)
        proba, block_bytes = rows.permute(2, 0, 1), self._block_bytes(context)
        indices, gains = joint_information(proba, n_instances, self.n_samples, generator, block_bytes)
        return candidates[indices], gains

    def _room(self, context: QueryContext, n_instances: int) -> int:
        """Samples whose predictions ``joint`` may keep."""
        left = context.memory - 4 * self._block_bytes(context)
        sample_bytes = 8 * self.n_passes * context.n_classes + 24
        room = rows_within(left, sample_bytes, at_least=0)
        if room < n_instances:
            kept = n_instances * sample_bytes
            expected = f"at least {kept + min(kept, 4 * BLOCK_BYTES):,} bytes, for the predictions of a batch"
            remedy = "Raise it, query fewer samples at a time, or lower n_passes."
            raise InvalidParameterError.for_parameter(context.owner, "max_memory", expected, context.max_memory, remedy)
        return room

    def _block_bytes(self, context: QueryContext) -> int:
        """Bytes of predictions that are mixed at once: four such blocks are at most half of the bound."""
        return min(BLOCK_BYTES, context.memory // 8)


bald = query_function(BALD, "bald", __name__)
