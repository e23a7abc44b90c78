"""From labels that were given on the page to predictions: on the command line, in Python, in another process."""

import csv
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression

import skal
from skal.cli import main
from skal.exceptions import CheckpointError, SampleError
from skal.features import ArrayFeatures, PixelFeatures, pretrained
from skal.labelling import export_labels, import_labels
from skal.labelling._models import choose_model
from skal.labelling._sources import ArraySource, open_source

from ..support.processes import READY
from .conftest import DIGITS, label_page, wait_for_training, work

KINDS = ("image", "text", "numbers", "table")
TEXTS = [f"{word} film number {i}" for i in range(30) for word in ("good", "awful")]
LOAD = """
import json, sys
for name in ("starlette", "uvicorn", "anywidget", "skal.labelling"):
    sys.modules[name] = None  # as if the extra were not installed
import skal
import pandas as pd
for folder, samples in json.load(sys.stdin):
    model = skal.load_model(folder)
    samples = pd.read_csv(samples)[list(model.feature_names_in_)] if isinstance(samples, str) else samples
    print(json.dumps([model.predict(samples).tolist(), model.predict_proba(samples).max(1).tolist()]))
"""


def make_source(kind, place):
    """A source of 60 samples and its truth."""
    rng = np.random.default_rng(0)
    if kind == "image":
        for i in range(60):
            pixels = rng.integers(0, 80, size=(20, 16, 3), dtype=np.uint8)
            pixels[:, :, 0 if i % 2 else 2] += 120
            (place / "pictures").mkdir(exist_ok=True)
            Image.fromarray(pixels).save(place / "pictures" / f"{'red' if i % 2 else 'blue'}-{i:02d}.png")
        return place / "pictures", lambda item: item["id"].split("-")[0]
    if kind == "text":
        pd.DataFrame({"id": range(60), "text": TEXTS}).to_csv(place / "texts.csv", index=False)
        return place / "texts.csv", lambda item: item["text"].split()[0]
    if kind == "table":
        write_table(place / "people.csv", rng)
        return place / "people.csv", lambda item: "yes" if float(dict(item["cells"])["age"] or 50) > 50 else "no"
    X = rng.normal(size=(60, 4))
    np.savez(place / "rows.npz", X=X, ids=np.arange(60).astype(str))
    return place / "rows.npz", lambda item: "yes" if X[int(item["id"]), 0] > 0 else "no"


def write_table(path, rng):
    """Numbers, strings, dates and truth values, with gaps; and two columns that are named as those of labels."""
    table = pd.DataFrame(
        {
            "id": np.arange(60),
            "age": rng.normal(50, 15, 60).round(2),
            "children": rng.integers(0, 4, 60),
            "job": rng.choice(["nurse", "clerk", "smith, black", "=1+1"], 60),
            "since": pd.date_range("2020", periods=60, freq="11D").strftime("%Y-%m-%d"),
            "smokes": rng.random(60) > 0.5,
            "time": rng.choice(["day", "night"], 60),
            "name": [f"person {i}" for i in range(60)],
        }
    )
    for name in ("age", "children", "job", "since", "time"):
        table[name] = table[name].astype(object).mask(rng.random(60) < 0.2)
    table.to_csv(path, index=False)


def label_on_the_page(kind, place, n=30, model="linear"):
    """A project whose labels came over HTTP; the path of its source."""
    path, truth = make_source(kind, place)
    out = place / "labels"
    classes = {"image": ["red", "blue"], "text": ["good", "awful"], "numbers": ["yes", "no"], "table": ["yes", "no"]}[
        kind
    ]
    with label_page(path, classes, out, query_size=10, model=model) as client:
        wait_for_training(client, rounds=0)
        work(client, n, truth)
        wait_for_training(client)
    return out, path


def samples_of(kind, path):
    """What a model takes: paths, texts or rows, in the order of the source."""
    if kind == "image":
        return [str(picture) for picture in sorted(path.iterdir())]
    if kind == "table":
        return str(path)
    return TEXTS if kind == "text" else np.load(path)["X"].tolist()


