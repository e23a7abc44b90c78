"""Everything that scikit-learn offers for classifiers applies to a loop."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from skorch.helper import SliceDict

from skal import ActiveLearningClassifier, DynamicAL
from skal.strategies import Margin, RandomSampling

# check: why a loop cannot pass it. Empty: it passes them all. (The tag poor_score spares it the bound on the score in
# check_classifiers_train, which no classifier with a handful of labels could promise.)
EXCUSED: dict[str, str] = {}


OWN_CHECKS = parametrize_with_checks(
    [ActiveLearningClassifier(LogisticRegression(), n_initial=10, query_size=10, n_rounds=1, random_state=0)],
    expected_failed_checks=lambda estimator: EXCUSED,
)


@pytest.mark.filterwarnings("ignore::skal.exceptions.BudgetWarning")  # some of the checks have six samples
# scikit-learn 1.7 hands pytest a generator, which pytest 9 warns of
@pytest.mark.parametrize(OWN_CHECKS.args[0], list(OWN_CHECKS.args[1]), **OWN_CHECKS.kwargs)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


def test_cross_validation(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop(DynamicAL(), net={"max_epochs": 4, "lr": 0.5}, n_rounds=2)
    scores = cross_val_score(loop, X, y, cv=5)
    assert scores.shape == (5,)
    assert scores.mean() > 0.5
    result = cross_validate(
        loop,
        X,
        y,
        cv=2,
        scoring=["accuracy", "neg_log_loss", "roc_auc_ovr"],
        return_estimator=True,
        error_score="raise",
    )
    assert np.isfinite(result["test_neg_log_loss"]).all()
    assert all(len(fitted.queried_) == 17 for fitted in result["estimator"])
    assert cross_val_predict(loop, X, y, cv=2, method="predict_proba").shape == (60, 3)


def test_grid_search(make_loop, flat_data):
    X, y = flat_data
    grid = {"query_strategy__gamma": [0.0, 2.0], "estimator__lr": [0.01, 0.1]}
    search = GridSearchCV(make_loop(DynamicAL(), n_rounds=1), grid, cv=2, error_score="raise").fit(X, y)
    assert set(search.best_params_) == set(grid)
    best = search.best_estimator_
    assert best.query_strategy_.gamma == search.best_params_["query_strategy__gamma"]
    assert best.estimator_.lr == search.best_params_["estimator__lr"]


def test_search_over_strategies(flat_data):
    X, y = flat_data
    loop = ActiveLearningClassifier(LogisticRegression(), n_initial=9, query_size=4, n_rounds=1, random_state=0)
    search = GridSearchCV(loop, {"query_strategy": [Margin(), RandomSampling()]}, cv=2, error_score="raise").fit(X, y)
    assert len(search.cv_results_["params"]) == 2


def test_search_inside_the_loop(make_net, flat_data):
    X, y = flat_data
    inner = GridSearchCV(make_net(max_epochs=1), {"lr": [0.01, 0.5]}, cv=2, error_score="raise")
    loop = ActiveLearningClassifier(
        inner, Margin(), n_initial=12, initial="stratified", query_size=4, n_rounds=1, random_state=0
    ).fit(X, y)
    assert loop.estimator_.best_params_["lr"] in (0.01, 0.5)
    assert loop.predict(X).shape == (60,)


def test_loop_in_a_pipeline_and_pipeline_in_a_loop(make_loop, make_net, flat_data):
    X, y = flat_data
    outer = make_pipeline(StandardScaler(), make_loop()).fit(X, y)
    assert outer.predict_proba(X).shape == (60, 3)
    inner = make_pipeline(StandardScaler(), make_net(max_epochs=1))
    loop = ActiveLearningClassifier(inner, DynamicAL(), n_initial=9, query_size=4, n_rounds=2, random_state=0)
    loop.set_params(estimator__neuralnetclassifier__lr=0.3).fit(X, y)
    assert loop.estimator_[-1].lr == 0.3
    assert len(loop.estimator_[-1].history) == 3  # the network went on, the scaler started anew
    np.testing.assert_allclose(loop.estimator_[0].mean_, X[loop.queried_].mean(axis=0), rtol=1e-5)


def test_frames_with_text_and_holes(flat_data):
    X, y = flat_data
    frame = pd.DataFrame(X).rename(columns=str).assign(colour=np.where(y == 1, "red", "blue"))
    columns = make_column_transformer((StandardScaler(), list("01234")), (OneHotEncoder(), ["colour"]))
    loop = ActiveLearningClassifier(
        make_pipeline(columns, LogisticRegression()), initial="stratified", n_initial=9, query_size=4, n_rounds=2
    )
    names = np.array(["ant", "bee", "cow"])[y]
    assert loop.fit(frame, names).score(frame, names) > 0.6
    holes = np.where(np.arange(60)[:, None] % 7 == 0, np.nan, X)
    steps = make_pipeline(SimpleImputer(), LogisticRegression())
    ActiveLearningClassifier(steps, n_initial=20, query_size=4, n_rounds=2, random_state=0).fit(holes, y)


def test_slice_dict(make_loop, flat_data):
    X, y = flat_data
    assert cross_val_score(make_loop(), SliceDict(x=X), y, cv=2, error_score="raise").shape == (2,)


def test_clone_params_and_repr(make_loop):
    loop = make_loop(DynamicAL(gamma=1.0))
    copy = clone(loop)
    assert copy.get_params()["query_strategy__gamma"] == 1.0
    copy.set_params(query_strategy__gamma=3.0, estimator__lr=0.7)
    assert loop.query_strategy.gamma == 1.0
    assert is_classifier(loop)
    assert "DynamicAL" in repr(loop)


def test_pickle_of_the_fitted_object(make_loop, flat_data):
    X, y = flat_data
    loop = make_loop().fit(X, y)
    data = pickle.dumps(loop)
    assert X.tobytes() not in data  # the samples are not the classifier's
    copy = pickle.loads(data)
    np.testing.assert_array_equal(copy.predict_proba(X), loop.predict_proba(X))
    assert copy.queried_.tolist() == loop.queried_.tolist()
    assert copy.history_ == loop.history_


def test_without_predict_proba(flat_data):
    from sklearn.svm import LinearSVC

    X, y = flat_data
    loop = ActiveLearningClassifier(LinearSVC(), RandomSampling(), n_initial=9, query_size=4, n_rounds=1).fit(X, y)
    assert not hasattr(loop, "predict_proba")
    assert loop.score(X, y) > 0.4
