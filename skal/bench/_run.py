"""What one run of one strategy and one seed leaves behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Run"]


@dataclass(frozen=True)
class Run:
    """Lists of plain numbers, one entry per budget; ``queried`` and ``seconds_query`` one per query.

    A zero-shot choice of the first labels counts as a query in ``seconds_query``. ``initial`` and ``queried`` are
    positions in the training set. ``warnings`` has what was warned about, each text once. ``record`` says how the run
    was made.

    Examples
    --------
    >>> from skal.bench import run_benchmark
    >>> (run,) = run_benchmark(["random"], net="mlp", rounds=1, batch=5, seeds=1, max_epochs=2, n_pool=100).runs
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