def ids_of(kind, path):
    return [picture.name for picture in sorted(path.iterdir())] if kind == "image" else [str(i) for i in range(60)]


def read(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def projects(tmp_path_factory):
    """A labelled project of each kind, and its source; for reading."""
    return {kind: label_on_the_page(kind, tmp_path_factory.mktemp(kind)) for kind in KINDS}


def predict(project, source, table, *more):
    """The rows that ``skal predict`` writes."""
    assert main(["predict", str(project), str(source), "--out", str(table), *more]) == 0
    return read(table)


def test_another_process_without_the_extra_says_the_same(projects, tmp_path):
    given, expected = [], []
    for kind, (out, path) in projects.items():
        given.append((str(out), samples_of(kind, path)))
        expected.append(predict(out, path, tmp_path / f"{kind}.csv"))
    done = subprocess.run(
        [sys.executable, "-c", LOAD], input=json.dumps(given), capture_output=True, text=True, check=True
    )
    for line, rows in zip(done.stdout.splitlines(), expected, strict=True):
        classes, probabilities = json.loads(line)
        assert classes == [row["class"] for row in rows]
        np.testing.assert_allclose(probabilities, [float(row["probability"]) for row in rows], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_labelled_project_predicts_and_exports_the_rest(kind, projects, tmp_path, capsys):
    out, path = projects[kind]
    rows = predict(out, path, tmp_path / "predictions.csv")
    assert "60 new predictions" in capsys.readouterr().out
    ids = ids_of(kind, path)
    assert [row["id"] for row in rows] == ids
    assert list(rows[0]) == ["id", "class", "probability", "second_class", "second_probability"]
    assert all(float(row["probability"]) >= float(row["second_probability"]) for row in rows)
    assert {row["class"] for row in rows} == set(skal.load_model(out).classes_)
    assert main(["audit", str(tmp_path / "predictions.csv"), "--truth", str(tmp_path / "predictions.csv")]) == 0
    assert "of 60 labels are wrong" in capsys.readouterr().out
    exported = tmp_path / "all.csv"
    assert main(["export", str(out), "--predictions", "--out", str(exported)]) == 0
    both = {row["id"]: row for row in read(exported)}
    assert set(both) == set(ids)
    by_model = {key for key, row in both.items() if row["source"] == "model"}
    assert len(both) - len(by_model) == 30
    predicted = {row["id"]: row for row in rows}
    assert all(both[key]["label"] == predicted[key]["class"] for key in by_model)
    assert all(both[key]["probability"] == predicted[key]["probability"] for key in by_model)
    assert not any(row["probability"] for key, row in both.items() if key not in by_model)
    card = skal.load_model(out).card_
    # measured on held-out labels, which the last model, after "Finish", is trained on too
    assert 0 < card["found"]["heldout"]["labels"] < card["trained_on"]["labels"] == 30


@pytest.mark.parametrize("to", ["csv", "jsonl", "label-studio", "coco-classification"])
def test_what_the_model_says_is_not_imported_as_a_label(to, projects, tmp_path):
    out, _ = projects["text"]
    name = tmp_path / f"all.{'csv' if to == 'csv' else 'jsonl' if to == 'jsonl' else 'json'}"
    assert main(["export", str(out), "--predictions", "--to", to, "--out", str(name)]) == 0
    shutil.copytree(out, tmp_path / "other")
    (tmp_path / "other" / "labels.jsonl").unlink()
    assert import_labels(tmp_path / "other", name)["new"] == 30
    assert len(export_labels(tmp_path / "other").splitlines()) == 31
    if to == "label-studio":
        tasks = json.loads(name.read_text())
        assert len([task for task in tasks if task.get("predictions")]) == 30
        assert all(0.5 <= task["predictions"][0]["score"] <= 1 for task in tasks if task.get("predictions"))


def test_it_goes_on_where_it_stopped(projects, tmp_path, capsys):
    out, path = projects["image"][0], shutil.copytree(projects["image"][1], tmp_path / "pictures")
    command = ["predict", str(out), str(path), "--out", str(tmp_path / "new" / "predictions.csv")]
    assert main(command) == 0
    table = tmp_path / "new" / "predictions.csv"
    whole = table.read_bytes()
    Image.new("RGB", (9, 9), "red").save(path / "z-new.png")
    assert main(command) == 0
    assert "1 new predictions" in capsys.readouterr().out
    assert table.read_bytes().startswith(whole)
    assert read(table)[-1]["id"] == "z-new.png"
    with open(table, "ab") as file:
        file.write(b"z-torn.png,re")  # a process was killed in the middle of a part
    before = table.read_bytes()
    assert main(command) == 0
    assert before.startswith(table.read_bytes())
    assert len(read(table)) == 61
    table.write_bytes(table.read_bytes().replace(b"red", b"RED"))
    assert main(command) == 1
    assert "changed by hand" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0
    assert len(read(table)) == 61
    (tmp_path / "new" / ".predictions.csv.skal").unlink()
    assert main(command) == 1
    assert main([*command[:-1], str(tmp_path / "predictions.txt")]) == 2
    assert "csv or .tsv" in capsys.readouterr().err


def predict_and_be_killed(parts, command):
    """What another process does: the command, until so many parts have been read."""
    read, left = PixelFeatures.transform, [parts]

    def transform(self, X):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), 9)
        return read(self, X)

    PixelFeatures.transform = transform
    main(command)


