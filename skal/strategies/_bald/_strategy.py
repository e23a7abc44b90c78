# SPDX-License-Identifier: BSD-3-Clause
"""BALD: what the dropout masks disagree about (Houlsby et al. 2011; Gal et al. 2017), and BatchBALD (Kirsch 2019)."""

from __future__ import annotations

from typing import Any

import numpy as np

from skal._core.cost import Passes
from skal._core.memory import rows_within
from skal.base import ScoreStrategy, query_function, top
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError
from skal.strategies._bald._dropout import MOST_PASSES, over_passes, seeds_of
from skal.strategies._bald._information import BLOCK_BYTES, joint_information, mutual_information
from skal.validation import check_choice, check_integer, make_generator

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
    batch_size : int, default=256
        Samples per network pass, at most.
    max_memory : int, str or None, default=None
        Bound on the memory for the predictions that ``joint`` keeps, such as ``"2GB"``; None is 1 GB. Only as many
        samples with the highest scores take part as have room.
    random_state : None, int, Generator or RandomState, default=None
        For the masks, the drawn labels, and the choice of the subset.
    n_jobs : int or None, default=None
        Workers that share the passes over the pool, as in scikit-learn: None is 1, or what ``joblib.parallel_config``
        says; -1 is all processors.
    progress : bool, default=False
        Show a bar over the parts of the pool.

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

    def __init__(
        self,
        *,
        n_passes: int = 20,
        batch: str = "top",
        n_samples: int = 1024,
        subset: int | None = None,
        batch_size: int = 256,
        max_memory: int | str | None = None,
        random_state: Any = None,
        n_jobs: int | None = None,
        progress: bool = False,
    ) -> None:
        self.n_passes = n_passes
        self.batch = batch
        self.n_samples = n_samples
        self.subset = subset
        self.batch_size = batch_size
        self.max_memory = max_memory
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.progress = progress

    def _check_params(self) -> None:
        super()._check_params()
        owner = type(self).__name__
        check_integer(
            owner, "n_passes", self.n_passes, 2, MOST_PASSES, remedy="Masks can only disagree if there are two."
        )
        check_choice(owner, "batch", self.batch, ["top", "joint"])
        check_integer(owner, "n_samples", self.n_samples, 1, _MOST_SAMPLES)

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
        """For predictions that are mixed at once: four such blocks are at most half of the bound."""
        return min(BLOCK_BYTES, context.memory // 8)

    def _passes(self, context: QueryContext, n: int, n_instances: int) -> Passes:
        again = min(n, self._room(context, n_instances)) if self.batch == "joint" else 0
        return Passes(forward=self.n_passes * (n if again in (0, n) else n + again))

    def _memory(self, context: QueryContext, n: int, n_instances: int) -> int:
        chunk = 24 * min(n, self.batch_size) * self.n_passes * context.n_classes
        if self.batch == "top":
            return 24 * n + chunk
        kept = min(n, self._room(context, n_instances))
        return 24 * n + 8 * kept * self.n_passes * context.n_classes + 4 * self._block_bytes(context)


bald = query_function(BALD, "bald", __name__)
