"""A model goes out as JSON and safetensors, and says the same when it comes back."""

import json
import pickletools
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.decomposition import PCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import TensorDataset

import skal
from skal import ActiveLearningClassifier
from skal.callbacks import FreshOptimizer
from skal.exceptions import CheckpointError, InvalidTypeError
from skal.loss_prediction import LossPredictionClassifier
from skal.nets import MLP, SquaredLoss

NAMES = np.array(["cow", "ant", "bee"])
ESTIMATORS = {
    "network": lambda make: make(),
    "spare outputs": lambda make: make(n_classes=5),
    "callback": lambda make: make(callbacks=[FreshOptimizer()], optimizer=torch.optim.Adam),
    "class weights": lambda make: make(criterion__weight=torch.tensor([1.0, 2.0, 3.0])),
    "squared loss": lambda make: make(criterion=SquaredLoss),
    "pipeline": lambda make: make_pipeline(StandardScaler(), PCA(3), make(n_features=3)),
    "linear": lambda make: LogisticRegression(),
    "linear pipeline": lambda make: make_pipeline(StandardScaler(), LogisticRegression()),
}


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("labels", ["strings", "integers"])
def test_what_is_loaded_says_the_same(kind, labels, make_net, flat_data, tmp_path):
    X, y = flat_data
    y = NAMES[y] if labels == "strings" else y
    estimator = ESTIMATORS[kind](lambda **params: make_net(**({"max_epochs": 3} | params)))
    loop = ActiveLearningClassifier(estimator, n_initial=20, n_rounds=1, query_size=4, random_state=0).fit(X, y)
    loop.save_model(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.json", "model.safetensors"]
    content = json.loads((tmp_path / "model" / "model.json").read_text())
    assert content["classes"] == loop.classes_.tolist()
    assert content["input_shape"] == [5]
    assert len(content["preprocessing"]) == {"pipeline": 2, "linear pipeline": 1}.get(kind, 0)
    assert content["left_out"] == (["estimator_.callbacks"] if kind == "callback" else [])
    model = skal.load_model(tmp_path / "model")
    np.testing.assert_array_equal(model.predict_proba(X), loop.predict_proba(X))
    np.testing.assert_array_equal(model.predict(X), loop.predict(X))
    assert model.classes_.tolist() == loop.classes_.tolist()
    assert model.classes_.dtype == loop.classes_.dtype
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, :2])


def test_datasets_texts_and_networks_that_must_see_samples(flat_data, make_net, tmp_path):
    X, y = flat_data
    data = TensorDataset(torch.from_numpy(X))
    loop = ActiveLearningClassifier(make_net(), n_initial=9, n_rounds=0, initial="random").fit(data, y)
    loop.save_model(tmp_path)
    np.testing.assert_array_equal(skal.load_model(tmp_path).predict(X), loop.predict(data))
    texts = np.array([f"word{label} thing{i % 7}" for i, label in enumerate(y)])
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())
    loop = ActiveLearningClassifier(pipeline, n_initial=9, n_rounds=0, initial="random").fit(texts, y)
    loop.save_model(tmp_path)
    np.testing.assert_array_equal(skal.load_model(tmp_path).predict_proba(texts), loop.predict_proba(texts))
    frame = pd.DataFrame(X, columns=list("abcde"))
    loop = ActiveLearningClassifier(LogisticRegression(), n_initial=9, n_rounds=0).fit(frame, y)
    loop.save_model(tmp_path)
    assert skal.load_model(tmp_path).feature_names_in_.tolist() == list("abcde")
    settings = {"criterion": nn.CrossEntropyLoss, "max_epochs": 2, "train_split": None, "verbose": 0}
    net = LossPredictionClassifier(MLP, module__n_features=5, module__n_classes=3, **settings)
    loop = ActiveLearningClassifier(net, n_initial=9, n_rounds=0).fit(X, y)
    loop.save_model(tmp_path)
    np.testing.assert_array_equal(skal.load_model(tmp_path).predict_proba(X), loop.predict_proba(X))


def test_another_process_needs_nothing_but_the_folder(flat_data, make_net, tmp_path):
    X, y = flat_data
    loop = ActiveLearningClassifier(make_net(), n_initial=9, n_rounds=0, random_state=0).fit(X, NAMES[y])
    loop.save_model(tmp_path)
    np.save(tmp_path / "X.npy", X)
    script = "import sys, numpy, skal; print(*skal.load_model(sys.argv[1]).predict(numpy.load(sys.argv[2])))"
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path, tmp_path / "X.npy"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == loop.predict(X).tolist()
    for path in tmp_path.glob("model.*"):
        with pytest.raises(ValueError):  # noqa: PT011 - whatever is wrong with it, it is no pickle
            list(pickletools.genops(path.read_bytes()))


class Outer:
    class Net(nn.Linear):
        pass


@pytest.mark.parametrize("kind", ["instance", "lambda", "forest", "local"])
def test_what_cannot_be_saved_is_refused_by_name(kind, flat_data, make_net, tmp_path):
    X, y = flat_data

    class Local(nn.Linear):
        pass

    def net(module, **params):
        settings = {"criterion": nn.CrossEntropyLoss, "train_split": None, "verbose": 0, "max_epochs": 1}
        return NeuralNetClassifier(module, **(settings | params))

    sizes = {"module__in_features": 5, "module__out_features": 3}
    estimator, message = {
        "instance": (net(nn.Linear(5, 3)), r"estimator_\.module = .*the module's class"),
        "lambda": (net(nn.Linear, predict_nonlinearity=lambda x: x, **sizes), r"estimator_\.predict_nonlinearity"),
        "forest": (RandomForestClassifier(3), r"estimator_\.estimators_.*tree_.*joblib or skops"),
        "local": (net(Local, **sizes), r"estimator_\.module = .*can be imported"),
    }[kind]
    loop = ActiveLearningClassifier(estimator, n_initial=12, n_rounds=0, initial="random").fit(X, y)
    with pytest.raises(InvalidTypeError, match=message):
        loop.save_model(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_folders_that_are_no_models(tmp_path, flat_data):
    with pytest.raises(CheckpointError, match="written by save_model"):
        skal.load_model(tmp_path)
    loop = ActiveLearningClassifier(LogisticRegression(), n_initial=12, n_rounds=0).fit(*flat_data)
    loop.save_model(tmp_path)
    text = (tmp_path / "model.json").read_text()
    for old, new, message in [
        ('"format": 1', '"format": 9', "of format 1. Got 9"),
        ("LogisticRegression", "LogisticRegresion", "must be installed"),
        ("sklearn.linear_model._logistic:LogisticRegression", "os:system", "must name classes"),
    ]:
        (tmp_path / "model.json").write_text(text.replace(old, new))
        with pytest.raises(CheckpointError, match=message):
            skal.load_model(tmp_path)
    with pytest.raises(ValueError, match="not fitted"):
        ActiveLearningClassifier(LogisticRegression()).save_model(tmp_path)
