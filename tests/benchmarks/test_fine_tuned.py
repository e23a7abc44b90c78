"""The benchmark of fine-tuned networks: the variance that a batch removes, against the formula."""

import numpy as np
import pytest

from benchmarks import fine_tuned


def test_variance_removed_is_that_of_conditioning_sample_by_sample():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(15, 6))
    K, g, batch = features @ features.T, rng.uniform(size=10), np.array([3, 0, 7])
    scaled = K / K[:5, :5].diagonal().mean()
    S = scaled.copy()
    for j in range(5):
        S = S - np.outer(S[:, j], S[:, j]) / (S[j, j] + 1e-2)
    before = S.diagonal()[5:].copy()
    for j in 5 + batch:
        S = S - np.outer(S[:, j], S[:, j]) / (S[j, j] + 1e-2)
    expected = (g * (before - S.diagonal()[5:])).sum()
    assert fine_tuned.removed(K, g, 5, batch) == pytest.approx(expected)
    assert fine_tuned.removed(K, g, 5, batch[:0]) == 0


def test_what_is_kept_becomes_a_table_without_any_network(tmp_path, monkeypatch, capsys):
    path = tmp_path / "kept.jsonl"
    path.write_text(
        '{"key": "picks / 0", "value": {"all": [1.0, 1.0], "Random": [0.5, 0.1]}}\n'
        '{"key": "picks / 1", "value": {"all": [1.0, 1.0], "Random": [0.7, 0.2]}}\n'
        '{"key": "cost, fine-tuned, layers=\'last\'", "value": [3850, 1.5, 2.25]}\n'
    )
    monkeypatch.setattr(fine_tuned, "KEPT", path)
    fine_tuned.main(["picks", "--table"])
    assert "| Random | 60 ± 14 | 15 |" in capsys.readouterr().out
    fine_tuned.main(["cost", "--table"])
    assert "| fine-tuned, layers='last' | 3,850 | 1.5 | 2.25 |" in capsys.readouterr().out
