# SPDX-License-Identifier: BSD-3-Clause
"""What held-out labels say: how good the model is, and what it would take to finish now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Any

import numpy as np
from scipy.stats import binomtest

from skal._core.containers import take_rows
from skal.audit import Estimate
from skal.audit._labels_left import error_rates, forecast_left
from skal.loop._heldout import correctness
from skal.loop._labels import encode
from skal.loop._progress import LoopState
from skal.loop._rules import Rules
from skal.models._predictor import Predictor
from skal.stopping import Certified
from skal.stopping._forecast import ENOUGH

_LOOKED_AT = 5000  # random samples that stand for a larger pool
_SIZES = np.geomspace(20, 1000, 15).astype(np.int64)  # of the last check
_COARSER = 4  # a forecast looks at every fourth of the certificate's thresholds


@dataclass(frozen=True)
class AuditReport:
    """What the held-out labels say: how good the model is, and what finishing now would take.

    Attributes
    ----------
    accuracy : Estimate
        ``estimate``, ``low``, ``high`` and ``n_labels`` for new samples like those of the pool. The interval is exact
        for one look. Skipped samples of the audit are wrong at its lower end, and right at its upper end.
    n_samples : int
        All samples of the project.
    n_model : int
        Samples that the model could label now; 0 if they are no more than the errors that are allowed.
    n_people : int
        Samples that people would have to label for that.
    n_check : int
        How many of these would be drawn by chance, as a last check: the promise comes from their labels.
    n_skipped : int
        Samples of the audit that people could not label.
    max_error, confidence : float
        The share of errors in the whole data set that this is for, and how sure it should be.

    Examples
    --------
    >>> from skal.audit import Estimate
    >>> from skal.loop import AuditReport
    >>> now = Estimate(0.89, 0.871, 0.909, confidence=0.95, n_labels=600, method="exact")
    >>> print(AuditReport(now, n_samples=50_000, n_model=41_200, n_people=8200, n_check=110))
    87 to 91 % right, 95 % sure, from 600 audit labels. Finish now: the model labels about 41,200 of 50,000, people \
8,200 more, at most 5 % wrong.
    """

    accuracy: Estimate
    n_samples: int
    n_model: int
    n_people: int
    n_check: int
    n_skipped: int = 0
    max_error: float = 0.05
    confidence: float = 0.95

    @classmethod
    def read(cls, kept: dict[str, Any] | None) -> AuditReport | None:
        """The report that ``dataclasses.asdict`` made a dict of."""
        return None if kept is None else cls(**(kept | {"accuracy": Estimate(**kept["accuracy"])}))

    def say_accuracy(self) -> str:
        """The accuracy in words, or how many labels are missing for it.

        Returns
        -------
        str
            A sentence, or two if samples of the audit were skipped.
        """
        n = self.accuracy.n_labels
        if n < ENOUGH:
            return say_missing(n)
        low, high = floor(100 * self.accuracy.low + 1e-9), ceil(100 * self.accuracy.high - 1e-9)
        words = f"{low} to {high} % right, {100 * self.confidence:g} % sure, from {n} audit labels."
        some = f" {self.n_skipped} skipped in the audit may be right or wrong."
        return words + (some if self.n_skipped else "")

    def say_finish(self, who: str = "people") -> str:
        """Say what finishing now would take.

        Parameters
        ----------
        who : str, default="people"
            What to call those who label.

        Returns
        -------
        str
            A sentence; empty while there are too few audit labels.
        """
        if self.accuracy.n_labels < ENOUGH:
            return ""
        promise = f"at most {100 * self.max_error:g} % wrong"
        if self.n_model == 0:
            return f"It is too early to finish: the model could label nothing with {promise}."
        counts = f"the model labels about {self.n_model:,} of {self.n_samples:,}, {who} {self.n_people:,} more"
        return f"Finish now: {counts}, {promise}."

    def __str__(self) -> str:
        return f"{self.say_accuracy()} {self.say_finish()}".strip()


def say_missing(n_labels: int) -> str:
    """The number of audit labels that are missing before accuracy can be told.

    Examples
    --------
    >>> from skal.loop._audit_report import say_missing
    >>> say_missing(12)
    'How good the model is can be said from 20 audit labels on, which chance draws: 8 more are needed.'
    """
    missing = max(0, ENOUGH - n_labels)
    needed = f"{missing} more {'is' if missing == 1 else 'are'} needed" if missing else "the next training tells"
    return f"How good the model is can be said from {ENOUGH} audit labels on, which chance draws: {needed}."


def report_audit(
    state: LoopState,
    rules: Rules,
    predictor: Predictor,
    max_error: float,
    confidence: float,
    unreadable: frozenset[int] = frozenset(),
) -> AuditReport | None:
    """Report on the last model from the held-out labels; None if there are none.

    ``unreadable`` samples are no samples; others that were declined may be right or wrong.
    """
    drawn = [index for index in state.audit if index in state.answers and index not in unreadable]
    held = [index for index in drawn if state.answers[index] is not None]
    if not held or not state.audit_predictions:
        return None
    accuracy = estimate_accuracy(correctness(state)[1][-1], len(drawn) - len(held), confidence)
    report = AuditReport(accuracy, rules.n_samples, 0, 0, 0, len(drawn) - len(held), max_error, confidence)
    pool = rules.pool(state)
    if len(pool) == 0 or len(held) < ENOUGH:
        return replace(report, n_people=len(pool))
    rows = pool
    if len(pool) > _LOOKED_AT:
        rows = np.random.default_rng(state.seed_for("plan")).choice(pool, _LOOKED_AT, replace=False)
    proba = predictor.predict_proba(take_rows(rules.X, np.array([*held, *rows.tolist()], dtype=np.int64)))
    sure, own = proba.max(axis=1), proba[: len(held)].argmax(axis=1)
    truth = encode(np.array([state.answers[index] for index in held], dtype=state.label_dtype), predictor.names)
    shares, rates = error_rates(sure[len(held) :], sure[: len(held)], own != truth)
    alpha = Certified(max_error, confidence).alpha(state.n_audits + 1, 0, n_stages=1)
    sizes = np.unique(_SIZES.clip(max=len(pool)))
    allowed = max_error * (len(pool) + len(state.labelled))
    some = slice(_COARSER - 1, None, _COARSER)
    people = sizes + forecast_left(shares[some], rates[some], len(pool), sizes, allowed, alpha)
    best = int(np.argmin(people))
    n_people = int(people[best])
    if len(pool) - n_people <= allowed:  # even a model that is always wrong may label these
        return replace(report, n_people=len(pool))
    return replace(report, n_model=len(pool) - n_people, n_people=n_people, n_check=int(sizes[best]))


def estimate_accuracy(right: np.ndarray, n_skipped: int, confidence: float = 0.95) -> Estimate:
    """Accuracy of a model from whether it is right on audited samples, (m,); skipped ones may be either.

    It is the accuracy on new samples like those of the pool, not on the pool, of which the model knows a part.

    Examples
    --------
    >>> import numpy as np
    >>> print(estimate_accuracy(np.arange(100) > 5, n_skipped=0))
    87.4 to 97.8 %, 95 % sure, from 100 audited labels
    """
    m, n_right = len(right), int(right.sum())
    low = binomtest(n_right, m + n_skipped).proportion_ci(confidence, "exact").low
    high = binomtest(n_right + n_skipped, m + n_skipped).proportion_ci(confidence, "exact").high
    return Estimate(n_right / m, float(low), float(high), confidence, m, "exact")
