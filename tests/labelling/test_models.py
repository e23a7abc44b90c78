"""Models without a line of code, and one's own."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier
from skorch import NeuralNetClassifier

import skal
from skal.exceptions import InvalidParameterError, InvalidTypeError, SkalError
from skal.labelling._models import choose_model
from skal.labelling._project import Project
from skal.labelling._settings import read_settings, write_settings
from skal.labelling._sources import ImageFolder, TextTable

from .conftest import label_page

TEXTS = [f"{word} film number {i}" for i in range(20) for word in ("good", "awful")]


def learn(project, truth, n=30):
    """Label some samples as a person would, and wait for the training."""
    with project:
        project.worker.wait_until_idle()
        for _ in range(n):
            (item,) = project.next("me", 1)
            project.answer(item["id"], truth(item), client="me")
        assert project.worker.wait_until_idle(120)
        assert project.status()["error"] is None
    return project.rounds.session.classifier


def test_images_are_learnt_by_a_small_network_and_the_model_is_kept(image_folder, tmp_path):
    source = ImageFolder(image_folder, cache=tmp_path / "out")
    model = choose_model(source, model="network")
    assert isinstance(model.make(2), NeuralNetClassifier)
    assert model.make(5).module__n_classes == 5
    project = Project(source, ["red", "blue"], model, tmp_path / "out", query_size=5, share=0)
    learn(project, lambda item: item["id"].split("/")[0], 20)
    loaded = skal.load_model(tmp_path / "out" / "model")
    paths = [source.path(i) for i in range(24)]
    assert (loaded.predict(paths) == [key.split("/")[0] for key in source.ids]).all()


def test_texts_are_learnt_with_words_of_all_texts(tmp_path):
    source = TextTable(TEXTS)
    project = Project(source, ["yes", "no"], choose_model(source, model="linear"), tmp_path, query_size=5, share=0)
    learn(project, lambda item: "yes" if "good" in item["text"] else "no")
    loaded = skal.load_model(tmp_path / "model")
    assert loaded.predict(np.array(["a good one", "an awful one"], dtype=object)).tolist() == ["yes", "no"]


def test_given_features(tmp_path):
    source = TextTable(TEXTS)
    features = np.random.default_rng(0).normal(size=(40, 6))
    features[:, 0] = [3 if "good" in text else -3 for text in TEXTS]
    np.save(tmp_path / "features.npy", features)
    model = choose_model(source, features=tmp_path / "features.npy")
    project = Project(source, ["yes", "no"], model, tmp_path / "out", query_size=5)
    loop = learn(project, lambda item: "yes" if "good" in item["text"] else "no")
    assert loop.query_strategy_.__class__.__name__ == "UHerding"  # features mean something
    assert (loop.predict(features.astype(np.float32)) == ["yes" if "good" in t else "no" for t in TEXTS]).mean() > 0.9
    with pytest.raises(InvalidParameterError, match=r"\(40, d\)"):
        choose_model(source, features=features[:5])


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
    source = ImageFolder(image_folder)
    assert choose_model(source, model=f"{own}:net").make(7).module__n_classes == 7
    tree = choose_model(source, model=f"{own}:tree")
    project = Project(source, ["red", "blue"], tree, tmp_path / "out", query_size=5, share=0, strategy="margin")
    loop = learn(project, lambda item: item["id"].split("/")[0], 15)
    loaded = skal.load_model(tmp_path / "out" / "model")
    assert (loaded.predict([source.path(i) for i in range(24)]) == loop.predict(tree.X)).all()
    assert isinstance(choose_model(TextTable(["a"]), model=LogisticRegression()).make(2), LogisticRegression)
    assert isinstance(choose_model(TextTable(["a"]), model=DecisionTreeClassifier).make(2), DecisionTreeClassifier)


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
    with label_page(wide, ["a", "b"], tmp_path, model="linear") as client:
        assert "linear" in client.call("status")["model"]
    refuse(InvalidParameterError, "rows of numbers", np.zeros((3, 5)), tmp_path, model="network")
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
    write_settings(tmp_path, {"classes": ["a"]})
    assert victim.read_text() == "mine"
    assert read_settings(tmp_path) == {"classes": ["a"]}
