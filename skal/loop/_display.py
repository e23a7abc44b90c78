# SPDX-License-Identifier: BSD-3-Clause
"""Show a run: its learning curve, its rounds as they end, the state of a session, and the samples it asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.utils.validation import check_is_fitted
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from skal._core.containers import dataset_input, take_rows
from skal._vocabulary import CLASSIFICATION, REGRESSION, Task
from skal.exceptions import InvalidParameterError, InvalidTypeError, shorten
from skal.loop._progress import LoopState

_SCORES = ("eval_score", "heldout_score", "train_score")
_COLUMNS = ("round", "n_labelled", "train_score", "heldout_score", "eval_score", "seconds_fit", "seconds_query")


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
        score : {"auto", "eval_score", "heldout_score", "train_score"}, default="auto"
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
        Whether there is a bar.
    total : int
        Labels that the run will have in the end.
    state : LoopState
        The run at its start.
    """

    def __init__(self, verbose: int, progress: bool, total: int, state: LoopState) -> None:
        self.verbose = verbose
        # not even a disabled bar: it starts a thread, and takes a lock that is shared with forked processes
        self.bar = tqdm(total=total, unit="label", initial=len(state.labelled)) if progress else None
        self.columns: list[str] = []

    def report(self, row: dict[str, Any]) -> None:
        """Show one more round."""
        if self.verbose:
            if not self.columns:
                self.columns = [name for name in _COLUMNS if name in row]
                print("  ".join(self.columns), "  ".join("-" * len(name) for name in self.columns), sep="\n")
            print("  ".join(_cell(row.get(name)).rjust(len(name)) for name in self.columns), flush=True)
        if self.bar is not None:
            score = next((row[name] for name in ("eval_score", "heldout_score") if row.get(name) is not None), None)
            if score is not None:
                self.bar.set_postfix(score=f"{score:.3f}", refresh=False)
            self.bar.update(row["n_labelled"] - self.bar.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self.bar is not None:
            self.bar.close()


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)


def summarize(state: LoopState, task: Task = CLASSIFICATION, columns: Sequence[Any] | None = None) -> dict[str, str]:
    """A session in a few words; ``columns`` are the names of several labels.

    Examples
    --------
    >>> summarize(LoopState(seed=0, answers={4: "cat", 2: "dog"}))
    {'labelled': '2', 'open': '0', 'declined': '0', 'rounds': '0', 'classes': 'cat 1, dog 1', 'last score': 'none'}
    >>> summarize(LoopState(seed=0, answers={4: [1, 0], 2: [1, -1]}), "multilabel", ["cat", "dog"])["classes"]
    'cat 2, dog 0'
    >>> summarize(LoopState(seed=0, answers={4: 2.5, 2: -1.0}), "regression")["numbers"]
    'from -1 to 2.5'
    """
    labels = state.labels
    scores = [f"{name} {row[name]:.3f}" for row in state.history for name in _SCORES if row.get(name) is not None]
    last = next((text for name in _SCORES for text in scores[::-1] if text.startswith(name)), "none")
    result = {
        "labelled": str(len(labels)),
        "open": str(len(state.open_questions())),
        "declined": str(len(state.declined)),
        "rounds": str(len(state.history)),
        "numbers" if task == REGRESSION else "classes": _describe_labels(labels, task, columns) or "none",
        "last score": last.replace("_", " "),
    }
    return result | ({"stopped": state.stop_reason} if state.stop_reason else {})


def _describe_labels(labels: list[Any], task: Task, columns: Sequence[Any] | None) -> str:
    if task == CLASSIFICATION:
        counts = sorted(Counter(labels).items(), key=lambda item: (-item[1], str(item[0])))
    elif not labels:
        return ""
    else:
        rows = np.array(labels, dtype=np.float64).reshape(len(labels), -1)
        if task == REGRESSION:
            spans = zip(rows.min(axis=0), rows.max(axis=0), strict=True)
            return ", ".join(f"from {low:g} to {high:g}" for low, high in spans)
        names = range(rows.shape[1]) if columns is None else columns
        counts = list(zip(names, (rows == 1).sum(axis=0).tolist(), strict=True))
    return ", ".join([f"{label} {n}" for label, n in counts[:10]] + (["…"] if len(counts) > 10 else []))


def to_html(parts: dict[str, str], title: str) -> str:
    """A small table."""
    rows = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(text)}</td></tr>"
        for name, text in parts.items()
    )
    return f"<table><caption>{escape(title)}</caption>{rows}</table>"


def draw_samples(X: Any, positions: np.ndarray, titles: list[str]) -> Any:
    """A matplotlib figure with these samples: images as such, text and rows of numbers as a table."""
    import matplotlib.pyplot as plt

    samples = [_sample(X, int(i)) for i in positions]
    pictures = [_picture(sample) for sample in samples]
    if not samples or any(picture is None for picture in pictures):
        texts = [" ".join(str(sample).split()) for sample in samples]
        figure, ax = plt.subplots(figsize=(8, 0.4 + 0.3 * max(1, len(texts))))
        ax.axis("off")
        cells = [
            [title, text if len(text) <= 100 else f"{text[:97]}..."] for title, text in zip(titles, texts, strict=True)
        ]
        table = ax.table(cells or [["", "nothing is asked for"]], colWidths=[0.2, 0.8], cellLoc="left", loc="center")
        table.auto_set_font_size(False)
        table.set_fontsize(8)
        return figure
    n_columns = min(5, len(pictures))
    n_rows = -(-len(pictures) // n_columns)
    figure, axes = plt.subplots(n_rows, n_columns, figsize=(1.6 * n_columns, 1.9 * n_rows), squeeze=False)
    for ax in axes.flat:
        ax.axis("off")
    for ax, picture, title in zip(axes.flat, pictures, titles, strict=False):
        ax.imshow(picture, cmap="gray")
        ax.set_title(title, fontsize=8)
    figure.tight_layout()
    return figure


def _sample(X: Any, i: int) -> Any:
    if isinstance(X, Dataset):
        return dataset_input(X[i])
    row = take_rows(X, np.array([i]))
    if isinstance(row, dict):
        return {name: value[0] for name, value in row.items()}
    return row.iloc[0].to_dict() if isinstance(row, pd.DataFrame) else row.iloc[0] if hasattr(row, "iloc") else row[0]


def _picture(sample: Any) -> np.ndarray | None:
    """H×W or H×W×3 in [0, 1], None if the sample is no image."""
    if hasattr(sample, "convert") and hasattr(sample, "size"):  # a pillow image
        sample = np.asarray(sample)
    if isinstance(sample, torch.Tensor):
        sample = sample.detach().cpu().float().numpy()
    if not isinstance(sample, np.ndarray) or sample.dtype.kind not in "biuf" or sample.ndim not in (2, 3):
        return None
    if sample.ndim == 3 and sample.shape[0] in (1, 3) and sample.shape[2] not in (1, 3):
        sample = np.moveaxis(sample, 0, 2)
    if sample.ndim == 3 and sample.shape[2] not in (1, 3):
        return None
    low, high = float(sample.min()), float(sample.max())
    scaled: np.ndarray = np.squeeze((sample - low) / ((high - low) or 1.0))
    return scaled


def check_positions(positions: Any, n_samples: int) -> np.ndarray:
    """Positions to draw."""
    array = np.asarray(positions).reshape(-1)
    if array.size and (array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= n_samples):
        expected, remedy = f"positions in 0 … {n_samples - 1}", "Leave it out to see what is asked for."
        raise InvalidTypeError.for_parameter("show", "indices", expected, positions, remedy)
    return array.astype(np.int64)
