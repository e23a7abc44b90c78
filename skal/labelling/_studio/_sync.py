# SPDX-License-Identifier: BSD-3-Clause
"""The live loop: annotations in Label Studio become labels here, and what to label next becomes its order of tasks.

Label Studio is the truth about annotations, the journal is the truth about labels on our side. Every look compares the
two and writes what differs, so that nothing depends on what was seen before: a process that is killed at any moment
does the same again. What a task's annotations come to, :func:`skal.labelling._studio._annotations.decide` says:

======================  =======================
annotations             the journal gets
======================  =======================
a label                 a label, or another one
skipped by all          declined
none, or a tie          open, if it was not
several choices         open, and named
of a deleted task       open
======================  =======================

A picture that cannot be had is no sample until it comes; what people say of it is kept in ``annotations.jsonl``.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skal.exceptions import MissingSamplesWarning, SampleError
from skal.labelling._ending import Labelled
from skal.labelling._models import choose_model
from skal.labelling._project import UNREADABLE, Project
from skal.labelling._studio._annotations import Decision, decide
from skal.labelling._studio._client import StudioError
from skal.labelling._studio._record import AnnotationRecord
from skal.labelling._studio._studio_project import SCORE, Next, Snapshot, StudioProject
from skal.loop._journal import make_event


def look_pause(every: float, seconds: float) -> float:
    """Seconds until the next look: longer for a large project, but a slow moment of the server stops nobody.

    Examples
    --------
    >>> look_pause(5, 0.1), look_pause(5, 10), look_pause(5, 600), look_pause(300, 600)
    (5, 20, 60, 300)
    """
    return max(every, min(2 * seconds, 60))


class StudioSync:
    """Keeps a project of Label Studio and a folder of ours in step.

    Parameters
    ----------
    studio : StudioProject
    folder : path
    model, backbone : see :func:`skal.label`
    strategy, query_size, share : see :func:`skal.label`
    size : int, default=32
    predictions : bool, default=False
        Whether to write what the model says of the tasks that are asked for; never of held-out ones.
    say : callable, default=print
        Told what people should know.

    Attributes
    ----------
    project : Project
    snapshot : Snapshot
        The project as it was at the last look.
    disagreements : dict from key to str
        Tasks on which as many say something else.
    unclear : dict from key to str
        Tasks with several choices where one is wanted.
    missing : dict from key to str
        Tasks whose pictures could not be had, and why.
    wake : threading.Event
        Set it to look at once.
    """

    def __init__(
        self,
        studio: StudioProject,
        folder: Any,
        *,
        model: Any = None,
        backbone: str | None = None,
        strategy: Any = "auto",
        query_size: int = 20,
        share: float = 0.2,
        size: int = 32,
        predictions: bool = False,
        say: Callable[[str], Any] = print,
    ) -> None:
        self.studio, self.folder, self._size, self._say = studio, Path(folder), size, say
        self._how = {"model": model, "backbone": backbone}
        self._options = {"strategy": strategy, "query_size": query_size, "share": share}
        self._predictions = predictions
        self.wake, self._stopping, self._seconds = threading.Event(), False, 0.0
        self._written: tuple[str, dict[str, Next]] = ("", {})  # what to label next, as we wrote it last
        self.disagreements: dict[str, str] = {}
        self.unclear: dict[str, str] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        self.snapshot = studio.read()
        self.missing = studio.fetch_pictures(self.snapshot, self.folder, {})
        self.project = self._open(self.snapshot)
        self.record = AnnotationRecord(self.folder)  # while we hold the folder's lock

    def _open(self, snapshot: Snapshot) -> Project:
        source = self.studio.open_source(snapshot, self.folder, self._size, self.missing)
        source.check_readable()
        model = choose_model(source, cache=self.folder, **self._how)
        classes = list(snapshot.control.classes)
        place = str(self.folder.resolve() / "pictures") if source.kind == "image" else None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", MissingSamplesWarning)  # of deleted tasks, whose labels the next look opens
            project = Project(source, classes, model, self.folder, source_name=place, **self._options)
        return project.start()

    def look(self) -> dict[str, int]:
        """Compare once, and write what differs; counts of what was done."""
        start = time.monotonic()
        snapshot = self.studio.read()
        self._seconds = time.monotonic() - start
        missing, changed = self.missing, snapshot.shape != self.snapshot.shape
        if changed or missing:
            self.missing = self.studio.fetch_pictures(snapshot, self.folder, missing)
        if changed or len(self.missing) < len(missing):  # tasks came or went, or the label config changed, or pictures
            before = len(self.snapshot.tasks)
            self.project.close()
            self.project = self._open(snapshot)
            self._say(f"The project has changed: {len(snapshot.tasks)} tasks, {before} before.")
        self.snapshot = snapshot
        answers = {key: snapshot.answers(key) for key in snapshot.tasks}
        n_lines = self.record.update(answer for each in answers.values() for answer in each)
        n_changed = self._reconcile({key: decide(each) for key, each in answers.items()})
        return {"annotations": n_lines, "labels": n_changed, "scores": self._publish()}

    def _reconcile(self, decisions: dict[str, Decision]) -> int:
        """Let the journal say what the annotations say; how many samples changed."""
        rounds, classes = self.project.rounds, set(self.project.classes)
        asked, changed = {self.project.source.ids[i] for i in rounds.questions()}, 0
        chosen_by = rounds.session.state.source
        self.disagreements = {key: each.disagreement for key, each in decisions.items() if each.disagreement}
        self.unclear = {key: each.unclear for key, each in decisions.items() if each.unclear}
        strangers = {each.label for each in decisions.values() if each.label is not None} - classes
        if strangers:  # the label config had them once
            for name in sorted(strangers):
                self.project.add_class(name)
        for key, wanted in decisions.items():
            if rounds.position(key) is None:  # its picture has not come
                continue
            line = rounds.known.get(key)
            if line is not None and line.get("annotator") == UNREADABLE and wanted.label is None:
                continue
            has = None if line is None else line["label"]
            if wanted.label is not None and has != wanted.label:
                source = chosen_by if key in asked else "added"
                rounds.record([(key, wanted.label)], source=source or "added", annotator=wanted.author)
            elif wanted.label is None and wanted.declined and (line is None or has is not None):
                rounds.record([(key, None)], declined=True, annotator=wanted.author)
            elif wanted.label is None and not wanted.declined and line is not None:
                rounds.record([(key, None)], declined=False)
            else:
                continue
            changed += 1
            self.project.worker.note_change()
        return changed + self._drop_tasks()

    def _drop_tasks(self) -> int:
        """Take back the labels of tasks that are gone; how many."""
        rounds = self.project.rounds
        with rounds.lock:
            gone = [key for key in rounds.known if key not in self.snapshot.tasks]
            journal, round = rounds.session.engine.journal, rounds.session.state.round
            journal.append(make_event("open", key, round=round, source="undone") for key in gone)
        return len(gone)

    def _publish(self) -> int:
        """Write what to label next into the tasks, the first with the highest score; how many were changed."""
        project, ids, mine = self.project, self.project.source.ids, self.snapshot.tasks
        with project.rounds.lock:
            asked, version = list(project.rounds.session.state.asked), self.version
            heldout, known = set(project.rounds.session.state.audit), set(project.rounds.known)
        # a place is among all that were asked for: an answer changes no other task's
        places = {ids[position]: place / len(asked) for place, position in enumerate(asked)}
        places = {key: place for key, place in places.items() if key in mine and key not in known}
        scores = {key: round(1 - place, 6) for key, place in places.items()}
        # the score of a task that has its answer says nothing to anybody: it stays, and saves a request
        answered = {key: mine[key]["data"].get(SCORE) for key in mine if key in known}
        scores |= {key: score for key, score in answered.items() if score is not None}
        classes = self.snapshot.control.classes  # Label Studio takes no others
        said = project.worker.predictions.items()
        guesses = {ids[i]: each for i, each in said if i not in heldout and each["label"] in classes}
        next_ = {key: Next(place, guesses.get(key) if self._predictions else None) for key, place in places.items()}
        is_there = self.snapshot.is_handed_out(version) and all(mine[key]["predictions"] for key in next_)
        if next_ and not (is_there and self._written[0] == version and next_.items() <= self._written[1].items()):
            self.studio.write_next(self.snapshot, next_, version)
            self._written = version, next_
        written = self.studio.write_scores(self.snapshot, scores)
        self.studio.order_view()
        return written

    @property
    def version(self) -> str:
        """Of the model: how many labels it has seen."""
        history = self.project.rounds.session.state.history
        return f"skal-{history[-1]['n_labelled'] if history else 0}"

    def run(self, every: float = 5.0) -> None:
        """Look again and again, until ``stop``; a server that is away is waited for."""
        last, pause = "", every
        while not self._stopping:
            try:
                done = self.look()
                pause, words = every, self.describe()
                if done["labels"] or words != last:
                    self._say(words)
                last = words
            except StudioError as error:
                if error.status in (401, 403, 404):
                    raise
                pause = min(2 * pause, 60.0)
                self._say(f"{error} The next attempt is in {pause:.0f} seconds; nothing is lost.")
            except SampleError as error:  # of the label config or the tasks, which somebody may put right
                pause = min(2 * pause, 60.0)
                self._say(f"{error} The next attempt is in {pause:.0f} seconds; nothing is lost.")
            self.wake.wait(look_pause(pause, self._seconds))
            self.wake.clear()

    def stop(self) -> None:
        """Let ``run`` return."""
        self._stopping = True
        self.wake.set()

    def describe(self) -> str:
        """How far it is, in a line."""
        status = self.project.status()
        words = f"{status['labelled']} of {status['samples']} labelled. {status['audit']['words']}"
        for tasks, what in (
            (self.disagreements, "Annotators disagree on {} tasks, which count as open"),
            (self.unclear, "Several choices are where one is wanted in {} tasks, which count as open"),
            (self.missing, "The pictures of {} tasks did not come, which are left out until they do"),
        ):
            if tasks:
                named = "; ".join(f"{key}: {said}" for key, said in sorted(tasks.items())[:5])
                words += f" {what.format(len(tasks))} ({named})."
        if not self.snapshot.follows_us:
            words += (
                f" “Label All Tasks” goes by the predictions of {self.snapshot.version}, which the project's settings "
                "name: use “Label Tasks As Displayed” in our tab, or choose no predictions there."
            )
        return words + (f" {status['error']}" if status["error"] else "")

    def close(self) -> Labelled:
        """Save, let others write to the folder, and give the result."""
        self.project.close()
        return self.project.result()
