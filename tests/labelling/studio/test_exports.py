"""Exports that a real Label Studio 1.23.2 wrote (see record.py): nothing in them is lost, or it is refused by name."""

import json

import pytest

from skal.cli import main
from skal.exceptions import SampleError
from skal.labelling import import_labels
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._sources import open_source

from .conftest import RECORDED
from .record import ROWS, colour_folder

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
    """The one without this control and the one with a prediction only have no label; the skipped one is declined."""
    file = without_disagreement(suffix, tmp_path)
    assert main(["import", str(tmp_path / "out"), str(file), "--control", "animal"]) == 0
    lines = events(tmp_path / "out")
    found = {each["id"]: (each["label"], each["annotator"]) for each in lines if each["event"] == "label"}
    declined = [each["id"] for each in lines if each["event"] == "declined"]
    assert declined == (["https://pictures.skal.test/b0.png"] if suffix == "json" else [])  # others leave it out
    upload = next(key for key in found if "upload" in key)
    assert found == {
        "/data/local-files/?d=a0.png": ("cat", "user 1"),
        "/data/local-files/?d=a1.png": ("cat", "user 1"),
        upload: ("dog", "user 2"),
    }


@pytest.mark.parametrize("suffix", FORMATS)
def test_several_choices_are_refused_by_name(suffix, tmp_path):
    with pytest.raises(SampleError, match=r"one choice.*a0\.png \(user 1: blue and red\).*--task multilabel"):
        import_labels(tmp_path, RECORDED / f"pictures.{suffix}", control="colours")


@pytest.mark.parametrize("suffix", FORMATS)
def test_several_choices_into_a_folder_for_several(suffix, tmp_path):
    """What nobody has said anything of stays open; a choice less than another person's is a disagreement."""
    folder = colour_folder(tmp_path / "out")
    found = import_labels(folder, RECORDED / f"pictures.{suffix}", control="colours")
    assert found["new"] == 2
    lines = [each for each in events(folder) if each["event"] == "label"]
    assert {each["id"]: each["label"] for each in lines} == {
        "/data/local-files/?d=a0.png": [1, 1, 0],
        "https://pictures.skal.test/b1.png": [1, 0, 0],
    }
    assert [(each["annotator"], [a["label"] for a in each["answers"]]) for each in lines] == [
        ("user 1", [["red", "blue"]]),
        ("user 1", [["red"]]),
    ]
    assert all(answer["time"] and answer["lead_time"] == 2.5 for each in lines for answer in each["answers"])
    with pytest.raises(SampleError, match=r"b3\.png"):
        import_labels(folder, one_choice_less(suffix, tmp_path), control="label")


def one_choice_less(suffix, tmp_path):
    """The recorded answers, where one of two people has not chosen red."""
    text = (RECORDED / f"answers.{suffix}").read_text()
    copy = tmp_path / f"less.{suffix}"
    if "json" in suffix:
        tasks = json.loads(text)
        (mine,) = [row for row in tasks if row.get("annotation_id") == 11] or [tasks[7]["annotations"][1]]
        said = mine["label"] if suffix == "min.json" else mine["result"][0]["value"]
        said["choices"].remove("red")
        text = json.dumps(tasks)
    copy.write_text(text.replace('""blue"",""red""', '""blue""'))
    return copy


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("settings", [True, False])
def test_what_nobody_knows_stays_unknown(suffix, settings, tmp_path):
    """Rows that we wrote for Label Studio come back from it as they were, also into a folder that is not there yet."""
    file = RECORDED / f"answers.{suffix}"
    if settings:
        folder = colour_folder(tmp_path / "out")
    else:  # there nothing says what b3 has of the classes
        folder, file = tmp_path / "out", tmp_path / f"answers.{suffix}"
        text = (RECORDED / file.name).read_text()
        if "json" in suffix:
            text = json.dumps([t for t in json.loads(text) if "b3" not in str(t.get("data", t))])
        else:
            text = "".join(line for line in text.splitlines(keepends=True) if "b3.png" not in line)
        file.write_text(text)
    import_labels(folder, file, control="label")
    found = {each["id"]: each["label"] for each in events(folder) if each["event"] == "label"}
    assert found == ROWS | ({"b3.png": [1, 1, 0]} if settings else {})


def test_an_answer_replaces_what_nobody_knew(tmp_path):
    tasks = json.loads((RECORDED / "answers.json").read_text())
    tasks[0]["annotations"][0]["result"][0]["value"]["choices"] = ["red", "green"]
    file = tmp_path / "export.json"
    file.write_text(json.dumps(tasks))
    folder = colour_folder(tmp_path / "out")
    import_labels(folder, file, control="label")
    assert {each["id"]: each["label"] for each in events(folder)}["a0.png"] == [1, 0, 1]


@pytest.mark.parametrize("suffix", FORMATS)
def test_numbers(suffix, tmp_path):
    """A number is one, also from a table, and whoever gave it is known; another control beside it does not matter."""
    import_labels(tmp_path, RECORDED / f"answers.{suffix}", control="age")
    lines = [each for each in events(tmp_path) if each["event"] == "label"]
    assert {each["id"]: (each["label"], each["annotator"]) for each in lines} == {
        "b0.png": (42.0, "user 1, user 2"),
        "b1.png": (7.5, "user 1"),
    }
    assert all(isinstance(each["label"], float) for each in lines)
    assert [[a["label"] for a in each["answers"]] for each in lines] == [[[42.0], [42.0]], [[7.5]]]
    assert all(answer["time"] for each in lines for answer in each["answers"])


