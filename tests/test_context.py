"""Tests of skal.context: what a strategy sees."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeRegressor
from skorch import NeuralNetClassifier
from torch import nn
from torch.utils.data import TensorDataset

from skal.config import config_context
from skal.context import QueryContext
from skal.exceptions import (
    EmptyPoolError,
    InvalidTypeError,
    NoLabelledDataError,
    NoNetworkError,
    NonFiniteError,
    NotFittedError,
    OutputError,
)
from skal.nets import SquaredLoss
from skal.strategies import Margin

from .support.learners import learner_of


@pytest.fixture(scope="module")
def fitted(make_net, flat_data):
    """A Pipeline with a scaler, a GridSearchCV, a search around a Pipeline, a Pipeline around a search: all fitted."""
    X, y = flat_data
    grid = {"lr": [0.01, 0.1]}
    return {
        "pipeline": make_pipeline(StandardScaler(), make_net()).fit(X, y),
        "search": GridSearchCV(make_net(), grid, cv=2).fit(X, y),
        "search of pipeline": GridSearchCV(
            Pipeline([("scale", StandardScaler()), ("net", make_net())]), {"net__lr": [0.01, 0.1]}, cv=2
        ).fit(X, y),
        "pipeline of search": make_pipeline(StandardScaler(), GridSearchCV(make_net(), grid, cv=2)).fit(X, y),
        "nested pipelines": make_pipeline(
            StandardScaler(), "passthrough", make_pipeline(StandardScaler(), make_net())
        ).fit(X, y),
        "net": make_net().fit(X, y),
    }


@pytest.mark.parametrize(
    ("name", "n_transformers"),
    [
        ("pipeline", 1),
        ("search", 0),
        ("search of pipeline", 1),
        ("pipeline of search", 1),
        ("nested pipelines", 2),
        ("net", 0),
    ],
)
def test_the_net_is_found_and_sees_what_the_estimator_sees(fitted, name, n_transformers, flat_data):
    X, y = flat_data
    estimator = fitted[name]
    with config_context(batch_size=7):
        context = QueryContext(learner_of(estimator, X, y), X)
    assert isinstance(context.net, NeuralNetClassifier)
    assert len(context.transformers) == n_transformers
    np.testing.assert_allclose(context.predict_proba(), estimator.predict_proba(X), rtol=1e-5, atol=1e-6)
    assert context.n_classes == 3
    transformed = np.concatenate(list(context.labelled.chunks(9)))
    np.testing.assert_allclose(
        context.net.predict_proba(transformed.astype(np.float32)), context.predict_proba(), atol=1e-6
    )


class Wrapper(ClassifierMixin, BaseEstimator):
    """Fits a clone in ``estimator_``, as scikit-learn's meta-estimators do."""

    def __init__(self, estimator):
        self.estimator = estimator

    def fit(self, X, y):
        self.estimator_ = clone(self.estimator).fit(X, y)
        return self


def test_the_fitted_clone_of_a_wrapper_is_preferred(make_net, flat_data):
    X, y = flat_data
    wrapper = Wrapper(make_net()).fit(X, y)
    assert QueryContext(learner_of(wrapper), X).net is wrapper.estimator_


def test_an_unfitted_wrapper_is_not_fitted(make_net, flat_data):
    with pytest.raises(NotFittedError, match="unfitted Wrapper"):
        QueryContext(learner_of(Wrapper(make_net())), flat_data[0]).require_fitted()


def test_meta_estimators_without_a_net_keep_their_own_predictions(flat_data):
    X, y = flat_data
    calibrated = CalibratedClassifierCV(LinearSVC(), cv=2).fit(X, y)
    proba = QueryContext(learner_of(calibrated), X).predict_proba()
    np.testing.assert_allclose(proba, calibrated.predict_proba(X))


@pytest.mark.parametrize("batch_size", [1, 9, 10_000])
def test_sklearn_classifiers_and_pipelines_predict_as_they_do(flat_data, batch_size):
    X, y = flat_data
    for estimator in (GaussianNB(), KNeighborsClassifier(3), make_pipeline(StandardScaler(), GaussianNB())):
        estimator.fit(X, y)
        with config_context(batch_size=batch_size):
            context = QueryContext(learner_of(estimator), X)
        assert not context.has_network
        np.testing.assert_allclose(context.predict_proba(), estimator.predict_proba(X))
        assert context.n_classes == 3


