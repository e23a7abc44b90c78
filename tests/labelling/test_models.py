"""Models without a line of code, and one's own."""

import json
from itertools import cycle

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.tree import DecisionTreeClassifier
from skorch import NeuralNetClassifier

import skal
from skal.exceptions import InvalidParameterError, InvalidTypeError, SampleError, SkalError
from skal.features import PixelFeatures

from .conftest import label_page, wait_for_training, work

TEXTS = [f"{word} film number {i}" for i in range(20) for word in ("good", "awful")]


def learn(truth, n, X, classes, folder, **settings):
    """Label what is asked for on the page, wait for the training, and give what comes out."""
    with label_page(X, classes, folder, query_size=5, **settings) as client:
        wait_for_training(client, rounds=0)
        work(client, n, truth)
        wait_for_training(client)
    return client.result


def colour(item):
    return item["id"].split("/")[0]


def opinion(item):
    return "yes" if "good" in item["text"] else "no"


def test_images_are_learnt_by_a_small_network_and_the_model_is_kept(image_folder, tmp_path):
    found = learn(colour, 20, image_folder, ["red", "blue"], tmp_path, model="network", share=0)
    assert isinstance(found.model.estimator, NeuralNetClassifier)
    paths = sorted(image_folder.rglob("*.*"))
    loaded = skal.load_model(tmp_path / "model")
    assert loaded.predict(paths).tolist() == [path.parent.name for path in paths]


def test_texts_are_learnt_with_words_of_all_texts(tmp_path):
    learn(opinion, 30, TEXTS, ["yes", "no"], tmp_path, model="linear", share=0)
    loaded = skal.load_model(tmp_path / "model")
    assert loaded.predict(np.array(["a good one", "an awful one"], dtype=object)).tolist() == ["yes", "no"]


def test_given_features(tmp_path):
    features = np.random.default_rng(0).normal(size=(40, 6))
    features[:, 0] = [3 if "good" in text else -3 for text in TEXTS]
    np.save(tmp_path / "features.npy", features)
    found = learn(opinion, 30, TEXTS, ["yes", "no"], tmp_path / "out", features=tmp_path / "features.npy")
    assert type(found.model.query_strategy_).__name__ == "UHerding"  # features mean something
    predicted = found.model.predict(features.astype(np.float32))
    assert (predicted == ["yes" if "good" in text else "no" for text in TEXTS]).mean() > 0.9
    refuse(InvalidParameterError, r"\(40, d\)", TEXTS, tmp_path, features=features[:5])


