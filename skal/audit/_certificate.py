# SPDX-License-Identifier: BSD-3-Clause
"""Which samples a model may label, so that the whole data set has few errors, and the certificate that says so."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from skal.audit._accuracy import read_audit
from skal.audit._bounds import count_limit, is_at_most
from skal.audit._drawn import is_uniform
from skal.exceptions import InvalidParameterError
from skal.validation import Integer, Real

N_THRESHOLDS = 200  # steps of half a percent of the samples
METHOD = "fixed sequence of thresholds, exact limit for a uniform audit without replacement"


@dataclass(frozen=True)
class Certificate:
    """Which samples a model may label, and what is promised about the whole data set.

    Attributes
    ----------
    accepted : bool array of shape (N,)
        The samples that the model may label. Audited samples are not among them: people have labelled them.
    threshold : float
        The model labels samples of at least this confidence; infinity if there are none.
    error_bound : float
        Upper limit of the share of errors in the whole data set, for this threshold alone. The promise is
        ``max_error``: it holds although the threshold was chosen from the same audit.
    n_left : int
        Samples that are left for people.
    n_samples : int
        Samples of the plan, N.
    n_labelled : int
        Samples that people had labelled before, not among the N.
    n_audited : int
        Audited samples, m.
    n_wrong : int
        Audited samples above the threshold on which the model is wrong.
    max_error : float
        The share of errors that is allowed in the whole data set.
    confidence : float
        How sure the promise is.
    seed : int or None
        The random state of the plan.
    method : str
        The statistical method.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit import Certificate, certify, plan
    >>> rng = np.random.default_rng(0)
    >>> proba = rng.dirichlet([0.1, 0.1, 0.1], size=5000)
    >>> y = (rng.random((5000, 1)) > proba.cumsum(1)).sum(1)
    >>> positions, probabilities = plan(proba, 200, uniform=True, random_state=0)
    >>> certificate = certify(proba, positions, y[positions], probabilities, seed=0)
    >>> certificate.to_json()[:60]
    '{"max_error": 0.05, "confidence": 0.95, "error_bound": 0.045'
    """

    accepted: NDArray[np.bool_]
    threshold: float
    error_bound: float
    n_left: int
    n_samples: int
    n_labelled: int
    n_audited: int
    n_wrong: int
    max_error: float
    confidence: float
    seed: int | None = None
    method: str = METHOD

    def __str__(self) -> str:
        whole = self.n_samples + self.n_labelled
        model = f"The model labels {int(self.accepted.sum()):,} of {whole:,}, people {self.n_left:,} more"
        return f"{model}: at most {100 * self.max_error:g} % wrong, {100 * self.confidence:g} % sure."

    def to_json(self) -> str:
        """The certificate as one JSON object: counts, bound, method and seed.

        Returns
        -------
        str
            An object without the mask ``accepted``, of which it has the count; ``threshold`` is null if no sample is
            accepted.
        """
        found: dict[str, Any] = {
            "max_error": self.max_error,
            "confidence": self.confidence,
            "error_bound": self.error_bound,
            "threshold": self.threshold if np.isfinite(self.threshold) else None,
            "n_accepted": int(self.accepted.sum()),
            "n_left": self.n_left,
            "n_samples": self.n_samples,
            "n_labelled": self.n_labelled,
            "n_audited": self.n_audited,
            "n_wrong": self.n_wrong,
            "method": self.method,
            "seed": self.seed,
        }
        return json.dumps(found)


def certify(
    proba: Any,
    positions: Any,
    labels: Any,
    probabilities: Any,
    max_error: float = 0.05,
    confidence: float = 0.95,
    n_labelled: int = 0,
    *,
    seed: int | None = None,
) -> Certificate:
    """Find the samples that the model may label, so that the whole data set has at most ``max_error`` errors.

    The model labels where it is confident, people label the rest, and labels by people count as right. Thresholds are
    tried from the strictest to the loosest, up to the first that cannot be shown to be good enough. As they depend on
    confidences alone, and the errors of the model grow from one to the next, the promise needs no correction for the
    many thresholds and holds for any number of labels.

    Parameters
    ----------
    proba : array-like of shape (N, C)
        The model's probabilities, for all samples of the plan. The model must not have been trained on audited samples.
    positions : array-like of shape (m,)
        The audited samples, from ``plan(..., uniform=True)``.
    labels : array-like of shape (m,)
        Their labels by people, as columns of ``proba``.
    probabilities : array-like of shape (m,)
        Their inclusion probabilities: all equal.
    max_error : float, default=0.05
        The share of errors that is allowed in the whole data set, labels by people and by the model together.
    confidence : float, default=0.95
        How sure the promise should be.
    n_labelled : int, default=0
        Samples that people have labelled already and that are not among the N.
    seed : int or None, default=None
        The random state of the plan, for the record.

    Returns
    -------
    Certificate
        The accepted samples, and what is promised.

    Notes
    -----
    The audit is used up: a model that is trained anew needs a new audit for its certificate, also if it was not trained
    on the old one, because the decision to go on may depend on what the old one said.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.audit import certify, plan
    >>> rng = np.random.default_rng(0)
    >>> proba = rng.dirichlet([0.1, 0.1, 0.1], size=5000)
    >>> y = (rng.random((5000, 1)) > proba.cumsum(1)).sum(1)  # unknown but for audited samples
    >>> positions, probabilities = plan(proba, 200, uniform=True, random_state=0)
    >>> certificate = certify(proba, positions, y[positions], probabilities)
    >>> print(certificate)
    The model labels 3,602 of 5,000, people 1,198 more: at most 5 % wrong, 95 % sure.
    >>> bool((proba.argmax(1) != y)[certificate.accepted].sum() <= 0.05 * 5000)
    True
    """
    p, audit, answers = read_audit("certify", proba, positions, labels, probabilities, confidence)
    Real(0, 1, remedy="Use 0.05 for at most 5 % errors.").check("certify", "max_error", max_error)
    Integer(0).check("certify", "n_labelled", n_labelled)
    if not is_uniform(audit.probabilities) or audit.everyone is None:
        got = f"values from {audit.probabilities.min():.3g} to {audit.probabilities.max():.3g}"
        remedy = "Draw the audit with plan(..., uniform=True): for other audits there is no exact limit."
        raise InvalidParameterError.for_parameter("certify", "probabilities", "all equal", got, remedy)
    confidences = p.max(1)
    wrong = p.argmax(1)[audit.positions] != answers
    n, whole = len(p), len(p) + int(n_labelled)
    thresholds = list_thresholds(confidences)
    seen, drawn, total = count_above(confidences, audit.positions, wrong, thresholds)
    good = is_at_most(max_error * whole, seen, drawn, total, 1 - confidence)
    passes = int(np.argmin(np.append(good, False)))  # how many before the first that fails
    last = passes - 1
    limit = int(count_limit(seen[last], drawn[last], total[last], 1 - confidence)) if passes else 0
    accepted = confidences >= thresholds[passes - 1] if passes else np.zeros(n, dtype=bool)
    accepted[audit.positions] = False
    return Certificate(
        accepted=accepted,
        threshold=float(thresholds[passes - 1]) if passes else float("inf"),
        error_bound=limit / whole,
        n_left=n - int(accepted.sum()) - len(answers),
        n_samples=n,
        n_labelled=int(n_labelled),
        n_audited=len(answers),
        n_wrong=int(seen[passes - 1]) if passes else 0,
        max_error=float(max_error),
        confidence=float(confidence),
        seed=seed,
    )


def list_thresholds(confidences: NDArray[np.float64]) -> NDArray[np.float64]:
    """Thresholds from the strictest to the loosest, which accept the most confident half percent, percent, …"""
    ordered = np.sort(confidences)[::-1]
    sizes = np.ceil(len(ordered) * np.arange(1, N_THRESHOLDS + 1) / N_THRESHOLDS).astype(np.int64)
    return np.unique(ordered[sizes - 1])[::-1]


def count_above(
    confidences: NDArray[np.float64],
    positions: NDArray[np.int64],
    wrong: NDArray[np.bool_],
    thresholds: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """For each threshold, how many lie above it: audited samples that are wrong, audited samples, and all.

    Given how many audited samples lie above a threshold, they are a random sample of all that do.
    """
    above = confidences[positions] >= thresholds[:, None]
    total = len(confidences) - np.searchsorted(np.sort(confidences), thresholds)
    return (above & wrong).sum(1), above.sum(1), total
