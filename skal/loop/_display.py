# SPDX-License-Identifier: BSD-3-Clause
"""What is shown of a run: a table and a progress bar while it lasts, and its learning curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted
from tqdm.auto import tqdm

from skal.exceptions import InvalidParameterError, InvalidTypeError, shorten

_SCORES = ("eval_score", "valid_score", "train_score")
_COLUMNS = ("round", "n_labelled", "train_score", "valid_score", "eval_score", "seconds_fit", "seconds_query")


class ActiveLearningCurveDisplay:
    """How the score grows with the number of labels.

    Use :meth:`from_estimator` to make one from fitted loops.

    Parameters
    ----------
    curves : dict from str to (n_labelled, scores)
        (rounds,) numbers of labels and (repeats, rounds) scores.
    score_name : str
        What stands at the axis.

    Attributes
    ----------
    ax_, figure_
        matplotlib's axes and figure.
    lines_ : list of Line2D
        One per curve.
    bands_ : list of PolyCollection
        One standard deviation about the mean, for curves with repeats.

    Examples
    --------
    >>> import numpy as np
    >>> from skal.loop import ActiveLearningCurveDisplay
    >>> curves = {"margin": (np.array([10, 20]), np.array([[0.5, 0.8], [0.6, 0.7]]))}
    >>> display = ActiveLearningCurveDisplay(curves=curves, score_name="accuracy").plot()
    >>> display.lines_[0].get_ydata().tolist()
    [0.55, 0.75]
    """

    def __init__(self, *, curves: Mapping[str, tuple[np.ndarray, np.ndarray]], score_name: str = "score") -> None:
        self.curves = dict(curves)
        self.score_name = score_name

    @classmethod
    def from_estimator(
        cls, estimator: Any, *, score: str = "auto", score_name: str | None = None, ax: Any = None, **line_kw: Any
    ) -> ActiveLearningCurveDisplay:
        """Draw the history of one loop, of repeats of one, or of several.

        Parameters
        ----------
        estimator : ActiveLearningClassifier, list, or dict from name to either
            Fitted. A list holds repeats, such as ``cross_validate(..., return_estimator=True)["estimator"]``, drawn as
            their mean and standard deviation; where some stopped early, only the rounds that all have.
        score : {"auto", "eval_score", "valid_score", "train_score"}, default="auto"
            Which column of the history. "auto" is the first of these that all loops have.
        score_name : str, optional
        ax : matplotlib axes, optional
        **line_kw
            Passed to ``ax.plot``.

        Returns
        -------
        ActiveLearningCurveDisplay
        """
        named = dict(estimator) if isinstance(estimator, Mapping) else {None: estimator}
        groups: dict[Any, list[Any]] = {
            name: list(value) if isinstance(value, (list, tuple, np.ndarray)) else [value]
            for name, value in named.items()
        }
        if not groups or not all(groups.values()):
            expected, remedy = "at least one loop for every curve", "Leave out the names that have no loop."
            raise InvalidParameterError.for_parameter(cls.__name__, "estimator", expected, estimator, remedy)
        histories = [_history(loop) for group in groups.values() for loop in group]
        column = _column(score, histories)
        curves = {
            name or _strategy_name(group[0]): _curve([_history(loop) for loop in group], column)
            for name, group in groups.items()
        }
        return cls(curves=curves, score_name=score_name or column.replace("_", " ")).plot(ax=ax, **line_kw)

    def plot(self, ax: Any = None, **line_kw: Any) -> ActiveLearningCurveDisplay:
        """Draw the curves.

        Parameters
        ----------
        ax : matplotlib axes, optional
            A new figure by default.
        **line_kw
            Passed to ``ax.plot``.

        Returns
        -------
        ActiveLearningCurveDisplay
            Itself, with ``ax_``, ``figure_`` and ``lines_``.
        """
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots()
        self.lines_, self.bands_ = [], []
        for name, (n_labelled, scores) in self.curves.items():
            mean, spread = scores.mean(axis=0), scores.std(axis=0)
            (line,) = ax.plot(n_labelled, mean, **({"marker": "o", "label": name} | line_kw))
            self.lines_.append(line)
            if len(scores) > 1:
                band = ax.fill_between(n_labelled, mean - spread, mean + spread, alpha=0.2, color=line.get_color())
                self.bands_.append(band)
        ax.set(xlabel="number of labels", ylabel=self.score_name)
        ax.legend()
        self.ax_, self.figure_ = ax, ax.figure
        return self


def _history(loop: Any) -> list[dict[str, Any]]:
    if not hasattr(loop, "fit"):
        expected, remedy = "a fitted ActiveLearningClassifier, a list or a dict of such", "Fit the loop first."
        raise InvalidTypeError.for_parameter("ActiveLearningCurveDisplay", "estimator", expected, loop, remedy)
    check_is_fitted(loop, "history_")
    history: list[dict[str, Any]] = loop.history_
    return history


def _column(score: str, histories: list[list[dict[str, Any]]]) -> str:
    candidates = _SCORES if score == "auto" else (score,)
    for name in candidates:
        if all(any(row.get(name) is not None for row in history) for history in histories):
            return name
    there = sorted({name for history in histories for row in history for name in row if name.endswith("_score")})
    expected = f"'auto' or a score in the history of every loop ({shorten(there)})"
    remedy = "Pass eval_set to fit to have eval_score."
    raise InvalidParameterError.for_parameter("ActiveLearningCurveDisplay", "score", expected, score, remedy)


def _curve(histories: list[list[dict[str, Any]]], column: str) -> tuple[np.ndarray, np.ndarray]:
    """(rounds,) numbers of labels that all repeats have, and (repeats, rounds) scores."""
    scored = [{row["n_labelled"]: row[column] for row in rows if row.get(column) is not None} for rows in histories]
    common = sorted(set.intersection(*(set(curve) for curve in scored)))
    return np.array(common), np.array([[curve[n] for n in common] for curve in scored], dtype=float)


def _strategy_name(loop: Any) -> str:
    strategy = loop.query_strategy
    return str(strategy) if strategy is None or isinstance(strategy, str) else _name(strategy)


def _name(strategy: Any) -> str:
    return getattr(strategy, "__name__", type(strategy).__name__)


class ProgressReporter:
    """Prints a row of the history in skorch's manner, or moves the bar, whenever a round is over.

    Parameters
    ----------
    verbose : int
        0 prints nothing.
    progress : bool
    total : int
        Labels that the run will have in the end.
    initial : int, default=0
        Labels that it has at its start.
    """

    def __init__(self, *, verbose: int, progress: bool, total: int, initial: int = 0) -> None:
        self.verbose = verbose
        # not even a disabled bar: it starts a thread, and takes a lock that is shared with forked processes
        self.bar = tqdm(total=total, unit="label", initial=initial) if progress else None
        self.columns: list[str] = []

    def report(self, row: dict[str, Any]) -> None:
        """Show one more round."""
        if self.verbose:
            if not self.columns:
                self.columns = [name for name in _COLUMNS if name in row]
                print("  ".join(self.columns), "  ".join("-" * len(name) for name in self.columns), sep="\n")
            print("  ".join(_cell(row.get(name)).rjust(len(name)) for name in self.columns), flush=True)
        if self.bar is not None:
            score = next((row[name] for name in ("eval_score", "valid_score") if row.get(name) is not None), None)
            if score is not None:
                self.bar.set_postfix(score=f"{score:.3f}", refresh=False)
            self.bar.update(row["n_labelled"] - self.bar.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self.bar is not None:
            self.bar.close()


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)
