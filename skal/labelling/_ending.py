# SPDX-License-Identifier: BSD-3-Clause
"""How a project ends: what finishing would take, the last check, and what its certificate leaves to people."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from skal.exceptions import InvalidParameterError
from skal.labelling._background import BackgroundRounds
from skal.labelling._words import guessing, say_certificate, say_refusal
from skal.labelling._worker import Worker
from skal.loop import ActiveLearningClassifier, AuditReport, FinalLabels
from skal.loop._audit_report import say_missing
from skal.stopping import Forecast
from skal.stopping._forecast import ENOUGH


@dataclass(frozen=True)
class Labelled:
    """The outcome of labelling.

    Attributes
    ----------
    labels : data frame
        ``id, label, round, time, annotator, source``.
    model : ActiveLearningClassifier or None
        Fitted on the labels; None if there were too few.
    forecast : Forecast
        Accuracy now, and with 100 more labels.
    unreadable : list of str
        Ids of samples that could not be read.
    folder : Path
        Where everything is: the same call goes on there.
    audit : AuditReport or None
        How good the model is by the held-out labels, before it was trained on them too.
    final : FinalLabels
        Who has labelled what, people or the model, and the certificate if one was granted.

    Examples
    --------
    >>> from skal.labelling import Labelled
    >>> sorted(Labelled.__annotations__)
    ['audit', 'final', 'folder', 'forecast', 'labels', 'model', 'unreadable']
    """

    labels: pd.DataFrame
    model: ActiveLearningClassifier | None
    forecast: Forecast
    unreadable: list[str]
    folder: Path
    audit: AuditReport | None
    final: FinalLabels


class Ending:
    """The way from a model that is good enough to a data set with a certificate.

    A last check is an audit: chance draws its samples from all that are left, and the model that it judges stays as it
    is until all of them have an answer. Then the certificate says which samples the model labels; people label the
    rest, or let the model learn on.

    Parameters
    ----------
    rounds : BackgroundRounds
    worker : Worker

    Attributes
    ----------
    under_way : bool
        Whether people are labelling for the certificate: only what the last check, or the certificate, asks for.
    """

    def __init__(self, rounds: BackgroundRounds, worker: Worker) -> None:
        self._rounds, self._worker = rounds, worker
        self.under_way = rounds.certified or rounds.auditing

    def begin(self) -> None:
        """Draw the samples of the last check, when a training that may be running is over."""
        report = self._worker.report
        if report is None or report.n_model == 0:
            got = "none yet" if report is None else report.say_finish("you") or report.say_accuracy()
            expected = "a model that can label something"
            raise InvalidParameterError.for_parameter("certify", "model", expected, got, "Label more samples first.")
        if not self._rounds.auditing:
            self.under_way = True
            self._worker.want_audit(report.n_check)

    def cancel(self) -> None:
        """Let the model learn on. A certificate stays valid until a new one takes its place."""
        with self._rounds.lock:
            self.under_way = False
            self._rounds.cancel_audit()
        self._worker.learn_on()

    def questions(self) -> list[int] | None:
        """Samples that may be asked for; None if anything may."""
        if self._rounds.auditing:
            return self._rounds.questions()
        return self.find_left() if self.under_way and self._rounds.certified else None

    def find_left(self) -> list[int]:
        """Samples that the certificate leaves to people, and that have no answer yet."""
        final = self._rounds.session.state.final
        by_model = set() if final is None else set(final["positions"])
        return [position for position in self._rounds.pool().tolist() if position not in by_model]

    def final(self) -> FinalLabels:
        """The final labels with who gave them, and the certificate if there is one."""
        with self._rounds.lock:
            return self._rounds.session.final()

    def describe(self, n_classes: int) -> dict[str, Any]:
        """The page's statements about accuracy and about finishing."""
        state, report = self._rounds.session.state, self._worker.report
        held = [state.answers[i] for i in state.audit if state.answers.get(i) is not None]
        enough = report is not None and report.accuracy.n_labels >= ENOUGH
        audit = {"enough": enough, "words": say_missing(len(held)), "finish": "", "n_model": 0}
        if report is not None:
            audit |= {"words": report.say_accuracy(), "finish": report.say_finish("you")}
            audit |= {"n_model": report.n_model, "n_check": report.n_check, "n_people": report.n_people}
        check = final = None
        if self._rounds.auditing:
            check = {"total": len(state.asked), "done": len(state.asked) - len(self._rounds.questions())}
        if state.final is not None:
            left, certificate = len(self.find_left()), state.final["certificate"]
            final = {"certificate": certificate, "left": left, "words": say_certificate(certificate, left)}
        last = next((row["certificate"] for row in reversed(state.history) if "certificate" in row), None)
        refused = None
        if last is not None and not last["granted"] and not self._rounds.auditing:
            refused = say_refusal(last["max_error"])
        return {
            "measured": bool(state.audit),
            "guessing": guessing(held, n_classes) if n_classes else None,
            "audit": audit,
            "check": check,
            "final": final,
            "refused": refused,
            "finishing": self.under_way and (self._rounds.auditing or self._rounds.certified),
            "drawing": self._worker.wants_audit,
        }
