"""The study of the look-ahead's rules runs, at sizes that say nothing, and its tables are those of the kept runs."""

import json

import numpy as np
import pytest

from benchmarks import variance_study as study


@pytest.fixture
def two_rules(monkeypatch):
    both = {name: rule for name, rule in study.make_strategies(0).items() if name in ("random", "variance")}
    monkeypatch.setattr(study, "make_strategies", lambda seed: both)


def test_it_runs_in_small(tmp_path, two_rules, capsys):
    arguments = ["digits", "--quick", "--results", str(tmp_path), "--out", str(tmp_path)]
    assert study.main(arguments) == 0
    text = capsys.readouterr().out
    assert "| variance |" in text
    assert (tmp_path / "lookahead_picks_digits.png").stat().st_size > 0
    assert study.main(arguments) == 0  # from the kept runs
    assert capsys.readouterr().out == text


def test_the_tables_of_kept_runs(tmp_path, two_rules):
    rng = np.random.default_rng(0)
    accuracies = {name: rng.uniform(0.5, 0.9, size=(3, 4)) for name in ("random", "variance")}
    batch = {"classes": 5.0, "redundancy": 0.5, "misclassified": 0.25}
    for name, runs in accuracies.items():
        for seed, accuracy in enumerate(runs):
            run = {"accuracy": accuracy.tolist(), "batches": [batch]}
            (tmp_path / f"digits-{name}-{seed}.json").write_text(json.dumps(run))
    gaps = 100 * (accuracies["variance"] - accuracies["random"])[:, 1:].mean(1)
    text = study.tables("digits", 3, tmp_path, None, False)
    assert f"{gaps.mean():+.1f} ± {gaps.std(ddof=1):.1f} ({(gaps > 0).sum()}/3)" in text
    assert "| 5.0 | 0.50 | 25% |" in text
