# SPDX-License-Identifier: BSD-3-Clause
"""The machine inside a session: takes answers, closes rounds, trains, selects, and writes everything down."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.metrics import check_scoring

from skal._core.containers import take_rows
from skal.exceptions import CheckpointError
from skal.loop._audit import SOURCE, measure
from skal.loop._checkpoint import RunCheckpoint
from skal.loop._config import LoopConfig
from skal.loop._display import ProgressReporter
from skal.loop._given import new_given_labels
from skal.loop._journal import entry
from skal.loop._labels import Predictor, common_dtype, read_labels
from skal.loop._selection import Selector
from skal.loop._state import LoopState
from skal.loop._trainer import Trainer
from skal.validation import make_generator

if TYPE_CHECKING:
    from skal.loop._classifier import ActiveLearningClassifier


@dataclass(frozen=True)
class LoopResults:
    """What has come out of a loop so far: the fitted attributes of its classifier, and ``predictor`` to predict with.

    ``predictor`` is None as long as nothing has been trained; ``labelled`` has the samples that it was trained on and
    their numbers.
    """

    queried: np.ndarray
    history: list[dict[str, Any]]
    stop_reason: str | None
    query_strategy: Any
    initial: str | None
    predictor: Predictor | None
    labelled: tuple[Any, np.ndarray] | None = None


class LoopEngine:
    """Runs the rounds of one session.

    Parameters
    ----------
    classifier : ActiveLearningClassifier
    config : LoopConfig
    publish : callable
        Called with the :class:`LoopResults` whenever they change.

    Attributes
    ----------
    state : LoopState
    store : RunCheckpoint
    trainer : Trainer
    selector : Selector
    closed : bool
        Whether nothing may be written any more.
    writes : bool
        Whether states are saved to the folder.
    """

    writes = True

    def __init__(
        self, classifier: ActiveLearningClassifier, config: LoopConfig, publish: Callable[[LoopResults], None]
    ) -> None:
        self.classifier, self.config, self.receive = classifier, config, publish
        self.trainer, self.selector = Trainer(config), Selector(config)
        self.closed = False
        self.opened = perf_counter()
        n_planned = config.planned_labels()
        self.store = RunCheckpoint(config, classifier.get_params())
        seed = int(make_generator(config.owner, config.random_state).integers(2**63))
        try:
            restored = self.store.restore(self.trainer, self.selector.strategy, seed)
            # without initial labels there is no round 0
            self.state = restored or LoopState(seed=seed, round=int(config.initial_size == 0))
            if restored:
                self._check_same_labels()
            else:
                self.trainer.start(self.state)
            if config.given is not None:
                self._take_given_labels()
        except BaseException:  # whoever keeps the error keeps this session alive
            self.release()
            raise
        self.reporter = ProgressReporter(
            verbose=config.verbose, progress=config.progress, total=n_planned, initial=len(self.state.labelled)
        )
        self.publish()

    @property
    def results(self) -> LoopResults:
        """What has come out so far."""
        return LoopResults(
            queried=np.array(self.state.labelled, dtype=np.int64),
            history=[dict(row) for row in self.state.history],
            stop_reason=self.state.stop_reason,
            # the recommended strategy says which one it chose
            query_strategy=getattr(self.selector.strategy, "strategy_", self.selector.strategy),
            initial=self.state.start,
            predictor=self.trainer.predictor,
            labelled=self.trainer.labelled,
        )

    def publish(self) -> None:
        """Let the classifier have the results."""
        self.receive(self.results)

    def take(
        self,
        answers: list[tuple[int, Any]],
        dtype: str | None,
        source: str | None,
        annotator: str | None,
        declined: bool = True,
    ) -> None:
        """Check answers, write them down, and only then let the session know."""
        self.check_writable()
        state = replace(self.state, label_dtype=common_dtype(self.state.label_dtype, dtype))
        state = state.with_answers((index, label, declined and label is None) for index, label in answers)
        seen = {*self.state.labels, *(value for _, value in self.state.told)}
        if state.label_dtype != self.state.label_dtype or not seen.issuperset(label for _, label in answers):
            closed = state.with_answers_as_labels(0.0) if state.phase == "answer" else state
            if closed.labels:  # refuses what is not a class before anything is changed
                self.trainer.check_labels(closed)
        self.store.write(self._entries(answers, source, annotator, declined))
        if self.state.stop_reason != "callback" and state.history:
            state.stop_reason = self.config.stop_reason(state)
        self.state = state
        self.publish()

    def bring_up_to_date(self) -> None:
        """Train where a training is due."""
        state = self.state
        if state.phase == "answer" and len(state.asked) and len(state.unanswered()) == 0:
            self.check_writable()
            self.close_round()
        if self.state.phase == "train":  # an earlier training failed or was killed
            self.check_writable()
            self.train()
            return
        due = self.state.stale or self.trainer.predictor is None
        if self.state.phase == "ask" and due and self.state.labels and self.trainer.can_fit(self.state):
            self.check_writable()
            self.trainer.fit(self.state)
            self.publish()
            self.save(trained=True)

    def give_up_training(self, error: Exception) -> None:
        """Go on without the training that failed."""
        if self.state.phase == "train":
            self.state.notes = [*self.state.notes, f"training failed: {type(error).__name__}: {error}"]
            missing = dict.fromkeys(("train_score", "seconds_fit")) | {"seconds_query": self.state.seconds_query}
            self._end_round(self.state.describe_round() | missing, trained=False)
        self.state.stale = True

    def select(self) -> np.ndarray:
        """Open a round if there is none, and give its unanswered samples."""
        state = self.state
        while state.phase == "ask" and state.stop_reason is None:
            self.check_writable()
            if self.config.next_batch_size(state, len(self.config.pool(state))) == 0:
                state.stop_reason = "budget" if len(self.config.pool(state)) else "pool exhausted"
                self.publish()
                break
            start = perf_counter()
            positions, metrics = self.selector.select(state, self.trainer)
            if len(positions) == 0:  # all of a given start has been labelled already
                state.round += 1
                continue
            state.open_round(positions, metrics, seconds=perf_counter() - start, source=self._source())
            self.publish()  # which strategy chose them
            self.save()
        return state.unanswered()

    def close_round(self) -> None:
        """This round's answers become labels."""
        held_out = 0.0 if self.config.target_score is None else self.config.validation_fraction
        self.state = self.state.with_answers_as_labels(held_out)
        self.publish()
        self.save()

    def train(self) -> None:
        """Train on a closed round, and end it."""
        state = self.state
        start = perf_counter()
        told = any(value is not None for _, value in state.told)
        if (told or state.stale) and self.trainer.can_fit(state):
            self.trainer.fit(state)
        row = state.describe_round()
        seconds = {"seconds_fit": perf_counter() - start, "seconds_query": state.seconds_query}
        self.publish()  # it is the classifier that is scored
        self._end_round(row | self._scores() | seconds | self._measures(), trained=True)

    def save(self, *, trained: bool = False) -> None:
        """Write the state to the folder; the network only after a training."""
        if self.writes:
            self.store.save(self.state, self.trainer, self.selector.strategy, trained=trained)

    def release(self) -> None:
        """Let others write to the folder."""
        if self.store.lock is not None:
            self.store.lock.release()

    def check_writable(self) -> None:
        """Refuse to change a session that is only to be looked at."""
        if self.config.readonly or self.closed:
            why = "opened with readonly=True" if self.config.readonly else "closed"
            raise CheckpointError(
                f"A session that writes must be open for writing. Got one that was {why}. Call start(X) for another."
            )

    def _source(self) -> str:
        """How this round's samples are chosen."""
        if self.state.round == 0:
            return "initial"
        strategy = self.results.query_strategy
        return "random" if self.trainer.estimator is None else getattr(strategy, "__name__", type(strategy).__name__)

    def _entries(
        self, answers: list[tuple[int, Any]], source: str | None, annotator: str | None, declined: bool
    ) -> Iterator[dict[str, Any]]:
        positions, audit = [index for index, _ in answers], set(self.state.audit)
        keys, contents = self.store.ids.of(positions), self.store.ids.contents(positions)
        for key, content, (index, label) in zip(keys, contents, answers, strict=True):
            before = self.store.journal.known.get(key, {})
            own = SOURCE if label is not None and index in audit else source
            yield entry(
                key,
                label,
                round=self.state.round,
                source=before.get("source") if own is None else own,
                annotator=annotator,
                previous=before.get("label"),
                declined=declined if label is None else None,
                content=content,
            )

    def _take_given_labels(self) -> None:
        """Labels from before the start: those that are new are the answers of a round of their own."""
        new, dtype = new_given_labels(self.config, self.store)
        if not new:
            return
        if self.state.phase == "ask" and not self.state.labelled and not self.state.history:
            self.state.round = 0
            self.state.open_round(np.array([i for i, _ in new]), None, 0.0, "given")
        self.take(new, dtype, "given", None)
        if self.state.source == "given" and self.state.phase == "answer":
            self.close_round()
        else:
            self.save()

    def _end_round(self, row: dict[str, Any], *, trained: bool) -> None:
        state, config = self.state, self.config
        state.end_round(row)
        self.publish()
        stopped = [bool(callback(self.classifier, row)) for callback in config.callbacks or ()]
        state.stop_reason = config.stop_reason(state) or ("callback" if any(stopped) else None)
        self.publish()
        self.save(trained=trained)
        self.reporter.report(row)
        if state.stop_reason is not None:
            self.reporter.close()

    def _scores(self) -> dict[str, float | None]:
        """Scores on the labels trained on, on those held out, and on the evaluation set; None where there is none."""

        def labelled(*, heldout: bool) -> tuple[Any, Any]:
            rows, labels = self.state.labelled_set(heldout=heldout)
            return take_rows(self.config.X, rows), labels

        sets = {"train_score": labelled(heldout=False)}
        if self.config.target_score is not None:
            sets["valid_score"] = labelled(heldout=True)
        if self.config.eval_set is not None:
            X, y = self.config.eval_set
            sets["eval_score"] = X, y.cpu().numpy() if isinstance(y, torch.Tensor) else y
        scores: dict[str, float | None] = dict.fromkeys(sets)
        if self.trainer.predictor is not None:
            scorer = check_scoring(self.classifier, scoring=self.config.scoring)
            with self.state.seeded("score"):
                scores |= {name: float(scorer(self.classifier, X, y)) for name, (X, y) in sets.items() if len(y)}
        return scores

    def _measures(self) -> dict[str, Any]:
        """What the stopping criterion looks at."""
        if self.config.stop is None:
            return {}
        now = perf_counter()
        self.state.elapsed += now - self.opened
        self.opened = now
        return {"elapsed": self.state.elapsed, **measure(self.state, self.config, self.trainer.predictor)}

    def _check_same_labels(self) -> None:
        reader, rows = self.config.reader, np.array(self.state.labelled, dtype=np.int64)
        if len(rows) and reader is not None and read_labels(reader(rows, None))[0] != self.state.labels:
            raise CheckpointError(
                f"The checkpoint in {self.config.checkpoint} must be of the same labels. Got a y that differs at "
                "samples which it has labelled. Pass the y that the run was started with, or another folder."
            )
