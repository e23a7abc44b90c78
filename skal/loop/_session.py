# SPDX-License-Identifier: BSD-3-Clause
"""The loop, step by step: ask for labels, be told, train."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from skal._core.containers import take_rows
from skal.exceptions import (
    CheckpointError,
    InvalidParameterError,
    InvalidTypeError,
    NoLabelledDataError,
    TrainingFailedWarning,
    shorten,
)
from skal.loop._ids import plain_id
from skal.loop._rounds import LoopEngine
from skal.loop._rules import Rules
from skal.loop._session_view import SessionView


class LabellingSession(SessionView):
    """A loop that waits for its labels: ``ask`` which samples, ``tell`` what they are.

    Made by :meth:`ActiveLearningClassifier.start`. The classifier is fitted on the labels so far whenever a round is
    over. With a ``checkpoint`` every label is in ``labels.jsonl`` on the disk before ``tell`` returns, under the id of
    its sample, and the same call of ``start`` goes on after the end of the process.

    Parameters
    ----------
    classifier : ActiveLearningClassifier
        The classifier that the session fits.
    rules : Rules
        The classifier's parameters and the data. Changing them later does not change the session.

    Attributes
    ----------
    classifier : ActiveLearningClassifier
        Fitted as soon as there was a training.
    state : LoopState
        The labels, the open questions, the history.
    ids : (n,) array
        ``ids[position]`` is the id of a sample.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> from skal import ActiveLearningClassifier
    >>> X = np.linspace(-5, 5, 50).reshape(-1, 1)
    >>> clf = ActiveLearningClassifier(LogisticRegression(), n_initial=6, query_size=2, n_rounds=2, random_state=0)
    >>> session = clf.start(X)  # a LabellingSession
    >>> for indices in session:
    ...     session = session.tell(["high" if X[i, 0] > 0 else "low" for i in indices])
    >>> len(clf.queried_), clf.predict([[-4.0], [4.0]]).tolist()
    (10, ['low', 'high'])
    """

    def __init__(self, classifier: BaseEstimator, rules: Rules) -> None:
        self.classifier, self.X = classifier, rules.X
        self.engine = LoopEngine(classifier, rules)
        weakref.finalize(self, self.engine.journal.release)

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
        self.engine.closed = True
        self.engine.journal.release()

    def ask(self) -> np.ndarray:
        """Ask which samples to label.

        Asking again, before anything has been told, gives the same answer. If the estimator cannot be trained on the
        labels, a warning says why, and the samples are chosen with the last one that could be, or at random.

        Returns
        -------
        int array
            Positions in X, best first; empty when the loop is over.
        """
        try:
            self.engine.bring_up_to_date()
        except CheckpointError:  # the folder is at fault, not the training
            raise
        except Exception as error:
            warnings.warn(
                f"The training on {len(self.state.labelled)} labels failed ({type(error).__name__}: {error}). "
                "The labels are kept, and the next samples are chosen without it. "
                "Tell more labels, or start again with another estimator or batch_size.",
                TrainingFailedWarning,
                stacklevel=2,
            )
            self.engine.give_up_training(error)
        return self.engine.select()

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
        LabellingSession
            Itself.
        """
        if isinstance(labels, Mapping):
            indices, labels = list(labels), list(labels.values())
        if isinstance(labels, (str, bytes)) or not hasattr(labels, "__len__") or getattr(labels, "ndim", 1) == 0:
            expected = "a list or array with one label per sample, or a dict from position to label"
            remedy = "Put None where there is no label; an oracle must return its labels."
            raise InvalidTypeError.for_parameter("tell", "labels", expected, labels, remedy)
        unanswered = self.state.open_questions()
        positions = (unanswered if indices is None else np.asarray(indices).reshape(-1)).tolist()
        values, dtype = self.engine.read(labels, self.engine.rules.no_label)
        self.state.check_answer(positions, values)
        said = {int(index): value for index, value in zip(positions, values, strict=True)}
        # in the order of ask: strategies that learn from a batch find it as they returned it
        answers = [(index, said[index]) for index in unanswered.tolist() if index in said]
        self.engine.take("label", answers, dtype, self.state.source, annotator)
        if self.state.phase == "answer" and (end_round or len(self.state.open_questions()) == 0):
            self.engine.close_round()
            self.engine.train()
        return self

    def relabel(self, labels: Mapping[Any, Any], *, annotator: str | None = None) -> LabellingSession:
        """Correct labels.

        Parameters
        ----------
        labels : dict from id to label
            Of samples that have one. The estimator learns of it with the next training, at the latest in ``ask``.
        annotator : str, optional
            Who says so; written beside every label.

        Returns
        -------
        LabellingSession
            Itself.
        """
        return self._correct("relabel", labels, None, annotator)

    def add(self, labels: Mapping[Any, Any], *, annotator: str | None = None) -> LabellingSession:
        """Give labels to samples that were not asked for.

        Parameters
        ----------
        labels : dict from id to label
            Of samples that have none. The estimator learns of it with the next training, at the latest in ``ask``.
        annotator : str, optional
            Who says so; written beside every label.

        Returns
        -------
        LabellingSession
            Itself.
        """
        return self._correct("add", labels, "added", annotator)

    def answer(self, labels: Mapping[Any, Any], *, annotator: str) -> LabellingSession:
        """Take the answers of one of several people, beside those of the others.

        A sample has the label that people agree on. Where they differ the majority holds, each weighed by how reliable
        they have been (Dawid and Skene, 1979), until ``relabel`` or ``decline`` decides. ``answers`` lists them all.

        Parameters
        ----------
        labels : dict from id to label
            None is "cannot say".
        annotator : str
            Who says so. A second answer of the same person takes the place of the first.

        Returns
        -------
        LabellingSession
            Itself.

        Examples
        --------
        >>> import numpy as np
        >>> from sklearn.linear_model import LogisticRegression
        >>> from skal import ActiveLearningClassifier
        >>> loop = ActiveLearningClassifier(LogisticRegression(), n_rounds=None)
        >>> session = loop.start(np.eye(3), ids=["a", "b", "c"])
        >>> session = session.answer({"a": "cat", "b": "dog"}, annotator="ann")
        >>> session = session.answer({"a": "cat", "b": "cat"}, annotator="ben")
        >>> session.disputes(), session.relabel({"b": "dog"}).disputes()
        (['b'], [])
        """
        if not isinstance(labels, Mapping):
            raise InvalidTypeError.for_parameter("answer", "labels", "a dict from id to label", labels, "See ids.")
        if not isinstance(annotator, str) or not annotator:
            raise InvalidTypeError.for_parameter("answer", "annotator", "a name", annotator, "Say who answers.")
        positions = self._positions("answer", labels)
        values, dtype = self.engine.read(list(labels.values()), self.engine.rules.no_label)
        self.engine.take("answer", list(zip(positions, values, strict=True)), dtype, None, annotator)
        return self

    def decline(self, ids: Iterable[Any], *, annotator: str | None = None) -> LabellingSession:
        """Never ask for these samples, and take their labels back if they have one; ``undecline`` undoes it.

        Parameters
        ----------
        ids : iterable of id
            Of the samples.
        annotator : str, optional
            Who says so; written beside every label.

        Returns
        -------
        LabellingSession
            Itself.
        """
        positions = self._positions("decline", ids)
        self.engine.take("declined", [(index, None) for index in positions], None, "declined", annotator)
        return self

    def undecline(self, ids: Iterable[Any], *, annotator: str | None = None) -> LabellingSession:
        """Let declined samples be asked for again.

        Parameters
        ----------
        ids : iterable of id
            Of the samples.
        annotator : str, optional
            Who says so; written beside every label.

        Returns
        -------
        LabellingSession
            Itself.
        """
        positions = self._positions("undecline", ids)
        other = sorted(set(positions).difference(self.state.declined))
        if other:
            expected, remedy = "ids of declined samples", "There is nothing to undo for the others."
            raise InvalidParameterError.for_parameter("undecline", "ids", expected, self.engine.ids.of(other), remedy)
        self.engine.take("open", [(index, None) for index in positions], None, "undeclined", annotator)
        return self

    def run(self, oracle: Callable[[np.ndarray, Any], Any]) -> Any:
        """Ask the oracle until the loop is over.

        Parameters
        ----------
        oracle : callable
            ``oracle(indices, samples)`` gives what ``tell`` takes. If it raises, everything up to then is kept and the
            session can go on.

        Returns
        -------
        ActiveLearningClassifier
            Fitted on all labels.
        """
        if not callable(oracle):
            remedy = "Pass a function f(indices, samples) that returns labels; labels as an array are y."
            raise InvalidTypeError.for_parameter(self.engine.rules.owner, "oracle", "callable", oracle, remedy)
        try:
            while True:
                self.engine.bring_up_to_date()  # as ask, but a training that fails raises
                if len(indices := self.engine.select()) == 0:
                    break
                self.tell(oracle(indices, take_rows(self.X, indices)))
                row = self.state.history[-1]
                if not row["indices"] and not row["declined"]:
                    raise NoLabelledDataError(
                        "The oracle must label or decline at least one of the samples it is asked for. Got no answer "
                        f"for {shorten(indices.tolist())} instead. Return None for those that it cannot label."
                    )
        finally:
            if self.engine.reporter is not None:
                self.engine.reporter.close()
            self.engine.journal.release()
        if self.engine.trainer.predictor is None:
            self.engine.trainer.raise_unfitted(self.state)
        return self.classifier

    def _positions(self, owner: str, keys: Iterable[Any]) -> list[int]:
        """The positions of the samples with these ids; unknown ids are refused."""
        if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
            raise InvalidTypeError.for_parameter(owner, "ids", "a list of ids", keys, "See session.ids.")
        found = {plain_id(key): self.engine.ids.position(key) for key in keys}
        unknown = [key for key, position in found.items() if position is None]
        if unknown:
            expected, remedy = "ids of samples in X", "session.ids has the id of every position."
            raise InvalidParameterError.for_parameter(owner, "ids", expected, unknown, remedy)
        return [position for position in found.values() if position is not None]

    def _correct(
        self, owner: str, labels: Mapping[Any, Any], source: str | None, annotator: str | None
    ) -> LabellingSession:
        """Take labels that were not asked for: of samples that have one to "relabel", of others to "add"."""
        if not isinstance(labels, Mapping):
            raise InvalidTypeError.for_parameter(owner, "ids", "a dict from id to label", labels, "See session.ids.")
        positions = self._positions(owner, labels)
        other = [index for index in positions if (self.state.answers.get(index) is None) != (owner == "add")]
        if other:
            expected, remedy = "ids of samples without a label", "Use relabel to change a label."
            if owner == "relabel":
                expected, remedy = "ids of labelled samples", "Use add for samples without a label."
            raise InvalidParameterError.for_parameter(owner, "labels", expected, self.engine.ids.of(other), remedy)
        values, dtype = self.engine.read(list(labels.values()), self.engine.rules.no_label)
        missing = [key for key, value in zip(labels, values, strict=True) if value is None]
        if missing:
            expected, remedy = "a label for every id", "Use decline to take labels back."
            raise InvalidParameterError.for_parameter(owner, "labels", expected, f"none for {missing}", remedy)
        self.engine.take("label", list(zip(positions, values, strict=True)), dtype, source, annotator)
        return self
