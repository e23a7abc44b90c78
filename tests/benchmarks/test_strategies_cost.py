"""The tables of what a query costs, on sizes that say nothing."""

import pytest

from benchmarks import gradients, strategies_cost
from benchmarks._cost_problems import STRATEGIES
from skal import strategies


def test_every_strategy_is_in_the_table():
    classes = {name.partition(",")[0] for name in STRATEGIES}
    assert classes == {name for name in strategies.__all__ if name[0].isupper()}


@pytest.mark.parametrize("table", ["ratio", "bounds", "products", "batches", "growth", "overhead", "npc"])
def test_the_tables(table, capsys):
    assert strategies_cost.main([table, "--quick", "--only", "Margin", "EGL, last"]) == 0
    printed = capsys.readouterr().out
    assert f"### {table}" in printed
    assert "nan" not in printed
    assert ("`Margin`" in printed) == (table not in ("bounds", "products", "npc"))


def test_an_unknown_table_is_refused(capsys):
    with pytest.raises(SystemExit):
        strategies_cost.main(["speed"])
    assert "unknown table speed" in capsys.readouterr().err


def test_norms_beside_other_libraries(capsys, monkeypatch):
    monkeypatch.setattr(gradients, "NETWORKS", {"CNN": gradients.NETWORKS["tutorial CNN"]})
    assert gradients.main(["--quick"]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("| CNN |")
    assert row.count("does not run") <= 1  # opacus may not be installed
