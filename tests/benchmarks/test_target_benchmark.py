"""The benchmark of a target: what is measured is kept, and the table is made of it."""

import numpy as np
import pytest
from sklearn.utils import Bunch

from benchmarks import target
from benchmarks._kept import Kept


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Questions of 77 intents that are clusters of rows, in the place of banking77."""
    rng = np.random.default_rng(0)
    centres = 4 * rng.normal(size=(77, 8))

    def draw(n):
        y = np.arange(n) % 77
        X = centres[y] + rng.normal(size=(n, 8))
        return X / np.linalg.norm(X, axis=1, keepdims=True), y

    (X_train, y_train), (X_test, y_test) = draw(1540), draw(770)
    data = Bunch(X_train=X_train, y_train=y_train, X_test=X_test, y_test=y_test)
    monkeypatch.setattr(target, "load", lambda name: data)
    monkeypatch.setattr(target, "N_POOL", 300)
    monkeypatch.setattr(target, "SEEDS", range(2))
    monkeypatch.setattr(target, "KEPT", tmp_path / "kept.jsonl")
    monkeypatch.setattr(target, "METHODS", {name: target.METHODS[name] for name in ("Random", "MaxHerding, target")})


def test_labels_for_a_target_are_mostly_of_its_classes(small):
    aimed, random = (target.measure(name, 0) for name in ("MaxHerding, target", "Random"))
    assert aimed[1] > 2 * random[1]
    assert aimed[0] > random[0]


def test_what_is_kept_is_not_measured_again(small, capsys, monkeypatch):
    target.main(["run"])
    table = capsys.readouterr().out
    assert table.count("| 2 |") == 2
    monkeypatch.setattr(target, "measure", lambda *given: pytest.fail("measured again"))
    target.main(["run"])
    assert capsys.readouterr().out == table
    target.main(["table"])
    assert capsys.readouterr().out == table
    assert "Random / 1" in Kept(target.KEPT)
