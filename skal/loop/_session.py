"""The loop, step by step: ask for labels, be told, train."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from skal._core.containers import n_rows, take_rows
from skal.exceptions import (
    CheckpointError,
    InvalidParameterError,
    InvalidTypeError,
    NoLabelledDataError,
    shorten,
)
from skal.loop._choosing import Chooser
from skal.loop._labels import common_dtype, read_labels
from skal.loop._record import RunRecord
from skal.loop._reporting import Reporter
from skal.loop._seeding import seed_for
from skal.loop._state import LoopState
from skal.loop._stopping import planned_labels, stop_reason
from skal.loop._trainer import Trainer
from skal.loop._training import uses_unlabelled
from skal.validation import make_generator

if TYPE_CHECKING:
    from skal.loop._classifier import ActiveLearningClassifier

__all__ = ["LabellingSession", "check_oracle"]


class LabellingSession:
    """A loop that waits for its labels: ``ask`` which samples, ``tell`` what they are.

    Made by :meth:`ActiveLearningClassifier.start`. The classifier is fitted on the labels so far whenever a round is
    over. With a ``checkpoint`` the session survives the end of the process: the same call of ``start`` goes on with it,
    with the samples that were asked for, and with every label that was told.

    Parameters
    ----------
    classifier : ActiveLearningClassifier
    X : the samples
    all_labels : callable, optional
        Gives the labels of all samples, for a stratified start.
    eval_set : tuple of X and y, optional
    saves_answers : bool, default=True
        Save to the checkpoint also between two trainings: when samples are asked for and when labels are told.

    Attributes
    ----------
    classifier : ActiveLearningClassifier
    state : LoopState

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
        self,
        classifier: ActiveLearningClassifier,
        X: Any,
        *,
        all_labels: Callable[[], list[Any]] | None = None,
        eval_set: tuple[Any, Any] | None = None,
        saves_answers: bool = True,
    ) -> None:
        self.classifier = classifier
        self.X = X
        self._saves_answers = saves_answers
        self._trainer = Trainer(classifier, X, eval_set)
        self._chooser = Chooser(classifier, X, self._trainer, all_labels)
        n_initial, n_samples = self._chooser.n_initial, n_rows(X)
        planned = planned_labels(
            n_initial, classifier.query_size, classifier.n_rounds, classifier.budget, n_samples=n_samples
        )
        self._record = None if classifier.checkpoint is None else RunRecord(classifier, X, eval_set)
        seed = int(make_generator(type(classifier).__name__, classifier.random_state).integers(2**63))
        # without initial labels there is no round 0
        self.state = LoopState(seed=seed, round=int(n_initial == 0))
        if self._record is not None:
            self._trainer.check_storable()
            self.state = self._record.restore(self._trainer, self._chooser.strategy) or self.state
        self._reporter = Reporter(verbose=classifier.verbose, progress=classifier.progress, total=planned)
        self._publish()

    @property
    def done(self) -> bool:
        """Whether nothing more will be asked."""
        return self.state.stop_reason is not None

    def __iter__(self) -> Iterator[np.ndarray]:
        """The batches to label, one after the other; ``tell`` each before the next."""
        while len(indices := self.ask()):
            yield indices

    def ask(self) -> np.ndarray:
        """Positions in X of the samples to label, best first; empty when the loop is over.

        Asking again, before anything has been told, gives the same answer.
        """
        if self.state.phase == "train":  # an earlier training failed: its labels are there
            self._train()
        if self.state.phase == "ask" and not self.done:
            self._open_round()
        return self.state.open()

    def tell(self, labels: Any, indices: Any = None, *, end_round: bool = True) -> LabellingSession:
        """Give labels to the samples that were asked for.

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

        Returns
        -------
        self
        """
        if isinstance(labels, Mapping):
            indices, labels = list(labels), list(labels.values())
        state = self.state
        indices = state.open() if indices is None else np.asarray(indices).reshape(-1)
        values, dtype = self._read(labels)
        _check_answer(indices, values, state.open())
        dtype = common_dtype(state.label_dtype, dtype)
        told = state.told + [[int(index), value] for index, value in zip(indices, values, strict=True)]
        new = [(index, value) for index, value in told if value is not None]
        if new:  # refuses what is not a class before anything is changed
            known = np.array(state.labels + [value for _, value in new], dtype=dtype)
            self._trainer.check_labels(state, state.labelled + [index for index, _ in new], known)
        state.label_dtype, state.told = dtype, told
        ended = state.phase == "answer" and (end_round or len(state.open()) == 0)
        if ended:
            self._collect()
        self._save()
        if ended:
            self._train()
        return self

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
        check_oracle(oracle)
        try:
            for indices in self:
                self.tell(oracle(indices, take_rows(self.X, indices)))
                row = self.state.history[-1]
                if not row["indices"] and not row["declined"]:
                    raise NoLabelledDataError(
                        "The oracle must label or decline at least one of the samples it is asked for. Got no answer "
                        f"for {shorten(indices.tolist())} instead. Return None for those that it cannot label."
                    )
        finally:
            self._reporter.close()
        if self._trainer.fitted is None:
            self._raise_unfitted()
        return self.classifier

    def check_labels(self, oracle: Callable[[np.ndarray, Any], Any]) -> None:
        """Refuse a checkpoint whose labels are not the ones that the oracle gives."""
        rows = np.array(self.state.labelled, dtype=np.int64)
        if len(rows) and read_labels(oracle(rows, None))[0] != self.state.labels:
            raise CheckpointError(
                f"The checkpoint in {self.classifier.checkpoint} must be of the same labels. Got a y that differs at "
                "samples which it has labelled. Pass the y that the run was started with, or another folder."
            )

    def _read(self, labels: Any) -> tuple[list[Any], str | None]:
        if isinstance(labels, (str, bytes)) or not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) == 0:
            expected = "a list or array with one label per sample, or a dict from position to label"
            remedy = "Put None where there is no label; an oracle must return its labels."
            raise InvalidTypeError.for_parameter("tell", "labels", expected, labels, remedy)
        values, dtype = read_labels(labels)
        if uses_unlabelled(self.classifier.estimator):
            values = [None if value == -1 else value for value in values]
        return values, None if all(value is None for value in values) else dtype

    def _open_round(self) -> None:
        state, start = self.state, perf_counter()
        asked, state.metrics = self._chooser.choose(state)
        state.seconds_query = perf_counter() - start
        state.asked, state.told, state.phase = asked.tolist(), [], "answer"
        self._save()

    def _collect(self) -> None:
        """Move this round's answers to the labelled set, in the order in which they were asked."""
        state = self.state
        place = {index: i for i, index in enumerate(state.asked)}
        told = sorted(state.told, key=lambda answer: place[answer[0]])
        new = [(index, value) for index, value in told if value is not None]
        state.declined += [index for index, value in told if value is None]
        state.labelled += [index for index, _ in new]
        state.labels += [value for _, value in new]
        state.heldout += self._hold_out(len(new))
        state.told, state.phase = told, "train"

    def _hold_out(self, n_new: int) -> list[bool]:
        """Keep a share of all labels for validation: a sample that is held out once is never trained on."""
        params, state = self.classifier, self.state
        if params.target_score is None:
            return [False] * n_new
        wanted = int(params.validation_fraction * (len(state.heldout) + n_new)) - sum(state.heldout)
        generator = np.random.default_rng(seed_for(state.seed, state.round, "holdout"))
        kept = set(generator.permutation(n_new)[: max(0, wanted)].tolist())
        return [i in kept for i in range(n_new)]

    def _train(self) -> None:
        state, params = self.state, self.classifier
        labelled = [index for index, value in state.told if value is not None]
        row: dict[str, Any] = {
            "round": state.round,
            "n_labelled": len(state.labelled),
            "indices": labelled,
            "declined": [index for index, value in state.told if value is None],
            "metrics": _metrics_of(labelled, state.asked, state.metrics),
            "train_score": None,
        }
        row |= {"valid_score": None} if params.target_score is not None else {}
        row |= {"eval_score": None} if self._trainer.eval_set is not None else {}
        start = perf_counter()
        if labelled and self._trainer.can_fit(state):
            self._trainer.fit(state)
        row["seconds_fit"] = perf_counter() - start
        row |= self._trainer.scores(state)
        row["seconds_query"] = state.seconds_query
        state.history.append(row)
        state.asked, state.told, state.metrics, state.seconds_query = [], [], None, 0.0
        state.phase, state.round = "ask", state.round + 1
        self._publish()
        stopped = [bool(callback(params, row)) for callback in params.callbacks or ()]
        state.stop_reason = stop_reason(
            state,
            n_rounds=params.n_rounds,
            budget=params.budget,
            target_score=params.target_score,
            n_pool=len(state.pool(n_rows(self.X))),
            row=row,
        ) or ("callback" if any(stopped) else None)
        self._publish()
        self._save(trained=True)
        self._reporter.report(row)
        if self.done:
            self._reporter.close()

    def _publish(self) -> None:
        """Show the classifier what there is so far."""
        self.classifier.queried_ = np.array(self.state.labelled, dtype=np.int64)
        self.classifier.history_ = [dict(row) for row in self.state.history]
        self.classifier.stop_reason_ = self.state.stop_reason
        self.classifier.query_strategy_ = self._chooser.strategy

    def _save(self, *, trained: bool = False) -> None:
        if self._record is not None and (trained or self._saves_answers):
            self._record.save(self.state, self._trainer, self._chooser.strategy, trained=trained)

    def _raise_unfitted(self) -> None:
        seen = np.unique(self.state.label_array()).tolist()
        if not seen:
            raise NoLabelledDataError(
                "ActiveLearningClassifier needs at least one label. Got none: every sample it asked for was declined. "
                "Check y, or the oracle."
            )
        raise InvalidParameterError(
            "The labels that ActiveLearningClassifier sees must be of at least two classes. Got one class only "
            f"({seen[0]!r}, {len(self.state.labelled)} labels) instead. Raise n_initial or the number of rounds, "
            "or use initial='stratified'."
        )


