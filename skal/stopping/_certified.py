# SPDX-License-Identifier: BSD-3-Clause
"""Stop when the model may label the rest, with a guarantee for the whole data set."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.stats import hypergeom

from skal.stopping._criterion import Rows, StoppingCriterion
from skal.validation import Constraint, Integer, Real

STAGES = (0.5, 0.25, 0.25)  # of the chance to be wrong that an audit may take
_SMALLEST = 10  # labels of an audit; fewer say nothing


class Certified(StoppingCriterion):
    """Stop when the model may label the rest, so that the whole data set has at most ``max_error`` errors.

    After a training, the model says how many errors it expects in the rest of the pool. If an audit could grant the
    certificate, the next round is that audit: chance alone draws its samples from all that are left, and the model that
    it judges stays as it is until they are labelled. An audit has up to three stages, each twice as large as the one
    before. If the certificate is granted, the loop ends, and ``session.final()`` has the certificate and the data set.
    Otherwise the labels are trained on and the loop goes on; the next audit has new samples, and is judged more
    strictly. The k-th audit may be wrong with probability (1 − confidence) / (k (k + 1)), and half or a quarter of that
    is for each stage: together that is no more than 1 − confidence, whenever the loop stops.

    Parameters
    ----------
    max_error : float, default=0.05
        The share of errors that is allowed in the whole data set, labels by people and by the model together. Labels by
        people count as right.
    confidence : float, default=0.95
        How sure the promise is.
    n_left : int, default=0
        Stop also if at most this many samples, those of least confidence, are left for people to label.
    n_audit : int, default=500
        Labels of one audit, at most. With fewer the audit waits until it can be small enough.

    Notes
    -----
    The promise does not depend on how good the model's probabilities are, on what it was trained on, or on the
    strategy. But audits come too early if the model is too sure of itself, and too late if it is not sure enough. How
    its errors compare with those that it expected is learnt from round to round, and from audits once there was one.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearningClassifier
    >>> from skal.stopping import Certified
    >>> X, y = load_digits(return_X_y=True)
    >>> loop = ActiveLearningClassifier(
    ...     LogisticRegression(max_iter=500), query_size=50, n_rounds=None, stop=Certified(0.1), random_state=0
    ... )
    >>> loop.fit(X, y).stop_reason_[:46]
    'stop: certified, 95 % sure: at most 10 % wrong'
    """

    constraints: ClassVar[dict[str, Constraint]] = {
        "max_error": Real(0.0001, 0.5, remedy="Use 0.05 for at most 5 % errors."),
        "confidence": Real(0.5, 1, below_maximum=True),
        "n_left": Integer(0),
        "n_audit": Integer(_SMALLEST),
    }

    def __init__(
        self, max_error: float = 0.05, confidence: float = 0.95, *, n_left: int = 0, n_audit: int = 500
    ) -> None:
        self.max_error = max_error
        self.confidence = confidence
        self.n_left = n_left
        self.n_audit = n_audit

    def reason(self, history: Rows, n_labelled: int) -> str | None:
        """True if a certificate has been granted."""
        for row in history:
            found = row.get("certificate")
            if found and found["granted"] and self.max_error >= found["max_error"]:
                promise = f"at most {100 * found['max_error']:g} % wrong, the model labels {found['n_accepted']:,}"
                return f"certified, {100 * found['confidence']:g} % sure: {promise}, people {found['n_left']:,} more"
        return None

    def alpha(self, audit: int, stage: int, n_stages: int = len(STAGES)) -> float:
        """The chance to be wrong that a stage of an audit may take.

        Parameters
        ----------
        audit : int
            The number of the audit, from 1.
        stage : int
            The number of the stage, from 0.
        n_stages : int, default=3
            How many stages the audit may have: 3, or 1, which may take all of the audit's chance.

        Returns
        -------
        float
            Over all audits and stages they sum to 1 − confidence.
        """
        share = STAGES[stage] if n_stages == len(STAGES) else 1.0
        return (1 - self.confidence) / (audit * (audit + 1)) * share

    def passes(self, share: float, sizes: Any, n: int, n_labelled: int, audit: int, stage: int) -> np.ndarray:
        """True if a stage is likely to grant the certificate: with one standard deviation more errors than expected.

        Parameters
        ----------
        share : float
            The share of the samples that are left that the model would label wrongly.
        sizes : int or array of int
            Labels of the audit, with this stage.
        n : int
            Samples that were left before the audit.
        n_labelled : int
            Labels by people, without the audit.
        audit, stage : int
            The numbers of both.

        Returns
        -------
        bool array
            One answer for each size.
        """
        size = np.asarray(sizes, dtype=np.int64)
        seen = np.ceil(size * share + np.sqrt(size * share * max(0.0, 1 - share))).astype(np.int64)
        too_many = min(n, int(self.max_error * (n + n_labelled)) + 1)
        if too_many == n:
            return np.ones(size.shape, dtype=bool)
        # as unlikely, if there were one error more than is allowed, as the certificate asks for
        chance: np.ndarray = hypergeom.cdf(np.minimum(seen, size), n, too_many, size)
        return chance <= self.alpha(audit, stage)

    def audit_sizes(self, share: float, n: int, n_labelled: int, audit: int) -> list[int]:
        """The numbers of labels after each stage of an audit; empty if none is likely to grant the certificate.

        Parameters
        ----------
        share : float
            The share of the samples that are left that the model would label wrongly.
        n : int
            Samples that are left.
        n_labelled : int
            Labels by people.
        audit : int
            The number of the audit, from 1.

        Returns
        -------
        list of int
            The first stage is enough for a model that makes a quarter of the expected errors.

        Examples
        --------
        >>> from skal.stopping import Certified
        >>> [Certified().audit_sizes(share, 10_000, 500, audit=1) for share in (0.0, 0.02, 0.08)]
        [[84, 168, 336], [152, 304, 500], []]
        """
        tried = np.unique(np.geomspace(_SMALLEST, self.n_audit, 80).astype(np.int64).clip(max=n))
        good = self.passes(share / 4, tried, n, n_labelled, audit, 0)
        if share * n > self.max_error * (n + n_labelled) or not good.any():
            return []
        first = int(tried[np.argmax(good)])
        sizes = [min(first * 2**stage, self.n_audit, n) for stage in range(len(STAGES))]
        likely = any(self.passes(share, size, n, n_labelled, audit, stage) for stage, size in enumerate(sizes))
        return sizes if likely else []
