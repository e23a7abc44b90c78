"""The loop, step by step: ask for labels, be told, train."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.metrics import check_scoring

from skal._core.containers import take_rows
from skal.exceptions import CheckpointError, InvalidParameterError, InvalidTypeError, NoLabelledDataError, shorten
from skal.loop._checkpoint import RunCheckpoint
from skal.loop._config import LoopConfig
from skal.loop._display import ProgressReporter
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

    ``predictor`` is None as long as nothing has been trained.
    """

    queried: np.ndarray
    history: list[dict[str, Any]]
    stop_reason: str | None
    query_strategy: Any
    initial: str | None
    predictor: Predictor | None


class LabellingSession:
    """A loop that waits for its labels: ``ask`` which samples, ``tell`` what they are.

    Made by :meth:`ActiveLearningClassifier.start`. The classifier is fitted on the labels so far whenever a round is
    over. With a ``checkpoint`` the session survives the end of the process: the same call of ``start`` goes on with it,
    with the samples that were asked for, and with every label that was told.

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
        n_planned = config.planned_labels()
        self._checkpoint = None if config.checkpoint is None else RunCheckpoint(config, classifier.get_params())
        seed = int(make_generator(config.owner, config.random_state).integers(2**63))
        restored = self._checkpoint and self._checkpoint.restore(self._trainer, self._selector.strategy)
        # without initial labels there is no round 0
        self.state = restored or LoopState(seed=seed, round=int(config.initial_size == 0))
        if restored:
            self._check_same_labels()
        else:
            self._trainer.start(self.state)
        self._reporter = ProgressReporter(verbose=config.verbose, progress=config.progress, total=n_planned)
        publish(self.results)

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
        )

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
            start = perf_counter()
            positions, metrics = self._selector.select(self.state, self._trainer)
            self.state.open_round(positions, metrics, seconds=perf_counter() - start)
            self._save()
        return self.state.unanswered()

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
        if isinstance(labels, (str, bytes)) or not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) == 0:
            expected = "a list or array with one label per sample, or a dict from position to label"
            remedy = "Put None where there is no label; an oracle must return its labels."
            raise InvalidTypeError.for_parameter("tell", "labels", expected, labels, remedy)
        unanswered = self.state.unanswered()
        positions = (unanswered if indices is None else np.asarray(indices).reshape(-1)).tolist()
        values, dtype = read_labels(labels, self._config.no_label)
        _check_answer(positions, values, unanswered.tolist())
        told = self.state.told + [[int(index), value] for index, value in zip(positions, values, strict=True)]
        answered = replace(self.state, told=told, label_dtype=common_dtype(self.state.label_dtype, dtype))
        held_out = 0.0 if self._config.target_score is None else self._config.validation_fraction
        closed = answered.with_answers_as_labels(held_out)
        if closed.labels:  # refuses what is not a class before anything is changed
            self._trainer.check_labels(closed)
        round_ends = answered.phase == "answer" and (end_round or len(answered.unanswered()) == 0)
        self.state = closed if round_ends else answered
        self._save()
        if round_ends:
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
        if not callable(oracle):
            remedy = "Pass a function f(indices, samples) that returns labels; labels as an array are y."
            raise InvalidTypeError.for_parameter(self._config.owner, "oracle", "callable", oracle, remedy)
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
        if self._trainer.predictor is None:
            self._raise_unfitted()
        return self.classifier

    def _train(self) -> None:
        state, config = self.state, self._config
        row, start = state.describe_round(), perf_counter()
        if row["indices"] and self._trainer.can_fit(state):
            self._trainer.fit(state)
        seconds = {"seconds_fit": perf_counter() - start, "seconds_query": state.seconds_query}
        self._publish(self.results)  # it is the classifier that is scored
        row |= self._scores() | seconds
        state.end_round(row)
        self._publish(self.results)
        stopped = [bool(callback(self.classifier, row)) for callback in config.callbacks or ()]
        state.stop_reason = config.stop_reason(state) or ("callback" if any(stopped) else None)
        self._publish(self.results)
        self._save(trained=True)
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
        # labels that can be read again are not worth a save of their own
        if self._checkpoint is not None and (trained or self._config.reader is None):
            self._checkpoint.save(self.state, self._trainer, self._selector.strategy, trained=trained)

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