def check_oracle(oracle: Any) -> None:
    """Refuse what cannot be asked."""
    if not callable(oracle):
        remedy = "Pass a function f(indices, samples) that returns labels; labels as an array are y."
        owner = "ActiveLearningClassifier"
        raise InvalidTypeError.for_parameter(owner, "oracle", "callable", oracle, remedy)


def _check_answer(indices: np.ndarray, values: list[Any], open_indices: np.ndarray) -> None:
    if len(open_indices) == 0 and len(values):
        raise InvalidParameterError(
            f"The samples told must be among those asked for. Got {len(values)} labels while nothing is asked for. "
            "Call ask() first."
        )
    if len(indices) != len(values):
        raise InvalidParameterError(
            f"The labels must be one for each of the {len(indices)} samples. Got {len(values)} instead. "
            "Put None where there is no label, or name the samples with indices."
        )
    if set(indices.tolist()) - set(open_indices.tolist()) or len(set(indices.tolist())) != len(indices):
        raise InvalidParameterError(
            f"The samples told must be distinct and among those asked for ({shorten(open_indices.tolist())}). "
            f"Got {shorten(indices.tolist())} instead. Call ask() for the open ones."
        )


def _metrics_of(labelled: list[int], asked: list[int], metrics: list[Any] | None) -> list[Any] | None:
    """The metrics of the samples that were labelled; as they came if they are not one per sample."""
    if metrics is None or len(metrics) != len(asked):
        return metrics
    by_index = dict(zip(asked, metrics, strict=True))
    return [by_index[index] for index in labelled]
