# SPDX-License-Identifier: BSD-3-Clause
"""Uncertainty of the predicted class probabilities: least confidence, margin, entropy."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from skal.base import ScoreStrategy, query_function
from skal.context import QueryContext
from skal.strategies._probabilities import entropy_scores, least_confidence_scores, margin_scores
from skal.validation import Choice


class _Uncertainty(ScoreStrategy):
    """The score of several labels at once is the mean over them, each a question of yes or no."""

    tasks = ("classification", "multilabel")
    needs_network = False

    def __init__(self, *, subset: int | None = None, random_state: Any = None) -> None:
        self.subset = subset
        self.random_state = random_state


class LeastConfidence(_Uncertainty):
    """Query where the most likely class has the smallest probability.

    The score is ``1 − max_c p_c``.
    Works with any scikit-learn classifier that has ``predict_proba`` and with any skorch net.

    Parameters
    ----------
    subset : int or None, default=None
        Score only this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset.

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
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset.

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

    constraints: ClassVar = {"on": Choice("probabilities", "logits")}

    def __init__(self, *, on: str = "probabilities", subset: int | None = None, random_state: Any = None) -> None:
        self.on = on
        super().__init__(subset=subset, random_state=random_state)

    @property
    def needs_network(self) -> bool:  # type: ignore[override]
        """True if it reads logits, which only a network has."""
        return self.on == "logits"

    def _score(self, context: QueryContext) -> np.ndarray:
        if self.on == "logits":
            behind_softmax = context.logit_network is not context.network
            logits = context.embeddings()[1] if behind_softmax else context.network.to_logits(context.outputs())
            return margin_scores(context.meaning.rivals(logits.double()).cpu().numpy())
        return margin_scores(context.predict_proba())


class Entropy(_Uncertainty):
    """Query where the predicted distribution has the largest entropy.

    The score is ``−Σ_c p_c log p_c``, in nats.
    Works with any scikit-learn classifier that has ``predict_proba`` and with any skorch net.

    Parameters
    ----------
    subset : int or None, default=None
        Score only this many random samples of the pool.
    random_state : None, int, Generator or RandomState, default=None
        For the choice of the subset.

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
