"""The studies of NTK look-ahead run, at sizes that say nothing, and their statistics are scipy's."""

import json

import numpy as np
import pytest
from scipy.stats import friedmanchisquare, ttest_rel

from benchmarks import lookahead_study as study


def test_holm():
    np.testing.assert_allclose(study.holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(study.holm([0.9, 0.5]), [1, 1])


@pytest.mark.parametrize(("options", "suffix"), [([], ""), (["--width", "16"], "-16")])
def test_the_tables_of_kept_runs(tmp_path, capsys, options, suffix):
    rng = np.random.default_rng(0)
    runs = {name: rng.uniform(0.5, 0.9, size=(4, 3)) for name in ["random", *study.LOOK_AHEADS]}
    for name, accuracies in runs.items():
        for seed, accuracy in enumerate(accuracies):
            file = f"digits-{name.replace(', ', '-').replace(' ', '_')}-2-{seed}{suffix}.json"
            (tmp_path / file).write_text(json.dumps({"accuracy": accuracy.tolist()}))
    assert study.main(["digits", "--seeds", "4", "--cycles", "2", "--results", str(tmp_path), *options]) == 0
    text = capsys.readouterr().out
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
