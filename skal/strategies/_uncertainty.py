# SPDX-License-Identifier: BSD-3-Clause
"""Uncertainty of the predicted class probabilities: least confidence, margin, entropy."""

from __future__ import annotations

from typing import Any

import numpy as np

from skal.base import ScoreStrategy, query_function
from skal.context import QueryContext
from skal.strategies._measures import entropy_scores, least_confidence_scores, margin_scores
from skal.validation import check_choice


class _Uncertainty(ScoreStrategy):
    needs_network = False

    def __init__(
        self,
        *,
        subset: int | None = None,
        batch_size: int = 256,
        random_state: Any = None,
        n_jobs: int | None = None,
        progress: bool = False,
    ) -> None:
        self.subset = subset
        self.batch_size = batch_size
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.progress = progress


class LeastConfidence(_Uncertainty):
    """Query where the most likely class has the smallest probability.

    The score is ``1 − max_c p_c``.
    Works with any scikit-learn classifier that has ``predict_proba`` and with any skorch net.

    Parameters
    ----------
    subset : int or None, default=None
        Score only this many random samples of the pool.
    batch_size : int, default=256
        Samples per network pass, at most.
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset.
    n_jobs : int or None, default=None
        Workers that share the passes over the pool; see :class:`Margin`.
    progress : bool, default=False
        Show a bar over the parts of the pool.

    See Also
    --------
    Margin : The gap between the two largest probabilities.
    Entropy : All probabilities.

    References
    ----------
    D. D. Lewis and W. A. Gale (1994). A sequential algorithm for training text classifiers. SIGIR.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from skal import ActiveLearner
    >>> from skal.strategies import LeastConfidence, least_confidence
    >>> X, y = np.array([[0.0], [1.0], [3.0], [4.0]]), [0, 0, 1, 1]
    >>> X_pool = np.array([[0.0], [2.0], [4.0]])
    >>> learner = ActiveLearner(GaussianNB(), LeastConfidence(), X_training=X, y_training=y)
    >>> learner.query(X_pool)[0]
    array([1])
    >>> least_confidence(learner, X_pool)  # the same, as a function
    array([1])
    """

    def _score(self, context: QueryContext) -> np.ndarray:
        return least_confidence_scores(context.predict_proba())


class Margin(_Uncertainty):
    """Query where the two most likely classes are closest.

    The score is minus the gap between the two largest probabilities.
    Works with any scikit-learn classifier that has ``predict_proba`` and with any skorch net.

    Parameters
    ----------
    on : {"probabilities", "logits"}, default="probabilities"
        What the gap is between. ``logits`` needs a skorch net; NPC's paper compares with that margin.
    subset : int or None, default=None
        Score only this many random samples of the pool.
    batch_size : int, default=256
        Samples per network pass, at most.
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset.
    n_jobs : int or None, default=None
        Workers that share the passes over the pool, as in scikit-learn: None is 1, or what ``joblib.parallel_config``
        says; -1 is all processors.
    progress : bool, default=False
        Show a bar over the parts of the pool.

    See Also
    --------
    LeastConfidence : The largest probability alone.
    Entropy : All probabilities.
    BADGE : Uncertainty and diversity together.

    References
    ----------
    T. Scheffer, C. Decomain and S. Wrobel (2001). Active hidden Markov models for information extraction. IDA.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from skal import ActiveLearner
    >>> from skal.strategies import Margin, margin
    >>> X, y = np.array([[0.0], [1.0], [3.0], [4.0]]), [0, 0, 1, 1]
    >>> X_pool = np.array([[0.0], [2.0], [4.0]])
    >>> learner = ActiveLearner(GaussianNB(), Margin(), X_training=X, y_training=y)
    >>> learner.query(X_pool)[0]
    array([1])
    >>> margin(learner, X_pool)  # the same, as a function
    array([1])
    """

    def __init__(
        self,
        *,
        on: str = "probabilities",
        subset: int | None = None,
        batch_size: int = 256,
        random_state: Any = None,
        n_jobs: int | None = None,
        progress: bool = False,
    ) -> None:
        self.on = on
        super().__init__(
            subset=subset, batch_size=batch_size, random_state=random_state, n_jobs=n_jobs, progress=progress
        )

    @property
    def needs_network(self) -> bool:  # type: ignore[override]
        """Whether it reads logits, which only a network has."""
        return self.on == "logits"

    def _check_params(self) -> None:
        super()._check_params()
        check_choice(type(self).__name__, "on", self.on, ["probabilities", "logits"])

    def _score(self, context: QueryContext) -> np.ndarray:
        if self.on == "logits":
            behind_softmax = context.logit_network is not context.network
            logits = context.embeddings()[1] if behind_softmax else context.network.to_logits(context.outputs())
            return margin_scores(logits.double().cpu().numpy())
        return margin_scores(context.predict_proba())


class Entropy(_Uncertainty):
    """Query where the predicted distribution has the largest entropy.

    The score is ``−Σ_c p_c log p_c``, in nats.
    Works with any scikit-learn classifier that has ``predict_proba`` and with any skorch net.

    Parameters
    ----------
    subset : int or None, default=None
        Score only this many random samples of the pool.
    batch_size : int, default=256
        Samples per network pass, at most.
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset.
    n_jobs : int or None, default=None
        Workers that share the passes over the pool; see :class:`Margin`.
    progress : bool, default=False
        Show a bar over the parts of the pool.

    See Also
    --------
    Margin : The gap between the two largest probabilities.
    BALD : The part of the entropy that comes from the weights.

    References
    ----------
    B. Settles (2009). Active learning literature survey. University of Wisconsin-Madison, report 1648.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.naive_bayes import GaussianNB
    >>> from skal import ActiveLearner
    >>> from skal.strategies import Entropy, entropy
    >>> X, y = np.array([[0.0], [1.0], [3.0], [4.0]]), [0, 0, 1, 1]
    >>> X_pool = np.array([[0.0], [2.0], [4.0]])
    >>> learner = ActiveLearner(GaussianNB(), Entropy(), X_training=X, y_training=y)
    >>> learner.query(X_pool)[0]
    array([1])
    >>> entropy(learner, X_pool)  # the same, as a function
    array([1])
    """

    def _score(self, context: QueryContext) -> np.ndarray:
        return entropy_scores(context.predict_proba())


least_confidence = query_function(LeastConfidence, "least_confidence", __name__)
margin = query_function(Margin, "margin", __name__)
entropy = query_function(Entropy, "entropy", __name__)
