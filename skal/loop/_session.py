"""The loop, step by step: ask for labels, be told, train."""

from __future__ import annotations

import json
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import check_scoring

from skal._core.containers import take_rows
from skal.exceptions import (
    CheckpointError,
    InvalidParameterError,
    InvalidTypeError,
    NoLabelledDataError,
    TrainingFailedWarning,
    shorten,
)
from skal.loop._checkpoint import RunCheckpoint
from skal.loop._config import LoopConfig
from skal.loop._display import ProgressReporter
from skal.loop._identity import plain_id
from skal.loop._journal import entry
from skal.loop._labels import Predictor, common_dtype, read_labels
from skal.loop._selection import Selector
from skal.loop._state import LoopState
from skal.loop._trainer import Trainer
from skal.loop._view import as_html, checked_figure_request, draw_samples, summary
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


class LabellingSession:
    """A loop that waits for its labels: ``ask`` which samples, ``tell`` what they are.

    Made by :meth:`ActiveLearningClassifier.start`. The classifier is fitted on the labels so far whenever a round is
    over. With a ``checkpoint`` every label is in ``labels.jsonl`` on the disk before ``tell`` returns, under the id of
    its sample, and the same call of ``start`` goes on after the end of the process.

    Parameters
    ----------
    classifier : ActiveLearningClassifier
    config : LoopConfig
        The classifier's parameters and the data. Changing them later does not change the session.
    publish : callable
        Called with the :class:`LoopResults` whenever they change.

    Attributes
    ----------
    classifier : ActiveLearningClassifier
    state : LoopState
        The labels, the open questions, the history.
    ids : (n,) array
        ``ids[position]`` is the id of a sample.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearningClassifier
    >>> X = np.linspace(0, 1, 50).reshape(-1, 1)
    >>> clf = ActiveLearningClassifier(LogisticRegression(), n_initial=6, query_size=2, n_rounds=2, random_state=0)
    >>> session = clf.start(X)  # a LabellingSession
    >>> for indices in session:
    ...     session = session.tell(["high" if X[i, 0] > 0.6 else "low" for i in indices])
    >>> len(clf.queried_), clf.predict([[0.1], [0.9]]).tolist()
    (10, ['low', 'high'])
    """

    def __init__(
        self, classifier: ActiveLearningClassifier, config: LoopConfig, publish: Callable[[LoopResults], None]
    ) -> None:
        self.classifier = classifier
        self.X = config.X
        self._config = config
        self._publish = publish
        self._trainer = Trainer(config)
        self._selector = Selector(config)
        self._closed = False
        n_planned = config.planned_labels()
        self._store = RunCheckpoint(config, classifier.get_params())
        if self._store.lock is not None:
            weakref.finalize(self, self._store.lock.release)
        seed = int(make_generator(config.owner, config.random_state).integers(2**63))
        try:
            restored = self._store.restore(self._trainer, self._selector.strategy, seed)
            # without initial labels there is no round 0
            self.state = restored or LoopState(seed=seed, round=int(config.initial_size == 0))
            if restored:
                self._check_same_labels()
            else:
                self._trainer.start(self.state)
            if config.given is not None:
                self._take_given_labels()
        except BaseException:  # whoever keeps the error keeps this session alive
            self._release()
            raise
        self._reporter = ProgressReporter(
            verbose=config.verbose, progress=config.progress, total=n_planned, initial=len(self.state.labelled)
        )
        publish(self.results)

    @property
    def ids(self) -> np.ndarray:
        """``ids[position]`` is the id of a sample."""
        return self._store.ids.array()

    @property
    def done(self) -> bool:
        """Whether nothing more will be asked."""
        return self.state.stop_reason is not None

    @property
    def results(self) -> LoopResults:
        """What has come out so far."""
        return LoopResults(
            queried=np.array(self.state.labelled, dtype=np.int64),
            history=[dict(row) for row in self.state.history],
            stop_reason=self.state.stop_reason,
            # the recommended strategy says which one it chose
            query_strategy=getattr(self._selector.strategy, "strategy_", self._selector.strategy),
            initial=self.state.start,
            predictor=self._trainer.predictor,
            labelled=self._trainer.labelled,
        )

    def __iter__(self) -> Iterator[np.ndarray]:
        """The batches to label, one after the other; ``tell`` each before the next."""
        while len(indices := self.ask()):
            yield indices

    def __enter__(self) -> LabellingSession:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others write to the folder; this session can then only be looked at."""
        self._closed = True
        self._release()

    def ask(self) -> np.ndarray:
        """Positions in X of the samples to label, best first; empty when the loop is over.

        Asking again, before anything has been told, gives the same answer. If the estimator cannot be trained on the
        labels, a warning says why, and the samples are chosen with the last one that could be, or at random.
        """
        try:
            self._bring_up_to_date()
        except CheckpointError:  # of the folder, not of the training
            raise
        except Exception as error:
            warnings.warn(
                f"The training on {len(self.state.labelled)} labels failed ({type(error).__name__}: {error}). "
                "The labels are kept, and the next samples are chosen without it. "
                "Tell more labels, or start again with another estimator or batch_size.",
                TrainingFailedWarning,
                stacklevel=2,
            )
            self._give_up_training(error)
        return self._select()

    def tell(
        self, labels: Any, indices: Any = None, *, end_round: bool = True, annotator: str | None = None
    ) -> LabellingSession:
        """Give labels to the samples that were asked for.

        The labels are kept before anything is trained: if the training raises, ``ask`` goes on with them.

        Parameters
        ----------
        labels : array-like, or dict from position to label
            None, NaN, ``pandas.NA`` and masked entries decline: such a sample is not asked for again. So does −1 if the
            estimator learns from unlabelled data.
        indices : array-like of int, optional
            Which of the asked samples the labels belong to; by default all that are open, in the order of ``ask``.
        end_round : bool, default=True
            Train now. Samples without an answer go back to the pool, and may be asked for again. With False the labels
            are kept, and ``ask`` gives what is left of the batch.
        annotator : str, optional
            Who says so.

        Returns
        -------
        self
        """
        if isinstance(labels, Mapping):
            indices, labels = list(labels), list(labels.values())
        if isinstance(labels, (str, bytes)) or not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) == 0:
            expected = "a list or array with one label per sample, or a dict from position to label"
            remedy = "Put None where there is no label; an oracle must return its labels."
            raise InvalidTypeError.for_parameter("tell", "labels", expected, labels, remedy)
        unanswered = self.state.unanswered()
        positions = (unanswered if indices is None else np.asarray(indices).reshape(-1)).tolist()
        values, dtype = read_labels(labels, self._config.no_label)
        _check_answer(positions, values, unanswered.tolist())
        answers = [(int(index), value) for index, value in zip(positions, values, strict=True)]
        self._take(answers, dtype, self.state.source, annotator)
        if self.state.phase == "answer" and (end_round or len(self.state.unanswered()) == 0):
            self._close_round()
            self._train()
        else:
            self._save()
        return self

    def relabel(self, labels: Mapping[Any, Any], *, annotator: str | None = None) -> LabellingSession:
        """Correct labels.

        Parameters
        ----------
        labels : dict from id to label
            Of samples that have one. The estimator learns of it with the next training, at the latest in ``ask``.
        annotator : str, optional

        Returns
        -------
        self
        """
        labelled = {*self.state.labelled, *(index for index, value in self.state.told if value is not None)}
        positions = self._positions("relabel", labels)
        strange = [key for key, index in zip(labels, positions, strict=True) if index not in labelled]
        if strange:
            expected, remedy = "ids of labelled samples", "Use add for samples without a label."
            raise InvalidParameterError.for_parameter("relabel", "labels", expected, strange, remedy)
        return self._correct("relabel", positions, labels, None, annotator)

    def add(self, labels: Mapping[Any, Any], *, annotator: str | None = None) -> LabellingSession:
        """Give labels to samples that were not asked for.

        Parameters
        ----------
        labels : dict from id to label
            Of samples that have none. The estimator learns of it with the next training, at the latest in ``ask``.
        annotator : str, optional

        Returns
        -------
        self
        """
        labelled = {*self.state.labelled, *(index for index, value in self.state.told if value is not None)}
        positions = self._positions("add", labels)
        twice = [key for key, index in zip(labels, positions, strict=True) if index in labelled]
        if twice:
            expected, remedy = "ids of samples without a label", "Use relabel to change a label."
            raise InvalidParameterError.for_parameter("add", "labels", expected, twice, remedy)
        return self._correct("add", positions, labels, "added", annotator)

    def decline(self, ids: Iterable[Any], *, annotator: str | None = None) -> LabellingSession:
        """Never ask for these samples, and take their labels back if they have one; ``undecline`` undoes it."""
        positions = self._positions("decline", ids)
        self._take([(index, None) for index in positions], None, "declined", annotator)
        self._save()
        return self

    def undecline(self, ids: Iterable[Any], *, annotator: str | None = None) -> LabellingSession:
        """Let declined samples be asked for again."""
        ids = list(ids)
        declined = {*self.state.declined, *(index for index, value in self.state.told if value is None)}
        positions = self._positions("undecline", ids)
        strange = [key for key, index in zip(ids, positions, strict=True) if index not in declined]
        if strange:
            expected, remedy = "ids of declined samples", "There is nothing to undo for the others."
            raise InvalidParameterError.for_parameter("undecline", "ids", expected, strange, remedy)
        self._take([(index, None) for index in positions], None, "undeclined", annotator, declined=False)
        self._save()
        return self

    def labels(self) -> pd.DataFrame:
        """The labels that hold, in the order in which they came.

        Returns
        -------
        data frame with the columns ``id``, ``label``, ``round``, ``time`` (UTC), ``annotator`` and ``source``: how the
        sample was chosen ("initial", the strategy's name, "random", "added" or "given")
        """
        return self._store.journal.frame()

    def to_csv(self, path: Any) -> None:
        """Write ``labels()`` to a CSV file."""
        self.labels().to_csv(path, index=False)

    def to_json(self, path: Any) -> None:
        """Write ``labels()`` to a JSON file: a list of objects."""
        rows = [
            {name: None if pd.isna(value) else value for name, value in row.items()}
            for row in self.labels().astype(object).to_dict("records")
        ]
        Path(path).write_text(json.dumps(rows, indent=1, ensure_ascii=False), encoding="utf-8")

    def show(self, indices: Any = None) -> Any:
        """Draw the samples that are asked for, or others: images as such, text and numbers as a table.

        Parameters
        ----------
        indices : array-like of int, optional
            Positions; by default those that are open.

        Returns
        -------
        matplotlib figure
        """
        positions = self.state.unanswered() if indices is None else indices
        positions = checked_figure_request(positions, self._config.n_samples)
        return draw_samples(self.X, positions, [str(key) for key in self._store.ids.of(positions)])

    def __repr__(self) -> str:
        return f"LabellingSession({', '.join(f'{name}: {text}' for name, text in summary(self.state).items())})"

    def _repr_html_(self) -> str:
        return as_html(summary(self.state), "LabellingSession")

    def run(self, oracle: Callable[[np.ndarray, Any], Any]) -> ActiveLearningClassifier:
        """Ask the oracle until the loop is over.

        Parameters
        ----------
        oracle : callable
            ``oracle(indices, samples)`` gives what ``tell`` takes. If it raises, everything up to then is kept and the
            session can go on.

        Returns
        -------
        The fitted classifier.
        """
        if not callable(oracle):
            remedy = "Pass a function f(indices, samples) that returns labels; labels as an array are y."
            raise InvalidTypeError.for_parameter(self._config.owner, "oracle", "callable", oracle, remedy)
        try:
            while len(indices := self._next_batch()):
                self.tell(oracle(indices, take_rows(self.X, indices)))
                row = self.state.history[-1]
                if not row["indices"] and not row["declined"]:
                    raise NoLabelledDataError(
                        "The oracle must label or decline at least one of the samples it is asked for. Got no answer "
                        f"for {shorten(indices.tolist())} instead. Return None for those that it cannot label."
                    )
        finally:
            self._reporter.close()
            self._release()
        if self._trainer.predictor is None:
            self._raise_unfitted()
        return self.classifier

    def _next_batch(self) -> np.ndarray:
        """As ``ask``, but a training that fails raises."""
        self._bring_up_to_date()
        return self._select()

    def _bring_up_to_date(self) -> None:
        """Train where a training is due."""
        state = self.state
        if state.phase == "answer" and len(state.asked) and len(state.unanswered()) == 0:
            self._check_writable()
            self._close_round()
        if self.state.phase == "train":  # an earlier training failed or was killed
            self._check_writable()
            self._train()
            return
        due = self.state.stale or self._trainer.predictor is None
        if self.state.phase == "ask" and due and self.state.labels and self._trainer.can_fit(self.state):
            self._check_writable()
            self._trainer.fit(self.state)
            self._publish(self.results)
            self._save(trained=True)

    def _give_up_training(self, error: Exception) -> None:
        if self.state.phase == "train":
            self.state.notes = [*self.state.notes, f"training failed: {type(error).__name__}: {error}"]
            missing = dict.fromkeys(("train_score", "seconds_fit")) | {"seconds_query": self.state.seconds_query}
            self._end_round(self.state.describe_round() | missing, trained=False)
        self.state.stale = True

    def _select(self) -> np.ndarray:
        state = self.state
        while state.phase == "ask" and not self.done:
            self._check_writable()
            if self._config.next_batch_size(state, len(self._config.pool(state))) == 0:
                state.stop_reason = "budget" if len(self._config.pool(state)) else "pool exhausted"
                self._publish(self.results)
                break
            start = perf_counter()
            positions, metrics = self._selector.select(state, self._trainer)
            if len(positions) == 0:  # all of a given start has been labelled already
                state.round += 1
                continue
            state.open_round(positions, metrics, seconds=perf_counter() - start, source=self._source())
            self._save()
        return state.unanswered()

    def _source(self) -> str:
        """How this round's samples are chosen."""
        if self.state.round == 0:
            return "initial"
        strategy = self.results.query_strategy
        return "random" if self._trainer.estimator is None else getattr(strategy, "__name__", type(strategy).__name__)

    def _positions(self, owner: str, keys: Any) -> list[int]:
        if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
            expected = "a dict from id to label" if owner in ("relabel", "add") else "a list of ids"
            raise InvalidTypeError.for_parameter(owner, "ids", expected, keys, "See session.ids.")
        found = {plain_id(key): self._store.ids.position(key) for key in keys}
        unknown = [key for key, position in found.items() if position is None]
        if unknown:
            expected, remedy = "ids of samples in X", "session.ids has the id of every position."
            raise InvalidParameterError.for_parameter(owner, "ids", expected, unknown, remedy)
        return [position for position in found.values() if position is not None]

    def _correct(
        self, owner: str, positions: list[int], labels: Mapping[Any, Any], source: str | None, annotator: str | None
    ) -> LabellingSession:
        values, dtype = read_labels(list(labels.values()), self._config.no_label)
        missing = [key for key, value in zip(labels, values, strict=True) if value is None]
        if missing:
            expected, remedy = "a label for every id", "Use decline to take labels back."
            raise InvalidParameterError.for_parameter(owner, "labels", expected, f"none for {missing}", remedy)
        self._take(list(zip(positions, values, strict=True)), dtype, source, annotator)
        self._save()
        return self

    def _take(
        self,
        answers: list[tuple[int, Any]],
        dtype: str | None,
        source: str | None,
        annotator: str | None,
        declined: bool = True,
    ) -> None:
        """Check answers, write them down, and only then let the session know."""
        self._check_writable()
        state = replace(self.state, label_dtype=common_dtype(self.state.label_dtype, dtype))
        state = state.with_answers((index, label, declined and label is None) for index, label in answers)
        closed = state.with_answers_as_labels(0.0) if state.phase == "answer" else state
        if closed.labels:  # refuses what is not a class before anything is changed
            self._trainer.check_labels(closed)
        self._store.write(self._entries(answers, source, annotator, declined))
        if self.state.stop_reason != "callback" and state.history:
            state.stop_reason = self._config.stop_reason(state)
        self.state = state
        self._publish(self.results)

    def _entries(
        self, answers: list[tuple[int, Any]], source: str | None, annotator: str | None, declined: bool
    ) -> Iterator[dict[str, Any]]:
        positions = [index for index, _ in answers]
        keys, contents = self._store.ids.of(positions), self._store.ids.contents(positions)
        for key, content, (_, label) in zip(keys, contents, answers, strict=True):
            before = self._store.journal.known.get(key, {})
            yield entry(
                key,
                label,
                round=self.state.round,
                source=before.get("source") if source is None else source,
                annotator=annotator,
                previous=before.get("label"),
                declined=declined if label is None else None,
                content=content,
            )

    def _take_given_labels(self) -> None:
        """Labels from before the start: those that are new are the answers of a round of their own."""
        values, dtype = read_labels(self._config.given, self._config.no_given_label)
        if dtype is not None and np.dtype(dtype).kind == "f" and None in values:  # integers, but for the gaps
            values, dtype = [None if value is None else int(value) for value in values], "<i8"
        rows = [i for i, value in enumerate(values) if value is not None]
        keys, journal = self._store.ids.of(rows), self._store.journal
        other = [
            key
            for i, key in zip(rows, keys, strict=True)
            if key in journal.earlier and values[i] not in journal.earlier[key]
        ]
        if other:
            raise CheckpointError(
                f"The labels in y must be those of {journal.path}, where samples have one. Got others for "
                f"{shorten(other)}. Leave y out, and use relabel to change labels."
            )
        new = [(i, values[i]) for i, key in zip(rows, keys, strict=True) if key not in journal.earlier]
        if not new:
            return
        if self.state.phase == "ask" and not self.state.labelled and not self.state.history:
            self.state.round = 0
            self.state.open_round(np.array([i for i, _ in new]), None, 0.0, "given")
        self._take(new, dtype, "given", None)
        if self.state.source == "given" and self.state.phase == "answer":
            self._close_round()
        else:
            self._save()

    def _close_round(self) -> None:
        """This round's answers become labels."""
        held_out = 0.0 if self._config.target_score is None else self._config.validation_fraction
        self.state = self.state.with_answers_as_labels(held_out)
        self._publish(self.results)
        self._save()

    def _train(self) -> None:
        state = self.state
        start = perf_counter()
        told = any(value is not None for _, value in state.told)
        if (told or state.stale) and self._trainer.can_fit(state):
            self._trainer.fit(state)
        row = state.describe_round()
        seconds = {"seconds_fit": perf_counter() - start, "seconds_query": state.seconds_query}
        self._publish(self.results)  # it is the classifier that is scored
        self._end_round(row | self._scores() | seconds, trained=True)

    def _end_round(self, row: dict[str, Any], *, trained: bool) -> None:
        state, config = self.state, self._config
        state.end_round(row)
        self._publish(self.results)
        stopped = [bool(callback(self.classifier, row)) for callback in config.callbacks or ()]
        state.stop_reason = config.stop_reason(state) or ("callback" if any(stopped) else None)
        self._publish(self.results)
        self._save(trained=trained)
        self._reporter.report(row)
        if self.done:
            self._reporter.close()

    def _scores(self) -> dict[str, float | None]:
        """Scores on the labels trained on, on those held out, and on the evaluation set; None where there is none."""

        def labelled(*, heldout: bool) -> tuple[Any, Any]:
            rows, labels = self.state.labelled_set(heldout=heldout)
            return take_rows(self.X, rows), labels

        sets = {"train_score": labelled(heldout=False)}
        if self._config.target_score is not None:
            sets["valid_score"] = labelled(heldout=True)
        if self._config.eval_set is not None:
            X, y = self._config.eval_set
            sets["eval_score"] = X, y.cpu().numpy() if isinstance(y, torch.Tensor) else y
        scores: dict[str, float | None] = dict.fromkeys(sets)
        if self._trainer.predictor is not None:
            scorer = check_scoring(self.classifier, scoring=self._config.scoring)
            with self.state.seeded("score"):
                scores |= {name: float(scorer(self.classifier, X, y)) for name, (X, y) in sets.items() if len(y)}
        return scores

    def _save(self, *, trained: bool = False) -> None:
        self._store.save(self.state, self._trainer, self._selector.strategy, trained=trained)

    def _release(self) -> None:
        if self._store.lock is not None:
            self._store.lock.release()

    def _check_writable(self) -> None:
        if self._config.readonly or self._closed:
            why = "opened with readonly=True" if self._config.readonly else "closed"
            raise CheckpointError(
                f"A session that writes must be open for writing. Got one that was {why}. Call start(X) for another."
            )

    def _check_same_labels(self) -> None:
        reader, rows = self._config.reader, np.array(self.state.labelled, dtype=np.int64)
        if len(rows) and reader is not None and read_labels(reader(rows, None))[0] != self.state.labels:
            raise CheckpointError(
                f"The checkpoint in {self._config.checkpoint} must be of the same labels. Got a y that differs at "
                "samples which it has labelled. Pass the y that the run was started with, or another folder."
            )

    def _raise_unfitted(self) -> None:
        seen = np.unique(self.state.label_array()).tolist()
        if not seen:
            raise NoLabelledDataError(
                f"{self._config.owner} needs at least one label. Got none: every sample it asked for was declined. "
                "Check y, or the oracle."
            )
        raise InvalidParameterError(
            f"The labels that {self._config.owner} sees must be of at least two classes. Got one class only "
            f"({seen[0]!r}, {len(self.state.labelled)} labels) instead. Raise n_initial or the number of rounds, "
            "or use initial='stratified'."
        )


def _check_answer(positions: list[Any], values: list[Any], unanswered: list[int]) -> None:
    if not unanswered and values:
        raise InvalidParameterError(
            f"The samples told must be among those asked for. Got {len(values)} labels while nothing is asked for. "
            "Call ask() first."
        )
    if len(positions) != len(values):
        raise InvalidParameterError(
            f"The labels must be one for each of the {len(positions)} samples. Got {len(values)} instead. "
            "Put None where there is no label, or name the samples with indices."
        )
    if set(positions) - set(unanswered) or len(set(positions)) != len(positions):
        raise InvalidParameterError(
            f"The samples told must be distinct and among those asked for ({shorten(unanswered)}). "
            f"Got {shorten(positions)} instead. Call ask() for the open ones."
        )
