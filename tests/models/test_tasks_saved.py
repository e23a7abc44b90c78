"""Models of numbers and of several labels go out and come back as those of classes do."""

import csv
import json

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import (
    GradientBoostingRegressor,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR, LinearSVC
from skorch import NeuralNetClassifier, NeuralNetRegressor

import skal
from skal import ActiveLearningClassifier, ActiveLearningRegressor
from skal.cli import main
from skal.nets import MLP

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
NUMBERS = 1000 + 50 * X[:, 0].astype(float)
TWO = np.stack([NUMBERS, X[:, 1] ** 2], axis=1)
LABELS = (X > [0.0, 0.3, -0.3]).astype(int)


def net(kind, n_outputs, **settings):
    settings = {"max_epochs": 3, "train_split": None, "verbose": 0} | settings
    return kind(MLP, module__n_features=3, module__n_classes=n_outputs, **settings)


REGRESSORS = {
    "ridge": Ridge(),
    "bayes": BayesianRidge(),
    "forest": RandomForestRegressor(5),
    "boosting": GradientBoostingRegressor(n_estimators=3),
    "histogram": HistGradientBoostingRegressor(max_iter=5),
    "process": GaussianProcessRegressor(optimizer=None),
    "vectors": SVR(),
    "perceptron": MLPRegressor(hidden_layer_sizes=(4,), max_iter=500, tol=1e6),
    "transformed": TransformedTargetRegressor(Ridge(), transformer=StandardScaler()),
    "network": net(NeuralNetRegressor, 1),
    "pipeline": make_pipeline(StandardScaler(), net(NeuralNetRegressor, 1)),
}
CLASSIFIERS = {
    "each": MultiOutputClassifier(LogisticRegression()),
    "one vs rest": OneVsRestClassifier(LogisticRegression()),
    "chain": ClassifierChain(LogisticRegression()),
    "forest": RandomForestClassifier(5),
    "no probabilities": OneVsRestClassifier(LinearSVC()),
    "network": net(NeuralNetClassifier, 3, criterion=torch.nn.BCEWithLogitsLoss),
}


def fit(kind, estimator, y, **settings):
    settings = {"n_initial": 24, "n_rounds": 0, "initial": "random", "random_state": 0} | settings
    return kind(clone(estimator), **settings).fit(X, y)


@pytest.mark.parametrize("kind", REGRESSORS)
def test_a_regressor_says_the_same(kind, tmp_path):
    loop = fit(ActiveLearningRegressor, REGRESSORS[kind], NUMBERS)
    loop.save_model(tmp_path)
    model = skal.load_model(tmp_path)
    np.testing.assert_array_equal(model.predict(X), loop.predict(X))
    assert is_regressor(model)
    assert model.score(X, NUMBERS) == loop.score(X, NUMBERS)
    assert not hasattr(model, "predict_proba")
    with pytest.raises(ValueError, match="features"):
        model.predict(X[:, :2])


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_a_classifier_of_several_labels_says_the_same(kind, tmp_path):
    loop = fit(ActiveLearningClassifier, CLASSIFIERS[kind], LABELS)
    loop.save_model(tmp_path)
    model = skal.load_model(tmp_path)
    np.testing.assert_array_equal(model.predict(X), loop.predict(X))
    if kind != "no probabilities":
        np.testing.assert_array_equal(model.predict_proba(X), loop.predict_proba(X))
    assert is_classifier(model)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(X, LABELS) == loop.score(X, LABELS)


def test_several_numbers_and_the_card(tmp_path):
    loop = fit(ActiveLearningRegressor, Ridge(), TWO)
    loop.save_model(tmp_path)
    model = skal.load_model(tmp_path)
    np.testing.assert_array_equal(model.predict(X), loop.predict(X))
    assert model.card_["task"] == "regression"
    assert "classes" not in model.card_
    told = TWO[loop.queried_]
    np.testing.assert_allclose(model.card_["trained_on"]["lowest"], told.min(axis=0))
    np.testing.assert_allclose(model.card_["trained_on"]["highest"], told.max(axis=0))


def test_a_label_that_was_not_learnt_stays_as_it_was(tmp_path):
    rows = np.flatnonzero((LABELS[:, 1] == 1) & (np.arange(60) < 55))[:20]
    loop = fit(ActiveLearningClassifier, CLASSIFIERS["each"], LABELS, initial=rows)
    loop.save_model(tmp_path)
    model = skal.load_model(tmp_path)
    assert (model.predict(X)[:, 1] == 1).all()
    np.testing.assert_array_equal(model.predict_proba(X), loop.predict_proba(X))
    by_label = model.card_["trained_on"]["by_label"]
    assert by_label == {str(k): int(n) for k, n in enumerate(LABELS[rows].sum(axis=0))}


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", ["number", "two", "labels"])
def test_predictions_on_the_command_line(kind, tmp_path):
    loop, y = {
        "number": (ActiveLearningRegressor(Ridge()), NUMBERS),
        "two": (ActiveLearningRegressor(Ridge()), TWO),
        "labels": (ActiveLearningClassifier(CLASSIFIERS["each"]), LABELS),
    }[kind]
    folder, ids = tmp_path / "project", np.array([f"s{i}" for i in range(60)])
    loop.set_params(n_initial=24, n_rounds=0, initial="random", random_state=0, checkpoint=folder)
    with loop.start(X, ids=ids) as session:
        session.run(lambda indices, samples: y[indices])
    loop.save_model(folder / "model")
    np.savez(tmp_path / "rows.npz", X=X, ids=ids)
    out = tmp_path / "all.csv"
    assert not main(["predict", str(folder), str(tmp_path / "rows.npz"), "--out", str(out)])
    rows, said = read(out), loop.predict(X).reshape(60, -1)
    assert [row["id"] for row in rows] == ids.tolist()
    name = {"number": "number", "two": "number_{}", "labels": "label_{}"}[kind]
    for k in range(said.shape[1]):
        np.testing.assert_array_equal([float(row[name.format(k)]) for row in rows], said[:, k])
    if kind == "labels":
        p = [[float(row[f"probability_{k}"]) for k in range(3)] for row in rows]
        np.testing.assert_allclose(p, loop.predict_proba(X), atol=1e-6)
    words = ["export", str(folder), "--predictions", "--source", str(tmp_path / "rows.npz"), "--out"]
    assert not main([*words, str(tmp_path / "export.csv")])
    by_model = {row["id"]: row["label"] for row in read(tmp_path / "export.csv") if row["source"] == "model"}
    assert len(by_model) == 36
    first = next(iter(by_model))
    np.testing.assert_array_equal(np.ravel(json.loads(by_model[first])), said[ids == first][0])
    assert not main([*words, str(tmp_path / "studio.json"), "--to", "label-studio"])
