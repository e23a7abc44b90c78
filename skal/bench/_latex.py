# SPDX-License-Identifier: BSD-3-Clause
"""Tables for papers: LaTeX with booktabs.

``result`` is a :class:`skal.bench.BenchmarkResult`, whose module imports this one.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from tabulate import tabulate

_ESCAPES = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_ESCAPES |= {"−": "$-$", "×": r"$\times$", "γ": r"$\gamma$", "±": r"$\pm$"}
_ESCAPES |= {character: "\\" + character for character in "&%$#_{}"}


def escape(text: str) -> str:
    r"""Escape a text, so that nothing in it is a command.

    Examples
    --------
    >>> escape("dynamic_al(gamma=0)"), escape("5 %")
    ('dynamic\\_al(gamma=0)', '5 \\%')
    """
    return "".join(_ESCAPES.get(character, character) for character in text)


def latex_table(table: pd.DataFrame, caption: str, label: str, *, wide: bool = False) -> str:
    r"""A floating table of cells that are LaTeX already, with the rules of the package booktabs."""
    align = ("left", *["right"] * (table.shape[1] - 1))
    body = _add_rules(tabulate(table, "keys", "latex_raw", showindex=False, colalign=align, disable_numparse=True))
    star = "*" if wide else ""
    lines = [rf"\begin{{table{star}}}", r"\centering", rf"\caption{{{caption}}}", rf"\label{{{label}}}"]
    return "\n".join([*lines, body, rf"\end{{table{star}}}"]) + "\n"


def _add_rules(tabular: str) -> str:
    """booktabs' rules for plain lines: tabulate's own format with them would escape the cells."""
    first, *rest = tabular.split(r"\hline")
    rules = [r"\toprule", r"\midrule", r"\bottomrule"]
    return first + "".join(rule + part for rule, part in zip(rules, rest, strict=True))


def scores_table(result: Any, caption: str | None, label: str | None) -> str:
    """Mean ± standard deviation by budget, with verdicts as marks."""
    means, stds, protocol = 100 * result.means(), 100 * result.stds(), result.protocol
    marks = {c.strategy: {"better": "$^{+}$", "worse": "$^{-}$"}.get(c.outcome, "") for c in result.comparisons()}
    best = means.round(1).max()
    rows = []
    for name in means.index:
        row = [escape(name) + marks.get(name, "")]
        for budget in means.columns:
            mean, std = means.loc[name, budget], stds.loc[name, budget]
            cell = f"{mean:.1f}"
            cell = rf"\textbf{{{cell}}}" if round(mean, 1) == best[budget] else cell
            row.append(cell if std != std else rf"{cell} $\pm$ {std:.1f}")
        rows.append(row)
    table = pd.DataFrame(rows, columns=["strategy", *map(str, means.columns)])
    if caption is None:
        seeds = len(result.seeds)
        spread = f", mean $\\pm$ standard deviation over {seeds} seeds" if seeds > 1 else ", one seed"
        caption = (
            f"{escape(protocol.heading)}: test {result.score_name} in percent by number of labels{spread}. "
            f"$^{{+}}$ better and $^{{-}}$ worse than {escape(result.reference)} by the area under the curve "
            "(paired t-test, Holm's correction, 5 \\%)."
        )
    return latex_table(table, caption, label or f"tab:{protocol.data}")
