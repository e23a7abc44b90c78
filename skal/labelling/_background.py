# SPDX-License-Identifier: BSD-3-Clause
"""A session that trains and asks in a thread of its own, while labels are told: nobody waits for a training.

There is one lock. It is held to change or copy what the session knows, which takes milliseconds, and to write labels
down; never to train, to query, or to write a network. A training works on a twin of the session's engine, and its
result is taken over together with the labels that have come meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from skal.exceptions import CheckpointError, InvalidParameterError
from skal.loop._audit_report import AuditReport, report_audit
from skal.loop._doubtful import predict_out_of_fold
from skal.loop._heldout import draw, release
from skal.loop._journal import Journal, make_event
from skal.loop._rounds import LoopEngine
from skal.loop._session import LabellingSession
from skal.models._predictor import Predictor
from skal.stopping import Forecast


class BackgroundRounds:
    """Labels on one side, trainings and queries on the other.

    Parameters
    ----------
    session : LabellingSession
        With a checkpoint. Nobody else may use it from now on.

    Attributes
    ----------
    lock : threading.RLock
    error : str or None
        Why the last training failed.
    """

    def __init__(self, session: LabellingSession) -> None:
        self.session, self.lock = session, threading.RLock()
        self.error: str | None = None
        self._engine = session.engine
        if self._engine.folder is None:
            raise InvalidParameterError("A session in the background must have a checkpoint. Got one without.")
        self._folder = self._engine.folder
        self._saving = threading.Lock()  # taken before the other one, where both are
        self._engine.audits = False  # people answer in any order, and one by one; the page begins audits and the end
        draw(self._engine.state, self._engine.rules)  # before the first label: it may be one of these

    @property
    def predictor(self) -> Predictor | None:
        """The last model."""
        predictor: Predictor | None = self._engine.trainer.predictor
        return predictor

    @property
    def known(self) -> dict[Any, dict[str, Any]]:
        """The last entry of every sample that is labelled or declined, by its id."""
        return self._engine.journal.known

    @property
    def journal(self) -> Journal:
        """Every answer."""
        return self._engine.journal

    def out_of_fold(self, goes_on: Callable[[], bool]) -> Any:
        """Predict each label with models that were trained without it; the lock is held only briefly."""
        with self.lock:
            engine = self._engine
            state, trainer = replace(engine.state, answers=dict(engine.state.answers)), engine.trainer.copy()
        return predict_out_of_fold(trainer, state, goes_on=goes_on)

    def position(self, key: Any) -> int | None:
        """The position of the sample with this id; None if there is none."""
        return self._engine.ids.position(key)

    def record(
        self,
        answers: Sequence[tuple[Any, Any]],
        *,
        declined: bool = False,
        source: str = "added",
        annotator: str | None = None,
        several: bool = False,
    ) -> None:
        """Write down labels of samples by their ids; on the disk when this returns.

        Parameters
        ----------
        answers : list of (id, label)
            All with a label, or all with None: such samples are declined, or else open again.
        declined : bool, default=False
            Whether samples without a label are declined.
        source : str, default="added"
            How the samples were chosen.
        annotator : str, optional
        several : bool, default=False
            Whether this is the answer of one of several people, which stands beside those of others: None is "cannot
            say" if ``declined``, or else the person's answer is taken back.
        """
        with self.lock:
            engine = self._engine
            positions = [engine.ids.position(key) for key, _ in answers]
            unknown = [key for (key, _), position in zip(answers, positions, strict=True) if position is None]
            if unknown:
                remedy = "Reload the page: the samples may have changed."
                raise InvalidParameterError.for_parameter("record", "id", "the id of a sample", unknown, remedy)
            values, dtype = engine.read([label for _, label in answers])
            pairs = [
                (position, value) for position, value in zip(positions, values, strict=True) if position is not None
            ]
            if several:
                said = any(value is not None for value in values) or declined
                known = any(index in engine.state.answers for index, _ in pairs)
                kind = "answer" if said else "withdrawn"
                engine.take(kind, pairs, dtype, None if known else source, annotator)
            elif any(value is not None for value in values):
                labelled = any(engine.state.answers.get(index) is not None for index, _ in pairs)
                engine.take("label", pairs, dtype, None if labelled else source, annotator)
            elif declined:
                engine.take("declined", pairs, dtype, "declined", annotator)
            else:
                engine.take("open", pairs, dtype, "undone", annotator)

    @property
    def auditing(self) -> bool:
        """True during an audit: the model stays as it is until the audit has judged it."""
        return self._engine.state.look > 0

    @property
    def audit_is_answered(self) -> bool:
        """True once all samples of the audit have an answer; takes no lock."""
        state = self._engine.state
        return state.look > 0 and all(position in state.answers for position in state.asked)

    @property
    def certified(self) -> bool:
        """True if there is a certificate, so that the model labels some samples."""
        return self._engine.state.final is not None

    def step(self, audit: int = 0) -> None:
        """Train on the labels so far, and choose the next samples; for the thread in the background.

        Parameters
        ----------
        audit : int, default=0
            Draw this many samples at random, to audit the model. Without, an audit that is open goes on, and is judged
            when all of its samples have an answer.
        """
        with self.lock:
            if self.auditing and self.questions():
                return
            self._engine.weigh()
            twin = twin_of(self._engine)
        self.error = None
        try:
            twin.bring_up_to_date()
        except Exception as error:  # whatever an estimator raises: labelling goes on
            self.error = f"{type(error).__name__}: {error}"
            twin.give_up_training(error)
        advice, twin.state.stop_reason = twin.state.stop_reason, None  # a person may go on
        try:
            if audit and twin.trainer.predictor is not None:
                twin.begin_audit(audit)
            else:
                twin.select()
        except CheckpointError:
            raise
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        twin.state.stop_reason = twin.state.stop_reason or advice
        with self.lock:
            adopt(self._engine, twin)
            self._folder.save_final(twin.state.final)
            content = self._content(trained=True)
        with self._saving:
            if not self._engine.closed:
                self._folder.save(*content)

    def cancel_audit(self) -> None:
        """Go on without the audit that is open; its labels are trained on, and the next one is judged more strictly."""
        with self.lock:
            if self.auditing and self.questions():
                state = self._engine.state
                state.look, state.audited = 0, []
                self._engine.end_round_without_training()

    def report(self, max_error: float, unreadable: Iterable[int] = ()) -> AuditReport | None:
        """The last model's report from the held-out labels; None if there are none."""
        predictor = self.predictor
        with self.lock:
            state = replace(self._engine.state, answers=dict(self._engine.state.answers))
        if predictor is None or not hasattr(predictor.estimator, "predict_proba"):
            return None
        return report_audit(state, self._engine.rules, predictor, max_error, 0.95, frozenset(unreadable))

    def train_on_all(self) -> Any:
        """The classifier, trained on all labels, held-out ones too; the session stays as it is."""
        with self.lock:
            engine = self._engine
            state, trainer, classifier = deepcopy(engine.state), engine.trainer.copy(), copy(engine.classifier)
        if any(state.heldout):
            release(state)
        if state.stale and trainer.can_fit(state):
            trainer.fit(state)
            classifier._take_results(state, trainer, engine.strategy)
        return classifier

    def add_classes(self, classes: Sequence[Any], estimator: Any = None, annotator: str | None = None) -> None:
        """Let there be more classes from now on, with an estimator that has an output for each.

        New ones are in the journal before anything else is changed.
        """
        changes = {"classes": list(classes)} | ({} if estimator is None else {"estimator": estimator})
        with self.lock:
            engine = self._engine
            engine.check_writable()
            rules = replace(engine.rules, **changes)  # refuses what makes no sense before anything is changed
            new = [name for name in classes if name not in (engine.rules.classes or ())]
            round = engine.state.round
            engine.journal.append(
                make_event("class", None, round=round, source="added", annotator=annotator, **{"class": name})
                for name in new
            )
            engine.classifier.set_params(**changes)
            engine.rules = engine.selector.rules = self._folder.rules = rules
            engine.trainer.reconfigure(rules)
            self._folder.describe(engine.classifier.get_params())

    def questions(self) -> list[int]:
        """Samples of the last query that wait for an answer, best first; also while the next one is computed."""
        with self.lock:
            state = self._engine.state
            return [position for position in state.asked if position not in state.answers]

    def pool(self) -> np.ndarray:
        """Everything that has neither a label nor been declined."""
        with self.lock:
            return self._engine.rules.pool(self._engine.state)

    def forecast(self, more: int) -> Forecast:
        """Accuracy now, and with more labels."""
        with self.lock:
            return self.session.forecast(more)

    def close(self) -> None:
        """Save, and let others write to the folder."""
        with self._saving, self.lock:
            if self._engine.closed:
                return
            with suppress(CheckpointError):  # the labels are in the journal in any case
                self._folder.save(*self._content(trained=False))
                self._folder.save_final(self._engine.state.final)
            self.session.close()

    def _content(self, *, trained: bool) -> Any:
        engine = self._engine
        return self._folder.content(engine.state, engine.trainer, engine.selector.strategy, trained=trained)