def test_texts_go_through_a_pipeline():
    texts, y = ["good food", "bad food", "good wine", "bad wine"], [1, 0, 1, 0]
    pipeline = make_pipeline(CountVectorizer(), MultinomialNB()).fit(texts, y)
    proba = QueryContext(learner_of(pipeline), ["good day", "bad day"]).predict_proba()
    np.testing.assert_allclose(proba, pipeline.predict_proba(["good day", "bad day"]))


def test_texts_go_through_a_pipeline_to_a_net(make_net):
    texts, y = ["good food", "bad food", "good wine", "bad wine"], np.array([1, 0, 1, 0])
    net = make_net(n_features=4, n_classes=2)
    pipeline = make_pipeline(CountVectorizer(dtype=np.float32), StandardScaler(with_mean=False), net)
    # skorch takes the sparse matrix of the vectorizer as it is while fitting, so the net is fitted on dense rows
    rows = make_pipeline(*[step for _, step in pipeline.steps[:-1]]).fit_transform(texts).toarray()
    net.fit(rows, y)
    with config_context(batch_size=3):
        proba = QueryContext(learner_of(pipeline), texts).predict_proba()
    np.testing.assert_allclose(proba, net.predict_proba(rows), rtol=1e-5)


def test_frames_with_text_columns_go_through_a_pipeline(make_net):
    frame = pd.DataFrame({"colour": ["red", "blue", "red", "blue"]})
    pipeline = make_pipeline(OneHotEncoder(sparse_output=False, dtype=np.float32), make_net(2, 2))
    pipeline.fit(frame, np.array([0, 1, 0, 1]))
    proba = QueryContext(learner_of(pipeline), frame).predict_proba()
    np.testing.assert_allclose(proba, pipeline.predict_proba(frame), rtol=1e-5)


def test_nan_is_left_to_an_estimator_that_takes_it(flat_data, make_net):
    X, y = flat_data
    X = X.copy()
    X[3, 0] = np.nan
    booster = HistGradientBoostingClassifier(max_iter=2).fit(X, y)
    assert QueryContext(learner_of(booster), X).predict_proba().shape == (60, 3)
    imputing = make_pipeline(SimpleImputer(), make_net()).fit(X, y)
    proba = QueryContext(learner_of(imputing), X).predict_proba()
    np.testing.assert_allclose(proba, imputing.predict_proba(X), rtol=1e-5)
    with pytest.raises(NonFiniteError, match=r"X_pool .* row 3\."):
        QueryContext(learner_of(GaussianNB().fit(X[4:], y[4:])), X)


def test_nan_that_a_pipeline_makes_is_found(make_net, flat_data):
    X, y = flat_data
    pipeline = make_pipeline(StandardScaler(), make_net()).fit(X, y)
    pipeline[0].scale_[1] = 0.0
    with np.errstate(divide="ignore", invalid="ignore"), pytest.raises(NonFiniteError, match="X_pool"):
        QueryContext(learner_of(pipeline), X).predict_proba()


@pytest.mark.parametrize(
    "X", [np.empty((0, 5)), [], torch.empty(0, 5), TensorDataset(torch.empty(0, 5)), pd.DataFrame()]
)
def test_empty_pools_are_refused(flat_learner, X):
    with pytest.raises(EmptyPoolError, match=r"X_pool given to Mine must hold at least one sample"):
        QueryContext(flat_learner, X, owner="Mine")


def test_a_learner_needs_an_estimator():
    with pytest.raises(InvalidTypeError, match=r"attributes estimator, X_training and y_training\. Got object instead"):
        QueryContext(object(), np.zeros((3, 5)))


@pytest.mark.parametrize("name", ["pipeline", "search", "search of pipeline", "pipeline of search", "net"])
def test_unfitted_estimators_are_refused(fitted, name, flat_data):
    with pytest.raises(NotFittedError, match=r"must be fitted\. Got an unfitted \w+ instead\. Give the learner"):
        QueryContext(learner_of(clone(fitted[name])), flat_data[0], owner="Mine").require_fitted()


