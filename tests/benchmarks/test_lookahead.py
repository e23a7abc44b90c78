"""The look-ahead's benchmark runs, at sizes that say nothing."""

import pytest

from benchmarks import lookahead


@pytest.mark.parametrize("table", [lookahead.tau_table, lookahead.sequential_table], ids=lambda table: table.__name__)
def test_tables(table):
    rows = [line.split("|")[1:-1] for line in table("digits", quick=True).splitlines()]
    assert len({len(row) for row in rows}) == 1
    assert 0.8 < float(rows[-1][-1]) <= 1


def test_what_is_foretold_comes_with_width():
    last = lookahead.width_table(quick=True).splitlines()[-1].split("|")
    assert float(last[2]) > 0.5


def test_unknown_tables_are_named(capsys):
    with pytest.raises(SystemExit):
        lookahead.main(["no_such_table"])
    assert "no_such_table" in capsys.readouterr().err