def twin_of(engine: LoopEngine) -> LoopEngine:
    """An engine that goes on from here by itself, and saves nothing; :func:`adopt` takes its result over.

    The open round is closed with the answers that it has. Labels may be taken while the twin trains and selects.
    """
    engine.check_writable()
    twin = copy(engine)
    twin.folder = None  # the journal has the labels, and a save would take its time
    if twin.state.phase == "answer":
        twin.close_round()  # of the engine as well: they still have one state
    twin.state, twin.trainer, twin.classifier = deepcopy(engine.state), engine.trainer.copy(), copy(engine.classifier)
    return twin


def adopt(engine: LoopEngine, twin: LoopEngine) -> None:
    """Take over a twin's results; labels that have come meanwhile stay."""
    engine.check_writable()
    mine = engine.state
    state = replace(twin.state, answers=mine.answers, n_changes=mine.n_changes, label_dtype=mine.label_dtype)
    if state.metrics is not None and len(state.metrics) == len(state.asked):
        pairs = zip(state.asked, state.metrics, strict=True)
        state.metrics = [value for position, value in pairs if position not in state.answers]
    if not state.look:  # an audit is about all of its samples
        state.asked = [position for position in state.asked if position not in state.answers]
    if state.phase == "answer" and not state.asked:
        state.phase = "ask"
    engine.state = state
    if twin.trainer.rules is not engine.rules:  # there are more classes by now
        twin.trainer.reconfigure(engine.rules)
    engine.trainer, engine.opened = twin.trainer, twin.opened
    engine.publish()
