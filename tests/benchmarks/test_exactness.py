"""The table of errors against brute-force autograd."""

import pytest

from benchmarks.exactness import COLUMNS, KINDS, main


def test_prints_a_row_for_each_network(capsys):
    assert main(["gated", "embedding bag"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in table[2:]] == ["gated", "embedding bag", "worst of 2"]
    assert all(line.count("|") == len(COLUMNS) + 2 for line in table)


def test_there_are_networks_of_many_kinds():
    assert len(KINDS) >= 24


def test_an_unknown_network_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["perceptron"])
    assert "unknown network perceptron. Choose from: mlp, " in capsys.readouterr().err
