# SPDX-License-Identifier: BSD-3-Clause
"""The numbers of a benchmark's runs: tables, tests and verdicts."""

from __future__ import annotations

from dataclasses import asdict
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd

from skal.bench._protocol import Protocol
from skal.bench._run import Run
from skal.bench._statistics import area, friedman, paired_tests, penalty_matrix
from skal.bench._verdict import Comparison, compare
from skal.diagnostics import query_overlap
from skal.exceptions import InvalidParameterError


class Numbers:
    """What can be computed from the runs; see :class:`skal.bench.BenchmarkResult`."""

    def __init__(self, protocol: Protocol, runs: list[Run], details: dict[str, Any] | None = None) -> None:
        self.protocol = protocol
        self.details = dict(details or {})
        order = {name: i for i, name in enumerate(protocol.strategies)}
        self.runs = sorted((run for run in runs if run.strategy in order), key=lambda r: (order[r.strategy], r.seed))
        if not self.runs:
            raise InvalidParameterError("No run has finished yet. Run the benchmark first.")

    def __repr__(self) -> str:
        sizes = f"{len(self.seeds)} seeds, {self.n_labels[-1]} labels"
        return f"{type(self).__name__}({self.protocol.name!r}: {', '.join(self.strategies)}; {sizes})"

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
            Texts: a row per strategy, a column per budget.
        """
        cells = as_text(100 * self.means(), "{:.1f}")
        return cells + " ± " + as_text(100 * self.stds(), "{:.1f}") if len(self.seeds) > 1 else cells

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
        """Friedman's test on the areas: whether the strategies differ at all.

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
        """Intersection over union of what the strategies queried, without the labels at the start.

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


def score_name(result: Numbers) -> str:
    """The name of the score, in words."""
    return result.protocol.scoring.replace("_", " ")


def as_text(table: pd.DataFrame, template: str) -> pd.DataFrame:
    """The numbers of a table as texts."""
    return table.apply(lambda column: column.map(template.format))
