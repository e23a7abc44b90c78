# SPDX-License-Identifier: BSD-3-Clause
"""The outcome of a benchmark: its numbers, and ways to draw, print and keep them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from skal.bench import _plots
from skal.bench._latex import scores_table
from skal.bench._numbers import Numbers
from skal.bench._store import Store, csv_text, write_text
from skal.validation import check_choice


class BenchmarkResult(Numbers):
    """Runs of several strategies over paired seeds, with tables, tests, figures and verdicts.

    Comparisons use the seeds for which every strategy has finished.

    Parameters
    ----------
    protocol : Protocol
        What was run.
    runs : list of Run
        One per strategy and seed that has finished.
    details : dict, default=None
        Further records, such as the sizes of the data.

    Examples
    --------
    >>> from skal.bench import run_benchmark
    >>> settings = dict(net="mlp", n_rounds=1, seeds=2, max_epochs=5, n_pool=200)
    >>> result = run_benchmark(["random", "margin"], **settings)  # a BenchmarkResult
    >>> result.table().columns.tolist()
    [20, 40]
    >>> len(result.to_frame())  # two strategies, two seeds, two budgets
    8
    """

    def plot(self, kind: str = "curves", ax: Any = None) -> Any:
        """Draw a figure.

        Parameters
        ----------
        kind : {"curves", "areas", "difference", "time", "overlap"}, default="curves"
            Scores by labels; the difference from the reference with its interval, of the area and at each budget;
            query time against the final score; the overlap of what was queried.
        ax : matplotlib Axes or None, default=None
            None makes a new figure, without pyplot, which a notebook shows:
            ``result.plot().figure.savefig("curves.png")`` saves it.

        Returns
        -------
        matplotlib Axes
            What was drawn on.
        """
        check_choice("BenchmarkResult.plot", "kind", kind, list(_plots.RESULT_FIGURES))
        ax = _plots.new_axes() if ax is None else ax
        draw, _ = _plots.RESULT_FIGURES[kind]
        draw(self, ax)
        return ax

    def to_latex(self, caption: str | None = None, label: str | None = None) -> str:
        """The table of scores for a paper: booktabs, the best mean of each budget in bold, verdicts as marks.

        A strategy that the corrected test finds better than the reference has a ``+``, one that is worse a ``-``.

        Parameters
        ----------
        caption, label : str or None
            None writes a caption that says what the numbers are, and ``tab:NAME``.

        Returns
        -------
        str
            A ``table`` environment.

        Examples
        --------
        >>> from skal.bench import run_benchmark
        >>> result = run_benchmark(["random", "margin"], net="mlp", n_rounds=1, seeds=2, max_epochs=2, n_pool=100)
        >>> print(result.to_latex(label="tab:digits").splitlines()[0])
        \\begin{table}
        """
        return scores_table(self, caption, label)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write settings, runs and tables into a folder, for :meth:`load` and ``skal report``.

        Parameters
        ----------
        folder : path
            Made if it is not there.
        """
        store = Store(folder)
        store.open(self.protocol, self.details)
        for run in self.runs:
            store.write(run)
        self.write_tables(folder)

    def write_tables(self, folder: str | os.PathLike[str]) -> None:
        """Write ``results.csv``, which is the same for every repetition, and ``timings.csv``, which is not.

        Parameters
        ----------
        folder : path
            One that is there.
        """
        frame, seconds = self.to_frame(), ["seconds_fit", "seconds_query"]
        write_text(Path(folder) / "results.csv", csv_text(frame.drop(columns=seconds), index=False))
        timings = frame.drop(columns=["score", "train_score"])
        write_text(Path(folder) / "timings.csv", csv_text(timings, index=False))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> BenchmarkResult:
        """Read the folder of a benchmark, finished or not."""
        store = Store(folder)
        protocol, details = store.settings()
        found = [store.read(name, seed) for name in protocol.strategies for seed in range(protocol.seeds)]
        return cls(protocol, [run for run in found if run is not None], details)
