"""Files and arguments of a benchmark that are wrong, hostile or too large."""

import os

import numpy as np
import pytest
from joblib.externals.loky.process_executor import BrokenProcessPool

import skal.datasets._npz
from skal import cli
from skal.bench import BenchmarkError, markdown_report, run_benchmark, write_report
from skal.datasets import load
from skal.exceptions import InvalidParameterError

TINY = {"net": "mlp", "n_rounds": 1, "query_size": 5, "max_epochs": 1, "n_pool": 60, "n_test": 40, "n_initial": 10}


def save(path, n=60):
    rng = np.random.default_rng(0)
    X, y = rng.integers(255, size=(n, 8, 8), dtype=np.uint8), np.arange(n) % 3
    np.savez(path, X_train=X, y_train=y, X_test=X, y_test=y)
    return path


def test_more_rounds_than_a_list_can_hold_are_refused():
    with pytest.raises(InvalidParameterError, match=r"'n_rounds' parameter.*Got 1000000000 instead"):
        run_benchmark(["random"], data="digits", net="mlp", n_rounds=10**9)
    with pytest.raises(InvalidParameterError, match="'seeds' parameter"):
        run_benchmark(["random"], data="digits", net="mlp", seeds=10**30)


@pytest.mark.parametrize(
    "arguments", [["--jobs", "0"], ["--data", "../x"], ["--data", "no/such.npz"], ["--data", "x y"]], ids=str
)
def test_wrong_arguments_are_told_in_a_line(arguments, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out"), "--data", "digits", "--strategies", "random", "--net", "mlp", "--seeds", "1"]
    assert cli.main(["bench", *out, *arguments]) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_a_damaged_file_is_told_in_a_line(tmp_path, capsys):
    (tmp_path / "toy.npz").write_bytes(b"PK\3\4 and no more")
    assert cli.main(["bench", "--data", str(tmp_path / "toy.npz"), "--out", str(tmp_path / "out")]) == 1
    assert "not an npz archive" in capsys.readouterr().err


def test_data_by_the_path_of_its_file(tmp_path, monkeypatch):
    path = save(tmp_path / "digits.npz")
    assert load(str(path)).X_train.shape == (60, 1, 8, 8)
    monkeypatch.chdir(tmp_path)
    assert load("./digits.npz").X_train.shape == load("digits.npz").X_train.shape == (60, 1, 8, 8)


def test_archives_are_read_up_to_a_bound(tmp_path, monkeypatch):
    save(tmp_path / "toy.npz")
    monkeypatch.setattr(skal.datasets._npz, "MAX_UNPACKED", 1000)
    with pytest.raises(ValueError, match=r"X_train cannot be read \(3,840 bytes unpacked; at most 1,000"):
        load("toy", tmp_path)


def test_an_array_that_says_it_is_larger_than_it_is(tmp_path):
    path = save(tmp_path / "toy.npz")
    content = path.read_bytes().replace(b"(60, 8, 8)", b"(9999999,)")
    path.write_bytes(content)
    with pytest.raises(ValueError, match="cannot be read"):
        load("toy", tmp_path)


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no symbolic links")
def test_names_are_neither_html_nor_formulas(make_result, tmp_path):
    scores = np.random.default_rng(0).uniform(size=(2, 3, 3))
    result = make_result(scores, ["random", "=1+<script>alert(1)</script>"], notes="<b>bold</b>")
    assert "<script>" not in markdown_report(result)
    assert "<b>" not in markdown_report(result)
    write_report(result, tmp_path)
    for table in tmp_path.glob("*.csv"):
        text = table.read_text()
        assert "\n=1+" not in text
        assert ",=1+" not in text
    assert "'=1+<script>" in (tmp_path / "results.csv").read_text()


def test_a_worker_that_is_killed_costs_its_run_alone(tmp_path, monkeypatch):
    """Without processes, which take long to start: joblib's error comes as it does when a worker is killed."""

    class Dying:
        def __init__(self, **settings):
            pass

        def __call__(self, calls):
            for function, arguments, _ in calls:
                if arguments[0].label == "deadly":
                    raise BrokenProcessPool
                yield function(*arguments)

    class DyingAlone(Dying):
        def __call__(self, calls):
            return list(super().__call__(calls))

    def parallel(return_as="list", **settings):
        return Dying() if return_as == "generator_unordered" else DyingAlone()

    monkeypatch.setattr("skal.bench._benchmark.Parallel", parallel)
    strategies = {"random": "random", "deadly": "entropy", "margin": "margin"}
    with pytest.raises(BenchmarkError, match="1 of 3 runs failed") as caught:
        run_benchmark(strategies, data="digits", seeds=1, n_jobs=2, out=tmp_path, **TINY)
    assert "deadly, seed 0: the worker was killed" in str(caught.value)
    assert sorted(path.stem for path in tmp_path.glob("runs/*")) == ["margin.seed0", "random.seed0"]
