"""Labels out and in: what is exported comes back as it was."""

import csv
import io
import json
import shutil

import pandas as pd
import pytest

from skal.cli import main
from skal.exceptions import CheckpointError, InvalidParameterError, SampleError
from skal.labelling import export_labels, import_labels

from .conftest import draw_pictures, label_page

CLASSES = ["cat", 'red, "white"', "naïve"]


def ids_of(image_folder):
    """What images are known by: their paths below the folder, in order."""
    return sorted(path.relative_to(image_folder).as_posix() for path in image_folder.rglob("*.*"))


@pytest.fixture(scope="module")
def labelled(tmp_path_factory):
    """Six labels, one of them corrected, one sample declined."""
    pictures, out = draw_pictures(tmp_path_factory.mktemp("pictures")), tmp_path_factory.mktemp("labelled") / "out"
    ids = ids_of(pictures)
    with label_page(pictures, CLASSES, out, annotator="Ada") as client:
        for i, key in enumerate(ids[:6]):
            client.call("answer", id=key, label=CLASSES[i % 3])
        client.call("answer", id=ids[0], label=CLASSES[2])
        client.call("answer", id=ids[6], declined=True)
    return out


@pytest.fixture
def folder(labelled, tmp_path):
    """A copy that may be written to."""
    return shutil.copytree(labelled, tmp_path / "out")


def expected(folder):
    frame = pd.read_csv(io.StringIO(export_labels(folder)))
    return dict(zip(frame["id"], frame["label"], strict=True))


def test_csv_and_jsonl(folder):
    rows = list(csv.DictReader(io.StringIO(export_labels(folder))))
    assert list(rows[0]) == ["id", "label", "round", "time", "annotator", "source"]
    assert len(rows) == 6
    by_id = {row["id"]: row for row in rows}
    assert by_id["blue/00.jpg"]["label"] == "naïve"
    assert by_id["blue/02.png"]["label"] == 'red, "white"'
    assert {row["annotator"] for row in rows} == {"Ada"}
    lines = [json.loads(line) for line in export_labels(folder, "jsonl").splitlines()]
    assert {line["id"]: line["label"] for line in lines} == {key: row["label"] for key, row in by_id.items()}


def test_coco(folder):
    found = json.loads(export_labels(folder, "coco-classification", prefix="images/"))
    names = {each["id"]: each["name"] for each in found["categories"]}
    files = {each["id"]: each["file_name"] for each in found["images"]}
    labels = {
        files[each["image_id"]].removeprefix("images/"): names[each["category_id"]] for each in found["annotations"]
    }
    assert labels == expected(folder)
    assert list(names.values()) == CLASSES


@pytest.mark.parametrize("prefix", ["", "/data/local-files/?d="])
def test_label_studio_there_and_back(prefix, folder, image_folder, tmp_path):
    text = export_labels(folder, "label-studio", prefix=prefix)
    tasks = json.loads(text)
    assert tasks[0]["data"]["image"].startswith(prefix)
    assert tasks[0]["annotations"][0]["result"][0]["type"] == "choices"
    for task in tasks:  # as it comes back from Label Studio, which may drop what it does not know
        del task["data"]["skal_id"]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    other = tmp_path / "other"
    with label_page(image_folder, CLASSES, other):
        pass
    assert import_labels(other, tmp_path / "tasks.json") == {"new": 6, "changed": 0, "same": 0}
    assert expected(other) == expected(folder)
    assert import_labels(other, tmp_path / "tasks.json") == {"new": 0, "changed": 0, "same": 6}
    with label_page(image_folder, CLASSES, other) as client:
        assert client.call("status")["labelled"] == 6


def test_label_studio_without_annotations(tmp_path):
    tasks = [
        {"data": {"image": "c.jpg"}, "annotations": [{"result": [], "was_cancelled": True}]},
        {"data": {"image": "d.jpg"}, "annotations": []},
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    assert import_labels(tmp_path / "out", tmp_path / "tasks.json")["new"] == 0


def test_labels_that_differ_are_refused_as_a_whole_unless_asked_for(folder, tmp_path):
    (tmp_path / "new.csv").write_text("id,label\nblue/00.jpg,cat\nred/01.png,brandnew\n")
    before = expected(folder)
    with pytest.raises(InvalidParameterError, match=r"blue/00\.jpg.*--overwrite"):
        import_labels(folder, tmp_path / "new.csv")
    assert expected(folder) == before
    assert import_labels(folder, tmp_path / "new.csv", overwrite=True) == {"new": 1, "changed": 1, "same": 0}
    assert expected(folder) == before | {"blue/00.jpg": "cat", "red/01.png": "brandnew"}
    assert json.loads((folder / "project.json").read_text())["classes"] == [*CLASSES, "brandnew"]
    last = json.loads((folder / "labels.jsonl").read_text().splitlines()[-1])
    assert (last["event"], last["source"]) == ("label", "imported")


def test_ids_that_are_not_there_are_refused(folder, tmp_path):
    (tmp_path / "new.csv").write_text("id,label\nzebra.jpg,cat\n")
    with pytest.raises(SampleError, match=r"zebra\.jpg"):
        import_labels(folder, tmp_path / "new.csv")


@pytest.mark.parametrize("content", ["{", "3", '[{"annotations": [{"result": [{"type": "choices"}]}]}]', "[3]"])
def test_what_is_not_label_studios_is_refused(content, folder, tmp_path):
    (tmp_path / "tasks.json").write_text(content)
    with pytest.raises(SampleError, match="Label Studio's JSON"):
        import_labels(folder, tmp_path / "tasks.json")


def test_a_folder_in_use_is_not_written_to(image_folder, tmp_path):
    (tmp_path / "new.csv").write_text("id,label\nred/01.png,cat\n")
    with label_page(image_folder, CLASSES, tmp_path / "out") as client:
        with pytest.raises(CheckpointError, match="Only one session"):
            import_labels(tmp_path / "out", tmp_path / "new.csv")
        client.call("answer", id="red/01.png", label="naïve")
        assert expected(tmp_path / "out") == {"red/01.png": "naïve"}  # reading is always allowed


def test_texts_are_exported_with_their_ids(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text('text\n"one, two"\nthree\n')
    with label_page(path, ["a", "b"], tmp_path / "out") as client:
        items = {item["text"]: item["id"] for item in client.call("next", n=2)["items"]}
        client.call("answer", id=items["one, two"], label="a")
    assert pd.read_csv(io.StringIO(export_labels(tmp_path / "out")))["text"].tolist() == ["one, two"]
    task = json.loads(export_labels(tmp_path / "out", "label-studio"))[0]
    assert task["data"]["text"] == "one, two"
    path.unlink()
    assert "text" not in export_labels(tmp_path / "out").splitlines()[0]
    with pytest.raises(SampleError, match="the texts"):
        export_labels(tmp_path / "out", "label-studio")


def test_commands(folder, tmp_path, capsys):
    assert main(["export", str(folder), "--to", "jsonl"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 6
    assert main(["export", str(folder), "--out", str(tmp_path / "labels.csv")]) == 0
    other = tmp_path / "other"
    assert main(["import", str(other), str(tmp_path / "labels.csv")]) == 0
    assert "6 new" in capsys.readouterr().out
    assert expected(other) == expected(folder)
    assert main(["export", str(tmp_path)]) == 1
    assert "labels.jsonl" in capsys.readouterr().err
    assert main(["import", str(other), str(tmp_path / "nothing.csv")]) == 1
    assert "nothing.csv" in capsys.readouterr().err
