"""The benchmark of audits: sequences are judged at all of their looks, and classes where there are few."""

import numpy as np

from benchmarks.audit import LOOKS, SIZES, classes_part, collect, follow_part, print_classes, print_sequences, simulate


def test_sequences_are_judged_by_every_look_so_far(capsys):
    rng = np.random.default_rng(0)
    projects = [(setting, simulate(rng, 5.0)) for setting in ("calibrated", "poor") for _ in range(3)]
    found = collect([follow_part(iter(projects[::2]), [0]), follow_part(iter(projects[1::2]), [1])])
    assert sorted(found["labels"].unique()) == list(LOOKS)
    for setting in ("calibrated", "poor"):
        rows = found[found["setting"] == setting].sort_values("labels")
        assert (rows["sequence holds n"] == 3).all()
        assert (rows["sequence holds"].diff().dropna() <= 0).all()  # a miss stays a miss
        assert (rows["sequence width"].diff().dropna() < 0).all()
    print_sequences(found)
    said = capsys.readouterr().out
    assert "simulated" in said
    assert "settings below 95 % beyond chance: 0" in said


def test_classes_are_judged_where_there_are_few(capsys):
    rng = np.random.default_rng(0)
    few, many = (("calibrated", simulate(rng, 5.0, n_classes)) for n_classes in (3, 11))
    found = collect([classes_part(iter([few, many]), [0]), classes_part(iter([many]), [1])])
    assert found["labels"].tolist() == list(SIZES)
    assert (found["balanced holds n"] == 1).all()
    assert (found["balanced width"].diff().dropna() <= 0).all()
    print_classes(found)
    assert "one class holds" in capsys.readouterr().out
