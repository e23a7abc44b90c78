"""Every strategy with a parameter ``features`` takes each of its values, with any classifier that predicts."""

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.decomposition import PCA
from sklearn.ensemble import BaggingClassifier, HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import skal.strategies
from skal.exceptions import NoNetworkError

from ..support.learners import learner_of, net_of

CLASSES = {name: cls for name, cls in vars(skal.strategies).items() if isinstance(cls, type)}
ON_FEATURES = sorted(name for name, cls in CLASSES.items() if "features" in cls().get_params())
# made for regression: "auto" is the gradients of a network, and the prepared inputs of a classifier that is none
BY_GRADIENTS = {"LCMD", "MaxDet", "PredictiveStd"}
rng = np.random.default_rng(0)
y = np.arange(60) % 3
X = (2 * rng.normal(size=(3, 6))[y] + rng.normal(size=(60, 6))).astype(np.float32)
BACKBONE = nn.Sequential(nn.Linear(6, 7), nn.Tanh())
OWN = {"transformer": PCA(3).fit(X), "callable": lambda X: np.asarray(X)[:, :4] ** 2, "module": BACKBONE}
CLASSIFIERS = {
    "linear": LogisticRegression(),
    "boosting": HistGradientBoostingClassifier(max_iter=2, min_samples_leaf=2),
    "forest": RandomForestClassifier(3, random_state=0),
    "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    "bagging": BaggingClassifier(LogisticRegression(), 2, random_state=0),
    "calibrated": CalibratedClassifierCV(LogisticRegression(), cv=2),
    "one against the rest": OneVsRestClassifier(LogisticRegression()),
}


@cache
def learner(kind):
    if kind in CLASSIFIERS:
        return learner_of(CLASSIFIERS[kind].fit(X[:15], y[:15]), X[:15], y[:15])
    torch.manual_seed(0)
    backbone = nn.Sequential(nn.Linear(6, 5), nn.Tanh())
    if kind == "frozen network":
        backbone.requires_grad_(False)
    return learner_of(net_of(nn.Sequential(backbone, nn.Linear(5, 3))), X[:15], y[:15])


def made(name, features):
    strategy = CLASSES[name](features=features)
    if "random_state" in strategy.get_params():
        strategy.set_params(random_state=0)
    if name == "NTKLookahead":  # which asks for tangent features otherwise
        strategy.set_params(kernel="rbf")
    return strategy


def test_the_strategies_on_embeddings_are_among_them():
    assert {"CoreSet", "BADGE", "MaxHerding", "UHerding", "TypiClust", "ProbCover"} <= set(ON_FEATURES)


@pytest.mark.parametrize("kind", CLASSIFIERS)
@pytest.mark.parametrize("name", ON_FEATURES)
def test_any_classifier(name, kind):
    def picked(features):
        found = made(name, features).select(learner(kind), X[15:], 4)[0].tolist()
        assert len(set(found)) == 4
        return found

    assert picked("auto") == picked("prepared" if name in BY_GRADIENTS else "input")
    for features in OWN.values():
        picked(features)
    for features in ("last_layer", "tangent"):
        with pytest.raises(NoNetworkError, match=name):
            picked(features)


@pytest.mark.parametrize("kind", ["network", "frozen network"])
@pytest.mark.parametrize("name", ON_FEATURES)
def test_networks(name, kind):
    names = ["auto", "last_layer", "input", "tangent"]
    if name == "BAIT":  # whose matrices have as many rows as features
        names.remove("tangent")
    found = {key: made(name, key).select(learner(kind), X[15:], 4)[0].tolist() for key in names}
    found |= {key: made(name, value).select(learner(kind), X[15:], 4)[0].tolist() for key, value in OWN.items()}
    assert found["auto"] == found["tangent" if name in BY_GRADIENTS else "last_layer"]
    assert all(len(set(picks)) == 4 for picks in found.values())


@pytest.mark.parametrize("name", ["MaxHerding", "TypiClust", "ProbCover", "CoreSet"])
@pytest.mark.parametrize("features", ["auto", "input", *OWN])
def test_nothing_needs_to_be_fitted_where_features_do_not_come_from_the_estimator(name, features):
    unfitted = learner_of(RandomForestClassifier())
    assert len(set(made(name, OWN.get(features, features)).select(unfitted, X, 5)[0].tolist())) == 5


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble, np.int64, np.uint8, bool])
def test_inputs_of_any_numbers_are_features(dtype):
    X = np.random.default_rng(0).integers(0, 2, size=(20, 6))
    learner = SimpleNamespace(estimator=LogisticRegression(), X_training=None, y_training=None)
    strategy = skal.strategies.MaxHerding(features="input")
    found, expected = (strategy.select(learner, X.astype(kind), 4)[0] for kind in (dtype, np.float32))
    assert found.tolist() == expected.tolist()
