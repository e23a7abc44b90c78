# SPDX-License-Identifier: BSD-3-Clause
"""A labelling project: samples, labels, and a model that learns in the background. The page and the cell use it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from skal.exceptions import CheckpointError, InvalidParameterError, InvalidTypeError, SampleError, SkalError, shorten
from skal.labelling._background import BackgroundRounds
from skal.labelling._ending import Ending, Labelled
from skal.labelling._models import Model
from skal.labelling._queue import Leases
from skal.labelling._settings import check_classes, read_settings, write_settings
from skal.labelling._sources import Source
from skal.labelling._words import say_left_out
from skal.labelling._worker import Worker
from skal.loop import ActiveLearningClassifier, AuditReport
from skal.loop._journal import Journal
from skal.stopping import Certified, HoldOut, StablePredictions, StoppingCriterion
from skal.strategies._default import Recommended
from skal.validation import Integer, Real

UNREADABLE = "skal: cannot be read"
_AHEAD = 3  # a query gives so many batches, so that there is something to label while the next one is computed
_CANDIDATES = 5_000  # of a larger pool the recommended strategy looks at so many, drawn anew for every query
_RATE_WINDOW = 300.0


class Project:
    """Labels, questions and a model.

    All methods may be called from several threads at once.

    Parameters
    ----------
    source : Source
    classes : list of str
        In the order of their keys. A folder that has been used before may have more.
    model : Model
    folder : path
        Labels, settings, the state of the loop and the model.
    strategy : str, strategy or None, default="auto"
    query_size : int, default=20
        New labels before the next training.
    share : float, default=0.2
        Share of the samples that is drawn at random and held out, to measure accuracy. With 0 it is not measured.
    stop : StoppingCriterion or None, default=None
        When to advise to stop; by default StablePredictions.
    max_error : float, default=0.05
        The share of errors in the whole data set that the page offers to promise.
    annotator : str or None, default=None
        Written beside every label.
    labels : dict from id to label, default=None
        Labels that are known already.
    source_name, target_name : str or None, default=None
        The paths of the source and of the target, for ``skal export`` and the next start.
    """

    def __init__(
        self,
        source: Source,
        classes: Sequence[str],
        model: Model,
        folder: Any,
        *,
        strategy: Any = "auto",
        query_size: int = 20,
        share: float = 0.2,
        stop: StoppingCriterion | None = None,
        max_error: float = 0.05,
        annotator: str | None = None,
        labels: dict[str, str] | None = None,
        source_name: str | None = None,
        target_name: str | None = None,
    ) -> None:
        Integer(1).check("label", "query_size", query_size)
        Real(0, 0.9, remedy="Pass a share of the samples, such as 0.2, or 0.").check("label", "share", share)
        if stop is not None and not isinstance(stop, StoppingCriterion):
            expected, remedy = "a criterion of skal.stopping, or None", "Pass for example stop=Budget(500)."
            raise InvalidTypeError.for_parameter("label", "stop", expected, stop, remedy)
        Real(0.0001, 0.5, remedy="Pass 0.05 for at most 5 % errors.").check("label", "max_error", max_error)
        self.source, self.model, self.folder, self.annotator = source, model, Path(folder), annotator
        self.max_error = max_error
        kept = read_settings(self.folder)
        given = labels or {}
        written = Journal(self.folder).read().classes  # a class that is in the journal never vanishes
        named = [*kept.get("classes", []), *check_classes(classes), *written, *sorted(set(given.values()))]
        self.classes = check_classes(dict.fromkeys(named), strip=False)
        estimator = model.make(len(self.classes))
        criterion = StablePredictions() if stop is None else stop
        own = next((part for part in criterion.parts() if isinstance(part, Certified)), None)
        if own is not None:
            self.max_error = own.max_error
        elif hasattr(estimator, "predict_proba"):
            criterion = criterion | Certified(max_error, n_left=len(source))  # how many are left is for people to judge
        candidates = max(_CANDIDATES, 2 * _AHEAD * query_size)
        recommended: Any = Recommended(subset=candidates) if len(source) > candidates else "auto"
        is_named = strategy is not None and not (isinstance(strategy, str) and strategy == "auto")
        loop = ActiveLearningClassifier(
            estimator,
            strategy if is_named else recommended,
            initial=recommended,
            n_initial=_AHEAD * query_size,
            query_size=_AHEAD * query_size,
            n_rounds=None,
            classes=self.classes,
            reinitialize=True,
            checkpoint=self.folder,
            stop=criterion | HoldOut(share) if share else criterion,
            hold_out="audit" if share else "random",
            random_state=0,
        )
        y = [given.get(key) for key in source.ids] if given else None
        self.rounds = BackgroundRounds(loop.start(model.X, y, ids=source.ids, target=model.target))
        place = {"kind": source.kind, "source": source_name, "text": None, "columns": None, **source.chosen}
        self._settings = place | {"classes": self.classes}
        if target_name is not None:
            self._settings["target"] = target_name
        try:
            write_settings(self.folder, kept | self._settings)
        except CheckpointError:  # whoever keeps the error keeps this project alive
            self.rounds.close()
            raise
        self._lock = self.rounds.lock
        self._leases = Leases()
        self._undo: dict[str, list[tuple[str, dict[str, Any] | None]]] = {}  # of each tab: ids, and what was before
        self._times: deque[float] = deque(maxlen=2000)
        self._origin: dict[str, str] = {}
        self._order = np.random.default_rng(0).permutation(len(source))
        self._first = 0  # all samples before this place of the order have been answered
        self._reread_unreadable()
        self._trained: ActiveLearningClassifier | None = None  # on all labels, when the project has ended
        self.worker = Worker(self.rounds, model, self.folder, query_size, self.decline_unreadable, self._report)
        self.ending = Ending(self.rounds, self.worker)

    def start(self) -> Project:
        """Begin to train in the background."""
        self.worker.start()
        return self

    def next(self, client: str, n: int = 5) -> list[dict[str, Any]]:
        """The next samples for a tab: the query's, and while there are none, others at random."""
        with self._lock:
            asked = self.rounds.questions()
            source = self.rounds.session.state.source
            unreadable, among = set(self.source.unreadable()), set(asked)
            questions = self.ending.questions()
            order = chain(asked, self._others(among)) if questions is None else iter(questions)
            order = (position for position in order if position not in unreadable)
            taken = self._leases.take(client, order, n)
            if questions is not None and not self.rounds.auditing:
                source = "left"  # to people, by the certificate
            other = "random" if questions is None else source
            self._origin |= {self.source.ids[i]: source if i in among else other for i in taken}
            return [self._question(position) for position in taken]

    def answer(self, key: str, label: str | None, *, client: str = "", declined: bool = False) -> None:
        """Write one answer down: a label, "cannot say" (declined), or neither. On the disk when this returns."""
        with self._lock:
            if label is not None and label not in self.classes:
                remedy = "Add the class first."
                raise InvalidParameterError.for_parameter("answer", "label", f"one of {self.classes}", label, remedy)
            before = self.rounds.known.get(key)
            source = self._origin.get(key, "added")
            self.rounds.record([(key, label)], declined=declined, source=source, annotator=self.annotator)
            self._first = 0 if label is None and not declined else self._first
            self._undo.setdefault(client, []).append((key, before))
            del self._undo[client][:-1000]
            if label is not None:
                self._times.append(time.monotonic())
        self.worker.note_change()

    def undo(self, client: str = "") -> dict[str, Any] | None:
        """Take the last answer of a tab back, and give its sample; None if there is none."""
        with self._lock:
            stack = self._undo.get(client, [])
            if not stack:
                return None
            key, before = stack[-1]
            label = None if before is None else before["label"]
            declined = before is not None and label is None
            self.rounds.record([(key, label)], declined=declined, source="undone", annotator=self.annotator)
            stack.pop()  # not before it is written
            self._first = 0
            position = self.rounds.position(key)
            assert position is not None
            self.worker.note_change()
            return self._question(position)

    def add_class(self, name: str) -> list[str]:
        """Let there be one more class; gives all."""
        with self._lock:
            classes = check_classes([*self.classes, name.strip()], strip=False)
            self.rounds.add_classes(classes, self.model.make(len(classes)), self.annotator)
            self.classes = classes
            self._settings["classes"] = classes
            with suppress(CheckpointError):  # the class is in the journal in any case
                write_settings(self.folder, read_settings(self.folder) | self._settings)
            return classes

    def gallery(
        self, *, label: str | None = None, disagreements: bool = False, offset: int = 0, limit: int = 60
    ) -> dict[str, Any]:
        """What has been labelled, the last first, or where model and label disagree first."""
        with self._lock:
            lines = [line for line in self.rounds.known.values() if self.rounds.position(line["id"]) is not None]
            wanted = [line for line in lines if label in (None, line["label"] or "")]
            items = [self._answer(line) for line in wanted[::-1]]
        if disagreements:
            items.sort(key=lambda item: -item["disagreement"])
        return {"total": len(items), "items": items[offset : offset + limit]}

    def status(self) -> dict[str, Any]:
        """Everything that the page shows beside the samples."""
        with self._lock:
            labels = [line["label"] for line in self.rounds.known.values() if line["label"] is not None]
            state = self.rounds.session.state
            history = state.history
            unreadable = {self.source.ids[i]: why for i, why in self.source.unreadable().items()}
            declined = {line["id"] for line in self.rounds.known.values() if line["label"] is None}
            counts = Counter(labels)
            return {
                "kind": self.source.kind,
                "samples": len(self.source),
                "labelled": len(labels),
                "declined": len(declined - set(unreadable)),
                "unreadable": sorted(unreadable),
                "classes": [{"name": name, "count": counts.get(name, 0)} for name in self.classes],
                "per_minute": self._per_minute(),
                "model": self.model.words,
                "note": self.worker.unsaved or self.model.note,
                "left_out": say_left_out(self.source.left_out),
                "strategy": self._strategy_words(),
                "rounds": len(history),
                "advice": _advice(state.stop_reason),
                "folder": str(self.folder),
                **self.ending.describe(len(self.classes)),
                **self.worker.status(),
            }

    def labels(self) -> pd.DataFrame:
        """``id, label, round, time, annotator, source`` of every label that holds."""
        with self._lock:
            return self.rounds.session.labels()

    def result(self) -> Labelled:
        """The result so far."""
        loop = self.rounds.session.classifier
        unreadable = sorted(self.source.ids[i] for i in self.source.unreadable())
        loop = self._trained or loop
        model = loop if hasattr(loop, "estimator_") else None
        forecast = self.rounds.forecast(100)
        return Labelled(
            self.labels(), model, forecast, unreadable, self.folder, self.worker.report, self.ending.final()
        )

    def picture(self, key: str, size: int | None = None) -> tuple[bytes, str]:
        """The picture of a sample; one that cannot be read is declined, and a SampleError says why."""
        position = self.rounds.position(key)
        if position is None:
            raise SampleError(f"A picture must be of a sample. Got {shorten(key)}. Reload the page.")
        try:
            return self.source.picture(position, size)
        except SampleError:
            self.decline_unreadable()
            raise

    def decline_unreadable(self) -> None:
        """Never ask for samples that were found to be unreadable."""
        with self._lock:
            known = self.rounds.known
            keys = [self.source.ids[i] for i in self.source.unreadable()]
            new = [(key, None) for key in keys if key not in known]
            if new:
                self.rounds.record(new, declined=True, annotator=UNREADABLE)

    def finish(self) -> None:
        """End the project: train on all labels, those too that measured accuracy, and close it."""
        self.worker.stop()
        try:
            self._trained = self.rounds.train_on_all()
            self.worker.keep_model(self._trained)
        except Exception as error:  # whatever an estimator raises: the labels are there, and the last model
            self.rounds.error = f"{type(error).__name__}: {error}"
        self.close()

    def close(self) -> None:
        """End the training, save, and let others write to the folder."""
        self.worker.stop()
        self.rounds.close()

    def __enter__(self) -> Project:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.close()

    def _others(self, asked: set[int]) -> Iterator[int]:
        """Everything else that may be labelled, at random; nothing is looked at twice that has been answered."""
        answers, order = self.rounds.session.state.answers, self._order
        while self._first < len(order) and order[self._first] in answers:
            self._first += 1
        rest = map(int, order[self._first :])
        yield from (position for position in rest if position not in answers and position not in asked)

    def _report(self) -> AuditReport | None:
        return self.rounds.report(self.max_error, self.source.unreadable())

    def _describe_sample(self, position: int) -> dict[str, Any]:
        """A sample as the page shows it."""
        source = self.source
        item = {"id": source.ids[position], "kind": source.kind}
        if source.kind == "image":
            return item
        cells = source.cells(position)
        return item | {"text": source.text(position)} | ({"cells": cells} if cells else {})

    def _question(self, position: int) -> dict[str, Any]:
        """A sample to label, with what the model says of it; that would bias the labels that measure accuracy."""
        if self.rounds.auditing or position in set(self.rounds.session.state.audit):
            return self._describe_sample(position)
        return self._describe_sample(position) | {"suggestion": self.worker.predictions.get(position)}

    def _answer(self, line: dict[str, Any]) -> dict[str, Any]:
        """A sample of the gallery."""
        position, label = self.rounds.position(line["id"]), line["label"]
        assert position is not None
        predicted = self.worker.predictions.get(position)
        differs = predicted is not None and label is not None and predicted["label"] != label
        return self._describe_sample(position) | {
            "label": label,
            "unreadable": line.get("annotator") == UNREADABLE,
            "predicted": predicted,
            "disagreement": predicted["probability"] if differs and predicted is not None else 0.0,
            "time": line["time"],
        }

    def _per_minute(self) -> float:
        now = time.monotonic()
        recent = [moment for moment in self._times if moment > now - _RATE_WINDOW]
        if len(recent) < 2:
            return float(len(recent))
        return 60 * (len(recent) - 1) / max(now - recent[0], 1.0)

    def _strategy_words(self) -> str:
        strategy = self.rounds.session.engine.strategy
        if isinstance(strategy, Recommended):  # which one that is depends on a model that has not been trained yet
            return "the recommended strategy"
        return getattr(strategy, "__name__", type(strategy).__name__)

    def _reread_unreadable(self) -> None:
        """Samples that could not be read the last time: those that can be now are asked for again."""
        keys = [line["id"] for line in self.rounds.known.values() if line.get("annotator") == UNREADABLE]
        repaired = []
        for key in keys:
            position = self.rounds.position(key)
            if position is not None:
                try:
                    self.source.picture(position, 64)
                    repaired.append((key, None))
                except SkalError:
                    pass
        if repaired:
            self.rounds.record(repaired, declined=False)


def _advice(reason: str | None) -> str | None:
    if reason is None:
        return None
    if reason == "pool exhausted":
        return "Everything is labelled."
    return f"You may stop: {reason.removeprefix('stop: ')}."
