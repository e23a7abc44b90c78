"""Exports of any project import again into the same labels, whatever characters they are made of."""

import csv
import io
import json
import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sklearn.dummy import DummyClassifier

from skal import ActiveLearningClassifier
from skal.cli import main
from skal.exceptions import InvalidParameterError, SampleError
from skal.labelling import export_labels, import_labels
from skal.labelling._answer_form import AnswerForm
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._sources import open_source

from ..support.small_disk import files_up_to
from .conftest import label_page

ENDINGS = {"csv": "csv", "tsv": "tsv", "jsonl": "jsonl", "label-studio": "json", "coco-classification": "json"}
NASTY = [
    "a\rb",
    "\r\n",
    "a\u2028b",
    "\u0085",
    '"',
    '"",',
    ",",
    "a\tb",
    ";",
    "=1+1",
    "+1",
    "-1",
    "@x",
    "'=1",
    "'",
    " = ",
]
NASTY += [
    "NA",
    "nan",
    "null",
    "None",
    "",
    " ",
    "\ud800",
    "x\udc80",
    "\x00",
    "\ufeffx",
    "#",
    "\\",
    "a/b",
    "c?d=b",
    "#N/A",
]
NASTY += ["long " * 2000, "7", "True", "1e5", "id", "＝1", "\x1a", "\x0b\x0c\x1c\x1d\x1e"]
NAMES = st.sampled_from(NASTY) | st.text(st.characters(), max_size=8)
QUICK = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder, to, path, **options):
    arguments = ["export", str(folder), "--to", to, "--out", str(path)]
    assert main([*arguments, *(["--safe-csv"] if options.get("safe_csv") else [])]) == 0
    return path


def start(folder, ids):
    loop = ActiveLearningClassifier(DummyClassifier(), n_rounds=None, checkpoint=folder)
    return loop.start(np.arange(2.0 * len(ids)).reshape(-1, 2), ids=ids)


def labels_in(folder):
    lines = export_labels(folder, "jsonl").split("\n")[:-1]
    return {row["id"]: row["label"] for row in map(json.loads, lines)}


def can_be_a_class(name):
    return bool(name) and not any("\ud800" <= letter <= "\udfff" for letter in name)


CLASS_LISTS = st.lists(NAMES.map(str.strip).filter(can_be_a_class), min_size=2, max_size=4, unique=True)


def labels_of(session):
    frame = session.labels()
    return dict(zip(frame["id"], frame["label"], strict=True))