OWN = """
import numpy as np
from sklearn.tree import DecisionTreeClassifier
from skorch import NeuralNetClassifier
import torch
from skal.nets import CNN

def tree():
    return DecisionTreeClassifier()

def net(n_classes):
    return NeuralNetClassifier(CNN, module__n_classes=n_classes, criterion=torch.nn.CrossEntropyLoss, max_epochs=3,
                               train_split=None, verbose=0)

def nothing():
    return 3
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def test_a_model_of_ones_own(image_folder, own, tmp_path):
    settings = {"strategy": "margin", "share": 0}
    found = learn(colour, 15, image_folder, ["red", "blue"], tmp_path / "out", model=f"{own}:tree", **settings)
    assert isinstance(found.model.estimator, DecisionTreeClassifier)
    paths = sorted(image_folder.rglob("*.*"))
    pixels = PixelFeatures(flatten=True).transform(paths)
    assert skal.load_model(tmp_path / "out" / "model").predict(paths).tolist() == found.model.predict(pixels).tolist()


@pytest.mark.parametrize("model", [LogisticRegression(), DecisionTreeClassifier, "{own}:net"], ids=str)
def test_models_are_given_as_objects_classes_and_functions_of_the_number_of_classes(model, own, image_folder, tmp_path):
    given = model.format(own=own) if isinstance(model, str) else model
    found = learn(colour, 10, image_folder, ["red", "blue", "green"], tmp_path / "out", model=given, share=0)
    if isinstance(model, str):
        assert found.model.estimator.module__n_classes == 3
    else:
        assert isinstance(found.model.estimator, model if isinstance(model, type) else type(model))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("{own}:missing", InvalidParameterError, "It has"),
        ("nowhere.py:net", InvalidParameterError, "a file that is there"),
        ("rubbish", InvalidParameterError, "FILE.py:NAME"),
        ("{own}:nothing", InvalidTypeError, "returns a classifier"),
    ],
)
def test_a_model_that_is_none_is_refused(text, error, message, own, image_folder, tmp_path):
    refuse(error, message, image_folder, tmp_path, model=text.format(own=own))


def refuse(error, words, X, tmp_path, **settings):
    with pytest.raises(error, match=words), label_page(X, ["a", "b"], tmp_path / "out", **settings):
        pass


def test_the_network_is_for_square_images_alone(tmp_path):
    wide = np.zeros((3, 1, 8, 9))
    refuse(InvalidParameterError, "not square", wide, tmp_path, model="network")
    with label_page(wide, ["a", "b"], tmp_path) as client:
        assert "linear" in client.call("status")["model"]
    refuse(InvalidParameterError, "for rows", np.zeros((3, 5)), tmp_path, model="network")
    refuse(InvalidParameterError, "texts", ["a", "b"], tmp_path, model="network")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"classes": 3}, "'classes' parameter of label"),
        ({"y": ["a"]}, "'y' parameter of label"),
        ({"ids": 3}, "'ids' parameter of label"),
        ({"ids": ["a", "a", "b"]}, "ids must be distinct"),
        ({"X": [[1.0], [1.0, 2.0]]}, "all of one shape"),
        ({"model": np.zeros(3)}, "'model' parameter of label"),
        ({"model": lambda: 1 / 0}, "returns a classifier. Got 'ZeroDivisionError"),
        ({"features": "no such file.npy"}, "'features' parameter of label"),
        ({"backbone": 3}, "'backbone' parameter of label"),
        ({"query_size": None}, "'query_size' parameter of label"),
        ({"share": 2}, "'share' parameter of label"),
        ({"stop": 3}, "'stop' parameter of label"),
        ({"port": None}, "'port' parameter of label"),
    ],
    ids=lambda case: "-".join(case) if isinstance(case, dict) else case,
)
def test_what_cannot_be_labelled_is_named(settings, words, tmp_path):
    given = {"X": np.eye(3), "classes": ["a", "b"], "folder": tmp_path, "browser": False} | settings
    with pytest.raises(SkalError, match=words):
        skal.label(**given)


def test_features_in_an_archive_are_refused(tmp_path):
    np.savez(tmp_path / "features.npz", X=np.eye(3))
    refuse(InvalidParameterError, r"an archive.*numpy\.save", np.eye(3), tmp_path, features=tmp_path / "features.npz")


def test_a_file_that_does_not_run_is_named(tmp_path):
    (tmp_path / "model.py").write_text("import no_such_package")
    refuse(InvalidParameterError, "ModuleNotFoundError", np.eye(3), tmp_path, model=f"{tmp_path}/model.py:make")


def test_a_link_in_the_place_of_the_next_settings_is_not_followed(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "project.json.new").symlink_to(victim)
    with label_page(np.eye(3), ["a", "b"], tmp_path):
        pass
    assert victim.read_text() == "mine"
    assert json.loads((tmp_path / "project.json").read_text())["classes"] == ["a", "b"]


def test_texts_without_words_are_known_by_their_letters(tmp_path):
    with label_page(["a", "b", "c", "a b", "?"], ["x", "y"], tmp_path / "out") as client:
        assert len(client.call("next", n=5)["items"]) == 5
    with pytest.raises(SampleError, match="must not all be empty"):
        skal.label(["", ""], ["x", "y"], folder=tmp_path / "other", model="linear", browser=False)


def test_a_model_that_cannot_be_saved_is_said(tmp_path):
    def own():
        return make_pipeline(FunctionTransformer(lambda X: X), LogisticRegression())

    with label_page(np.eye(20), ["x", "y"], tmp_path / "out", model=own, query_size=5, share=0) as client:
        wait_for_training(client, rounds=0)
        classes = cycle("xy")
        work(client, 10, lambda item: next(classes))
        wait_for_training(client, rounds=1)
        assert "The model is not saved, and will be gone. A model must be" in client.call("status")["note"]
    assert not (tmp_path / "out" / "model").exists()
