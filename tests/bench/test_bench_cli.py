"""``skal bench`` and ``skal report``, called as functions."""

import json

import numpy as np
import pytest

from skal import cli
from skal.bench import Protocol
from skal.bench.papers import PRESETS

TINY = ["--data", "digits", "--net", "mlp", "--n-initial", "10", "--query-size", "5", "--n-rounds", "1", "--seeds", "2"]
TINY += ["--max-epochs", "2", "--n-pool", "60", "--n-test", "40"]


def test_bench_then_report(tmp_path, capsys):
    out = tmp_path / "out"
    strategies = "random,margin,dynamic_al(gamma=0)"
    assert cli.main(["bench", *TINY, "--strategies", strategies, "--jobs", "1", "--out", str(out)]) == 0
    first = capsys.readouterr()
    assert "dynamic_al(gamma=0): not " in first.out
    assert "6/6" in first.err
    assert f"Report: {out / 'report.html'}" in first.out
    (out / "report.html").unlink()
    assert cli.main(["report", str(out)]) == 0
    assert capsys.readouterr().out == first.out
    assert (out / "report.html").stat().st_size > 10_000


def test_bench_on_a_file_by_its_path(tmp_path, capsys):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 3)), rng.integers(2, size=80)
    np.savez(tmp_path / "own.npz", X_train=X[:60], y_train=y[:60], X_test=X[60:], y_test=y[60:])
    counts = ["--n-initial", "6", "--query-size", "3", "--n-rounds", "1", "--seeds", "1", "--max-epochs", "2"]
    arguments = [
        "--data",
        str(tmp_path / "own.npz"),
        "--title",
        "My features",
        "--strategies",
        "random,margin",
        *counts,
    ]
    assert cli.main(["bench", *arguments, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.startswith("My features\n")
    settings = json.loads((tmp_path / "out" / "settings.json").read_text())["protocol"]
    assert (settings["data"], settings["net"]) == ("own", "mlp")


def test_a_preset_of_several_protocols_has_a_folder_for_each(tmp_path, capsys, monkeypatch):
    pair = (Protocol(name="a", net_params={"depth": 9}), Protocol(name="b", warm_start=False))
    monkeypatch.setattr("skal.bench.papers.PRESETS", {"pair": pair})
    monkeypatch.setattr("skal.bench.write_report", lambda result, folder: folder)  # slow, and tried above
    arguments = ["bench", "--preset", "pair", *TINY, "--strategies", "random,entropy", "--out", str(tmp_path)]
    assert cli.main(arguments) == 0
    assert (tmp_path / "a" / "results.csv").exists()
    assert (tmp_path / "b" / "results.csv").exists()
    capsys.readouterr()
    assert cli.main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("Report: ") == 2


def test_list(capsys):
    assert cli.main(["bench", "--list"]) == 0
    out = capsys.readouterr().out
    assert [line.split(":")[0] for line in out.splitlines()] == list(PRESETS)
    assert "dynamic_al_table2: cifar10, cnn, 500 + 9 x 250" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "--preset", "nothing"], "must be one of 'dynamic_al_table1'"),
        (["bench", "--data", "digits", "--strategies", "luck"], "Got 'luck'"),
        (["bench", "--data", "no_such_data", "--data-home", "."], "no_such_data"),
        (["report", "nowhere"], "settings.json is missing"),
    ],
)
def test_mistakes_are_errors_without_a_traceback(arguments, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(arguments) == 1
    assert message in capsys.readouterr().err
