"""The semi-supervised benchmark runs, at sizes that say nothing, and goes on where it stopped."""

import json

import pytest

from benchmarks import semi_supervised


def test_tables_run_and_go_on_after_an_interruption(tmp_path, capsys):
    out = tmp_path / "runs.jsonl"
    assert semi_supervised.main(["speed", "supervised", "darp", "--quick", "--out", str(out)]) == 0
    first = capsys.readouterr().out
    assert first.count("\n### ") == 3
    lines = out.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 6 + 6
    assert all(json.loads(line)["value"] >= 0 for line in lines)
    out.write_text("\n".join(lines[:-2]) + "\n", encoding="utf-8")
    assert semi_supervised.main(["darp", "--quick", "--out", str(out)]) == 0
    assert capsys.readouterr().out.split("### darp")[1] == first.split("### darp")[1]  # the same, seeded
    assert len(out.read_text(encoding="utf-8").splitlines()) == 12


def test_active_tables(tmp_path, capsys):
    out = tmp_path / "runs.jsonl"
    assert semi_supervised.main(["active", "overlap", "zero_shot", "single_shot", "--quick", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    names = [line.split(" | ")[0].removeprefix("| ") for line in printed.splitlines() if line.startswith("| ")]
    assert names.count("NPC, last layer") == 3
    assert "Margin; ALBL" in names
    runs = {line["key"]: line["value"] for line in map(json.loads, out.read_text(encoding="utf-8").splitlines())}
    first = sorted(runs[f"first {seed} quick"] for seed in range(5))
    assert len({run["scores"][0] for key, run in runs.items() if key.startswith("active")}) == 1  # of the same labels
    assert len(first) == 5
    assert all(len(set(run["queried"])) == 15 for key, run in runs.items() if "-shot" in key)


def test_unknown_tables_are_refused(capsys):
    with pytest.raises(SystemExit):
        semi_supervised.main(["nothing"])
    assert "Choose from: speed, supervised, darp, active, overlap, zero_shot, single_shot" in capsys.readouterr().err
