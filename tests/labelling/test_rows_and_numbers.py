"""Numbers, and several labels at once, in the files that other programs read."""

import csv
import io
import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputClassifier

from skal import ActiveLearningClassifier, ActiveLearningRegressor
from skal.exceptions import InvalidParameterError
from skal.labelling import export_labels, import_labels

X = np.random.default_rng(0).normal(size=(40, 3))
NUMBERS, ROWS = 2 * X[:, 0] + 1, (X > 0).astype(int)
LOOPS = {
    "numbers": (ActiveLearningRegressor(Ridge(), n_initial=8, n_rounds=0, random_state=0), NUMBERS),
    "rows": (
        ActiveLearningClassifier(MultiOutputClassifier(LogisticRegression()), n_initial=8, n_rounds=0, random_state=0),
        ROWS,
    ),
}


def label(kind, folder):
    """Label eight samples in a session; their labels by id."""
    loop, y = LOOPS[kind]
    with loop.set_params(checkpoint=folder).start(X, ids=[f"s{i}" for i in range(40)]) as session:
        session.run(lambda indices, samples: y[indices])
    return {f"s{i}": y[i].tolist() for i in loop.queried_}


@pytest.mark.parametrize("kind", LOOPS)
def test_csv_and_jsonl(kind, tmp_path):
    known = label(kind, tmp_path)
    rows = csv.DictReader(io.StringIO(export_labels(tmp_path)))
    assert {row["id"]: json.loads(row["label"]) for row in rows} == known
    lines = map(json.loads, export_labels(tmp_path, to="jsonl").splitlines())
    assert {line["id"]: line["label"] for line in lines} == known


@pytest.mark.parametrize("to", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("kind", LOOPS)
def test_tables_there_and_back(kind, to, tmp_path):
    """Into the folder itself, into a fresh one, and into one that has some of the labels; a session goes on there."""
    known = label(kind, tmp_path / "one")
    file = tmp_path / f"labels.{to}"
    file.write_text(export_labels(tmp_path / "one", to=to))
    assert import_labels(tmp_path / "one", file) == {"new": 0, "changed": 0, "same": 8}
    few = tmp_path / f"few.{to}"
    few.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    import_labels(tmp_path / "three", few)
    for folder in ("two", "three"):
        import_labels(tmp_path / folder, file)
        lines = map(json.loads, export_labels(tmp_path / folder, to="jsonl").splitlines())
        assert {line["id"]: line["label"] for line in lines} == known
        loop, _ = LOOPS[kind]
        with loop.set_params(checkpoint=tmp_path / folder).start(X, ids=[f"s{i}" for i in range(40)]) as session:
            assert len(session.labels()) == 8


def test_texts_that_look_like_numbers_in_part_stay_texts(tmp_path):
    for labels in (["1.5", "cat"], ["2.0", "3.0"], ["[1, 0]", "cat"], ["[]", "[1]"], ["true", "1.5"], ["NaN", "1.5"]):
        file = tmp_path / "labels.csv"
        with file.open("w", newline="") as cells:
            csv.writer(cells).writerows([["id", "label"], *enumerate(labels)])
        folder = tmp_path / labels[0]
        import_labels(folder, file)
        lines = map(json.loads, export_labels(folder, to="jsonl").splitlines())
        assert [line["label"] for line in lines] == labels


@pytest.mark.parametrize("kind", LOOPS)
def test_label_studio_there_and_back(kind, tmp_path):
    known = label(kind, tmp_path / "one")
    text = export_labels(tmp_path / "one", to="label-studio")
    first = json.loads(text)[0]["annotations"][0]["result"][0]
    assert first["type"] == ("number" if kind == "numbers" else "choices")
    (tmp_path / "tasks.json").write_text(text)
    assert import_labels(tmp_path / "two", tmp_path / "tasks.json")["new"] == 8
    lines = map(json.loads, export_labels(tmp_path / "two", to="jsonl").splitlines())
    assert {line["id"]: line["label"] for line in lines} == known


def test_whole_numbers_are_numbers_in_label_studio(tmp_path):
    loop = ActiveLearningRegressor(Ridge(), n_initial=8, n_rounds=0, random_state=0, checkpoint=tmp_path)
    with loop.start(X, ids=[f"s{i}" for i in range(40)]) as session:
        session.run(lambda indices, samples: np.round(NUMBERS[indices]))
    tasks = json.loads(export_labels(tmp_path, to="label-studio"))
    assert {task["annotations"][0]["result"][0]["type"] for task in tasks} == {"number"}


def test_coco_has_one_class_each(tmp_path):
    label("rows", tmp_path)
    with pytest.raises(InvalidParameterError, match="one class each"):
        export_labels(tmp_path, to="coco-classification")
