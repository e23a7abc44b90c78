"""The studies of NTK look-ahead run, at sizes that say nothing, and their statistics are scipy's."""

import json

import numpy as np
import pytest
from scipy.stats import friedmanchisquare, ttest_rel

from benchmarks import lookahead_study as study


def test_holm():
    np.testing.assert_allclose(study.holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(study.holm([0.9, 0.5]), [1, 1])


def test_the_tables_of_kept_runs(tmp_path):
    rng = np.random.default_rng(0)
    runs = {name: rng.uniform(0.5, 0.9, size=(4, 3)) for name in ["random", *study.LOOK_AHEADS]}
    for name, accuracies in runs.items():
        for seed, accuracy in enumerate(accuracies):
            file = f"digits-{name.replace(', ', '-').replace(' ', '_')}-2-{seed}.json"
            (tmp_path / file).write_text(json.dumps({"accuracy": accuracy.tolist()}))
    text = study.digits_tables(n_seeds=4, n_rounds=2, results=tmp_path)
    means = {name: values[:, 1:].mean(axis=1) for name, values in runs.items()}
    for names in (study.MLMOC, study.LOOK_AHEADS):
        test = friedmanchisquare(*(means[name] for name in names))
        assert f"χ² = {test.statistic:.2f}, p = {test.pvalue:.2g}" in text
    difference = 100 * (means["linearised network"] - means["Gaussian process"]).mean()
    p = ttest_rel(means["linearised network"], means["Gaussian process"]).pvalue
    assert f"| linearised network − Gaussian process | {difference:+.2f} |" in text
    assert f"| {p:.2g} |" in text
    assert text.count(" − random |") == 6


@pytest.mark.parametrize("name", ["random", *study.LOOK_AHEADS])
def test_a_run_on_digits(name):
    accuracy = study.digits_run(name, seed=0, n_rounds=1, quick=True)["accuracy"]
    assert len(accuracy) == 2
    assert 0 <= min(accuracy) <= max(accuracy) <= 1


def test_the_mnist_study_in_small(tmp_path, capsys):
    command = ["mnist", "--quick", "--seeds", "1", "--cycles", "2", "--results", str(tmp_path), "--out", str(tmp_path)]
    assert study.main(command) == 0
    out = capsys.readouterr().out
    assert all(f"| {method} |" in out for method in study.METHODS)
    assert (tmp_path / "lookahead_mnist.png").stat().st_size > 1000
    kept = json.loads((tmp_path / "mnist-sequential-2-0.json").read_text())
    assert len(kept["accuracy"]) == 3
    assert len(kept["linearised"]) == 2
    assert study.main(command) == 0  # from the kept runs
    assert capsys.readouterr().out == out


def test_without_the_data(monkeypatch, tmp_path):
    monkeypatch.setenv("SKAL_DATA_HOME", str(tmp_path))
    assert "SKAL_DATA_HOME" in study.mnist_tables(1, 1, None, None)
    with pytest.raises(SystemExit):
        study.main(["nothing"])