def test_a_killed_run_is_taken_up_again(projects, tmp_path):
    out, path = projects["image"][0], shutil.copytree(projects["image"][1], tmp_path / "pictures")
    for i in range(600):  # more than two parts
        shutil.copy(path / "red-01.png", path / f"x-{i:03d}.png")
    table = tmp_path / "predictions.csv"
    command = ["predict", str(out), str(path), "--out", str(table)]
    process = READY.Process(target=predict_and_be_killed, args=(2, command))
    process.start()
    process.join()
    assert process.exitcode == -9
    process.close()
    assert len(read(table)) == 512
    assert main(command) == 0
    rows = read(table)
    assert [row["id"] for row in rows] == ids_of("image", path)


def test_files_that_cannot_be_read_are_named(projects, tmp_path, capsys):
    out, path = projects["image"][0], shutil.copytree(projects["image"][1], tmp_path / "pictures")
    (path / "broken.png").write_bytes(b"x")
    table = tmp_path / "predictions.csv"
    assert main(["predict", str(out), str(path), "--out", str(table)]) == 0
    said = capsys.readouterr()
    assert "60 new predictions" in said.out
    assert "1 files could not be read" in said.err
    assert "broken.png: broken.png must be an image that can be read" in said.err
    with pytest.raises(SampleError, match=r"broken\.png"):
        skal.load_model(out).predict([path / "broken.png"])


def test_other_samples_are_refused(projects, tmp_path, capsys):
    out, path = projects["text"]
    pictures = projects["image"][1]
    assert main(["predict", str(out), str(pictures), "--out", str(tmp_path / "p.csv")]) == 1
    assert "of the kind that was labelled, 'text'" in capsys.readouterr().err
    assert main(["predict", str(out / "model"), str(pictures), "--out", str(tmp_path / "p.csv")]) == 1
    assert "must be one for pictures" in capsys.readouterr().err
    loop = skal.ActiveLearningClassifier(LogisticRegression(), n_initial=9, n_rounds=0).fit(np.eye(10), ["a", "b"] * 5)
    loop.save_model(tmp_path / "words", features=pretrained("texts"))
    assert main(["predict", str(tmp_path / "words"), str(pictures), "--out", str(tmp_path / "q.csv")]) == 1
    assert "60 in a row that it cannot read; the first error: Sample 0 must be a text" in capsys.readouterr().err
    assert main(["predict", str(tmp_path), str(path), "--out", str(tmp_path / "p.csv")]) == 1
    assert "without model.json" in capsys.readouterr().err
    assert not (tmp_path / "p.csv").exists()
    away = shutil.copytree(out, tmp_path / "away")
    settings = json.loads((away / "project.json").read_text())
    (away / "project.json").write_text(json.dumps(settings | {"source": "/nowhere/texts.csv"}))
    assert main(["export", str(away), "--predictions"]) == 1
    assert "--source PATH" in capsys.readouterr().err
    assert main(["export", str(away), "--predictions", "--source", str(path)]) == 0
    assert capsys.readouterr().out.count(",model,") == 30


