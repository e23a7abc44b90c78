# SPDX-License-Identifier: BSD-3-Clause
"""Random sampling: the baseline that every strategy must beat."""

from __future__ import annotations

from typing import Any

import numpy as np

from skal.base import ANY_TASK, ScoreStrategy, query_function
from skal.context import QueryContext
from skal.validation import make_generator


class RandomSampling(ScoreStrategy):
    """Draw from the pool uniformly, without replacement.

    Parameters
    ----------
    random_state : None, int, Generator or RandomState, default=None
        An integer makes every query repeatable; a generator is advanced from query to query.

    See Also
    --------
    Margin : The simplest strategy that looks at the estimator.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from skal import ActiveLearner
    >>> from skal.strategies import RandomSampling, random_sampling
    >>> X, y = np.arange(10.0).reshape(-1, 1), np.arange(10) % 2
    >>> learner = ActiveLearner(GaussianNB(), RandomSampling(random_state=0), X_training=X, y_training=y)
    >>> indices, samples = learner.query(X, n_instances=3)
    >>> indices.shape, samples.shape
    ((3,), (3, 1))
    >>> bool((random_sampling(learner, X, 3, random_state=0) == indices).all())  # the same, as a function
    True
    """

    tasks = ANY_TASK
    needs_network = False
    reads_outputs = False
    draws_from_pool = True

    def __init__(self, *, random_state: Any = None) -> None:
        self.random_state = random_state

    def _score(self, context: QueryContext) -> np.ndarray:
        return make_generator(type(self).__name__, self.random_state).random(context.n_pool)


random_sampling = query_function(RandomSampling, "random_sampling", __name__)
