"""The papers' studies at their smallest: every command prints its table, and a second run measures nothing."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from benchmarks._kept import Kept
from benchmarks.papers import accuracy, main
from benchmarks.papers.accuracy import GaussianProcess, gaussian_mlmoc
from benchmarks.papers.commands import STUDIES
from skal.bench import BenchmarkError
from skal.bench.papers import PRESETS
from skal.exceptions import NonFiniteError

# seconds each at the smallest size; what is a benchmark has tests of its own
QUICK = ["mmd_second", "mmd_budget", "criteria", "gaussian_process", "claim", "spectra", "growing", "printed"]


@pytest.mark.parametrize("name", QUICK)
def test_a_study_prints_its_table(name, tmp_path, capsys):
    assert main([name, "--size", "quick", "--results", str(tmp_path)]) == 0
    first = capsys.readouterr().out
    assert STUDIES[name].repeats in first
    rows = [line for line in first.splitlines() if line.startswith("|")]
    assert len(rows) >= 4
    assert len({row.count("|") for row in rows}) == 1
    assert main([name, "--size", "quick", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out == first  # seconds too: nothing is measured again


def test_all_are_named(capsys):
    assert main(["--list"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == list(STUDIES)


def test_an_unknown_study(capsys):
    with pytest.raises(SystemExit):
        main(["figure7"])
    assert "Choose from: mmd," in capsys.readouterr().err


def test_kept_results_survive(tmp_path):
    path = tmp_path / "some" / "results.jsonl"
    assert Kept(path)("a", lambda: [1, 2]) == [1, 2]
    assert Kept(path)("a", lambda: pytest.fail("measured twice")) == [1, 2]
    assert json.loads(path.read_text())["key"] == "a"


def test_the_page_names_every_study_and_every_preset():
    page = Path(__file__).parents[2].joinpath("docs/evidence/papers.md").read_text(encoding="utf-8")
    assert [name for name in STUDIES if f"benchmarks.papers {name}`" not in page] == []
    assert [name for name in PRESETS if not name.endswith("_scaled") and name not in page] == []


def raising(error):
    def strategy(learner, X_pool, n_instances):
        raise error

    return strategy


def test_strategies_whose_networks_diverge_are_left_out_and_named(tmp_path):
    strategies = {"random": "random", "margin": "margin", "diverging": raising(NonFiniteError("NaN"))}
    run = partial(accuracy._run, "quick", tmp_path, strategies, "some")
    table, _, below = accuracy._table_of_finite(run, tmp_path / "some").partition("\n\n")
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == ["| random", "| margin"]
    assert below == "Outputs that are not finite end 2 runs of diverging."


def test_other_failures_of_a_study_are_raised(tmp_path):
    strategies = {"random": "random", "diverging": raising(NonFiniteError("NaN")), "wrong": raising(KeyError("wrong"))}
    with pytest.raises(BenchmarkError, match="KeyError"):
        accuracy._table_of_finite(partial(accuracy._run, "quick", tmp_path, strategies, "some"), tmp_path / "some")


def test_mlmoc_of_a_gaussian_process_is_that_of_one_that_is_fitted_again():
    rng = np.random.default_rng(0)
    X, y, pool = rng.normal(size=(6, 4)), np.array([0, 1, 2, 0, 1, 2]), rng.normal(size=(5, 4))
    process = GaussianProcess().fit(X, y)
    before, scores = process.mean(pool), []
    for j in range(5):
        again = GaussianProcess()
        label = int(before[j].argmax())
        again.fit(np.vstack([X, pool[j]]), np.append(y, label))
        # the noise is relative to the labelled samples' kernel: take that of the first
        K = again._regular - again.noise_ * torch.eye(7) + process.noise_ * torch.eye(7)
        targets = torch.eye(3, dtype=torch.float64)[[*y, label]]
        again._coefficients = torch.linalg.solve(K, targets)
        scores.append(float((again.mean(pool) - before).norm(dim=1).sum()))
    picked = gaussian_mlmoc(SimpleNamespace(estimator=process), pool, 5, subset=5)
    assert picked.tolist() == np.argsort(scores)[::-1].tolist()