def test_samples_are_sorted_into_folders(projects, tmp_path, capsys):
    out, path = projects["image"]
    target = tmp_path / "sorted"
    assert main(["export", str(out), "--predictions", "--to", "folders", "--out", str(target)]) == 0
    assert sorted(place.name for place in target.iterdir()) == ["blue", "labels.csv", "red"]
    assert len(list(target.rglob("*.png"))) == 60
    rows = read(target / "labels.csv")
    assert all((target / row["file"]).read_bytes() == (path / row["id"]).read_bytes() for row in rows)
    assert sum(row["source"] == "model" for row in rows) == 30
    assert main(["export", str(out), "--to", "folders", "--out", str(target)]) == 1
    assert "new or empty" in capsys.readouterr().err
    assert main(["export", str(out), "--to", "folders", "--links", "--out", str(tmp_path / "links")]) == 0
    links = list((tmp_path / "links").rglob("*.png"))
    assert len(links) == 30
    assert all(link.is_symlink() and link.resolve().parent == path for link in links)
    assert main(["export", str(out), "--to", "folders"]) == 2
    assert "Say where to write" in capsys.readouterr().err


NAMES = ["../../escape", "a/b", "", ".", "..", "con", "x" * 500, "Cat", "cat", "labels.csv", "a\nb", "naïve", "100%"]


def test_names_of_classes_are_made_safe(tmp_path):
    texts = tmp_path / "texts.csv"
    pd.DataFrame({"id": [f"../{i}" for i in range(len(NAMES))], "text": NAMES}).to_csv(texts, index=False)
    out = tmp_path / "labels"
    (tmp_path / "known.jsonl").write_text(
        "".join(json.dumps({"id": f"../{i}", "label": name or "none"}) + "\n" for i, name in enumerate(NAMES))
    )
    out.mkdir()
    settings = {"kind": "text", "source": str(texts), "text": "text", "classes": ["a", "b"]}
    (out / "project.json").write_text(json.dumps(settings))
    import_labels(out, tmp_path / "known.jsonl")
    target = tmp_path / "deep" / "sorted"
    assert main(["export", str(out), "--to", "folders", "--out", str(target)]) == 0
    rows = read(target / "labels.csv")
    assert [row["label"] for row in rows] == [name or "none" for name in NAMES]
    assert len({row["file"].split("/")[0].casefold() for row in rows}) == len(NAMES)
    for row in rows:
        place = (target / row["file"]).resolve()
        assert place.parent.parent == target.resolve()
        assert len(place.parent.name.encode()) <= 120
        assert place.read_bytes().decode() == NAMES[int(row["id"].removeprefix("../"))]
    assert sorted(os.listdir(tmp_path / "deep")) == ["sorted"]


