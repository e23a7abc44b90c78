# SPDX-License-Identifier: BSD-3-Clause
"""Several benchmarks together: their numbers, and ways to draw and print them."""

from __future__ import annotations

from typing import Any

import numpy as np

from skal.bench import _suite_plots
from skal.bench._latex import escape, latex_table
from skal.bench._plots import new_axes
from skal.bench._suite_numbers import SuiteNumbers
from skal.bench._verdict import p_phrase
from skal.validation import check_choice


class BenchmarkSuite(SuiteNumbers):
    """Results of the same strategies on several settings: data sets, networks, budgets.

    Within a setting a strategy is compared with the reference on the seeds that both have finished, and Holm's method
    corrects over the strategies. Over the settings a strategy is ranked by its mean difference from the reference.
    Only strategies that have run in every setting are ranked.

    Parameters
    ----------
    results : mapping of str to BenchmarkResult
        By the settings' names.
    reference : str, default="random"
        What differences are taken from; every setting needs it.

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
            What was drawn on.
        """
        check_choice("BenchmarkSuite.plot", "kind", kind, list(_suite_plots.SUITE_FIGURES))
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
