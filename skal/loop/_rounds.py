# SPDX-License-Identifier: BSD-3-Clause
"""The machine inside a session: takes answers, closes rounds, trains, selects, and writes everything down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from sklearn.metrics import check_scoring

from skal._core.containers import n_rows, take_rows
from skal._core.tasks import CLASSIFICATION, MULTILABEL, UNKNOWN, check_targets
from skal.config import get_config
from skal.exceptions import CheckpointError, shorten
from skal.loop._audit_report import report_audit
from skal.loop._choice import Selector
from skal.loop._display import ProgressReporter
from skal.loop._final import begin_audit, count_errors, judge_audit, plan_audit
from skal.loop._heldout import SOURCE, measure, release
from skal.loop._ids import SampleIds
from skal.loop._journal import Journal, make_event
from skal.loop._labels import common_dtype, read_labels
from skal.loop._progress import LoopState
from skal.loop._row_labels import make_trainer, read_rows
from skal.loop._rules import Rules
from skal.loop._saves import RunFolder
from skal.validation import make_generator


class LoopEngine:
    """Runs the rounds of one session.

    Parameters
    ----------
    classifier : ActiveLearningClassifier
        It gets the results whenever something has changed.
    rules : Rules

    Attributes
    ----------
    state : LoopState
    journal : Journal
        All events; in memory if there is no checkpoint.
    ids : SampleIds
    folder : RunFolder or None
        None without a checkpoint.
    trainer : Trainer
    selector : Selector
    closed : bool
        Whether nothing may be written any more.
    audits : bool
        Whether rounds may be audits, which must be answered as a whole, and the end is one.
    """

    def __init__(self, classifier: Any, rules: Rules) -> None:
        self.classifier, self.rules = classifier, rules
        self.trainer, self.selector = make_trainer(rules), Selector(rules)
        self.closed, self.opened, self.audits = False, perf_counter(), True
        n_planned = rules.plan_labels()
        self.folder = None if rules.checkpoint is None else RunFolder(rules, classifier.get_params())
        seed = int(make_generator(rules.owner, rules.random_state).integers(2**63))
        self.journal = Journal() if self.folder is None else self.folder.journal
        try:
            if self.folder is None:
                self.ids = SampleIds(rules.X, rules.ids)
                # without initial labels there is no round 0
                self.state = LoopState(seed=seed, round=int(rules.initial_size == 0))
                if rules.initial_size == 0:
                    self.trainer.start_blank(self.state)
            else:
                self._open_folder(self.folder, seed)
            if rules.task == MULTILABEL and rules.column_names is not None:
                self.journal.name_columns(rules.column_names)
            if rules.given is not None:
                self._take_given_labels()
        except BaseException:  # a kept error would keep this session alive
            self.journal.release()
            raise
        bar = get_config()["progress"]
        self.reporter = ProgressReporter(rules.verbose, bar, n_planned, self.state) if rules.verbose or bar else None
        self.publish()

    @property
    def strategy(self) -> Any:
        """The strategy that is used; the recommended one says which it chose."""
        return getattr(self.selector.strategy, "strategy_", self.selector.strategy)

    def publish(self) -> None:
        """Let the classifier have the results."""
        self.classifier._take_results(self.state, self.trainer, self.strategy)

    def take(
        self, kind: str, answers: list[tuple[int, Any]], dtype: str | None, source: str | None, annotator: str | None
    ) -> None:
        """Check answers, write them down, and only then let the session know.

        Parameters
        ----------
        kind : {"label", "declined", "open", "answer", "withdrawn"}
            What happens to the samples. A "label" that is None is "declined". An "answer" is one of several people's,
            and None is "cannot say"; what holds for the sample is for the journal to say.
        answers : list of (position, label)
        dtype : str or None
            Type of the labels.
        source : str or None
            How the samples were chosen; None keeps what the journal says.
        annotator : str or None
        """
        self.check_writable()
        dtype = common_dtype(self.state.label_dtype, dtype)
        new = {index: label for index, label in answers if label is not None}
        if new and (
            self.rules.task != CLASSIFICATION
            or dtype != self.state.label_dtype
            or not all(label in self.journal.classes for label in new.values())
        ):
            # refuses what is not a class before anything is changed
            self.trainer.check_labels(replace(self.state, label_dtype=dtype, answers=self.state.answers | new))
        events = list(self._events(kind, answers, source, annotator))
        self.journal.append(events)
        for event, (index, _) in zip(events, answers, strict=True):
            held = self.journal.known.get(event["id"])
            self.state.take(index, None if held is None else held["label"], "open" if held is None else "label")
        self.state.label_dtype, self.state.n_changes = dtype, self.journal.n_changes
        if self.state.stop_reason != "callback" and self.state.history:
            self.state.stop_reason = self.rules.stop_reason(self.state)
        self.publish()

    def weigh(self) -> None:
        """Let the reliability of several people say which of their answers hold; nothing to do for one."""
        for key, label in self.journal.weigh().items() if self.journal.answers else ():
            index = self.ids.position(key)
            if index is not None:
                self.state.take(index, label, "label")

    def read(self, labels: Any, no_label: int | None = None) -> tuple[list[Any], str | None]:
        """Labels as plain values, None where there is none, and numpy's name of their type."""
        if self.rules.task == CLASSIFICATION:
            return read_labels(labels, no_label)
        return read_rows(self.rules.owner, labels, self.rules.task)

    def bring_up_to_date(self) -> None:
        """Train where a training is due."""
        self.weigh()
        state = self.state
        if state.phase == "answer" and len(state.asked) and len(state.open_questions()) == 0:
            self.check_writable()
            self.close_round()
        if state.phase == "train":  # an earlier training failed or was killed
            self.check_writable()
            self.train()
            return
        due = (state.stale and not state.look) or self.trainer.predictor is None
        if state.phase == "ask" and due and state.labels and self.trainer.can_fit(state):
            self.check_writable()
            self.trainer.fit(state)
            state.look, state.audited = 0, []  # an audit judges one model
            self.publish()
            self.save(trained=True)

    def give_up_training(self, error: Exception) -> None:
        """Go on without the training that failed."""
        if self.state.phase == "train":
            self.state.notes = [*self.state.notes, f"training failed: {type(error).__name__}: {error}"]
            self.end_round_without_training()

    def select(self) -> np.ndarray:
        """Open a round if there is none, and give its unanswered samples."""
        state = self.state
        while state.phase == "ask" and state.stop_reason is None:
            self.check_writable()
            n_pool = len(self.rules.pool(state))
            if self.rules.next_size(state, n_pool) == 0:
                state.stop_reason = "budget" if n_pool else "pool exhausted"
                self.publish()
                break
            start = perf_counter()
            positions, metrics = self.selector.select(state, self.trainer)
            if len(positions) == 0:  # all of a given start has been labelled already
                state.round += 1
                continue
            source = getattr(self.strategy, "__name__", type(self.strategy).__name__)
            source = "initial" if state.round == 0 else "random" if self.trainer.estimator is None else source
            source = "audit" if state.look else source
            state.open_round(positions, metrics, seconds=perf_counter() - start, source=source)
            self.publish()  # says which strategy chose them
            self.save()
        return state.open_questions()

    def begin_audit(self, size: int) -> None:
        """Draw samples by chance from all that are left, and ask for their labels, to audit the model as it is now."""
        self.check_writable()
        self.end_round_without_training()
        begin_audit(self.state, [size])
        self.state.stop_reason = None
        self.select()

    def end_round_without_training(self) -> None:
        """Take no more answers in this round, and let its labels be trained on later."""
        if self.state.phase == "answer":
            self.close_round()
        if self.state.phase == "train":
            missing = dict.fromkeys(("train_score", "seconds_fit")) | {"seconds_query": self.state.seconds_query}
            self._end_round(self.state.describe_round() | missing, trained=False)

    def close_round(self) -> None:
        """Take no more answers in this round; what is left open goes back to the pool."""
        left_open = len(self.state.open_questions())
        self.state.phase = "train"
        if left_open:  # otherwise the journal shows that the round is over
            self.save()

    def train(self) -> None:
        """Train on a closed round, and end it."""
        state, start = self.state, perf_counter()
        if self.rules.certified is not None and self.trainer.predictor is not None:  # before the model changes
            count_errors(state, self.rules, self.trainer.predictor)
        if state.look and self.trainer.predictor is not None:
            state.certificate = judge_audit(state, self.rules, self.trainer.predictor)
        if self.folder is not None:
            self.folder.save_final(state.final)
        if state.stale and not state.look and self.trainer.can_fit(state):  # one that is audited stays as it is
            self.trainer.fit(state)
        row = state.describe_round()
        seconds = {"seconds_fit": perf_counter() - start, "seconds_query": state.seconds_query}
        self.publish()  # it is the classifier that is scored
        row |= self._scores() | seconds
        if self.rules.certified is not None and self.audits and not state.look:
            plan_audit(state, self.rules, self.trainer.predictor)
        if self.rules.stop is not None or self.rules.heldout_share:
            now = perf_counter()
            state.elapsed, self.opened = state.elapsed + now - self.opened, now
            row |= {"elapsed": state.elapsed, **measure(state, self.rules, self.trainer.predictor)}
        self._end_round(row, trained=True)

    def save(self, *, trained: bool = False) -> None:
        """Write to the cache, if there is one; the network only after a training."""
        if self.folder is not None:
            self.folder.save(*self.folder.content(self.state, self.trainer, self.selector.strategy, trained=trained))

    def check_writable(self) -> None:
        """Refuse to change a session that is only to be looked at."""
        if self.rules.readonly or self.closed:
            why = "opened with readonly=True" if self.rules.readonly else "closed"
            raise CheckpointError(
                f"A session that writes must be open for writing. Got one that was {why}. Call start(X) for another."
            )

    def _events(
        self, kind: str, answers: list[tuple[int, Any]], source: str | None, annotator: str | None
    ) -> Iterator[dict[str, Any]]:
        positions, audit = [index for index, _ in answers], set(self.state.audit)
        keys = self.ids.of(positions)
        contents = [None] * len(keys) if self.folder is None else self.ids.contents(positions)
        for key, content, (index, label) in zip(keys, contents, answers, strict=True):
            own = SOURCE if label is not None and index in audit else source
            own = self.journal.known.get(key, {}).get("source") if own is None else own
            what = "declined" if kind == "label" and label is None else kind
            chance = self.state.chances.get(index)
            yield make_event(
                what,
                key,
                label,
                round=self.state.round,
                source=own,
                annotator=annotator,
                content=content,
                chance=chance,
            )

    def _open_folder(self, folder: RunFolder, seed: int) -> None:
        self.state = folder.open(self.trainer, self.selector.strategy, seed)
        self.ids = folder.ids
        reader, rows = self.rules.reader, np.array(self.state.labelled, dtype=np.int64)
        if len(rows) and reader is not None and self.read(reader(rows, None))[0] != self.state.labels:
            raise CheckpointError(
                f"The checkpoint in {self.rules.checkpoint} must be of the same labels. Got a y that differs at "
                "samples which it has labelled. Pass the y that the run was started with, or another folder."
            )

    def _take_given_labels(self) -> None:
        """Take labels from before the start: new ones are the answers of a round of their own."""
        values, dtype = self.read(self.rules.given, self.rules.no_given_label)
        if self.rules.task == CLASSIFICATION and dtype is not None and np.dtype(dtype).kind == "f" and None in values:
            # integers, but for the gaps
            values, dtype = [None if value is None else int(value) for value in values], "<i8"
        rows = [i for i, value in enumerate(values) if value is not None]
        keys, earlier = self.ids.of(rows), self.journal.earlier
        pairs = list(zip(rows, keys, strict=True))
        other = [key for i, key in pairs if key in earlier and values[i] not in earlier[key]]
        if other:
            raise CheckpointError(
                f"The labels in y must be those of {self.journal.path}, where samples have one. Got others for "
                f"{shorten(other)}. Leave y out, and use relabel to change labels."
            )
        new = [(i, values[i]) for i, key in pairs if key not in earlier]
        if not new:
            return
        if self.state.phase == "ask" and not self.state.labelled and not self.state.history:
            self.state.round = 0
            self.state.open_round(np.array([i for i, _ in new]), None, 0.0, "given")
        self.take("label", new, dtype, "given", None)
        if self.state.source == "given" and self.state.phase == "answer":
            self.close_round()
        self.save()

    def _end_round(self, row: dict[str, Any], *, trained: bool) -> None:
        state = self.state
        state.end_round(row)
        self.publish()
        stopped = [bool(callback(self.classifier, row)) for callback in self.rules.callbacks or ()]
        state.stop_reason = self.rules.stop_reason(state) or ("callback" if any(stopped) else None)
        if state.stop_reason is not None and self.rules.hold_out == "audit" and state.audit and self.audits:
            self._end_project()
        self.publish()
        self.save(trained=trained)
        if self.reporter is not None:
            self.reporter.report(row)
            if state.stop_reason is not None:
                self.reporter.close()

    def _end_project(self) -> None:
        """Train on everything, the audit too; what it has said is kept."""
        state, predictor = self.state, self.trainer.predictor
        if predictor is not None and hasattr(predictor.estimator, "predict_proba"):
            report = report_audit(state, self.rules, predictor, 0.05, 0.95)
            state.report = None if report is None else asdict(report)
        release(state)
        if self.trainer.can_fit(state):
            self.trainer.fit(state)

    def _scores(self) -> dict[str, float | None]:
        """Scores on the labels trained on, and on the evaluation set; None where there is none."""
        rows, labels = self.state.training_set()
        sets = {"train_score": (take_rows(self.rules.X, rows), labels)}
        if self.rules.eval_set is not None:
            X, y = self.rules.eval_set
            sets["eval_score"] = X, y.cpu().numpy() if isinstance(y, torch.Tensor) else y
        scores: dict[str, float | None] = dict.fromkeys(sets)
        if self.trainer.predictor is not None:
            scorer = check_scoring(self.classifier, scoring=self.rules.scoring)
            with self.state.use_seed("score"):
                fewest = 1 if self.rules.task == CLASSIFICATION else 2  # R² of one number is nothing
                sets = {name: self._known_as_a_whole(*pair) for name, pair in sets.items()}
                known = {name: pair for name, pair in sets.items() if n_rows(pair[0]) >= fewest}
                scores |= {name: float(scorer(self.classifier, X, y)) for name, (X, y) in known.items()}
        return scores

    def _known_as_a_whole(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Leave out samples with unknown labels, which no score can count."""
        if self.rules.task != MULTILABEL:
            return X, y
        y = check_targets(self.rules.owner, y, MULTILABEL)
        whole = (y != UNKNOWN).all(axis=1)
        return (X, y) if whole.all() else (take_rows(X, np.flatnonzero(whole)), y[whole])
