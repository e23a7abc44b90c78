"""Features of a frozen network while somebody labels: the one that is installed, and one's own."""

import sys

import numpy as np
import pytest
from PIL import Image

import skal
from skal.cli import main
from skal.exceptions import CheckpointError, InvalidParameterError, SkalError

from . import conftest
from .conftest import Client, wait_for_status, work

TEXTS = [f"{word} film number {i}" for i in range(20) for word in ("good", "awful")]
CLASSES = ["red", "blue"]

OWN = """
import time
from pathlib import Path
import numpy as np
import torch

NOTES = Path(__file__).with_name("notes")

def shrink(images):
    with NOTES.open("a") as file:
        file.write("x" * len(images))
    return np.stack([np.asarray(image.resize((1, 1)), dtype=np.float32).ravel() for image in images])

def make_backbone():
    return shrink

class Transformer:
    def transform(self, images):
        return shrink(images)

module = torch.nn.AvgPool2d(32)

def make_module():
    return module

def count(texts):
    return [[len(text), text.count("good")] for text in texts]

def double(rows):
    return 2 * rows

def fails(images):
    raise ValueError("no such layer")

def flat(images):
    return [1.0] * len(images)

def infinite(images):
    return [[np.inf]] * len(images)

def refuses():
    raise OSError("no weights")

CALLS = []

def later(images):
    CALLS.append(len(images))
    if len(CALLS) == 3:
        raise MemoryError("too many")
    return shrink(images)

def waits(images):
    while len(images) > 1 and not NOTES.with_name("go").exists():
        time.sleep(0.01)
    return shrink(images)

number = 3
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def label_page(X, classes, folder, **settings):
    """The page with the model that is the default."""
    return conftest.label_page(X, classes, folder, **({"model": None} | settings))


def color(item):
    return item["id"].split("/")[0]


@pytest.mark.parametrize("name", ["shrink", "make_backbone", "Transformer", "module", "make_module"])
def test_a_backbone_of_ones_own_may_be_many_things(name, image_folder, own, tmp_path):
    settings = {"backbone": f"{own}:{name}", "query_size": 5, "share": 0}
    with label_page(image_folder, CLASSES, tmp_path / "out", **settings) as client:
        wait_for_status(client)
        work(client, 10, color)
        status = wait_for_status(client)
        assert status["error"] is None
        assert status["model"] == f"a linear classifier on features of {own}:{name}"
    loop = client.result.model
    assert loop.estimator_.n_features_in_ == 3
    paths = sorted(image_folder.rglob("*.*"))
    trusted = [f"{own}:{name}"]
    with pytest.raises(CheckpointError, match=rf"come from own\.py:{name}, a file of its author's own.*trusted="):
        skal.load_model(tmp_path / "out")
    model = skal.load_model(tmp_path / "out", trusted=trusted)
    assert model.predict(paths).tolist() == [path.parent.name for path in paths]
    assert model.card_["needs_trust"] == [f"own.py:{name}"]
    assert str(tmp_path) not in (tmp_path / "out" / "model" / "model.json").read_text()
    if name == "module":
        arrays = np.stack([np.asarray(Image.open(path).resize((32, 32))) for path in paths])
        np.testing.assert_allclose(model.predict_proba(list(arrays)), model.predict_proba(paths), atol=0.05)
    command = ["predict", str(tmp_path / "out"), str(image_folder), "--out", str(tmp_path / "p.csv"), "--trust"]
    assert main([*command, trusted[0]]) == 0
    own.write_text(own.read_text() + "# changed")
    with pytest.raises(CheckpointError, match=r"own\.py must be as it was when the model was saved, with the sha256"):
        skal.load_model(tmp_path / "out", trusted=trusted)


def test_a_function_of_ones_own_for_texts_and_numbers(own, tmp_path):
    def film(item):
        return "good" if "good" in item["text"] else "bad"

    def large(item):
        return "good" if float(item["text"].split(",")[0]) > 20 else "bad"

    rows = np.arange(40.0).reshape(-1, 1)
    for X, name, truth in ((TEXTS, "count", film), (rows, "double", large)):
        settings = {"backbone": f"{own}:{name}", "query_size": 5, "share": 0}
        with label_page(X, ["good", "bad"], tmp_path / name, **settings) as client:
            wait_for_status(client)
            work(client, 15, truth)
            assert wait_for_status(client)["error"] is None
        features = np.array([[19, 1], [19, 0]] if name == "count" else [[70], [10]], dtype=np.float32)
        assert client.result.model.predict(features).tolist() == ["good", "bad"]
        raw = ["good film number 12", "awful film number 1"] if name == "count" else [[35.0], [5.0]]
        model = skal.load_model(tmp_path / name, trusted=[f"{own}:{name}"])
        np.testing.assert_array_equal(model.predict_proba(raw), client.result.model.predict_proba(features))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails", r"fails must accept the samples. Got an error for blue/00.jpg: ValueError: no such layer"),
        ("flat", r"an array of 1 rows of finite numbers for blue/00.jpg. Got shape \(1,\)\. Return \(n, d\)"),
        ("infinite", r"Got shape \(1, 1\), with NaN or infinity"),
        ("refuses", r"'backbone' parameter of label.*OSError: no weights from calling it"),
        ("number", r"'backbone' parameter of label must be a module, a transformer, or a function"),
        ("missing", r"'backbone' parameter of label must be a name in"),
    ],
    ids=lambda value: value if " " not in value else "",
)
def test_a_backbone_is_tried_on_one_sample_first(name, words, image_folder, own, tmp_path):
    with pytest.raises(SkalError, match=words):
        skal.label(image_folder, CLASSES, folder=tmp_path / "out", backbone=f"{own}:{name}", browser=False)


@pytest.mark.parametrize(
    ("X", "settings", "words"),
    [
        (["a"], {"backbone": "images"}, "kind 'text'"),
        (["a"], {"backbone": "timm:x", "features": np.zeros((1, 2))}, "'features' parameter of label"),
        (np.eye(3), {"backbone": "texts"}, "kind 'numbers'"),
    ],
)
def test_backbones_that_do_not_fit_are_refused(X, settings, words, tmp_path):
    with pytest.raises(InvalidParameterError, match=words):
        skal.label(X, CLASSES, folder=tmp_path, browser=False, **settings)


def test_features_are_computed_once_and_kept(image_folder, own, tmp_path):
    (image_folder / "broken.png").write_bytes(b"x")
    notes = tmp_path / "notes"

    def visit():
        """How many pictures the backbone has been given."""
        settings = {"backbone": f"{own}:shrink", "query_size": 5}
        with label_page(image_folder, CLASSES, tmp_path / "out", **settings) as client:
            status = wait_for_status(client)
            assert status["error"] is None
            assert status["unreadable"] == ["broken.png"]
        return len(notes.read_text())

    assert visit() == 24
    assert visit() == 24
    (image_folder / "red" / "01.png").write_bytes((image_folder / "red" / "03.jpg").read_bytes())
    assert visit() == 25  # a file that is another one now
    own.write_text(OWN + "# another program\n")
    assert visit() == 49


def test_samples_are_shown_before_the_features_are_there(image_folder, own, tmp_path):
    with label_page(image_folder, CLASSES, tmp_path / "out", backbone=f"{own}:waits", share=0) as client:
        work(client, 3, color)
        (tmp_path / "go").touch()
        status = wait_for_status(client)
        assert (status["labelled"], status["error"], status["progress"]) == (3, None, None)


def test_a_backbone_that_fails_in_the_middle_is_named_and_tried_again(image_folder, own, tmp_path, capsys):
    settings = {"backbone": f"{own}:later", "query_size": 5, "share": 0}
    with label_page(image_folder, CLASSES, tmp_path / "out", **settings) as client:
        error = wait_for_status(client)["error"]
        assert error.startswith(f"FeatureError: The backbone {own}:later must accept the samples.")
        assert "MemoryError: too many. Labels, and features up to here, are kept." in error
        work(client, 5, color)  # samples come at random meanwhile
        assert wait_for_status(client)["error"] is None
    assert client.result.model.estimator_.n_features_in_ == 3
    assert len(client.result.labels) == 5
    assert "too many" in capsys.readouterr().err


def test_an_installed_network_is_the_default_and_guessing_stands_beside_the_accuracy(image_folder, tmp_path):
    (image_folder / "IMG_1.HEIC").write_bytes(b"x")
    (image_folder / "red" / "film.mp4").write_bytes(b"x")
    with label_page(image_folder, CLASSES, tmp_path / "out", query_size=5, share=0.5) as client:
        status = wait_for_status(client)
        assert status["model"] == "a linear classifier on features of efficientnet-lite0"
        assert status["note"] is None
        assert status["guessing"] == {"level": 0.5, "words": "Guessing gives 50 %: one of 2 classes."}
        assert status["left_out"].startswith("2 files are left out")
        assert "(1 heic, 1 mp4): IMG_1.HEIC, red/film.mp4" in status["left_out"]
        work(client, 20, color)
        said = wait_for_status(client)["guessing"]["words"]
        assert said.startswith("Guessing gives ")
        assert "held-out labels are “" in said
    assert client.result.model.estimator_.n_features_in_ == 1280


def test_texts_take_the_sentence_model(tmp_path):
    with label_page(TEXTS, ["good", "bad"], tmp_path) as client:
        assert wait_for_status(client)["model"] == "a linear classifier on features of all-minilm-l6-v2"


def test_without_a_network_the_page_says_so_and_one_that_is_installed_later_goes_on(
    image_folder, tmp_path, monkeypatch, page
):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)  # as if it were not installed
    with label_page(image_folder, CLASSES, tmp_path / "out", query_size=5, share=0.5) as client:
        work(client, 10, color)
        status = wait_for_status(client)
        assert status["model"].startswith("a small convolutional network")
        assert status["note"] == (
            "There is no pre-trained network here. A small one learns from your labels alone, so expect little from a "
            "few hundred labels. Run in the clone of skal: pip install '.[backbones]'"
        )
        page.open(client.address.geturl())
        page.wait_for(lambda: "pip install" in page.text(".note"))
        page.wait_for(lambda: "from 20 audit labels on" in page.text(".accuracy"))
        assert page.complaints() == []
    monkeypatch.delitem(sys.modules, "efficientnet_lite_pytorch")
    with label_page(image_folder, CLASSES, tmp_path / "out", query_size=5, share=0.5) as client:
        work(client, 5, color)
        status = wait_for_status(client)
        assert (status["labelled"], status["note"], status["error"]) == (15, None, None)
    assert client.result.model.estimator_.n_features_in_ == 1280


def test_the_command_says_which_network_and_what_is_left_out(image_folder, tmp_path, command):
    (image_folder / "film.mp4").write_bytes(b"x")
    running = command(image_folder, "--classes", "red,blue", "--out", tmp_path / "out")
    wait_for_status(Client(running.address))
    Client(running.address).call("finish")
    status, printed, errors = running.end()
    assert status == 0, errors
    assert "The model is a linear classifier on features of efficientnet-lite0." in printed
    assert "1 file is left out, which is no image of a kind we read (1 mp4): film.mp4." in printed
    assert "features: efficientnet-lite0: 100%" in errors


def test_without_a_network_the_command_says_so_before_anybody_labels(image_folder, tmp_path, command):
    given = ("--classes", "red,blue", "--out", tmp_path / "out")
    running = command(image_folder, *given, without="efficientnet_lite_pytorch")
    said = "".join(running.lines)  # up to the page's address
    assert "There is no pre-trained network here." in said
    assert "Run in the clone of skal: pip install '.[backbones]'" in said
