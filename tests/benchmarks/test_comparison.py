"""The comparison with other libraries, on a few samples: who chooses, and that wrong picks are noticed."""

import numpy as np
import pytest

from benchmarks import comparison


@pytest.mark.parametrize("arm", comparison.ARMS, ids="-".join)
def test_every_library_chooses_rows_without_labels(arm):
    pytest.importorskip("skactiveml")
    name, library = arm
    state = comparison._state(60)
    chosen = comparison._choose(name, library, state, 5, 0)
    assert len(set(chosen.tolist()) - set(state.labelled)) == 5


def test_what_does_the_same_chooses_the_same():
    pytest.importorskip("skactiveml")
    state = comparison._state(60)
    for name in ("margin", "entropy"):
        picks = [set(comparison._choose(name, library, state, 5, 0)) for library in comparison.STRATEGIES[name]]
        assert picks[0] == picks[1] == picks[2]


def test_labels_that_are_chosen_twice_are_an_error(monkeypatch):
    monkeypatch.setattr(comparison, "_choose", lambda name, library, state, b, seed: state.rest[np.zeros(b, int)])
    with pytest.raises(RuntimeError, match="margin of skal"):
        comparison.run_loop("margin", "skal", 0, 1, 5)


def test_the_table_of_features_counts_what_is_exported(capsys):
    pytest.importorskip("skactiveml")
    assert comparison.main(["features"]) == 0
    assert "| skal |" in capsys.readouterr().out