@pytest.mark.parametrize("estimator", [GaussianNB(), make_pipeline(StandardScaler(), GaussianNB())])
def test_unfitted_classifiers_are_refused(estimator, flat_data):
    context = QueryContext(learner_of(estimator), flat_data[0])
    assert not context.is_fitted
    with pytest.raises(NotFittedError, match="must be fitted"):
        context.require_fitted()


def test_a_fitted_net_behind_an_unfitted_scaler_is_refused(fitted, flat_data):
    pipeline = make_pipeline(StandardScaler(), fitted["net"])
    with pytest.raises(NotFittedError, match=r"steps before the classifier .* unfitted StandardScaler"):
        QueryContext(learner_of(pipeline), flat_data[0]).predict_proba()


def test_an_initialised_net_will_do(make_net, flat_data):
    context = QueryContext(learner_of(make_net().initialize()), flat_data[0])
    assert context.predict_proba().shape == (60, 3)


def test_the_network_is_refused_where_there_is_none(flat_data):
    X, y = flat_data
    context = QueryContext(learner_of(GaussianNB().fit(X, y)), X, owner="Mine")
    for ask in (lambda: context.net, lambda: context.network, lambda: context.last_layer, context.require_network):
        with pytest.raises(NoNetworkError, match=r"that Mine works on must be a skorch net.*Got GaussianNB instead"):
            ask()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_decision_function_stands_for_probabilities(flat_data, n_classes):
    X, y = flat_data
    model = LinearSVC().fit(X, y % n_classes)
    proba = QueryContext(learner_of(model), X).predict_proba()
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert proba.shape == (len(X), n_classes)
    assert (proba.argmax(axis=1) == model.predict(X)).all()
    # the surer it is, the larger the gap
    decisions = model.decision_function(X)
    gaps = np.abs(decisions) if n_classes == 2 else np.diff(np.sort(decisions, axis=1)[:, -2:]).ravel()
    order = np.argsort(gaps)
    two = np.sort(proba, axis=1)[order][:, -2:]
    assert (np.diff(two[:, 1] / two[:, 0]) >= -1e-9).all()


def test_a_classifier_without_probabilities_is_refused(flat_data):
    X, y = flat_data
    context = QueryContext(learner_of(DecisionTreeRegressor().fit(X, y)), X, owner="Mine")
    with pytest.raises(InvalidTypeError, match=r"Mine must be classification.*needs class probabilities.*regression"):
        context.predict_proba()
    with pytest.raises(InvalidTypeError, match=r"must have predict_proba or decision_function\. Got KMeans"):
        QueryContext(learner_of(KMeans(2).fit(X)), X, owner="Mine").predict_proba()


class Bad(ClassifierMixin, BaseEstimator):
    def __init__(self, row=None):
        self.row = row

    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self

    def predict_proba(self, X):
        return np.tile(self.row, (len(X), 1))


@pytest.mark.parametrize(
    ("row", "error"), [([np.nan, 1.0], NonFiniteError), ([0.7, 0.7], OutputError), ([1.5, -0.5], OutputError)]
)
def test_probabilities_must_be_distributions(flat_data, row, error):
    X, y = flat_data
    with pytest.raises(error, match=r"must .*Got "):
        QueryContext(learner_of(Bad(row).fit(X, y)), X).predict_proba()


def test_a_squared_loss_net_has_probabilities(make_net, flat_data):
    X, y = flat_data
    net = make_net(criterion=SquaredLoss).fit(X, y)
    proba = QueryContext(learner_of(net), X).predict_proba()
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)


def test_the_number_of_classes_is_the_networks(make_net, flat_data):
    X, _ = flat_data
    net = make_net(n_classes=9).fit(X, np.zeros(60, dtype=int))
    assert QueryContext(learner_of(net, X, np.zeros(60, dtype=int)), X).n_classes == 9


def test_restricting_keeps_what_has_been_found(flat_learner, flat_data):
    X, _ = flat_data
    context = QueryContext(flat_learner, X)
    whole, last = context.predict_proba(), context.last_layer
    part = context.restrict(np.array([8, 2]))
    assert part.n_pool == 2
    assert part.last_layer is last
    np.testing.assert_allclose(part.predict_proba(), whole[[8, 2]], rtol=1e-6)
    assert context.n_pool == 60


