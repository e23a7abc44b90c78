"""Folders whose files were damaged or written by others: a sentence names the file, or it is made anew."""

import json
import os
import shutil

import pytest

from skal.cli import main
from skal.exceptions import CheckpointError, SkalWarning
from skal.labelling import export_labels, import_labels
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._sources import open_source

from .conftest import Client

BROKEN = {
    "deep": "[" * 100_000,
    "deep objects": '{"a":' * 100_000,
    "a number": "3",
    "5,000 digits": "9" * 5000,
    "a list": "[]",
    "a list of lists": "[[1]]",
    "null": "null",
    "a text": '"x"',
    "empty": "",
    "not UTF-8": "\udcff\udcfe",
    "no classes": "{}",
    "classes are an object": '{"classes": {"a": 1}}',
    "classes are a text": '{"classes": "ab"}',
    "classes are numbers": '{"classes": [1, 2]}',
    "classes are empty": '{"classes": []}',
    "classes are twice there": '{"classes": ["a", "a"]}',
    "half of a character": '{"classes": ["\\ud800", "b"]}',
    "source is a number": '{"classes": ["a", "b"], "source": 5}',
    "text is a list": '{"classes": ["a", "b"], "text": []}',
    "kind is an object": '{"classes": ["a", "b"], "kind": {}}',
}


def open_project(folder, table):
    source = open_source(table)
    return Project(
        source, ["a", "b"], choose_model(source, model="linear"), folder, query_size=4, source_name=str(table)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A project with labels and a model, and the table that it is of."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "texts.csv").write_text("text\n" + "".join(f"some words {i}\n" for i in range(20)))
    with open_project(folder / "project", folder / "texts.csv") as project:
        for i, item in enumerate(project.next("me", 8)):
            project.answer(item["id"], "ab"[i % 2])
        assert project.worker.wait_until_idle()
    return folder


@pytest.mark.parametrize("how", BROKEN)
def test_settings_of_the_wrong_types_are_named(how, whole, tmp_path):
    out = shutil.copytree(whole / "project", tmp_path / "out")
    (out / "project.json").write_bytes(BROKEN[how].encode("utf-8", "surrogateescape"))
    (tmp_path / "known.csv").write_text("id,label\n")
    for work in (
        lambda: open_project(out, whole / "texts.csv"),
        lambda: export_labels(out),
        lambda: import_labels(out, tmp_path / "known.csv"),
    ):
        with pytest.raises(CheckpointError, match=r"project\.json must be as it was written.*Delete it") as caught:
            work()
        assert len(str(caught.value)) < 1000
    (out / "project.json").unlink()  # as the sentence says
    open_project(out, whole / "texts.csv").close()
    assert export_labels(out) == export_labels(whole / "project")


@pytest.mark.parametrize("how", BROKEN)
def test_other_files_are_named_or_made_anew(how, whole, tmp_path):
    content = BROKEN[how].encode("utf-8", "surrogateescape") + b"\n{}\n"
    out = shutil.copytree(whole / "project", tmp_path / "out")
    (out / "lock").write_bytes(content)
    open_project(out, whole / "texts.csv").close()
    (out / "cache" / "state.json").write_bytes(content)
    with pytest.warns(SkalWarning, match=r"cache in .* cannot be used \(state\.json is damaged\)\. No label is lost"):
        open_project(out, whole / "texts.csv").close()
    assert export_labels(out) == export_labels(whole / "project")
    (out / "labels.jsonl").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"labels\.jsonl must be as it was written\. Got a damaged line 1"):
        open_project(out, whole / "texts.csv")


@pytest.mark.parametrize("doubt", ["3", "[]", "null", "{}", '{"label": "a"}', '{"label": "%s", "probability": "x"}'])
def test_doubts_of_the_wrong_types_are_as_good_as_none(doubt, whole, tmp_path):
    out = shutil.copytree(whole / "project", tmp_path / "out")
    (out / "doubts.json").unlink(missing_ok=True)
    without = export_labels(out, "jsonl")
    rows = map(json.loads, without.splitlines())
    pairs = ",".join(f'"{row["id"]}": {doubt.replace("%s", row["label"])}' for row in rows)
    (out / "doubts.json").write_text(f"{{{pairs}}}")
    assert export_labels(out, "jsonl") == without


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_pipes_and_devices_are_not_waited_for(kind, whole, tmp_path, capsys):
    """Reading them would never end."""

    def put(path):
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")

    sources = [tmp_path / name for name in ("p.csv", "p.tsv", "p.jsonl", "p.json", "p.npz", "p.npy")]
    for path in sources:
        put(path)
    commands = [["import", tmp_path / "out", path] for path in sources[:4]]
    commands += [["label", path, "--classes", "a,b", "--out", tmp_path / "new"] for path in (*sources[:3], sources[4])]
    table = whole / "texts.csv"
    commands += [["label", table, "--classes", "a,b", "--out", tmp_path / "new", "--labels", sources[0]]]
    commands += [["label", table, "--classes", "a,b", "--out", tmp_path / "new", "--features", sources[5]]]
    for name in ("project.json", "labels.jsonl"):
        out = shutil.copytree(whole / "project", tmp_path / name)
        put(out / name)
        commands += [["export", out], ["label", table, "--classes", "a,b", "--out", out, "--model", "linear"]]
    for arguments in commands:
        assert main([str(argument) for argument in arguments]) == 1, arguments
        assert "no regular file" in capsys.readouterr().err, arguments
    out = shutil.copytree(whole / "project", tmp_path / "truth")
    for name in ("doubts.json", "access.json", "cache/state.json"):  # they are made anew
        put(out / name)
    with pytest.warns(SkalWarning, match="no regular file"):
        open_project(out, table).close()
    assert export_labels(out) == export_labels(whole / "project")


@pytest.mark.parametrize("name", ["known.csv", "known.jsonl", "known.json"])
@pytest.mark.parametrize("how", [name for name in BROKEN if name not in ("a list", "empty")])
def test_label_files_are_named(how, name, whole, tmp_path, capsys):
    (tmp_path / name).write_bytes(BROKEN[how].encode("utf-8", "surrogateescape"))
    for arguments in (
        ["import", tmp_path / "out", tmp_path / name],
        ["label", whole / "texts.csv", "--classes", "a,b", "--out", tmp_path / "out", "--labels", tmp_path / name],
    ):
        assert main([str(argument) for argument in arguments]) == 1
        assert name in capsys.readouterr().err


def test_folders_whose_names_are_not_utf_8(whole, command, tmp_path):
    """They work, and what is printed is readable."""
    place = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    shutil.copytree(whole / "project", place)
    shutil.copy(whole / "texts.csv", place)
    running = command(f"{place}/texts.csv", "--classes", "a,b", "--out", place, "--model", "linear")
    assert "8 of them labelled" in "".join(running.lines)
    client = Client(running.address)
    assert client.call("status")["folder"] == place
    client.call("finish")
    assert running.end()[0] == 0
    assert json.loads((tmp_path / place / "project.json").read_text())["source"] == f"{place}/texts.csv"
