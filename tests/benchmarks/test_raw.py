"""The evidence on raw tables: runs that continue, and a report in words."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks.evidence import raw, raw_rule

SETTING = "raw_vehicle_logistic_few"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small table with the name of a large one."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"size": rng.normal(size=150), "town": rng.choice(["Ulm", "Bern"], 150)})
    table["class"] = np.where(table["size"] > 0, "large", table["town"])
    (tmp_path / "tables").mkdir()
    table.to_csv(tmp_path / "tables" / "vehicle.csv.gz", index=False)
    monkeypatch.setenv("SKAL_DATA_HOME", str(tmp_path))
    return tmp_path / "results"


def run(folder, *words):
    assert raw.main(["run", "--settings", SETTING, "--results", str(folder), *words]) == 0


def test_runs_continue_and_are_reported(folder, capsys):
    run(folder, "--seeds", "2", "--arms", "random;margin")
    first = (folder / f"{SETTING}.jsonl").read_text()
    run(folder, "--seeds", "1", "--arms", "random;auto, own start")
    lines = (folder / f"{SETTING}.jsonl").read_text()
    assert lines.startswith(first)
    assert len(lines.splitlines()) == 5
    assert raw.main(["report", "--results", str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "| vehicle_logistic_few | 1 |" in printed
    assert "It is worse than Random in 0 of all 1." in printed


def test_twelve_few_twelve_many_and_the_texts():
    few = [name for name in raw.SETTINGS if name.endswith("_few")]
    assert (len(few), len(raw.SETTINGS)) == (13, 31)
    assert [raw.SETTINGS[f"raw_{name}"].seeds for name in ("dna_forest_few", "dna_forest_many")] == [20, 10]
    assert raw.ARMS["auto, own start"].initial == "auto"


def test_pools_of_two_seeds_differ():
    assert raw.SETTINGS[SETTING].protocol.n_pool < 2 * 846 // 3  # rows of vehicle to draw from
    assert raw.SETTINGS["raw_segment_logistic_few"].protocol.n_pool == 1000


def test_the_rule_is_chosen_on_tables_that_do_not_judge_it(tmp_path, monkeypatch):
    assert not set(raw_rule.TABLES) & set(raw.TABLES)
    monkeypatch.setattr(raw_rule, "SIZES", (10,))
    for _ in range(2):  # what is there is not made again
        path = tmp_path / "kept.jsonl"
        assert raw_rule.main(["run", "--tables", "wine", "--kept", str(path), "--loops", "0", "--starts", "1"]) == 0
        keys = [json.loads(line)["key"] for line in path.read_text().splitlines()]
        starts = [(net, start) for net in ("logistic", "forest") for start in raw_rule.STARTS]
        assert keys == [f"wine, {net}: {start}, none, 10 labels, seed 100" for net, start in starts]
    assert len(raw_rule.make_run("wine", "logistic", "distance", "leaves", 10, 100)) == 3


def test_starts_are_compared_by_seeds(tmp_path, capsys):
    scores = {"random": 0.5, "distance": 0.7, "direction": 0.6}
    path = tmp_path / "kept.jsonl"
    with path.open("w") as file:
        for net in raw_rule.NETS:
            for start, score in scores.items():
                for query, sizes in (("leaves", (10,)), ("none", raw_rule.SIZES)):
                    for n in sizes:
                        for seed in (100, 101):
                            key = f"wine, {net}: {start}, {query}, {n} labels, seed {seed}"
                            value = [score - 0.1, score + 0.1 + 0.02 * (seed == 101) * (start == "distance")]
                            file.write(json.dumps({"key": key, "value": value}) + "\n")
    assert raw_rule.main(["report", "--tables", "wine", "--kept", str(path)]) == 0
    loops, first_models = capsys.readouterr().out.strip().split("\n\n")
    assert loops.splitlines()[2] == "| wine | 2 | +10.50 ± 0.5 | +10.50 ± 0.5 |"
    rows = [f"| {n} | 2 | +20.50 | +10.00 | – | +10.50 ± 0.0 | – |" for n in raw_rule.SIZES]
    assert first_models.splitlines()[2:] == rows
