# SPDX-License-Identifier: BSD-3-Clause
"""The thread that trains and asks while somebody labels."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from skal._core.containers import take_rows
from skal._core.tasks import CLASSIFICATION
from skal.config import config_context, get_config
from skal.exceptions import SkalError
from skal.labelling._background import BackgroundRounds
from skal.labelling._models import Model
from skal.labelling._words import say_seconds
from skal.loop._audit_report import AuditReport, estimate_accuracy
from skal.loop._doubtful import find_issues
from skal.loop._heldout import correctness
from skal.stopping._forecast import ENOUGH

FORECAST = 100


class Worker:
    """Trains whenever there are enough new labels.

    Parameters
    ----------
    rounds : BackgroundRounds
    model : Model
    folder : path
        Where the model is kept.
    query_size : int
        New labels before the next training.
    decline_unreadable : callable
        Called when samples may have been found that cannot be read.
    report : callable
        Gives what the held-out labels say of the last model.

    Attributes
    ----------
    predictions : dict from position to {"label", "probability"}
        What the last model says of samples that are labelled or asked for: a class; classes that are more likely than
        not; or a number.
    guesses : dict from position to list of str
        The classes of samples that are asked for, the most probable first.
    doubts : dict from position to {"label", "predicted", "probability", "wrong"}
        What models say of labels that were trained without them.
    unsaved : str or None
        Why the last model could not be saved.
    report : AuditReport or None
        What the held-out labels say of it.
    """

    def __init__(
        self,
        rounds: BackgroundRounds,
        model: Model,
        folder: Path,
        query_size: int,
        decline_unreadable: Callable[[], None],
        report: Callable[[], AuditReport | None],
    ) -> None:
        self._rounds, self._model, self._folder = rounds, model, folder
        self._query_size, self._decline_unreadable, self._make_report = query_size, decline_unreadable, report
        self.report: AuditReport | None = None
        self._wanted = self._drawing = 0  # samples of an audit that somebody has asked for
        self.predictions: dict[int, dict[str, Any]] = {}
        self.guesses: dict[int, list[str]] = {}
        self.doubts: dict[int, dict[str, Any]] = {}
        self.on_start: Callable[[], None] = lambda: None  # called in the thread, before anything else
        self.on_doubts: Callable[[], None] = lambda: None  # called when there are others
        self._doubted = -1
        self.unsaved: str | None = None
        self._wake, self._stopping = threading.Condition(), False
        self._changes = 0
        self._doing: str | None = "starting"
        self._rests = False  # nothing is done, and nothing is due
        self._progress: dict[str, int] | None = None
        self._error: str | None = None
        self._measured: dict[str, Any] = {"curve": [], "later": None, "forecast": None}
        self._how = get_config()  # settings belong to a thread: this one gets those of the thread that orders the work
        self._thread = threading.Thread(target=self._run, name="skal-training", daemon=True)

    def start(self) -> None:
        """Begin, if it has not begun."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self, timeout: float = 30.0) -> None:
        """Do not begin anything new; a training that is under way is waited for a little, and then left behind."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.is_alive():
            # features come in small batches, and a thread that is left inside one would end the process the hard way
            self._thread.join(timeout if self._progress is None else 60.0)

    def note_change(self, n: int = 1) -> None:
        """There are n new labels, or other ones."""
        with self._wake:
            self._changes += n
            self._wake.notify_all()

    def want_audit(self, size: int) -> None:
        """Train once more, and then draw ``size`` samples by chance."""
        with self._wake:
            self._wanted = size
            self._wake.notify_all()

    @property
    def wants_audit(self) -> bool:
        """True if an audit was asked for and has not been drawn yet."""
        return self._wanted > 0 or self._drawing > 0

    def learn_on(self) -> None:
        """Train and ask again, however few labels there are."""
        with self._wake:
            self._wanted, self._changes = 0, max(self._changes, self._query_size)
            self._wake.notify_all()

    def wait_until_idle(self, timeout: float = 600.0) -> bool:
        """Wait until nothing is due, and labels have been judged; whether that came to pass."""
        with self._wake:
            return self._wake.wait_for(lambda: self._rests and not self._due(), timeout)

    def status(self) -> dict[str, Any]:
        """Describe the current work, the learning curve and the forecast."""
        with self._wake:  # what is due is as good as begun
            doing = self._doing or ("training" if self._due() else None)
        error = self._error or self._rounds.error
        return {"doing": doing, "progress": self._progress, "error": error, **self._measured}

    def _due(self) -> bool:
        if self._wanted:
            return True
        if self._rounds.auditing:
            return self._rounds.audit_is_answered
        return self._changes >= self._query_size

    def _run(self) -> None:
        with config_context(**self._how):
            self._train_when_due()

    def _train_when_due(self) -> None:
        prepared = False
        self._succeeds(self.on_start)
        while True:
            # without features there is nothing to train on: samples come at random until the next attempt
            prepared = prepared or self._succeeds(self._prepare)
            stepped = prepared and self._succeeds(self._step)
            self._doing = None
            if stepped and not self._stopping and not self._due():
                self._succeeds(self._doubt)
            with self._wake:
                self._rests = True
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._stopping or self._due())
                if self._stopping:
                    return
                self._rests, self._doing, self._changes = False, "training", 0

    def _succeeds(self, work: Callable[[], None]) -> bool:
        """Do some work, and return whether it succeeded; errors are reported, and labelling goes on."""
        try:
            work()
        except Exception as error:
            if not self._stopping:
                self._error = f"{type(error).__name__}: {error}"
                traceback.print_exc()
            return False
        self._error = None
        return True

    def _prepare(self) -> None:
        if self._model.prepare is not None:

            def progress(done: int, total: int, seconds: float) -> None:
                self._doing = f"computing features: {done} of {total}, about {say_seconds(seconds)} left"
                self._progress = {"done": done, "total": total}
                if self._stopping:
                    raise SkalError("Reading was ended.")

            self._progress = {"done": 0, "total": len(self._model.X)}
            try:
                self._model.prepare(progress)
            finally:
                self._progress = None
                self._decline_unreadable()

    def _step(self) -> None:
        self._doing = "training" if self._rounds.session.state.labels or self._changes else "choosing samples"
        rounds = self._rounds
        self._drawing, self._wanted = self._wanted, 0
        try:
            rounds.step(self._drawing)
        finally:
            self._drawing = 0
        self._decline_unreadable()
        self._predict()
        self._measure()
        self.keep_model(rounds.session.classifier)
        flush = getattr(self._model.X, "flush", None)
        if callable(flush):
            flush()

    def _predict(self) -> None:
        """The model's predictions for everything that the page may show beside a label or a question."""
        rounds = self._rounds
        predictor, task = rounds.predictor, rounds.session.engine.rules.task
        if predictor is None or (task == CLASSIFICATION and not hasattr(predictor.estimator, "predict_proba")):
            return
        with rounds.lock:
            state = rounds.session.state
            rows = np.array(list(dict.fromkeys([*state.labelled, *state.asked])), dtype=np.int64)
        if len(rows) and task != CLASSIFICATION:
            said = predictor.predict(take_rows(self._model.X, rows)).tolist()
            self.predictions = {int(row): {"label": label} for row, label in zip(rows, said, strict=True)}
        elif len(rows):
            proba = predictor.predict_proba(take_rows(self._model.X, rows))
            best = proba.argmax(axis=1)
            self.predictions = {
                int(row): {"label": str(predictor.names[k]), "probability": float(p[k])}
                for row, k, p in zip(rows, best, proba, strict=True)
            }
            ranked = np.argsort(-proba, axis=1, kind="stable")
            self.guesses = {
                int(row): [str(predictor.names[k]) for k in own] for row, own in zip(rows, ranked, strict=True)
            }

    def _doubt(self) -> None:
        """Look for labels that may be wrong, unless something else is due."""
        rounds = self._rounds
        n_changes = rounds.session.state.n_changes
        rules = rounds.session.engine.rules
        if n_changes == self._doubted or rules.task != CLASSIFICATION or not hasattr(rules.estimator, "predict_proba"):
            return
        found = rounds.out_of_fold(lambda: not (self._stopping or self._due()))
        if found is None:
            return
        rows, codes, proba, names = found
        wrong, best = find_issues(proba, codes), proba.argmax(axis=1)
        self.doubts = {
            int(row): {
                "label": str(names[code]),
                "predicted": str(names[k]),
                "probability": float(p[code]),
                "wrong": bool(is_wrong),
            }
            for row, code, k, p, is_wrong in zip(rows, codes, best, proba, wrong, strict=True)
        }
        self._doubted = n_changes
        self.on_doubts()

    def _measure(self) -> None:
        """The learning curve on the labels that are held out now, and the forecast: none from too few of them."""
        rounds = self._rounds
        self.report = self._make_report()
        with rounds.lock:
            n_labelled, correct = correctness(rounds.session.state)
            forecast = rounds.forecast(FORECAST)
        curve = []
        later: dict[str, Any] | None = None
        if correct.shape[1] >= ENOUGH:
            for n, row in zip(n_labelled.tolist(), correct, strict=True):
                found = estimate_accuracy(row, 0)
                curve.append({"n": n, "score": found.estimate, "low": found.low, "high": found.high})
            if forecast.later is not None:
                later = {"n": forecast.n_labelled + forecast.more, "score": forecast.later}
                later |= {"low": forecast.later_low, "high": forecast.later_high}
        self._measured = {"curve": curve, "later": later, "forecast": forecast.later_text if curve else None}

    def keep_model(self, loop: Any) -> None:
        """Write a fitted loop's model beside the labels, and say why if it cannot be written without pickle."""
        if hasattr(loop, "estimator_"):
            self.unsaved = None
            try:
                loop.save_model(self._folder / "model", features=self._model.features)
            except SkalError as error:
                self.unsaved = f"The model is not saved, and will be gone. {error}"
