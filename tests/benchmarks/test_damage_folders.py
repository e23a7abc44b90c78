"""Damaged folders on a small scale: refused, or with the labels that were told."""

import shutil

import pytest

from benchmarks import damage_folders


def test_damaged_folders_give_no_other_labels(capsys):
    assert damage_folders.main(["--folders", "15"]) == 0
    assert "| all | 15 |" in capsys.readouterr().out


@pytest.mark.filterwarnings("ignore::skal.exceptions.SkalWarning")
def test_other_labels_would_be_noticed(tmp_path):
    kind, folder = "session, linear", tmp_path / "whole"
    damage_folders.make(kind, folder)
    told = damage_folders.moments(folder)
    assert damage_folders.open_damaged(kind, folder, told)[0] == "all labels"
    others = [labels for labels in told if labels != told[-1]]
    assert damage_folders.open_damaged(kind, folder, others)[0] == "other labels"
    assert damage_folders.open_damaged(kind, folder, [*told, {}])[0] == "earlier ones, silently"
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    (damaged / "labels.jsonl").write_bytes((folder / "labels.jsonl").read_bytes()[:-2000])
    assert damage_folders.open_damaged(kind, damaged, told)[0] == "earlier ones, with a warning"
    (damaged / "labels.jsonl").write_bytes((folder / "labels.jsonl").read_bytes().replace(b'"a"', b'"b"', 1))
    assert damage_folders.open_damaged(kind, damaged, told)[0] == "refused"