def test_choices_beside_numbers(tmp_path):
    """Neither is taken for the other."""
    tasks = json.loads((RECORDED / "answers.json").read_text())
    number = {"from_name": "age", "to_name": "image", "type": "number", "value": {"number": 3}}
    tasks[0]["annotations"][0]["result"].append(number)
    file = tmp_path / "export.json"
    file.write_text(json.dumps(tasks[:1]))
    with pytest.raises(SampleError, match=r"\['age', 'label'\].*--control NAME"):
        import_labels(tmp_path / "out", file)
    import_labels(tmp_path / "out", file, control="age")
    import_labels(colour_folder(tmp_path / "colours"), file, control="label")
    found = [events(tmp_path / name)[-1]["label"] for name in ("out", "colours")]
    assert found == [3.0, [0, -1, 1]]


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize(
    ("control", "why"), [("animl", r"\['(age', 'label|label', 'age)'.*animl"), ("stars", "choices or numbers.*rating")]
)
def test_controls_that_do_not_fit_are_refused(control, why, suffix, tmp_path):
    with pytest.raises(SampleError, match=why):
        import_labels(tmp_path, RECORDED / f"answers.{suffix}", control=control)
    assert not (tmp_path / "labels.jsonl").exists()


def test_ratings_alone_are_refused(tmp_path):
    tasks = json.loads((RECORDED / "answers.json").read_text())
    file = tmp_path / "export.json"
    file.write_text(json.dumps(tasks[8:]))  # b4, which has nothing else
    with pytest.raises(SampleError, match=r"choices or numbers.*stars \(rating\)"):
        import_labels(tmp_path / "out", file)


def test_skipped_by_everybody_is_declined(tmp_path):
    found = import_labels(tmp_path, RECORDED / "answers.json", control="age")
    assert found == {"new": 2, "changed": 0, "same": 0, "declined": 1}
    assert [each["id"] for each in events(tmp_path) if each["event"] == "declined"] == ["b2.png"]
    assert import_labels(tmp_path, RECORDED / "answers.json", control="age") == {"new": 0, "changed": 0, "same": 2}


def test_a_second_export_with_more_answers(tmp_path):
    """They are kept, though the label stays; the same file once more changes nothing."""
    tasks = json.loads((RECORDED / "texts.json").read_text())
    folder, file = tmp_path / "out", tmp_path / "export.json"
    import_labels(folder, RECORDED / "texts.json")
    agrees = tasks[0]["annotations"][0] | {"id": 50, "completed_by": 2}
    differs = json.loads(json.dumps(agrees | {"id": 51, "completed_by": 3}))
    differs["result"][0]["value"]["choices"] = ["bad"]
    tasks[0]["annotations"] += [agrees, differs]
    file.write_text(json.dumps(tasks))
    assert import_labels(folder, file) == {"new": 0, "changed": 0, "same": 3, "with more answers": 1}
    lines = events(folder)
    assert import_labels(folder, file) == {"new": 0, "changed": 0, "same": 3}
    assert events(folder) == lines
    last = lines[-1]
    assert (last["label"], last["annotator"], last["source"]) == ("good", "user 1, user 2", "imported")
    assert [(a["annotator"], a["label"]) for a in last["answers"]] == [
        ("user 1", ["good"]),
        ("user 2", ["good"]),
        ("user 3", ["bad"]),
    ]
    only = tmp_path / "only.json"  # of the third person, who has come round
    tasks[0]["annotations"] = [differs]
    differs["result"][0]["value"]["choices"] = ["good"]
    only.write_text(json.dumps(tasks[:1]))
    import_labels(folder, only)
    last = events(folder)[-1]
    assert last["annotator"] == "user 1, user 2, user 3"
    assert [a["label"] for a in last["answers"]] == [["good"]] * 3


@pytest.mark.parametrize(("label", "annotator"), [("good", "Ada, user 1"), ("bad", "user 1")])
def test_a_label_that_was_given_here(label, annotator, tmp_path):
    """Whoever gave it stays beside those who say the same elsewhere, and not if it is replaced."""
    texts = tmp_path / "texts.jsonl"
    texts.write_text(json.dumps({"id": "a", "text": 'text, 0\tof "these"'}) + '\n{"id": "b", "text": "another one"}\n')
    source, more = open_source(texts), {"source_name": str(texts), "annotator": "Ada"}
    with Project(source, ["good", "bad"], choose_model(source, model="linear"), tmp_path / "out", **more) as project:
        project.answer("a", label)
    round = events(tmp_path / "out")[-1]["round"]
    tasks = json.loads((RECORDED / "texts.json").read_text())[:1]
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    found = import_labels(tmp_path / "out", tmp_path / "export.json", overwrite=True)
    assert found["same"] == (label == "good")
    last = events(tmp_path / "out")[-1]
    assert (last["label"], last["annotator"], last["round"]) == ("good", annotator, round)
    assert last["answers"][0]["annotator"] == "user 1"


def test_a_task_that_names_no_sample(tmp_path):
    tasks = json.loads((RECORDED / "texts.json").read_text())
    tasks[0]["data"] = {"title": "one", "body": "two"}
    file = tmp_path / "export.json"
    file.write_text(json.dumps(tasks))
    with pytest.raises(SampleError, match=r"skal_id.*image.*text.*title"):
        import_labels(tmp_path / "out", file)


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
