# SPDX-License-Identifier: BSD-3-Clause
"""The part of a session that is read: labels, answers, audits, forecasts, tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from skal._core.tasks import CLASSIFICATION
from skal._files.json_text import format_json
from skal._files.spreadsheet import format_table
from skal._files.whole import write_result
from skal.exceptions import InvalidParameterError, NoLabelledDataError
from skal.loop._audit_report import AuditReport, report_audit
from skal.loop._display import check_positions, draw_samples, summarize, to_html
from skal.loop._doubtful import find_issues, predict_out_of_fold
from skal.loop._final import FinalLabels, combine_labels
from skal.loop._heldout import correctness, forecast
from skal.loop._progress import LoopState
from skal.loop._rounds import LoopEngine
from skal.stopping import Forecast, LabelsNeeded, forecast_labels
from skal.validation import Integer, Real, as_path


class SessionView:
    """The part of a :class:`~skal.loop.LabellingSession` that changes nothing."""

    engine: LoopEngine
    X: Any

    @property
    def state(self) -> LoopState:
        """The labels, the open questions, the history."""
        return self.engine.state

    @property
    def ids(self) -> np.ndarray:
        """``ids[position]`` is the id of a sample."""
        return self.engine.ids.array()

    @property
    def done(self) -> bool:
        """True when nothing more will be asked."""
        return self.state.stop_reason is not None

    def labels(self) -> pd.DataFrame:
        """The labels that hold, in the order in which they came.

        Returns
        -------
        pandas.DataFrame
            With the columns ``id``, ``label``, ``round``, ``time`` (UTC), ``annotator`` and ``source``: how the
            sample was chosen ("initial", the strategy's name, "random", "held out", "added" or "given").
        """
        return self.engine.journal.frame()

    def answers(self) -> pd.DataFrame:
        """Every answer of several people that was not taken back.

        Returns
        -------
        pandas.DataFrame
            With the columns of ``labels``, and ``decided``: whether somebody has decided on the sample.
        """
        return self.engine.journal.answer_frame()

    def disputes(self) -> list[Any]:
        """Samples that people have labelled differently, and on which nobody has decided.

        Returns
        -------
        list
            Their ids.
        """
        return self.engine.journal.disputes()

    def doubtful(self, n_folds: int = 5) -> pd.DataFrame:
        """Labels that may be wrong, the most doubtful first, as models see them that were trained without them.

        The labels are cut into folds, and those of each fold are judged by a model of the others: a model that has
        learnt a wrong label no longer doubts it. This trains ``n_folds`` models.

        Parameters
        ----------
        n_folds : int, default=5
            At least 2.

        Returns
        -------
        pandas.DataFrame
            With the columns ``id``, ``label``, ``predicted`` (the most probable class), ``probability`` (of the label;
            what cleanlab calls self-confidence) and ``wrong`` (whether confident learning takes the label for wrong).
            Empty from fewer than ``2 * n_folds`` labels or two classes.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.linear_model import LogisticRegression
        >>> from skal import ActiveLearningClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> y[7] = 0  # it is a 7
        >>> loop = ActiveLearningClassifier(LogisticRegression(max_iter=500), n_rounds=None)
        >>> session = loop.start(X[:300] / 16, y[:300], ids=range(300))
        >>> session.doubtful()[["id", "label", "predicted"]].iloc[0].tolist()
        [7, 0, 7]
        """
        Integer(2).check("doubtful", "n_folds", n_folds)
        columns = ["id", "label", "predicted", "probability", "wrong"]
        rules = self.engine.rules
        if rules.task != CLASSIFICATION or not hasattr(rules.estimator, "predict_proba"):
            raise InvalidParameterError(
                "Doubtful labels need one class per sample, and an estimator with predict_proba. Got "
                f"{type(rules.estimator).__name__} and the task {rules.task}. Use another estimator."
            )
        found = predict_out_of_fold(self.engine.trainer, self.state, n_folds)
        if found is None:
            return pd.DataFrame(columns=columns)
        rows, codes, proba, names = found
        own = proba[np.arange(len(rows)), codes]
        table = pd.DataFrame(
            {
                "id": self.engine.ids.of(rows.tolist()),
                "label": names[codes],
                "predicted": names[proba.argmax(axis=1)],
                "probability": own,
                "wrong": find_issues(proba, codes),
            }
        )
        return table.sort_values("probability", kind="stable").reset_index(drop=True)

    def forecast(self, more: int = 100) -> Forecast:
        """Accuracy now, and with more labels, from labels that were drawn at random and held out.

        Parameters
        ----------
        more : int, default=100
            Labels to be added.

        Returns
        -------
        Forecast
            ``print(session.forecast().text)`` says it in words. Without ``stop=HoldOut()`` or ``stop=TargetScore(...)``
            no labels are held out, and it says so.
        """
        return forecast(self.state, more)

    def labels_to(self, target: float) -> LabelsNeeded:
        """The number of further labels to an accuracy, from labels that were drawn at random and held out.

        Parameters
        ----------
        target : float
            Between 0 and 1.

        Returns
        -------
        LabelsNeeded
            ``more``, ``low`` and ``high``; ``print(session.labels_to(0.9).text)`` says it in words.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.linear_model import LogisticRegression
        >>> from skal import ActiveLearningClassifier
        >>> from skal.stopping import HoldOut
        >>> X, y = load_digits(return_X_y=True)
        >>> model = LogisticRegression(max_iter=500)
        >>> loop = ActiveLearningClassifier(model, "margin", query_size=30, stop=HoldOut(0.3), random_state=0)
        >>> session = loop.start(X / 16)
        >>> loop = session.run(lambda indices, samples: y[indices])
        >>> session.labels_to(0.99).more > 0 and session.labels_to(0.5).more == 0
        True
        """
        n_labelled, correct = correctness(self.state)
        return forecast_labels(n_labelled, correct, target)

    def audit(self, max_error: float = 0.05, confidence: float = 0.95) -> AuditReport:
        """Report from the held-out labels how good the model is, and what finishing now would take.

        Parameters
        ----------
        max_error : float, default=0.05
            The share of errors that would be allowed in the whole data set.
        confidence : float, default=0.95
            How sure the interval, and the promise, should be.

        Returns
        -------
        AuditReport
            ``accuracy.estimate``, ``.low``, ``.high`` and ``.n_labels``; ``n_model`` and ``n_people``, the samples that
            the model could label and that would be left. These counts are a forecast, and 0 and all from fewer than 20
            audit labels: ``stop=Certified()`` makes the promise, with labels that nobody has looked at.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.linear_model import LogisticRegression
        >>> from skal import ActiveLearningClassifier
        >>> X, y = load_digits(return_X_y=True)
        >>> loop = ActiveLearningClassifier(
        ...     LogisticRegression(max_iter=500), "margin", query_size=30, hold_out="audit", random_state=0
        ... )
        >>> session = loop.start(X / 16)
        >>> loop = session.run(lambda indices, samples: y[indices])
        >>> session.audit().accuracy.n_labels
        64
        """
        Real(0.0, 1.0).check("audit", "max_error", max_error)
        Real(0.5, 1.0, below_maximum=True).check("audit", "confidence", confidence)
        if self.engine.rules.task != CLASSIFICATION:
            raise InvalidParameterError(
                f"An audit counts how often one class is right. Got the task {self.engine.rules.task}. Score with "
                "eval_set instead."
            )
        predictor = self.engine.trainer.predictor
        found = None
        if predictor is not None and hasattr(predictor.estimator, "predict_proba"):
            found = report_audit(self.state, self.engine.rules, predictor, max_error, confidence)
        found = AuditReport.read(self.state.report) if found is None else found
        if found is None:
            raise NoLabelledDataError(
                "An audit needs labels that were held out, and a model with predict_proba. Got none yet. Set "
                "hold_out='audit' or stop=HoldOut(), and label a round."
            )
        return found

    def final(self) -> FinalLabels:
        """The data set as it stands: who has labelled what, and the certificate if one was granted.

        Returns
        -------
        FinalLabels
            ``labels``, a data frame with ``id``, ``label``, ``by`` and ``annotator``; ``certificate``; ``to_json()``.
            The model's labels are those of the model that the certificate is about. There are none before
            ``stop=Certified()`` has ended the loop.

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from sklearn.linear_model import LogisticRegression
        >>> from skal import ActiveLearningClassifier
        >>> from skal.stopping import Certified
        >>> X, y = load_digits(return_X_y=True)
        >>> loop = ActiveLearningClassifier(
        ...     LogisticRegression(max_iter=500), query_size=50, n_rounds=None, stop=Certified(), random_state=0
        ... )
        >>> session = loop.start(X / 16)
        >>> loop = session.run(lambda indices, samples: y[indices])
        >>> final = session.final()
        >>> bool((final.labels["label"] != y).mean() <= final.certificate["max_error"])
        True
        """
        annotators = {key: line.get("annotator") for key, line in self.engine.journal.known.items()}
        return combine_labels(self.state, self.ids.tolist(), annotators)

    def to_csv(self, path: Any) -> None:
        """Write ``labels()`` to a CSV file.

        Parameters
        ----------
        path : path
            A file in a folder that is there; written over.
        """
        table = self.labels()
        text = format_table(list(table), table.astype(object).itertuples(index=False), safe=False)
        write_result(as_path("to_csv", "path", path), text)

    def to_json(self, path: Any) -> None:
        """Write ``labels()`` to a JSON file: a list of objects.

        Parameters
        ----------
        path : path
            A file in a folder that is there; written over.
        """
        text = format_json(self.engine.journal.rows(), indent=1)
        write_result(as_path("to_json", "path", path), text)

    def show(self, indices: Any = None) -> Any:
        """Draw the samples that are asked for, or others: images as such, text and numbers as a table.

        Parameters
        ----------
        indices : array-like of int, optional
            Positions; by default those that are open.

        Returns
        -------
        matplotlib figure
            Which a notebook shows.
        """
        positions = self.state.open_questions() if indices is None else indices
        positions = check_positions(positions, self.engine.rules.n_samples)
        return draw_samples(self.X, positions, [str(key) for key in self.engine.ids.of(positions)])

    def _summary(self) -> dict[str, str]:
        return summarize(self.state, self.engine.rules.task, self.engine.rules.column_names)

    def __repr__(self) -> str:
        return f"LabellingSession({', '.join(f'{name}: {text}' for name, text in self._summary().items())})"

    def _repr_html_(self) -> str:
        return to_html(self._summary(), "LabellingSession")
