"""The evidence on raw tables: runs that continue, and a report in words."""

import numpy as np
import pandas as pd
import pytest

from benchmarks.evidence import raw

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


def test_development_has_tables_and_seeds_of_its_own(folder):
    run(folder, "--seeds", "1", "--arms", "random", "--development")
    assert '"seed":100,' in (folder / "development" / f"{SETTING}.jsonl").read_text()
    assert set(raw.DEVELOPMENT) < set(raw.TABLES)


def test_starts_are_compared_on_the_development_part(folder, capsys, monkeypatch):
    monkeypatch.setattr(raw, "DEVELOPMENT", ("vehicle",))
    assert raw.main(["starts", "--seeds", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[:2] for line in lines[2:]] == [
        [f"| vehicle, {net}", n] for n in ("10", "100") for net in ("logistic", "forest")
    ]
    assert all(line.count("±") == 2 for line in lines[2:])


def test_twelve_few_twelve_many_and_the_texts():
    few = [name for name in raw.SETTINGS if name.endswith("_few")]
    assert (len(few), len(raw.SETTINGS)) == (13, 25)
    assert all(setting.seeds == 10 for setting in raw.SETTINGS.values())
    assert raw.ARMS["auto, own start"].initial == "auto"
