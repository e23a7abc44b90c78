"""What one run of one strategy and one seed leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Run"]


@dataclass(frozen=True)
class Run:
    """One strategy on one seed, as lists of plain numbers: one entry per budget unless it says otherwise.

    Attributes
    ----------
    strategy : str
    seed : int
    n_labels : list of int
        The budgets.
    scores, train_scores : list of float
        Accuracies on the test set, and on the labelled set.
    initial : list of int
        Positions of the first labels in the training set.
    queried : list of list of int
        Positions that each query chose; one entry per query.
    seconds_fit : list of float
    seconds_query : list of float
        One entry per query. A zero-shot choice of the first labels counts as one.
    warnings : list of str
        What was warned about, each text once.
    record : dict
        How the run was made.

    Examples
    --------
    >>> from skal.bench import Run, run_benchmark
    >>> (run,) = run_benchmark(["random"], net="mlp", rounds=1, batch=5, seeds=1, max_epochs=2, n_pool=100).runs
    >>> type(run) is Run
    True
    >>> run.n_labels, len(run.initial), [len(batch) for batch in run.queried]
    ([20, 25], 20, [5])
    """

    strategy: str
    seed: int
    n_labels: list[int]
    scores: list[float]
    train_scores: list[float]
    initial: list[int]
    queried: list[list[int]]
    seconds_fit: list[float]
    seconds_query: list[float]
    warnings: list[str]
    record: dict[str, Any]