@QUICK
@given(labels=st.dictionaries(NAMES, NAMES, max_size=6))
def test_a_session_in_python(labels, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    ids = [*labels, "one without a label"]
    with start(folder / "one", ids) as session:
        if labels:
            session.add(labels)
        session.to_csv(folder / "session.csv")
    files = [write(folder / "one", to, folder / f"{to}.{ending}") for to, ending in ENDINGS.items()]
    files += [write(folder / "one", to, folder / f"safe.{to}", safe_csv=True) for to in ("csv", "tsv")]
    for file in [*files, folder / "session.csv"]:
        assert import_labels(folder / "one", file) == {"new": 0, "changed": 0, "same": len(labels)}
        other = folder / f"into-{file.name}"
        assert import_labels(other, file) == {"new": len(labels), "changed": 0, "same": 0}
        assert labels_in(other) == labels
    with start(other, ids) as session:
        assert labels_of(session) == labels


@QUICK
@given(
    texts=st.dictionaries(NAMES, NAMES, min_size=2, max_size=5),
    classes=CLASS_LISTS,
)
def test_a_project_of_the_page(texts, classes, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    rows = [json.dumps({"id": key, "text": f"{text} some words"}) for key, text in texts.items()]
    (folder / "texts.jsonl").write_text("\n".join(rows))
    source = open_source(folder / "texts.jsonl")
    assert list(source.ids) == list(texts)
    model, known = choose_model(source, model="linear"), {"source_name": str(folder / "texts.jsonl")}
    Project(source, classes, model, folder / "empty", **known).close()
    with Project(source, classes, model, folder / "one", **known) as project:
        for i, key in enumerate(texts):
            project.answer(key, classes[i % len(classes)])
        given = labels_of(project)
    for to, ending in ENDINGS.items():
        file = write(folder / "one", to, folder / f"{to}.{ending}")
        other = shutil.copytree(folder / "empty", folder / f"into-{to}")
        assert import_labels(other, file) == {"new": len(texts), "changed": 0, "same": 0}
        assert labels_in(other) == given
    project = Project(source, classes, model, other)
    assert labels_of(project) == given
    assert project.classes == classes
    project.close()


NUMBERS = st.floats(-1e150, 1e150)  # a model takes no larger ones


@QUICK
@given(
    ids=st.lists(NAMES, min_size=2, max_size=5, unique=True),
    answers=CLASS_LISTS.flatmap(
        lambda classes: st.tuples(st.just(classes), st.lists(st.sets(st.sampled_from(classes)), min_size=5, max_size=5))
    )
    | st.tuples(st.just([]), st.lists(NUMBERS, min_size=5, max_size=5)),
)
def test_several_labels_and_numbers_of_the_page(ids, answers, tmp_path_factory):
    """In the formats that can hold them, into a folder that has no settings any more, too."""
    folder, (classes, said) = tmp_path_factory.mktemp("project"), answers
    rows = [json.dumps({"id": key, "text": f"some words {i}"}) for i, key in enumerate(ids)]
    (folder / "texts.jsonl").write_text("\n".join(rows))
    source, form = open_source(folder / "texts.jsonl"), AnswerForm("multilabel" if classes else "regression")
    known = {"form": form, "source_name": str(folder / "texts.jsonl")}
    model = choose_model(source, model="linear")
    Project(source, classes, model, folder / "empty", **known).close()
    given = {key: [name for name in classes if name in x] if classes else x for key, x in zip(ids, said, strict=False)}
    with Project(source, classes, model, folder / "one", **known) as project:
        for key, label in given.items():
            project.answer(key, label)
    assert labels_in(folder / "one") == given
    for to in ("csv", "tsv", "jsonl", "label-studio"):
        file = write(folder / "one", to, folder / f"{to}.{ENDINGS[to]}")
        other = shutil.copytree(folder / "empty", folder / f"into-{to}")
        assert import_labels(other, file) == {"new": len(ids), "changed": 0, "same": 0}
        assert labels_in(other) == given
        (other / "project.json").unlink()
        assert labels_in(other) == given
        project = Project(source, classes[::-1], model, other, **known)
        assert project.classes == classes
        project.close()
        assert labels_in(other) == given


@QUICK
@given(
    said=st.dictionaries(
        NAMES,
        st.dictionaries(st.sampled_from(["ann", "ben", "eve"]), st.none() | NAMES, min_size=1),
        min_size=1,
        max_size=5,
    ),
    decided=st.dictionaries(NAMES, NAMES, max_size=2),
)
def test_what_a_team_agrees_on(said, decided, tmp_path_factory):
    """What holds of several people's answers is what others import."""
    folder = tmp_path_factory.mktemp("project")
    with start(folder / "one", [*said, "one without a label"]) as session:
        for key, each in said.items():
            for person, label in each.items():
                session.answer({key: label}, annotator=person)
        labelled = set(labels_of(session))
        session.relabel({key: label for key, label in decided.items() if key in labelled}, annotator="ann")
    with start(folder / "one", [*said, "one without a label"]) as session:
        held = labels_of(session)
    for key, each in said.items():
        given = {label for label in each.values() if label is not None}
        assert (key in held) == bool(given)
        assert not given or held[key] in given | {decided.get(key)}
        assert len(given) != 1 or key in decided or held[key] in given
    for to, ending in ENDINGS.items():
        file = write(folder / "one", to, folder / f"{to}.{ending}")
        other = folder / f"into-{to}"
        assert import_labels(other, file) == {"new": len(held), "changed": 0, "same": 0}
        assert labels_in(other) == held
        assert import_labels(folder / "one", file)["same"] == len(held)


@QUICK
@given(cells=st.lists(NAMES, min_size=1, max_size=6, unique=True))
def test_no_cell_of_a_safe_table_is_a_formula(cells, tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    with start(folder, cells) as session:
        session.add({key: key for key in cells})
    for to, separator in {"csv": ",", "tsv": "\t"}.items():
        text = io.StringIO(export_labels(folder, to, safe_csv=True), newline="")
        found = [cell for row in csv.reader(text, delimiter=separator) for cell in row]
        assert len(found) > 2 * len(cells)
        assert not [cell for cell in found if cell.strip()[:1] in (*"=+-@＝＋－＠",) or cell[:1] in (*"\t\r\n",)]


@pytest.mark.parametrize("to", ENDINGS)
@pytest.mark.parametrize("labels", [{3: 1, 5: 0}, {1: True, 2: False}, {"a": 2.0, "b": 1.0}, {"a": 3}])
def test_ids_and_labels_that_are_numbers(to, labels, tmp_path):
    """Into the project itself in every format, into another one where the format tells numbers from texts."""
    with start(tmp_path / "one", list(labels)) as session:
        session.add(labels)
    file = write(tmp_path / "one", to, tmp_path / f"labels.{ENDINGS[to]}")
    assert import_labels(tmp_path / "one", file)["same"] == len(labels)
    import_labels(tmp_path / "two", file)
    two = [json.loads(line) for line in (tmp_path / "two" / "labels.jsonl").read_text().splitlines()]
    found = {event["id"]: event["label"] for event in two}
    if to in ("csv", "tsv"):
        assert found == {str(key): str(label) for key, label in labels.items()}
    else:
        assert found == labels
        assert [type(label) for label in found.values()] == [type(label) for label in labels.values()]
    with start(tmp_path / "three", [*labels, *range(10, 20)]) as session:
        session.add({10: next(iter(labels.values()))} if isinstance(next(iter(labels)), int) else {})
    if to in ("csv", "tsv") and isinstance(next(iter(labels)), int):  # the folder's ids and labels are numbers
        import_labels(tmp_path / "three", file)
        with start(tmp_path / "three", [*labels, *range(10, 20)]) as session:
            found = labels_of(session)
        assert {key: label for key, label in found.items() if key < 10} == labels


@pytest.mark.parametrize("to", ENDINGS)
def test_a_project_without_labels_is_an_empty_file(to, tmp_path):
    start(tmp_path / "one", ["a"]).close()
    text = export_labels(tmp_path / "one", to)
    assert "a" not in text.replace("label", "").replace("annotat", "").replace("images", "").replace("categor", "")
    file = write(tmp_path / "one", to, tmp_path / f"labels.{ENDINGS[to]}")
    assert import_labels(tmp_path / "two", file) == {"new": 0, "changed": 0, "same": 0}
    file.write_bytes(b"")
    if ENDINGS[to] != "json":
        assert import_labels(tmp_path / "two", file)["new"] == 0


@pytest.mark.parametrize("to", [*ENDINGS, "parquet"])
def test_an_export_that_the_disk_does_not_take_leaves_the_earlier_one(to, tmp_path, capsys):
    """Half a table would look like a whole one."""
    ids = [f"{number:0100}" for number in range(40)]
    with start(tmp_path / "one", ids) as session:
        session.add({ids[0]: "cat"})
        command = ["export", str(tmp_path / "one"), "--to", to, "--out", str(tmp_path / "labels")]
        assert main(command) == 0
        before = (tmp_path / "labels").read_bytes()
        session.add(dict.fromkeys(ids[1:], "dog"))
        size = 100 if to == "parquet" else 2000  # parquet is compressed
        with files_up_to(size):
            assert main(command) == 1
            assert "File too large" in capsys.readouterr().err
            if to == "csv":
                with pytest.raises(OSError, match="File too large"):
                    session.to_csv(tmp_path / "labels")
    assert (tmp_path / "labels").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"one", "labels"}
    assert main(command) == 0
    assert (tmp_path / "labels").read_bytes() != before


def test_an_export_leaves_other_files_and_the_mode_of_its_own(tmp_path):
    with start(tmp_path / "one", ["a"]) as session:
        session.add({"a": "cat"})
    table, other = tmp_path / "labels.csv", tmp_path / "labels.csv.new"
    other.write_text("mine")
    table.touch(mode=0o600)
    assert main(["export", str(tmp_path / "one"), "--out", str(table)]) == 0
    assert "cat" in table.read_text()
    assert other.read_text() == "mine"
    assert table.stat().st_mode & 0o777 == 0o600


def test_an_export_into_a_folder_that_is_not_there_names_the_file(tmp_path, capsys):
    with start(tmp_path / "one", ["a"]) as session:
        session.add({"a": "cat"})
    assert main(["export", str(tmp_path / "one"), "--out", str(tmp_path / "no" / "labels.csv")]) == 1
    assert capsys.readouterr().err.endswith(f"No such file or directory: '{tmp_path / 'no' / 'labels.csv'}'\n")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
def test_an_export_goes_through_a_link_and_into_a_pipe(tmp_path):
    with start(tmp_path / "one", ["a"]) as session:
        session.add({"a": "cat"})
    command = ["export", str(tmp_path / "one"), "--out"]
    (tmp_path / "link").symlink_to(tmp_path / "labels")
    os.mkfifo(tmp_path / "pipe")
    assert main([*command, str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    with ThreadPoolExecutor() as pool:
        written = pool.submit(main, [*command, str(tmp_path / "pipe")])
        assert (tmp_path / "pipe").read_bytes() == (tmp_path / "labels").read_bytes()
        assert written.result() == 0


def test_formulas_are_harmless_on_request_alone(tmp_path):
    with start(tmp_path, ["=1", "b"]) as session:
        session.add({"=1": "+cmd|' /C calc'!A0", "b": "cat"})
    assert export_labels(tmp_path).splitlines()[1].startswith("=1,+cmd|' /C calc'!A0")
    assert export_labels(tmp_path, safe_csv=True).splitlines()[1].startswith("'=1,'+cmd|' /C calc'!A0")
    with pytest.raises(InvalidParameterError, match="no spreadsheet"):
        export_labels(tmp_path, "jsonl", safe_csv=True)


def test_texts_are_found_by_themselves_where_their_ids_are_lost(tmp_path):
    (tmp_path / "texts.csv").write_text("text\ngood\nbad\nbad\n")
    with label_page(tmp_path / "texts.csv", ["a", "b"], tmp_path):
        pass
    said = {"from_name": "label", "type": "choices", "value": {"choices": ["a"]}}
    good, bad = ({"data": {"text": text}, "annotations": [{"result": [said]}]} for text in ("good", "bad"))
    (tmp_path / "tasks.json").write_text(json.dumps([good]))
    assert import_labels(tmp_path, tmp_path / "tasks.json")["new"] == 1
    (tmp_path / "tasks.json").write_text(json.dumps([bad]))
    with pytest.raises(SampleError, match="2 texts of that name"):
        import_labels(tmp_path, tmp_path / "tasks.json")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", 'id,label\na,"cat', "line|end of data"),
        ("a.csv", "id,label\na,b,c\n", "3 cells up to line 2"),
        ("a.csv", "id,label\na,b\na,c\n", "one label for every sample"),
        ("a.jsonl", "[" * 100_000, "nested too deeply"),
        ("a.json", "[" * 100_000, "nested too deeply"),
        ("a.json", '{"images": 3}', "COCO"),
        ("a.json", '{"images": [], "categories": [], "annotations": [{"image_id": 1}]}', "COCO"),
    ],
)
def test_what_cannot_be_imported_is_named(name, content, message, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(SampleError, match=message):
        import_labels(tmp_path / "out", tmp_path / name)
