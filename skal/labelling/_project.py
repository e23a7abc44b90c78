# SPDX-License-Identifier: BSD-3-Clause
"""A labelling project: samples, labels, and a model that learns in the background. The page and the cell use it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from skal._core.tasks import CLASSIFICATION, REGRESSION
from skal._files.json_text import format_json
from skal.exceptions import CheckpointError, InvalidParameterError, InvalidTypeError, SampleError, SkalError, shorten
from skal.labelling._answer_form import AnswerForm
from skal.labelling._background import BackgroundRounds
from skal.labelling._ending import Ending, Labelled
from skal.labelling._models import Model
from skal.labelling._options import LIMITS
from skal.labelling._queue import Leases, Pace
from skal.labelling._settings import check_classes, read_settings, write_doubts, write_settings
from skal.labelling._sources import Source
from skal.labelling._team import Team, describe_agreement
from skal.labelling._words import say_left_out, say_numbers, say_time_left
from skal.labelling._worker import Worker
from skal.loop import ActiveLearningClassifier, ActiveLearningRegressor, AuditReport
from skal.loop._journal import Journal
from skal.stopping import Certified, HoldOut, StablePredictions, StoppingCriterion
from skal.stopping._forecast import ENOUGH
from skal.strategies._default import Recommended

UNREADABLE = "skal: cannot be read"
_AHEAD = 3  # batches per query, so that there is something to label while the next one is computed
_CANDIDATES = 5_000  # samples of a larger pool that the recommended strategy looks at, drawn anew for every query


class Project:
    """Labels, questions and a model.

    All methods may be called from several threads at once.

    Parameters
    ----------
    source : Source
    classes : list of str
        In the order of their keys. A folder that has been used before may have more. Numbers have none.
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
    team : Team or None, default=None
        Several people, who are named beside their answers.
    labels : dict from id to label, default=None
        Labels that are known already.
    source_name, target_name : str or None, default=None
        The paths of the source and of the target, for ``skal export`` and the next start.
    form : AnswerForm or None, default=None
        What people answer; one class for each sample by default. Only of classes accuracy is measured.
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
        team: Team | None = None,
        labels: dict[str, str] | None = None,
        source_name: str | None = None,
        target_name: str | None = None,
        form: AnswerForm | None = None,
    ) -> None:
        LIMITS["query_size"].check("label", "query_size", query_size)
        LIMITS["share"].check("label", "share", share)
        if stop is not None and not isinstance(stop, StoppingCriterion):
            expected, remedy = "a criterion of skal.stopping, or None", "Pass for example stop=Budget(500)."
            raise InvalidTypeError.for_parameter("label", "stop", expected, stop, remedy)
        LIMITS["max_error"].check("label", "max_error", max_error)
        self.source, self.model, self.folder, self.annotator = source, model, Path(folder), annotator
        self.max_error, self.team, self.form = max_error, team or Team([]), form or AnswerForm()
        kept = read_settings(self.folder)
        if kept and AnswerForm.of(kept).task != self.form.task:
            expected, remedy = f"{AnswerForm.of(kept).task!r}, as in {self.folder}", "Choose another folder."
            raise InvalidParameterError.for_parameter("label", "task", expected, self.form.task, remedy)
        if self.team and self.form.task != CLASSIFICATION:
            remedy = "Answers of several people are compared as classes. Label alone, or name classes."
            raise InvalidParameterError.for_parameter("label", "team", "left out", self.team.people, remedy)
        given = labels or {}
        self.classes = self._name_classes(classes, kept, given)
        given = {key: self.form.parse(label, self.classes) for key, label in given.items()}
        estimator = self._estimator()
        is_named = strategy is not None and not (isinstance(strategy, str) and strategy == "auto")
        candidates = max(_CANDIDATES, 2 * _AHEAD * query_size)
        recommended: Any = Recommended(subset=candidates) if len(source) > candidates else "auto"
        rounds: dict[str, Any] = {
            "initial": recommended,
            "n_initial": _AHEAD * query_size,
            "query_size": _AHEAD * query_size,
            "n_rounds": None,
            "reinitialize": True,
            "checkpoint": self.folder,
            "random_state": 0,
        }
        if self.form.task != CLASSIFICATION:
            self.model = replace(model, words=model.words.replace("linear classifier", "linear model"))
        if self.form.task == CLASSIFICATION:
            rounds |= self._measure_accuracy(estimator, stop, share)
        else:
            rounds |= {"stop": stop}
        if self.form.task != REGRESSION:
            rounds |= {"classes": self.classes}
        kind = ActiveLearningRegressor if self.form.task == REGRESSION else ActiveLearningClassifier
        loop = kind(estimator, strategy if is_named else recommended, **rounds)
        y = [given.get(key) for key in source.ids] if given else None
        self.rounds = BackgroundRounds(loop.start(model.X, y, ids=source.ids, target=model.target))
        place = {"kind": source.kind, "source": source_name, "text": None, "columns": None, **source.chosen}
        self._settings = place | {"classes": self.classes} | self.form.settings()
        if target_name is not None:
            self._settings["target"] = target_name
        try:
            write_settings(self.folder, kept | self._settings)
        except CheckpointError:  # a kept error would keep this project alive
            self.rounds.close()
            raise
        self._lock = self.rounds.lock
        self._leases = Leases()
        # of each tab: what it did at once, as ids and what was before
        self._undo: dict[str, list[list[tuple[str, dict[str, Any] | None]]]] = {}
        self._pace = Pace(line["time"] for line in self.rounds.known.values() if line["label"] is not None)
        self._copies: dict[int, list[int]] = {}
        self._agreement: tuple[int, dict[str, Any]] = (-1, {})
        self.team.resume(self.rounds.journal)
        self._origin: dict[str, str] = {}
        self._order = np.random.default_rng(0).permutation(len(source))
        self._first = 0  # all samples before this place of the order have been answered
        self._reread_unreadable()
        self._trained: ActiveLearningClassifier | None = None  # on all labels, when the project has ended
        self.worker = Worker(self.rounds, model, self.folder, query_size, self.decline_unreadable, self._report)
        self.worker.on_start, self.worker.on_doubts = self._find_copies, self._take_doubts
        self.ending = Ending(self.rounds, self.worker)

    def _name_classes(self, classes: Sequence[str], kept: dict[str, Any], given: dict[str, Any]) -> list[str]:
        journal = Journal(self.folder).read()
        self.form.check_journal(journal)
        if self.form.task == REGRESSION:
            return []
        before = kept.get("classes", [])
        if self.form.task != CLASSIFICATION:  # a row of the journal has a number for each of them
            if before and classes and set(check_classes(classes)) != set(before):
                remedy = "Leave them out, or begin another project with all of them."
                raise InvalidParameterError.for_parameter(
                    "label", "classes", f"those of the folder, {before}", classes, remedy
                )
            return check_classes(before or classes, strip=not before)
        # a class that is in the journal never vanishes
        named = [*before, *check_classes(classes), *journal.classes, *sorted(set(given.values()))]
        return check_classes(dict.fromkeys(named), strip=False)

    def _estimator(self) -> Any:
        return self.form.suit(self.model.make(max(1, len(self.classes))))

    def _measure_accuracy(self, estimator: Any, stop: StoppingCriterion | None, share: float) -> dict[str, Any]:
        """What measures the accuracy of classes, and says when to stop."""
        criterion = StablePredictions() if stop is None else stop
        own = next((part for part in criterion.parts() if isinstance(part, Certified)), None)
        if own is not None:
            self.max_error = own.max_error
        elif hasattr(estimator, "predict_proba"):  # how many are left is for people to judge
            criterion = criterion | Certified(self.max_error, n_left=len(self.source))
        stop = criterion | HoldOut(share) if share else criterion
        return {"stop": stop, "hold_out": "audit" if share else "random"}

    def start(self) -> Project:
        """Begin to train in the background."""
        self.worker.start()
        return self

    def next(
        self, client: str, n: int = 5, *, person: str | None = None, shown: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """The next samples for a tab: the query's, and while there are none, others at random.

        In a team, samples that wait for this person's second opinion come before. ``shown`` are the samples that the
        tab shows, or showed before it was loaded again: they stay its own, and come first.
        """
        with self._lock:
            asked = self.rounds.questions()
            source = self.rounds.session.state.source
            unreadable, among = set(self.source.unreadable()), set(asked)
            questions = self.ending.questions()
            order: Iterator[int] = iter(questions or ())
            if questions is None:
                order = chain(self._seconds(person), asked, self._others(among))
            stay = [(self.rounds.position(key), self._is_open(key, person)) for key in shown]
            kept = [i for i, is_open in stay if i is not None and is_open and (questions is None or i in questions)]
            order = chain(kept, order)
            order = self._one_of_each(position for position in order if position not in unreadable)
            taken = self._leases.take(client, order, n)
            if questions is not None and not self.rounds.auditing:
                source = "left"  # to people, by the certificate
            other = "random" if questions is None else source
            self._origin |= {self.source.ids[i]: source if i in among else other for i in taken}
            return [self._question(position) for position in taken]

    def answer(
        self,
        keys: str | Sequence[str],
        label: Any,
        *,
        client: str = "",
        declined: bool = False,
        person: str | None = None,
    ) -> None:
        """Write an answer down: a label, "cannot say" (declined), or neither. On the disk when this returns.

        It holds for copies of the samples, too. Several samples are answered, and undone, at once.
        """
        with self._lock:
            label = None if label is None else self.form.read(label, self.classes)
            keys = self._with_copies([keys] if isinstance(keys, str) else keys, person)
            before = [(key, self._before(key, person)) for key in keys]
            self._write(keys, label, declined, person)
            self._undo.setdefault(client, []).append(before)
            del self._undo[client][:-1000]
            for key in keys:
                self._leases.release(client, self._place(key))
            if label is not None:
                self._pace.note(len(keys))
        self.worker.note_change(len(keys))

    def decide(self, key: str, label: str | None, *, declined: bool = False, person: str | None = None) -> None:
        """Decide on a sample that people have labelled differently."""
        with self._lock:
            self.check_decides(person)
            label = None if label is None else self.form.read(label, self.classes)
            self.rounds.record([(key, label)], declined=declined, source="decided", annotator=person)
        self.worker.note_change()

    def check_decides(self, person: str | None) -> None:
        """Refuse what is for one of the team alone."""
        if self.team and person != self.team.decider:
            raise InvalidParameterError(
                f"This is for {self.team.decider} to decide. Got {person}. Ask {self.team.decider}."
            )

    def undo(self, client: str = "", *, person: str | None = None) -> dict[str, Any] | None:
        """Take back what a tab has done last, and give its first sample; None if there is nothing."""
        with self._lock:
            stack = self._undo.get(client, [])
            if not stack:
                return None
            states: dict[str, tuple[Any, bool, list[str]]] = {}
            for key, before in stack[-1]:
                label = None if before is None else before["label"]
                declined = before is not None and label is None
                states.setdefault(format_json([label, declined]), (label, declined, []))[2].append(key)
            for label, declined, keys in states.values():
                self._write(keys, label, declined, person, source="undone")
            done = stack.pop()  # not before it is written
            self._leases.keep(client, (self._place(key) for key, before in done if before is None))  # it is shown again
            self.worker.note_change(len(done))
            return self._question(self._place(done[0][0])) | {"undone": [key for key, _ in done]}

    def add_class(self, name: str) -> list[str]:
        """Let there be one more class; gives all."""
        with self._lock:
            if self.form.task != CLASSIFICATION:
                expected, remedy = "those that the project began with", "Begin another one with all of them."
                raise InvalidParameterError.for_parameter("label", "classes", expected, name, remedy)
            classes = check_classes([*self.classes, name.strip()], strip=False)
            self.rounds.add_classes(classes, self.model.make(len(classes)), self.annotator)
            self.classes = classes
            self._settings["classes"] = classes
            with suppress(CheckpointError):  # the class is in the journal in any case
                write_settings(self.folder, read_settings(self.folder) | self._settings)
            return classes

    def gallery(
        self,
        *,
        label: str | None = None,
        order: str = "new",
        cell: Sequence[str] | None = None,
        offset: int = 0,
        limit: int = 60,
        person: str | None = None,
    ) -> dict[str, Any]:
        """What has been labelled.

        Parameters
        ----------
        label : str or None
            Only samples with this label; "" for those without one.
        order : {"new", "doubtful", "disputed"}
            The last first; labels first that models doubt which were trained without them; or only samples on which
            people differ.
        cell : [label, predicted] or None
            Only held-out samples with this label that the model takes for that.
        offset, limit : int
        person : str or None
            In a team everybody sees their own answers, and the one who decides sees all.
        """
        with self._lock:
            lines = [line for line in self._lines(person) if self.rounds.position(line["id"]) is not None]
            if order == "disputed":
                wanted_keys = set(self.rounds.journal.disputes())
                lines = [line for line in lines if line["id"] in wanted_keys]
            if cell is not None:
                behind = set(self._confusion().get((cell[0], cell[1]), ()))
                lines = [line for line in lines if self.rounds.position(line["id"]) in behind]
            wanted = [line for line in lines if label is None or label in self._names_of(line["label"])]
            items = [self._answer(line, person) for line in wanted[::-1]]
        if order == "doubtful":
            items.sort(key=lambda item: 2.0 if item["doubt"] is None else item["doubt"]["probability"])
        return {"total": len(items), "items": items[offset : offset + limit]}

    def status(self, person: str | None = None) -> dict[str, Any]:
        """Everything that the page shows beside the samples."""
        with self._lock:
            labels = [line["label"] for line in self.rounds.known.values() if line["label"] is not None]
            numbers = self.form.task == REGRESSION
            state = self.rounds.session.state
            history = state.history
            unreadable = {self.source.ids[i]: why for i, why in self.source.unreadable().items()}
            declined = {line["id"] for line in self.rounds.known.values() if line["label"] is None}
            counts = Counter([] if numbers else [name for label in labels for name in self._names_of(label)])
            return {
                "kind": self.source.kind,
                "samples": len(self.source),
                "labelled": len(labels),
                "declined": len(declined - set(unreadable)),
                "unreadable": sorted(unreadable),
                "classes": [{"name": name, "count": counts.get(name, 0)} for name in self.classes],
                "form": self.form.settings(),
                "numbers": say_numbers(labels, self.form.unit) if numbers else None,
                "per_minute": self._pace.per_minute(),
                "time_left": self._say_time_left(len(labels), len(declined)),
                "doubtful": sum(self._doubt_of(position) is not None for position in self._wrong),
                "confusion": self._describe_confusion(),
                "team": self._describe_team(person),
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
        item = self._describe_sample(position)
        if position in self._copies:
            item["copies"] = len(self._copies[position])
        if self.rounds.auditing or position in set(self.rounds.session.state.audit):
            return item
        guesses = self.worker.guesses.get(position)
        return item | {"suggestion": self._suggestion(position), "guesses": guesses}

    def _suggestion(self, position: int) -> dict[str, Any] | None:
        """What the model says of a sample."""
        said = self.worker.predictions.get(position)
        if said is None:
            return None
        label = self.form.show(said["label"], self.classes)
        return said | {"label": label, "words": self.form.say(said["label"], self.classes)}

    def _answer(self, line: dict[str, Any], person: str | None) -> dict[str, Any]:
        """A sample of the gallery."""
        key, label = line["id"], line["label"]
        position = self._place(key)
        item = self._describe_sample(position) | {
            "label": self.form.show(label, self.classes),
            "words": None if label is None else self.form.say(label, self.classes),
            "unreadable": line.get("annotator") == UNREADABLE,
            "predicted": self._suggestion(position),
            "doubt": self._doubt_of(position),
            "time": line["time"],
        }
        if self.team and person == self.team.decider:
            said = self.rounds.journal.answers.get(key, {})
            item["answers"] = [[who, event["label"]] for who, event in said.items()]
        return item

    def _names_of(self, label: Any) -> list[Any]:
        """The classes of a label, "" for none."""
        shown = self.form.show(label, self.classes)
        return [""] if shown is None else shown if isinstance(shown, list) else [shown]

    def _lines(self, person: str | None) -> list[dict[str, Any]]:
        """Events that the gallery shows to somebody."""
        if not self.team or person == self.team.decider:
            return list(self.rounds.known.values())
        answers = self.rounds.journal.answers.values()
        return [said[person] for said in answers if person in said]

    def _before(self, key: str, person: str | None) -> dict[str, Any] | None:
        """What holds for a sample, or what this one of several people has said."""
        if self.team:
            return self.rounds.journal.answers.get(key, {}).get(person)
        return self.rounds.known.get(key)

    def _write(
        self, keys: Sequence[str], label: Any, declined: bool, person: str | None, source: str | None = None
    ) -> None:
        source = self._origin.get(keys[0], "added") if source is None else source
        who = person if self.team else self.annotator
        pairs = [(key, label) for key in keys]
        self.rounds.record(pairs, declined=declined, source=source, annotator=who, several=bool(self.team))
        for key in keys if self.team else ():
            answers = self.rounds.journal.answers.get(key, {})
            self.team.note(key, {name: event["label"] for name, event in answers.items()})
        self._first = 0 if label is None and not declined else self._first

    def _place(self, key: str) -> int:
        position = self.rounds.position(key)
        assert position is not None
        return position

    def _is_open(self, key: Any, person: str | None) -> bool:
        """Whether somebody may still be asked for a sample."""
        if key not in self.rounds.known:
            return True
        said = self.rounds.journal.answers.get(key, {})
        return bool(self.team) and len(said) == 1 and person not in said and key not in self.rounds.journal.decided

    def _seconds(self, person: str | None) -> Iterator[int]:
        """Samples that wait for this person's second opinion."""
        if self.team:
            for key in list(self.team.seconds(self.rounds.journal.decided)):
                position = self.rounds.position(key)
                if position is not None and self._is_open(key, person):
                    yield position

    def _take_doubts(self) -> None:
        """Keep what is doubtful for ``skal export``, and let a team look again at labels with one answer."""
        with self._lock:
            doubts = {self.source.ids[i]: doubt for i, doubt in self.worker.doubts.items()}
            if self.team:
                answers = self.rounds.journal.answers
                wrong = [key for key, doubt in doubts.items() if doubt["wrong"] and len(answers.get(key, {})) == 1]
                self.team.doubt(sorted(wrong, key=lambda key: doubts[key]["probability"]))
        with suppress(CheckpointError):  # it is computed again
            write_doubts(self.folder, doubts)

    @property
    def _wrong(self) -> list[int]:
        return [position for position, doubt in self.worker.doubts.items() if doubt["wrong"]]

    def _doubt_of(self, position: int) -> dict[str, Any] | None:
        """What is doubtful about a label, None if it has changed since, or nothing is known."""
        doubt = self.worker.doubts.get(position)
        held = self.rounds.session.state.answers.get(position)
        return doubt if doubt is not None and held is not None and doubt["label"] == str(held) else None

    def _find_copies(self) -> None:
        """Look for samples that are the same, byte for byte: they are asked for once."""
        found = {position: group for group in self.source.copies() for position in group}
        with self._lock:
            self._copies = found

    def _one_of_each(self, order: Iterable[int]) -> Iterator[int]:
        """One of several copies, the first that comes."""
        seen: set[int] = set()
        for position in order:
            group = self._copies.get(position, [position])[0]
            if group not in seen:
                seen.add(group)
                yield position

    def _with_copies(self, keys: Sequence[str], person: str | None) -> list[str]:
        """Ids together with those of copies about which the same was said before."""
        found: dict[str, None] = {}
        for key in keys:
            position = self.rounds.position(key)
            group = [] if position is None else self._copies.get(position, [])
            before = self._before(key, person)
            same = [self.source.ids[i] for i in group if _same(self._before(self.source.ids[i], person), before)]
            found |= dict.fromkeys([key, *same])
        return list(found)

    def _confusion(self) -> dict[tuple[str, str], list[int]]:
        """Held-out samples by their label and by what the model takes them for."""
        state, said = self.rounds.session.state, self.worker.predictions
        cells: dict[tuple[str, str], list[int]] = {}
        for position in state.audit:
            label = state.answers.get(position)
            if label is not None and position in said:
                cells.setdefault((str(label), said[position]["label"]), []).append(position)
        return cells

    def _describe_confusion(self) -> list[dict[str, Any]]:
        """The cells that are not empty; none from too few labels."""
        cells = self._confusion()
        if sum(map(len, cells.values())) < ENOUGH:
            return []
        return [{"label": a, "predicted": b, "n": len(found)} for (a, b), found in cells.items()]

    def _describe_team(self, person: str | None) -> dict[str, Any] | None:
        if not self.team:
            return None
        journal = self.rounds.journal
        if self._agreement[0] != journal.n_events:
            found = describe_agreement(journal, self.team.people) | {"disputes": len(journal.disputes())}
            self._agreement = journal.n_events, found
        return self._agreement[1] | {"person": person, "decides": person == self.team.decider}

    def _say_time_left(self, n_labelled: int, n_declined: int) -> str:
        return say_time_left(len(self.source) - n_labelled - n_declined, self._pace.per_minute())

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


def _same(first: dict[str, Any] | None, second: dict[str, Any] | None) -> bool:
    """Whether two samples are open, declined, or have the same label."""
    return (first is None) == (second is None) and (first or {}).get("label") == (second or {}).get("label")


def _advice(reason: str | None) -> str | None:
    if reason is None:
        return None
    if reason == "pool exhausted":
        return "Everything is labelled."
    return f"You may stop: {reason.removeprefix('stop: ')}."
