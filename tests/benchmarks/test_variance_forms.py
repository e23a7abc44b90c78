"""The comparison of weights and noise for kernels on features, in small."""

import numpy as np

from benchmarks import variance_forms


def test_it_runs_resumes_and_prints_a_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(variance_forms, "SETTINGS", {"clusters": (30, 5, 1)})
    monkeypatch.setattr(variance_forms, "METHODS", ["random", "newton, radius 1", "margin, median radius"])
    assert variance_forms.main(["run", "--out", str(tmp_path), "--seeds", "1", "--quick"]) == 0
    table = capsys.readouterr().out
    assert "clusters (1 seeds)" in table
    monkeypatch.setattr(variance_forms, "run", None)  # nothing is left to run
    assert variance_forms.main(["run", "--out", str(tmp_path), "--seeds", "1", "--quick"]) == 0
    assert capsys.readouterr().out == table


def test_a_batch_has_no_sample_twice():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 5))
    p = rng.dirichlet(np.ones(3), size=30)
    for form in ("newton", "margin"):
        K = variance_forms.rbf(X, 10, "median radius")
        assert len(set(variance_forms.variance_batch(K, 10, np.arange(30), p, 12, form).tolist())) == 12
