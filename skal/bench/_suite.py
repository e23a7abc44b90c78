# SPDX-License-Identifier: BSD-3-Clause
"""Several benchmarks together: ranks, shares of verdicts, saved labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from skal.bench import _suite_plots
from skal.bench._latex import escape, latex_table
from skal.bench._plots import new_axes
from skal.bench._ranks import FriedmanTest, critical_difference, friedman_test, pairwise_wilcoxon, rank
from skal.bench._result import BenchmarkResult
from skal.bench._statistics import Interval, saved_labels_interval
from skal.bench._verdict import Comparison, compare, p_phrase
from skal.exceptions import InvalidParameterError
from skal.validation import Choice

OUTCOMES = ("better", "not distinguishable", "worse", "not testable")


class BenchmarkSuite:
    """Results of the same strategies on several settings: data sets, networks, budgets.

    Within a setting a strategy is compared with the reference on the seeds that both have finished, and Holm's method
    corrects over the strategies. Over the settings a strategy is ranked by its mean difference from the reference.
    Only strategies that have run in every setting are ranked.

    Parameters
    ----------
    results : mapping of str to BenchmarkResult
        By the settings' names.
    reference : str, default="random"
        The strategy that the others are compared with; every setting needs it.

    Examples
    --------
    >>> from skal.bench import BenchmarkSuite, run_benchmark
    >>> settings = dict(net="mlp", n_rounds=1, seeds=2, max_epochs=2, n_pool=100)
    >>> names = ["random", "margin", "entropy"]
    >>> suite = BenchmarkSuite({str(n): run_benchmark(names, query_size=n, **settings) for n in (5, 10)})
    >>> suite.outcomes().shape  # strategies but for Random, settings
    (2, 2)
    >>> float(suite.mean_ranks().sum())  # 1 + 2 + 3
    6.0
    """

    def __init__(self, results: Mapping[str, BenchmarkResult], reference: str = "random") -> None:
        if not results:
            raise InvalidParameterError("A BenchmarkSuite must have at least one result. Got none. Run a benchmark.")
        self.results = dict(results)
        self.reference = reference
        self._require(reference)
        self._compared: dict[str, dict[str, list[Comparison]]] = {}  # by reference

    def _require(self, reference: str) -> None:
        if missing := [name for name, result in self.results.items() if reference not in result.strategies]:
            expected = "a strategy with a finished run in every setting"
            remedy = f"It has none in {', '.join(missing)}: finish these, or leave them out."
            raise InvalidParameterError.for_parameter("BenchmarkSuite", "reference", expected, reference, remedy)

    def __repr__(self) -> str:
        return f"BenchmarkSuite({len(self.results)} settings, {len(self.strategies)} strategies)"

    @property
    def settings(self) -> list[str]:
        """Names of the settings."""
        return list(self.results)

    @property
    def strategies(self) -> list[str]:
        """All strategies, in the order in which the results name them."""
        return list(dict.fromkeys(name for result in self.results.values() for name in result.strategies))

    @property
    def ranked(self) -> list[str]:
        """The strategies that have run in every setting."""
        return [name for name in self.strategies if all(name in r.strategies for r in self.results.values())]

    def scores(self, setting: str) -> tuple[list[str], np.ndarray]:
        """Scores of all strategies in a setting.

        Parameters
        ----------
        setting : str
            Its name.

        Returns
        -------
        strategies : list of str
            Their names, in the order of the scores.
        scores : (strategy, seed, budget) array
            NaN where one has not run.
        """
        result = self.results[setting]
        names, seeds = result.strategies, sorted({run.seed for run in result.runs})
        scores = np.full((len(names), len(seeds), len(result.n_labels)), np.nan)
        for run in result.runs:
            scores[names.index(run.strategy), seeds.index(run.seed)] = run.scores
        return names, scores

    def n_seeds(self) -> pd.DataFrame:
        """Numbers of seeds that have finished.

        Returns
        -------
        pandas.DataFrame
            A row per strategy, a column per setting.
        """
        counts = {
            setting: {name: sum(run.strategy == name for run in result.runs) for name in self.strategies}
            for setting, result in self.results.items()
        }
        return pd.DataFrame(counts, index=self.strategies).rename_axis("strategy")

    def comparisons(self, reference: str | None = None) -> dict[str, list[Comparison]]:
        """Every strategy against the reference, by setting.

        Parameters
        ----------
        reference : str or None, default=None
            A strategy's name; None takes the suite's own.

        Returns
        -------
        dict of list of Comparison
            By the setting's name.
        """
        reference = reference or self.reference
        if reference not in self._compared:
            self._require(reference)
            found = {}
            for setting, result in self.results.items():
                names, scores = self.scores(setting)
                found[setting] = compare(names, result.n_labels, scores, reference)
            self._compared[reference] = found
        return self._compared[reference]

    def _cells(self, attribute: str, reference: str | None) -> pd.DataFrame:
        reference = reference or self.reference
        cells = {
            setting: {comparison.strategy: getattr(comparison, attribute) for comparison in found}
            for setting, found in self.comparisons(reference).items()
        }
        names = [name for name in self.strategies if name != reference]
        return pd.DataFrame(cells, index=names).rename_axis("strategy")

    def differences(self, reference: str | None = None) -> pd.DataFrame:
        """Mean paired difference of the area from the reference.

        Parameters
        ----------
        reference : str or None, default=None
            A strategy's name; None takes the suite's own.

        Returns
        -------
        pandas.DataFrame
            A row per strategy, a column per setting; NaN where one has not run.
        """
        return self._cells("difference", reference)

    def outcomes(self, reference: str | None = None) -> pd.DataFrame:
        """The outcome of the tests for every strategy in every setting.

        Parameters
        ----------
        reference : str or None, default=None
            A strategy's name; None takes the suite's own.

        Returns
        -------
        pandas.DataFrame
            Better, worse, not distinguishable or not testable: a row per strategy, a column per setting; NaN where one
            has not run.
        """
        return self._cells("outcome", reference)

    def shares(self, reference: str | None = None) -> pd.DataFrame:
        """In how many settings each strategy has which outcome against the reference.

        Parameters
        ----------
        reference : str or None, default=None
            A strategy's name; None takes the suite's own.

        Returns
        -------
        pandas.DataFrame
            A row per strategy, a column per outcome, and one for the number of settings.
        """
        outcomes = self.outcomes(reference)
        counts = pd.DataFrame({name: (outcomes == name).sum(axis=1) for name in OUTCOMES})
        return counts.assign(settings=outcomes.notna().sum(axis=1))

    def ranks(self) -> pd.DataFrame:
        """Rank of each strategy within each setting, 1 is best.

        Returns
        -------
        pandas.DataFrame
            A row per strategy, a column per setting.
        """
        table = self._ranked_differences()
        return pd.DataFrame(rank(table.to_numpy()), index=table.index, columns=table.columns)

    def _ranked_differences(self) -> pd.DataFrame:
        # the difference from the reference, not the area: strategies with fewer seeds keep their pairs
        table = self.differences()
        table.loc[self.reference] = 0.0
        return table.loc[self.ranked]

    def mean_ranks(self) -> pd.Series:
        """Mean rank over the settings, the best first.

        Returns
        -------
        pandas.Series
            By the strategy's name.
        """
        return self.ranks().mean(axis=1).sort_values(kind="stable")

    def friedman(self) -> FriedmanTest:
        """Friedman's test, over the settings, of whether the ranked strategies differ at all.

        Returns
        -------
        FriedmanTest
            Friedman's χ² and Iman and Davenport's F, each with its p-value.
        """
        return friedman_test(self._ranked_differences().to_numpy())

    def pairwise(self) -> pd.DataFrame:
        """Wilcoxon's tests of all pairs of ranked strategies over the settings, with Holm's correction.

        Returns
        -------
        pandas.DataFrame
            A row per pair, with p-values before and after the correction.
        """
        table = self._ranked_differences()
        tests = pairwise_wilcoxon(table.to_numpy())
        names = {side: table.index[tests[place]] for side, place in (("a", "i"), ("b", "j"))}
        return tests.drop(columns=["i", "j"]).assign(**names)[["a", "b", "difference", "p", "p_holm"]]

    def critical_difference(self) -> float:
        """Nemenyi's critical difference of two mean ranks.

        Returns
        -------
        float
            In ranks.
        """
        return critical_difference(len(self.ranked), len(self.results))

    def saved_labels(self, reference: str | None = None) -> pd.DataFrame:
        """Labels saved at the reference's final score, with a 95 % interval over the seeds.

        One row per setting and strategy: ``value``, ``low``, ``high``, ``share`` of the labels bought after the start,
        and ``seeds``. NaN means that the score is not reached; a bound can be that, too. With fewer than ten seeds
        there are no bounds.

        Parameters
        ----------
        reference : str or None, default=None
            A strategy's name; None takes the suite's own.

        Returns
        -------
        pandas.DataFrame
            As described above.
        """
        reference = reference or self.reference
        self._require(reference)
        rows = []
        for setting, result in self.results.items():
            names, scores = self.scores(setting)
            base, n_labels = scores[names.index(reference)], result.n_labels
            for name, own in zip(names, scores, strict=True):
                shared = ~np.isnan(own[:, 0] - base[:, 0])
                if name == reference or not shared.any():
                    continue
                found: Interval = saved_labels_interval(n_labels, own[shared], base[shared])
                bought = max(1, n_labels[-1] - n_labels[0])
                rows.append((setting, name, *found, found.value / bought, int(shared.sum())))
        columns = ["setting", "strategy", *Interval._fields, "share", "seeds"]
        return pd.DataFrame(rows, columns=columns).set_index(["setting", "strategy"])

    def summary(self, against: tuple[str, ...] = ("random", "margin")) -> pd.DataFrame:
        """One row per strategy, the best mean rank first.

        Mean rank; better / not distinguishable / worse than each of ``against``; the median over the settings of the
        share of labels saved, where a score that is not reached counts as none; the fewest and most seeds of a setting.

        Parameters
        ----------
        against : tuple of str, default=("random", "margin")
            Strategies that all others are compared with.

        Returns
        -------
        pandas.DataFrame
            As described above.
        """
        ranks, seeds = self.mean_ranks(), self.n_seeds()
        order = [*ranks.index, *(name for name in self.strategies if name not in ranks.index)]
        table = pd.DataFrame({"mean rank": ranks.reindex(order)})
        for reference in against:
            if reference in self.ranked:
                shares = self.shares(reference).reindex(order)
                counted = ["better", "not distinguishable", "worse"]
                table[f"against {reference}"] = [
                    "" if row.isna().any() else " / ".join(str(int(row[name])) for name in counted)
                    for _, row in shares.iterrows()
                ]
        saved = self.saved_labels()["share"].fillna(0).groupby("strategy").median()
        table["labels saved"] = saved.reindex(order)
        some = seeds.where(seeds > 0).reindex(order)
        table["settings"] = some.notna().sum(axis=1)
        low, high = some.min(axis=1), some.max(axis=1)
        table["seeds"] = [f"{a:.0f}" if a == b else f"{a:.0f}–{b:.0f}" for a, b in zip(low, high, strict=True)]
        return table.rename_axis("strategy")

    def subset(self, settings: list[str]) -> BenchmarkSuite:
        """The suite with some of its settings.

        Parameters
        ----------
        settings : list of str
            Their names.

        Returns
        -------
        BenchmarkSuite
            With these settings alone.
        """
        return BenchmarkSuite({name: self.results[name] for name in settings}, self.reference)

    def plot(self, kind: str = "ranks", ax: Any = None, **options: Any) -> Any:
        """Draw a figure.

        Parameters
        ----------
        kind : {"ranks", "outcomes", "saved"}, default="ranks"
            The critical-difference diagram: mean ranks, with a bar over strategies that the corrected tests do not tell
            apart. The verdict of every strategy in every setting. Labels saved in every setting.
        ax : matplotlib Axes or None, default=None
            None makes a new figure, without pyplot, which a notebook shows.
        **options
            ``reference``, for the last two.

        Returns
        -------
        matplotlib Axes
            The axes of the figure.
        """
        Choice(*_suite_plots.SUITE_FIGURES).check("BenchmarkSuite.plot", "kind", kind)
        draw, size = _suite_plots.SUITE_FIGURES[kind]
        ax = new_axes(size(len(self.strategies), len(self.results))) if ax is None else ax
        draw(self, ax, **options)
        return ax

    def to_latex(self, caption: str | None = None, label: str = "tab:strategies") -> str:
        """The summary as a table for a paper, with the tests in its caption.

        Parameters
        ----------
        caption : str or None, default=None
            None writes one that names the tests and their results.
        label : str, default="tab:strategies"
            For ``\\ref``.

        Returns
        -------
        str
            A ``table`` environment.
        """
        summary = self.summary()
        cells = summary.copy().astype(object)
        best = summary["mean rank"].min()
        cells["mean rank"] = [
            "–" if np.isnan(value) else rf"\textbf{{{value:.2f}}}" if value == best else f"{value:.2f}"
            for value in summary["mean rank"]
        ]
        cells["labels saved"] = ["–" if np.isnan(v) else rf"{100 * v:.0f} \%" for v in summary["labels saved"]]
        cells = cells.map(lambda cell: str(cell).replace("–", "--"))
        cells.insert(0, "strategy", [escape(name) for name in summary.index])
        if caption is None:
            caption = (
                f"{len(self.settings)} settings. Mean rank by the area under the learning curve; number of settings in "
                "which a strategy is better / not distinguishable / worse (paired t-tests over seeds, Holm's "
                "correction within each setting, 5 \\%); median share of the labels that it saves at "
                f"{escape(self.reference)}'s final score. {self._friedman_latex()}"
            )
        return latex_table(cells, caption, label, wide=True)

    def _friedman_latex(self) -> str:
        test = self.friedman()
        if np.isnan(test.p):
            return "Too few settings or strategies for Friedman's test."
        p = p_phrase(test.p).replace("<", "$<$").replace("=", "$=$")
        return f"Friedman's test: $\\chi^2_{{{len(self.ranked) - 1}}} = {test.statistic:.1f}$, {p}."
