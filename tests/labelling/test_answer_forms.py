"""Numbers, and several classes at once, on the page: in the journal, in files, there and back."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.multioutput import MultiOutputClassifier

import skal
from benchmarks._label_page import Keys
from skal import ActiveLearningClassifier
from skal.cli import main
from skal.exceptions import CheckpointError, InvalidParameterError, SkalError
from skal.labelling import export_labels, import_labels

from .conftest import label_page, wait_for_training

X = np.random.default_rng(0).normal(size=(60, 3))
IDS = [f"s{i}" for i in range(60)]
NAMES = ["cat", "dog", "red, white"]
FORMS = {
    "regression": {"task": "regression", "unit": "m²", "bounds": (0, 100)},
    "multilabel": {"classes": NAMES, "task": "multilabel"},
}


def truth(task, key):
    """What a person answers."""
    row = X[int(key[1:])]
    if task == "regression":
        return float(np.round(50 + 10 * row[0], 1))
    return [name for name, value in zip(NAMES, row, strict=True) if value > 0]


def held(task, key):
    """What the journal has of it."""
    said = truth(task, key)
    return said if task == "regression" else [int(name in said) for name in NAMES]


def open_page(folder, task, **settings):
    form = {"classes": ()} | FORMS[task] | {"query_size": 10} | settings
    return label_page(X, form.pop("classes"), folder, ids=IDS, **form)


def answer(client, task, n):
    for _ in range(n):
        (item,) = client.call("next", n=1)["items"]
        client.call("answer", ids=[item["id"]], label=truth(task, item["id"]))


@pytest.fixture(scope="module", params=FORMS)
def labelled(request, tmp_path_factory):
    """A folder with 40 answers of the page, one of them "cannot say", and its last status."""
    task, folder = request.param, tmp_path_factory.mktemp("labels")
    with open_page(folder, task) as client:
        answer(client, task, 40)
        wait_for_training(client, rounds=1)
        (item,) = client.call("next", n=1)["items"]
        client.call("answer", id=item["id"], label=None, declined=True)
        status, gallery = client.call("status"), client.call("gallery", limit=60)["items"]
        (item,) = client.call("next", n=1)["items"]
    return task, folder, status, gallery, item, client.result


def test_the_journal_has_the_answers_and_the_model_learns_from_them(labelled):
    task, folder, status, gallery, item, result = labelled
    events = [json.loads(line) for line in (folder / "labels.jsonl").read_text().splitlines()]
    if task == "multilabel":
        assert events.pop(0)["columns"] == NAMES
    assert [event["event"] for event in events] == ["label"] * 40 + ["declined"]
    assert all(event["label"] == held(task, event["id"]) for event in events[:40])
    assert status["form"]["task"] == task
    assert status["labelled"] == 40
    assert status["declined"] == 1
    assert status["measured"] is False
    assert {one["id"]: one["label"] for one in gallery[1:]} == {e["id"]: truth(task, e["id"]) for e in events[:40]}
    said = item["suggestion"]["label"]
    if task == "regression":
        assert status["numbers"].startswith("Answers from ")
        assert abs(said - truth(task, item["id"])) < 1
        assert skal.load_model(folder).predict(X[:3]) == pytest.approx(result.model.predict(X[:3]))
        assert np.abs(result.model.predict(X) - [truth(task, key) for key in IDS]).max() < 1
    else:
        counts = {each["name"]: each["count"] for each in status["classes"]}
        assert counts == {name: sum(name in truth(task, e["id"]) for e in events[:40]) for name in NAMES}
        assert set(said) <= set(NAMES)
        assert (result.model.predict(X) == (X > 0)).mean() > 0.8


@pytest.mark.parametrize("to", ["csv", "tsv", "jsonl", "label-studio"])
def test_files_there_and_back(labelled, to, tmp_path):
    task, folder, *_ = labelled
    text = export_labels(folder, to)
    if to == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert all(json.loads(row["label"]) == truth(task, row["id"]) for row in rows)
    if to == "jsonl":
        rows = list(map(json.loads, text.splitlines()))
        assert all(row["label"] == truth(task, row["id"]) for row in rows)
    if to == "label-studio":
        first = json.loads(text)[0]
        value = first["annotations"][0]["result"][0]["value"]
        assert next(iter(value.values())) == truth(task, first["data"]["skal_id"])
    path = tmp_path / f"file.{'json' if to == 'label-studio' else to}"
    path.write_text(text)
    with open_page(tmp_path / "other", task) as client:
        answer(client, task, 1)
    found = import_labels(tmp_path / "other", path)
    assert found["new"] + found["same"] == 40
    again = {
        row["id"]: row["label"] for row in map(json.loads, export_labels(tmp_path / "other", "jsonl").splitlines())
    }
    assert all(label == truth(task, key) for key, label in again.items())


@pytest.mark.parametrize(
    ("task", "label", "why"),
    [
        ("regression", 101, "at least 0 and at most 100"),
        ("regression", "much", "a finite number"),
        ("regression", True, "a finite number"),
        ("multilabel", ["cow"], "a list of classes"),
        ("multilabel", "cat", "a list of classes"),
    ],
)
def test_wrong_answers_are_refused_in_words(task, label, why, tmp_path):
    with open_page(tmp_path, task) as client:
        (item,) = client.call("next", n=1)["items"]
        body = {"client": "test", "id": item["id"], "label": label}
        status, _, data = client.request("POST", f"{client.root}api/answer", body)
        assert status == 400
        assert why in json.loads(data)["error"]
        assert client.call("status")["labelled"] == 0


def test_a_folder_keeps_its_task(labelled):
    task, folder, *_ = labelled
    with pytest.raises(InvalidParameterError, match="Choose another folder"), label_page(X, ["a"], folder, ids=IDS):
        pass
    with pytest.raises(InvalidParameterError, match="Label alone"), open_page(folder, task, team=["ann", "ben"]):
        pass


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    """A folder with three rows of the journal, and what they say."""
    folder = tmp_path_factory.mktemp("three") / "labels"
    with open_page(folder, "multilabel") as client:
        answer(client, "multilabel", 3)
    return folder, said_in(folder)


def said_in(folder):
    return {row["id"]: row["label"] for row in map(json.loads, export_labels(folder, "jsonl").splitlines())}


@pytest.mark.parametrize("settings", ["deleted", "reordered"])
@pytest.mark.parametrize("names", [NAMES, NAMES[::-1], ()], ids=["as before", "in another order", "unnamed"])
def test_the_journal_knows_what_its_rows_are_of(settings, names, three, tmp_path):
    """Whatever the settings and whoever starts it say, a cat stays a cat."""
    folder, said = shutil.copytree(three[0], tmp_path / "labels"), three[1]
    kept = json.loads((folder / "project.json").read_text())
    (folder / "project.json").unlink()
    if settings == "reordered":
        (folder / "project.json").write_text(json.dumps(kept | {"classes": NAMES[::-1]}))
    assert said_in(folder) == said
    (tmp_path / "known.jsonl").write_text(export_labels(three[0], "jsonl"))
    assert import_labels(folder, tmp_path / "known.jsonl")["same"] == 3
    with open_page(folder, "multilabel", classes=names) as client:
        shown = {item["id"]: item["label"] for item in client.call("gallery")["items"]}
        assert shown == said
        answer(client, "multilabel", 2)
    found = said_in(folder)
    assert found == {key: truth("multilabel", key) for key in found}
    assert len(found) == 5
    assert json.loads((folder / "project.json").read_text())["classes"] == NAMES


@pytest.mark.parametrize(
    "classes",
    [["cat", "dig", NAMES[2]], NAMES[:2], [*NAMES, "cow"]],
    ids=["one letter", "dropped", "one more"],
)
def test_other_classes_than_those_of_the_rows_are_refused_by_name(classes, three, tmp_path):
    folder, said = shutil.copytree(three[0], tmp_path / "labels"), three[1]
    with pytest.raises(InvalidParameterError, match=r"those of the folder.*cat.*dog.*red, white"):
        open_page(folder, "multilabel", classes=classes).__enter__()
    kept = json.loads((folder / "project.json").read_text())
    (folder / "project.json").write_text(json.dumps(kept | {"classes": classes}))
    for work in (
        lambda: open_page(folder, "multilabel").__enter__(),
        lambda: export_labels(folder),
        lambda: import_labels(folder, folder / "none.csv"),
    ):
        with pytest.raises(
            CheckpointError, match=r"project\.json must be those of labels\.jsonl.*cat.*delete the file"
        ):
            work()
    (folder / "project.json").unlink()  # as the sentence says
    assert said_in(folder) == said
    with pytest.raises(InvalidParameterError, match="those of the folder"):
        open_page(folder, "multilabel", classes=classes).__enter__()


def test_rows_are_no_numbers_and_numbers_are_no_classes(three, tmp_path):
    folder = shutil.copytree(three[0], tmp_path / "rows")
    (folder / "project.json").unlink()
    for task in ("regression", "classification"):
        with pytest.raises(SkalError, match="'multilabel'"):
            label_page(X, NAMES * (task != "regression"), folder, ids=IDS, task=task).__enter__()
    with open_page(tmp_path / "numbers", "regression") as client:
        answer(client, "regression", 1)
    (tmp_path / "numbers" / "project.json").unlink()
    for task in ("multilabel", "classification"):
        with pytest.raises(CheckpointError, match="Say task='regression'"):
            label_page(X, NAMES, tmp_path / "numbers", ids=IDS, task=task).__enter__()


def test_rows_of_a_session_get_their_names_when_the_page_knows_them(tmp_path):
    """A session in Python need not name its columns; whoever does first is believed, if the number is right."""
    loop = ActiveLearningClassifier(MultiOutputClassifier(LogisticRegression()), n_rounds=None, checkpoint=tmp_path)
    with loop.start(X, ids=IDS) as session:
        session.add({"s0": [1, 0, 0]})
    for names in (NAMES[:2], [*NAMES, "cow"]):
        with pytest.raises(CheckpointError, match=r"for rows of \[3\] numbers"):
            open_page(tmp_path, "multilabel", classes=names).__enter__()
    with open_page(tmp_path, "multilabel") as client:
        answer(client, "multilabel", 1)
    assert said_in(tmp_path)["s0"] == ["cat"]
    (tmp_path / "project.json").unlink()
    assert said_in(tmp_path)["s0"] == ["cat"]


def test_undo_and_zero(tmp_path):
    with open_page(tmp_path, "regression") as client:
        (item,) = client.call("next", n=1)["items"]
        client.call("answer", id=item["id"], label=0)
        client.call("answer", id=item["id"], label=7.5)
        assert client.call("gallery")["items"][0]["words"] == "7.5 m²"
        assert client.call("undo")["item"]["id"] == item["id"]
        (shown,) = client.call("gallery")["items"]
        assert (shown["label"], shown["words"]) == (0.0, "0 m²")


def test_numbers_are_typed_or_slid(page, tmp_path):
    with open_page(tmp_path, "regression") as client:
        page.open(client.address.geturl())
        first = page.current()
        page.press("4", "2", ",", "5", Keys.ENTER)
        page.wait_for(lambda: page.current() != first)
        second = page.current()
        page.press("9", "9", "9", Keys.ENTER)
        page.wait_for(lambda: "at most 100" in page.text(".answer-words"))
        assert page.current() == second
        page.run(
            "const s = document.querySelector('input[type=range]'); s.value = 30; "
            "s.dispatchEvent(new Event('input', {bubbles: true}))"
        )
        page.press(Keys.ENTER)
        page.wait_for(lambda: page.current() != second)
        third = page.current()
        page.press(" ")
        page.wait_for(lambda: page.current() != third)
        page.press(Keys.BACKSPACE)
        page.wait_for(lambda: page.current() == third)
        found = {item["id"]: item["label"] for item in client.call("gallery")["items"]}
        assert found == {first: 42.5, second: 30.0}
        page.click(".tab[data-view=gallery]")
        page.click(f".card[data-id={first}]")
        page.wait_for(lambda: page.find("dialog.correct input"))
        page.press(Keys.BACKSPACE, "1", Keys.ENTER)
        page.wait_for(lambda: {each["label"] for each in client.call("gallery")["items"]} == {42.1, 30.0})
        assert page.complaints() == []


def test_keys_switch_classes_and_enter_confirms(page, tmp_path):
    with open_page(tmp_path, "multilabel") as client:
        page.open(client.address.geturl())
        first = page.current()
        page.press("1", "3", "2", "2")
        assert page.current() == first
        assert [button.text.split("\n")[-1] for button in page.find(".class[aria-pressed=true]")] == ["cat", NAMES[2]]
        page.press(Keys.ENTER)
        page.wait_for(lambda: page.current() != first)
        second = page.current()
        assert page.find(".class[aria-pressed=true]") == []
        page.click(".class[data-class=dog]")
        page.press(Keys.ENTER)  # the click has left the focus on the sample
        page.wait_for(lambda: page.current() != second)
        third = page.current()
        page.click(".confirm")  # none of them is an answer, too
        page.wait_for(lambda: page.current() != third)
        found = {item["id"]: item["label"] for item in client.call("gallery")["items"]}
        assert found == {first: ["cat", NAMES[2]], second: ["dog"], third: []}
        assert page.find("[data-option=grid]") == []
        assert page.complaints() == []


def test_the_model_of_the_page_is_saved_and_predicts(labelled, tmp_path):
    task, folder = labelled[:2]
    np.savez(tmp_path / "rows.npz", X=X, ids=np.array(IDS))
    out = tmp_path / "out.csv"
    assert not main(["predict", str(folder), str(tmp_path / "rows.npz"), "--out", str(out)])
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    said = skal.load_model(folder).predict(X).reshape(60, -1)
    columns = ["number"] if task == "regression" else [f"label_{name}" for name in NAMES]
    np.testing.assert_array_equal([[float(row[column]) for column in columns] for row in rows], said)
    words = ["export", str(folder), "--predictions", "--source", str(tmp_path / "rows.npz")]
    assert not main([*words, "--out", str(out)])
    rest = [row for row in csv.DictReader(io.StringIO(out.read_text())) if row["source"] == "model"]
    assert len(rest) == 20
    if task == "multilabel":
        assert all(set(json.loads(row["label"])) <= set(NAMES) for row in rest)
