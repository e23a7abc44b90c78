"""Exports that a real Label Studio 1.23.2 wrote (see record.py): nothing in them is lost, or it is refused by name."""

import json
from pathlib import Path

import pytest

from skal.cli import main
from skal.exceptions import SampleError
from skal.labelling import import_labels

RECORDED = Path(__file__).parent / "recorded_1_23_2"
FORMATS = ("json", "min.json", "csv", "tsv")


def events(folder):
    return [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]


def without_disagreement(suffix, tmp_path):
    """The recorded export of the pictures, without the second answer for the task that two disagree on."""
    path = RECORDED / f"pictures.{suffix}"
    copy = tmp_path / f"export.{suffix}"
    if suffix == "json":
        tasks = json.loads(path.read_text())
        tasks[1]["annotations"] = tasks[1]["annotations"][:1]
        copy.write_text(json.dumps(tasks))
    elif suffix == "min.json":
        rows = json.loads(path.read_text())
        copy.write_text(json.dumps([row for row in rows if row["annotation_id"] != 3]))
    else:
        mark = '"dog",3,' if suffix == "csv" else '"dog"\t3\t'
        lines = path.read_text().splitlines(keepends=True)
        copy.write_text("".join(line for line in lines if not line.startswith(mark)))
    return copy


@pytest.mark.parametrize("suffix", FORMATS)
def test_one_control_needs_no_name(suffix, tmp_path):
    assert import_labels(tmp_path, RECORDED / f"texts.{suffix}") == {"new": 3, "changed": 0, "same": 0}
    found = events(tmp_path)
    assert {each["id"]: each["label"] for each in found} == {
        f'text, {i}\tof "these"': label for i, label in enumerate(["good", "bad", "good"])
    }
    assert [each["annotator"] for each in found] == ["user 1", "user 2", "user 1"]
    for each in found:
        (answer,) = each["answers"]
        assert answer["lead_time"] == 2.5
        assert answer["time"].startswith("2026-")
        assert answer["time"].endswith("Z")


@pytest.mark.parametrize("suffix", FORMATS)
def test_several_controls_only_when_one_is_named(suffix, tmp_path):
    with pytest.raises(SampleError, match=r"\['animal', 'colours'\].*--control NAME"):
        import_labels(tmp_path, RECORDED / f"pictures.{suffix}")
    assert not (tmp_path / "labels.jsonl").exists()


@pytest.mark.parametrize("suffix", FORMATS)
def test_disagreement_is_refused_by_name(suffix, tmp_path):
    with pytest.raises(SampleError, match=r"a1\.png \(user 1: cat, user 2: dog\)"):
        import_labels(tmp_path, RECORDED / f"pictures.{suffix}", control="animal")
    assert not (tmp_path / "labels.jsonl").exists()


@pytest.mark.parametrize("suffix", FORMATS)
def test_local_files_urls_and_uploads(suffix, tmp_path):
    """The skipped task, the one without this control and the one with a prediction only have no label."""
    file = without_disagreement(suffix, tmp_path)
    assert main(["import", str(tmp_path / "out"), str(file), "--control", "animal"]) == 0
    found = {each["id"]: (each["label"], each["annotator"]) for each in events(tmp_path / "out")}
    upload = next(key for key in found if "upload" in key)
    assert found == {
        "/data/local-files/?d=a0.png": ("cat", "user 1"),
        "/data/local-files/?d=a1.png": ("cat", "user 1"),
        upload: ("dog", "user 2"),
    }


@pytest.mark.parametrize("suffix", FORMATS)
def test_several_choices_are_refused_by_name(suffix, tmp_path):
    with pytest.raises(SampleError, match=r"one choice. Got \['red', 'blue'\] for task .*a0\.png by user 1"):
        import_labels(tmp_path, RECORDED / f"pictures.{suffix}", control="colours")


def test_majority_keeps_every_answer(tmp_path):
    tasks = json.loads((RECORDED / "pictures.json").read_text())
    third = tasks[1]["annotations"][1] | {"id": 99, "completed_by": 3}
    tasks[1]["annotations"].append(third)
    file = tmp_path / "export.json"
    file.write_text(json.dumps(tasks))
    import_labels(tmp_path / "out", file, control="animal")
    (event,) = [each for each in events(tmp_path / "out") if each["id"].endswith("a1.png")]
    assert event["label"] == "dog"
    assert event["annotator"] == "user 2, user 3"
    assert [answer["label"] for answer in event["answers"]] == [["cat"], ["dog"], ["dog"]]