def test_parquet(projects, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    out, _ = projects["image"]
    target = tmp_path / "labels.parquet"
    assert main(["export", str(out), "--predictions", "--to", "parquet", "--out", str(target)]) == 0
    table = parquet.read_table(target).to_pandas()
    assert len(table) == 60
    assert (table["source"] == "model").sum() == 30
    assert table["probability"].notna().sum() == 30
    with Image.open(table["image"][0]) as picture:
        assert picture.size == (16, 20)


def test_columns_of_a_table_come_along(projects, tmp_path):
    out, path = projects["table"]
    given = pd.read_csv(path, dtype={"id": str}).set_index("id")
    export = ["export", str(out), "--predictions"]
    assert main([*export, "--out", str(tmp_path / "all.csv")]) == 0
    table = pd.read_csv(tmp_path / "all.csv", dtype={"id": str}).set_index("id")
    assert len(table) == 60
    columns = [f"{name}_" if name == "time" else name for name in given]  # labels have a time of their own
    pd.testing.assert_frame_equal(table.loc[given.index, columns].set_axis(given.columns, axis=1), given)
    assert main([*export, "--to", "parquet", "--out", str(tmp_path / "all.parquet")]) == 0
    kept = pd.read_parquet(tmp_path / "all.parquet").set_index("id").loc[given.index, columns]
    assert kept["age"].tolist() == pytest.approx(given["age"].tolist(), nan_ok=True)
    assert kept["job"].fillna("").tolist() == given["job"].fillna("").tolist()
    assert kept["smokes"].tolist() == given["smokes"].astype(str).tolist()
    assert main([*export, "--to", "label-studio", "--out", str(tmp_path / "tasks.json")]) == 0
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    assert tasks[0]["data"]["text"].startswith("age: ")
    assert main(["export", str(out), "--to", "folders", "--out", str(tmp_path / "sorted")]) == 1


def test_a_pretrained_network_is_part_of_the_model(projects, tmp_path):
    for kind, features in (("text", pretrained("texts")), ("image", pretrained("images", size=64))):
        source = open_source(projects[kind][1])
        samples = source.originals(range(60))
        X = features.transform(samples)
        labels = [source.text(i).split()[0].split("-")[0] for i in range(60)]
        loop = skal.ActiveLearningClassifier(LogisticRegression(max_iter=500), n_initial=20, n_rounds=0).fit(X, labels)
        loop.save_model(tmp_path / kind, features=features)
        model = skal.load_model(tmp_path / kind)
        np.testing.assert_array_equal(model.predict_proba(samples), loop.predict_proba(X))
        known = model.card_["features"]
        assert len(known["digest"]) == 64
        rows = predict(tmp_path / kind, projects[kind][1], tmp_path / f"{kind}.csv")
        assert [row["class"] for row in rows] == loop.predict(X).tolist()
    assert (known["name"], known["size"]) == ("efficientnet-lite0", 64)
    card = json.loads((tmp_path / "image" / "model.json").read_text())
    (tmp_path / "image" / "model.json").write_text(json.dumps(card | {"features": known | {"digest": "0" * 64}}))
    with pytest.raises(CheckpointError, match=r"must come from .*'0000"):
        skal.load_model(tmp_path / "image").predict(samples[:1])


def test_arrays_go_through_a_network_as_the_page_shows_them(tmp_path):
    images, y = DIGITS.images[:12], DIGITS.target[:12].astype(str)  # numbers up to 16
    source = ArraySource(images, ids=[f"digit-{i:04d}" for i in range(12)])
    model = choose_model(source, backbone="efficientnet-lite0", cache=tmp_path)
    model.prepare(lambda *done: None)
    loop = skal.ActiveLearningClassifier(model.make(10), n_initial=10, n_rounds=0).fit(model.X, y)
    loop.save_model(tmp_path / "model", features=model.features)
    loaded = skal.load_model(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict_proba(images), loop.predict_proba(model.X), atol=1e-4)
    assert loaded.card_["takes"] == "an array of shape (n, 1, 8, 8)"
    assert [step if isinstance(step, str) else step["name"] for step in loaded.card_["features"]] == [
        "ArrayPictures",
        "efficientnet-lite0",
    ]


def test_pixels_and_arrays_are_what_sources_give(image_folder):
    source = open_source(image_folder)
    paths = source.originals(range(24))
    small = np.stack([source.samples()[i].numpy() for i in range(24)])
    np.testing.assert_array_equal(PixelFeatures().transform(paths), small)
    np.testing.assert_array_equal(PixelFeatures(flatten=True).transform(paths), small.reshape(24, -1))
    bytes_last = (small * 255).round().astype(np.uint8).transpose(0, 2, 3, 1)
    np.testing.assert_allclose(ArrayFeatures((3, 32, 32)).transform(bytes_last), small, atol=1e-6)
    with pytest.raises(SampleError, match=r"shape \(n, 3, 32, 32\). Got float32 of shape \(24, 3, 32\)"):
        ArrayFeatures((3, 32, 32)).transform(small[..., 0])
    with pytest.raises(SampleError, match="finite"):
        ArrayFeatures((2,)).transform([[1.0, np.nan]])
