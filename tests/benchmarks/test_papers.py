"""The papers' studies at their smallest: every command prints its table, and a second run measures nothing."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import ttest_1samp

from benchmarks._kept import Kept
from benchmarks.papers import accuracy, main
from benchmarks.papers.accuracy import GaussianProcess, gaussian_mlmoc
from benchmarks.papers.commands import STUDIES
from benchmarks.papers.kernels import train
from benchmarks.papers.mnist import small_cnn
from benchmarks.papers.study import paired_gap
from skal.bench import BenchmarkError
from skal.bench.papers import PRESETS
from skal.exceptions import NonFiniteError

# different tables, by their columns, where a study prints more than one
SHAPES = {"mmd": 2, "mnist": 2, "nonlinearities": 2, "printed": 3}


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_prints_its_table(name, tmp_path, capsys):
    assert main([name, "--size", "quick", "--results", str(tmp_path)]) == 0
    first = capsys.readouterr().out
    assert STUDIES[name].repeats in first
    rows = [line for line in first.splitlines() if line.startswith("|")]
    assert len(rows) >= 4
    assert len({row.count("|") for row in rows}) == SHAPES.get(name, 1)
    assert main([name, "--size", "quick", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out == first  # seconds too: nothing is measured again


def test_all_are_named(capsys):
    assert main(["--list"]) == 0
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == list(STUDIES)


def test_an_unknown_study(capsys):
    with pytest.raises(SystemExit):
        main(["figure7"])
    assert "Choose from: mmd," in capsys.readouterr().err


def test_the_interval_of_a_gap_is_that_of_the_t_test():
    gaps = np.array([1.0, 2.5, -0.5, 3.0])
    interval = ttest_1samp(gaps, 0).confidence_interval()
    assert paired_gap(gaps) == f"+1.5 ({interval.low:+.1f} to {interval.high:+.1f}; 3 of 4)"


def test_networks_that_diverge_are_trained_with_a_tenth_of_the_rate():
    X, y = np.full((4, 1), 30, dtype=np.float32), np.arange(4)
    module = torch.nn.Linear(1, 10)
    before = module.weight.detach().clone()
    found = [m.weight.detach().clone() for m in train(module, X, y, (0, 100, 300), seed=0)]
    assert len(found) == 3
    torch.testing.assert_close(found[0], before)
    assert all(weight.isfinite().all() for weight in found)
    outputs = module(torch.as_tensor(X)).detach()
    loss = float((outputs - torch.eye(10)[:4]).square().mean())
    assert loss == pytest.approx(0.075, rel=0.1)  # four labels, of which no sample has more than a quarter


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
    result, diverged = accuracy._finite_result(run, tmp_path / "some")
    assert result.strategies == ["random", "margin"]
    assert diverged == "outputs that are not finite end 2 runs of diverging."


def test_other_failures_of_a_study_are_raised(tmp_path):
    strategies = {"random": "random", "diverging": raising(NonFiniteError("NaN")), "wrong": raising(KeyError("wrong"))}
    with pytest.raises(BenchmarkError, match="KeyError"):
        accuracy._finite_result(partial(accuracy._run, "quick", tmp_path, strategies, "some"), tmp_path / "some")


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


def test_sharp_probabilities_change_what_is_queried_by_them_and_nothing_else():
    strategies = {name: f"ntk_lookahead(criterion='{name}', subset=20)" for name in ("mlmoc", "emoc")}
    flat = accuracy._run("quick", None, strategies, n_rounds=2)
    sharp = accuracy._run("quick", None, strategies, net=accuracy._sharp_net("quick"), n_rounds=2)
    same = {name: [] for name in strategies}
    for one, other in zip(flat.runs, sharp.runs, strict=True):
        assert one.scores[0] == other.scores[0]  # the same start
        same[one.strategy].append((one.scores, one.queried) == (other.scores, other.queried))
    assert same == {"mlmoc": [True, True], "emoc": [False, False]}


def test_the_wider_cnn_has_as_many_times_the_units_in_every_layer():
    layers = zip(small_cnn(), small_cnn(4), strict=True)
    widths = [(len(one.weight), len(wide.weight)) for one, wide in layers if hasattr(one, "weight")]
    assert widths == [(32, 128), (64, 256), (128, 512), (10, 10)]
    assert small_cnn(4)(torch.zeros(2, 1, 14, 14)).shape == (2, 10)
