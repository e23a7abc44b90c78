# SPDX-License-Identifier: BSD-3-Clause
"""The outcome of a benchmark: tables, tests, figures and verdicts."""

from __future__ import annotations

import os
from dataclasses import asdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from skal.bench import _plots
from skal.bench._latex import scores_table
from skal.bench._protocol import Protocol
from skal.bench._run import Run
from skal.bench._statistics import area, friedman, paired_tests, penalty_matrix
from skal.bench._store import Store, csv_text, write_text
from skal.bench._verdict import Comparison, compare
from skal.diagnostics import query_overlap
from skal.exceptions import InvalidParameterError
from skal.validation import Choice


class WholeTable(pd.DataFrame):
    """A data frame that prints all of its rows and columns, where pandas leaves some out."""

    @property
    def _constructor(self) -> type[WholeTable]:
        return WholeTable

    def __repr__(self) -> str:
        return str(self.to_string())

    def _repr_html_(self) -> str:
        return str(self.to_html())


class BenchmarkResult:
    """Runs of several strategies over paired seeds, with tables, tests, figures and verdicts.

    Comparisons use the seeds for which every strategy has finished.

    Parameters
    ----------
    protocol : Protocol
        The settings of the benchmark.
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

    def __init__(self, protocol: Protocol, runs: list[Run], details: dict[str, Any] | None = None) -> None:
        self.protocol = protocol
        self.details = dict(details or {})
        order = {name: i for i, name in enumerate(protocol.strategies)}
        self.runs = sorted((run for run in runs if run.strategy in order), key=lambda r: (order[r.strategy], r.seed))
        if not self.runs:
            raise InvalidParameterError("No run has finished yet. Run the benchmark first.")

    def __repr__(self) -> str:
        sizes = f"{len(self.seeds)} seeds, {self.n_labels[-1]} labels"
        return f"BenchmarkResult({self.protocol.name!r}: {', '.join(self.strategies)}; {sizes})"

    @property
    def strategies(self) -> list[str]:
        """The strategies with finished runs, in the protocol's order."""
        return list(dict.fromkeys(run.strategy for run in self.runs))

    @property
    def seeds(self) -> list[int]:
        """The seeds that every strategy has finished."""
        done = [{run.seed for run in self.runs if run.strategy == name} for name in self.strategies]
        return sorted(set.intersection(*done))

    @property
    def n_missing(self) -> int:
        """Runs of the protocol that have not finished."""
        return len(self.protocol.strategies) * self.protocol.seeds - len(self.runs)

    @property
    def n_labels(self) -> np.ndarray:
        """(budget,) labels."""
        return np.array(self.runs[0].n_labels)

    @property
    def reference(self) -> str:
        """The strategy that the others are compared with."""
        return self.protocol.reference if self.protocol.reference in self.strategies else self.strategies[0]

    @property
    def score_name(self) -> str:
        """The name of the score in words."""
        name = self.protocol.scoring.replace("_", " ")
        return f"minus {name.upper()}" if name in ("rmse", "mae") else name

    @property
    def scores(self) -> np.ndarray:
        """(strategy, seed, budget) test scores of the paired seeds."""
        if not self.seeds:
            raise InvalidParameterError(
                "No seed has been finished by every strategy, so there is nothing to compare. "
                "Run the benchmark again to finish the missing runs."
            )
        return np.array([[run.scores for run in runs] for runs in self._pair_runs().values()])

    def _pair_runs(self) -> dict[str, list[Run]]:
        """The runs of each strategy on the paired seeds, in the order of these."""
        seeds = self.seeds
        return {name: [r for r in self.runs if r.strategy == name and r.seed in seeds] for name in self.strategies}

    def to_frame(self) -> pd.DataFrame:
        """One row per strategy, seed and budget, unpaired seeds included.

        ``seconds_query`` is NaN at the start, unless the strategy chose the first labels, too.

        Returns
        -------
        pandas.DataFrame
            In the long form that plotting packages take.
        """
        columns = ["strategy", "seed", "round", "n_labels", "score", "train_score", "seconds_fit", "seconds_query"]
        rows: list[tuple[Any, ...]] = []
        for run in self.runs:
            # one query less than budgets, unless there is one before the first training
            queries = [np.nan] * (len(run.n_labels) - len(run.seconds_query)) + run.seconds_query
            budgets = zip(run.n_labels, run.scores, run.train_scores, run.seconds_fit, queries, strict=True)
            rows += [(run.strategy, run.seed, k, *numbers) for k, numbers in enumerate(budgets)]
        return pd.DataFrame(rows, columns=columns)

    def table(self) -> pd.DataFrame:
        """Test score in percent, mean ± standard deviation over seeds.

        Returns
        -------
        pandas.DataFrame
            Texts: a row per strategy, a column per budget. It prints whole, however many there are.
        """
        cells = as_text(100 * self.means(), "{:.1f}")
        return WholeTable(cells + " ± " + as_text(100 * self.stds(), "{:.1f}") if len(self.seeds) > 1 else cells)

    def means(self) -> pd.DataFrame:
        """Mean score over the paired seeds.

        Returns
        -------
        pandas.DataFrame
            A row per strategy, a column per budget.
        """
        return self._by_strategy(self.scores.mean(axis=1), self.n_labels)

    def stds(self) -> pd.DataFrame:
        """Sample standard deviation over the paired seeds.

        Returns
        -------
        pandas.DataFrame
            A row per strategy, a column per budget; NaN with one seed.
        """
        scores = self.scores
        spread = scores.std(axis=1, ddof=1) if scores.shape[1] > 1 else np.full_like(scores[:, 0], np.nan)
        return self._by_strategy(spread, self.n_labels)

    def _by_strategy(self, values: np.ndarray, columns: Any) -> pd.DataFrame:
        return pd.DataFrame(values, index=pd.Index(self.strategies, name="strategy"), columns=columns)

    def areas(self) -> pd.DataFrame:
        """Area under the budget curve, as a mean score.

        Returns
        -------
        pandas.DataFrame
            A row per strategy, a column per paired seed.
        """
        return self._by_strategy(area(self.n_labels, self.scores), self.seeds)

    def comparisons(self) -> list[Comparison]:
        """Every strategy against the reference, each with its verdict in words.

        Returns
        -------
        list of Comparison
            One per strategy other than the reference.
        """
        return compare(self.strategies, self.n_labels, self.scores, self.reference)

    def tests(self) -> pd.DataFrame:
        """The comparisons as a table.

        Returns
        -------
        pandas.DataFrame
            A row per strategy: area, difference from the reference with its interval, p-values, verdict.
        """
        rows = [asdict(comparison) | {"verdict": comparison.verdict} for comparison in self.comparisons()]
        columns = [*Comparison.__dataclass_fields__, "verdict"]
        return pd.DataFrame(rows, columns=columns).set_index("strategy")

    def friedman(self) -> tuple[float, float]:
        """Friedman's test of whether the strategies' areas differ at all.

        Returns
        -------
        statistic, pvalue : float
            NaN where there are too few strategies or seeds for the test.
        """
        return friedman(self.areas().to_numpy())

    def pairwise(self) -> pd.DataFrame:
        """Post-hoc tests on the areas of all pairs of strategies, with Holm's correction over the pairs.

        Returns
        -------
        pandas.DataFrame
            A row per pair, with p-values before and after the correction.
        """
        names = pd.DataFrame(list(combinations(self.strategies, 2)), columns=["a", "b"])
        tests = paired_tests(self.areas().to_numpy(), list(combinations(range(len(self.strategies)), 2)))
        return pd.concat([names, tests], axis=1)

    def penalties(self) -> pd.DataFrame:
        """BADGE's pairwise penalties.

        Returns
        -------
        pandas.DataFrame
            The share of budgets at which the row's strategy beats the column's.
        """
        after_query = max(1, len(self.n_labels) - 1)
        penalties = penalty_matrix(self.scores[:, :, -after_query:])
        return pd.DataFrame(penalties, index=self.strategies, columns=self.strategies)

    def overlap(self) -> pd.DataFrame:
        """Intersection over union of the queried samples, without the labels at the start.

        Returns
        -------
        pandas.DataFrame
            Strategy by strategy, from 0 to 1.
        """
        paired = self._pair_runs().items()
        return query_overlap(
            {name: [[i for batch in run.queried for i in batch] for run in runs] for name, runs in paired}
        )

    def times(self) -> pd.DataFrame:
        """Mean seconds per round.

        Returns
        -------
        pandas.DataFrame
            A row per strategy; columns ``query``, and ``fit`` after it.
        """
        frame = self.to_frame()
        after = frame[frame["round"] >= (frame["round"].max() > 0)]
        means = after.groupby("strategy", sort=False)[["seconds_query", "seconds_fit"]].mean()
        return means.loc[self.strategies].rename(columns=lambda name: name.removeprefix("seconds_"))

    def plot(self, kind: str = "curves", ax: Any = None) -> Any:
        """Draw a figure.

        Parameters
        ----------
        kind : {"curves", "areas", "difference", "time", "overlap"}, default="curves"
            Scores by labels; the difference from the reference with its interval, of the area and at each budget;
            query time against the final score; the overlap of the queried samples.
        ax : matplotlib Axes or None, default=None
            None makes a new figure, without pyplot, which a notebook shows:
            ``result.plot().figure.savefig("curves.png")`` saves it.

        Returns
        -------
        matplotlib Axes
            The axes of the figure.
        """
        Choice(*_plots.RESULT_FIGURES).check("BenchmarkResult.plot", "kind", kind)
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
            None writes a caption that explains the numbers, and ``tab:NAME``.

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


def as_text(table: pd.DataFrame, template: str) -> pd.DataFrame:
    """The numbers of a table as texts."""
    return table.apply(lambda column: column.map(template.format))