def test_embeddings_of_pool_and_labelled(flat_learner, flat_data):
    X, _ = flat_data
    with config_context(batch_size=7):
        context = QueryContext(flat_learner, X)
    features, logits = context.embeddings()
    assert features.shape == (60, 8)
    assert logits.shape == (60, 3)
    assert context.embeddings(context.labelled)[0].shape == (15, 8)
    assert context.device.type == "cpu"


@pytest.mark.parametrize(("X", "n"), [(None, 0), (np.empty((0, 5)), 0)])
def test_no_labelled_data(flat_learner, flat_data, X, n):
    context = QueryContext(learner_of(flat_learner.estimator, X, None), flat_data[0], owner="Mine")
    assert context.n_labelled == n
    for ask in (lambda: context.labelled, lambda: context.labels, context.require_labels):
        with pytest.raises(NoLabelledDataError, match=r"Mine needs labelled data.*Got none instead\. Teach"):
            ask()


def test_labels_in_any_container(flat_learner, flat_data):
    X, y = flat_data
    tensor = torch.from_numpy(X)
    for X_training, y_training in [
        (X, y),
        (X, y.tolist()),
        (tensor, torch.from_numpy(y)),
        (X, pd.Series(y, index=range(5, 65))),
        (TensorDataset(tensor, torch.from_numpy(y)), None),
        (TensorDataset(tensor), y),
    ]:
        context = QueryContext(learner_of(flat_learner.estimator, X_training, y_training), X)
        assert context.labels.tolist() == y.tolist()
        assert context.class_labels.dtype == np.int64
        assert context.class_labels.tolist() == y.tolist()
        assert context.n_labelled == len(context.labelled) == 60


@pytest.mark.parametrize("y", [None, [0, 1]])
def test_every_labelled_sample_needs_a_label(flat_learner, flat_data, y):
    X, _ = flat_data
    context = QueryContext(learner_of(flat_learner.estimator, X[:3], y), X)
    with pytest.raises(NoLabelledDataError, match="one label for each of the 3 rows"):
        context.require_labels()


@pytest.mark.parametrize("y", [["a", "b"], [0, 3], [-1, 0], [0.0, 1.0]])
def test_labels_must_be_numbers_of_outputs_to_be_differentiated(flat_learner, flat_data, y):
    X, _ = flat_data
    context = QueryContext(learner_of(flat_learner.estimator, X[:2], np.array(y)), X)
    with pytest.raises(NoLabelledDataError, match=r"must be integers in 0 … 2.*Got .* instead\. Encode"):
        _ = context.class_labels


def test_nan_among_the_labelled_is_found(flat_learner, flat_data):
    X, y = flat_data
    spoilt = X.copy()
    spoilt[6] = np.nan
    with pytest.raises(NonFiniteError, match=r"X_training .* row 6\."):
        QueryContext(learner_of(flat_learner.estimator, spoilt, y), X).require_labels()


def test_a_dataset_cannot_go_through_a_pipeline(fitted, flat_data):
    dataset = TensorDataset(torch.from_numpy(flat_data[0]))
    with pytest.raises(InvalidTypeError, match="end of a Pipeline"):
        QueryContext(learner_of(fitted["pipeline"]), dataset)


def test_the_net_stays_on_probabilities_of_nll(make_net, flat_data):
    X, y = flat_data

    class Softmaxed(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(5, 3), nn.Softmax(-1))

    net = NeuralNetClassifier(Softmaxed, train_split=None, verbose=0, max_epochs=2).fit(X, y)
    np.testing.assert_allclose(QueryContext(learner_of(net), X).predict_proba(), net.predict_proba(X), rtol=1e-6)


@pytest.mark.parametrize("on_disk", [False, True], ids=["in memory", "on the disk"])
def test_a_pool_is_looked_at_for_nan_once(on_disk, flat_learner, flat_data, tmp_path, monkeypatch):
    """In memory at once, on the disk when it is read."""
    from skal._core import containers

    X, looked_at, all_finite = flat_data[0], [], containers.all_finite
    if on_disk:
        np.save(tmp_path / "pool.npy", X)
        X = np.load(tmp_path / "pool.npy", mmap_mode="r")

    def counted(values, **kwargs):
        looked_at.append(len(values))
        return all_finite(values, **kwargs)

    monkeypatch.setattr(containers, "all_finite", counted)
    with config_context(batch_size=16):
        Margin().scores(flat_learner, X)
    assert sum(looked_at) == len(X)
