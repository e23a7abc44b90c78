"""The evidence about numbers and several labels: runs go on where they stopped, and differences have the right sign."""

import json

import numpy as np
import pytest

from benchmarks.evidence import tasks


@pytest.fixture
def data_home(tmp_path, monkeypatch):
    """A folder with small data sets of both kinds, and a short protocol."""
    generator = np.random.default_rng(0)
    X = generator.normal(size=(120, 4)).astype(np.float32)
    targets = {"regression/concrete": X[:, 0] + X[:, 1] ** 2, "multilabel/scene": (X[:, :3] > 0).astype(np.int8)}
    for name, y in targets.items():
        path = tmp_path / f"{name}.npz"
        path.parent.mkdir(exist_ok=True)
        np.savez(path, X_train=X[:80], y_train=y[:80], X_test=X[80:], y_test=y[80:])
    monkeypatch.setenv("SKAL_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(tasks, "N_ROUNDS", 1)
    monkeypatch.setattr(tasks, "QUERY_SIZE", 10)
    return tmp_path


def test_runs_are_kept_and_not_made_twice(data_home, capsys):
    words = ["run", "--data", "concrete,scene", "--models", "logistic,forest", "--arms", "random;margin;lcmd"]
    words += ["--seeds", "1", "--out", str(data_home)]
    assert tasks.main(words) == 0
    lines = (data_home / "runs.jsonl").read_text()
    made = {(line["data"], line["model"], line["arm"]) for line in map(json.loads, lines.splitlines())}
    scene = {("scene", model, arm) for model in ("logistic", "forest") for arm in ("random", "margin")}
    assert made == {("concrete", "forest", "random"), ("concrete", "forest", "lcmd")} | scene
    tasks.main(words)
    assert (data_home / "runs.jsonl").read_text() == lines
    tasks.main(["report", "--out", str(data_home)])
    assert "| judging | forest | lcmd |" in capsys.readouterr().out


def test_a_smaller_error_and_a_larger_f1_are_better():
    runs = {("bike", "mlp", "random", 0): [1.0, 1.0], ("bike", "mlp", "lcmd", 0): [1.0, 0.5]}
    assert tasks.compare(runs, ["bike"], "judging") == [["judging", "mlp", "lcmd", "-0.693", "1 / 1"]]
    runs = {("scene", "forest", "random", 0): [0.5, 0.5], ("scene", "forest", "margin", 0): [0.5, 0.6]}
    assert tasks.compare(runs, ["scene"], "several")[0][3:] == ["+0.100", "1 / 1"]
