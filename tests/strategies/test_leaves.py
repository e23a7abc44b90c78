"""kernel="forest": samples are alike where trees put them into the same leaves."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

from skal import config_context
from skal.checks import (
    check_no_labels,
    check_one_class,
    check_pool_order,
    check_strategy,
    check_untouched,
)
from skal.exceptions import NoLabelledDataError
from skal.features import TableFeatures
from skal.strategies import MaxHerding, NTKLookahead, PredictiveStd, UHerding

N_LABELLED, BATCH = 24, 6
rng = np.random.default_rng(0)
X = rng.normal(size=(150, 5)) * [1, 10, 100, 1, 1]
Y = (X[:, 0] > 0).astype(int) + (X[:, 1] > 8)


def learner_of(estimator, n=N_LABELLED):
    return SimpleNamespace(estimator=estimator.fit(X[:n], Y[:n]), X_training=X[:n], y_training=Y[:n])


def beside():
    """The forest that is fitted where the estimator has no trees of its own."""
    return RandomForestClassifier(100, random_state=0).fit(X[:N_LABELLED], Y[:N_LABELLED]).apply(X)


ESTIMATORS = {
    "beside": (LogisticRegression(max_iter=1000), lambda model: beside()),
    "one tree": (DecisionTreeClassifier(random_state=0), lambda model: beside()),
    "forest": (RandomForestClassifier(20, random_state=1), lambda model: model.apply(X)),
    "in a pipeline": (
        make_pipeline(StandardScaler(), ExtraTreesClassifier(30, random_state=1)),
        lambda model: model[-1].apply(model[:-1].transform(X)),
    ),
    "boosted": (
        GradientBoostingClassifier(n_estimators=15, random_state=0),
        lambda model: model.apply(X).reshape(len(X), -1),
    ),
}


def kernel_of(leaves):
    """k(x, x'): the share of the trees in which two samples end in the same leaf, in float64."""
    return np.mean(leaves[:, None] == leaves[None], axis=2)


def assert_greedy(picked, K, weights):
    """Each pick raises the coverage most, by the definition; which of equals is taken is open."""
    pool = K[N_LABELLED:, N_LABELLED:]
    covered = K[N_LABELLED:, :N_LABELLED].max(axis=1)
    for pick in picked:
        gains = np.maximum(pool - covered[:, None], 0).T @ weights
        assert gains[pick] >= gains.max() * (1 - 1e-9)
        covered = np.maximum(covered, pool[:, pick])
    assert len(set(picked.tolist())) == BATCH


@pytest.mark.parametrize("name", ESTIMATORS)
def test_coverage_by_its_definition(name):
    estimator, leaves_of = ESTIMATORS[name]
    learner = learner_of(estimator)
    K = kernel_of(leaves_of(learner.estimator))
    assert_greedy(MaxHerding(kernel="forest").select(learner, X[N_LABELLED:], BATCH)[0], K, np.ones(126))
    proba = np.sort(learner.estimator.predict_proba(X[N_LABELLED:]), axis=1)
    strategy = UHerding(kernel="forest", temperature=1.0)
    assert_greedy(strategy.select(learner, X[N_LABELLED:], BATCH)[0], K, 1 - (proba[:, -1] - proba[:, -2]))


def spread_of_trees(model):
    """The deviation of what the trees predict."""
    forest, rows = (model[-1], model[:-1].transform(X)) if hasattr(model, "steps") else (model, X)
    return np.std([tree.predict(rows[N_LABELLED:]) for tree in forest.estimators_], axis=0)


def posterior_of_inputs(model):
    """The deviation of a linear model on the inputs, by its own oracle: see test_predictive_std.py."""
    learner = SimpleNamespace(estimator=model, X_training=X[:N_LABELLED], y_training=NUMBERS[:N_LABELLED])
    return PredictiveStd(source="posterior").scores(learner, X[N_LABELLED:])


def beside_numbers(model):
    return RandomForestRegressor(100, random_state=0).fit(X[:N_LABELLED], NUMBERS[:N_LABELLED]).apply(X)


NUMBERS = X[:, 0] + X[:, 1] / 10
REGRESSORS = {
    "forest": (RandomForestRegressor(20, random_state=1), lambda model: model.apply(X), spread_of_trees),
    "in a pipeline": (
        make_pipeline(StandardScaler(), ExtraTreesRegressor(30, random_state=1, bootstrap=True)),
        lambda model: model[-1].apply(model[:-1].transform(X)),
        spread_of_trees,
    ),
    "boosted": (
        GradientBoostingRegressor(n_estimators=15, random_state=0),
        lambda model: model.apply(X),
        posterior_of_inputs,
    ),
    "beside": (Ridge(), beside_numbers, posterior_of_inputs),
}


@pytest.mark.parametrize("name", REGRESSORS)
def test_numbers_by_the_definition(name):
    """All picks of a batch: leaves of trees that predict numbers, weighed by how far from sure the model is."""
    estimator, leaves_of, weights_of = REGRESSORS[name]
    model = estimator.fit(X[:N_LABELLED], NUMBERS[:N_LABELLED])
    learner = SimpleNamespace(estimator=model, X_training=X[:N_LABELLED], y_training=NUMBERS[:N_LABELLED])
    picked, _ = UHerding(kernel="forest").select(learner, X[N_LABELLED:], BATCH)
    assert_greedy(picked, kernel_of(leaves_of(model)), weights_of(model))


def test_look_ahead_by_its_definition():
    estimator, leaves_of = ESTIMATORS["beside"]
    learner = learner_of(estimator)
    K = kernel_of(leaves_of(learner.estimator))
    L, U = slice(None, N_LABELLED), slice(N_LABELLED, None)
    ridge = 0.1
    S = K[U, U] - K[U, L] @ np.linalg.solve(K[L, L] + ridge * np.eye(N_LABELLED), K[L, U])
    proba = np.sort(learner.estimator.predict_proba(X[U]), axis=1)
    w = 1 - (proba[:, -1] - proba[:, -2])
    h = np.maximum(w, 0.01)
    scores = h * (w @ S**2) / (ridge + h * np.diag(S))
    found = NTKLookahead(kernel="forest", ridge=ridge).scores(learner, X[U])
    np.testing.assert_allclose(found / found.max(), scores / scores.max(), rtol=1e-6)


def test_a_bound_on_memory_changes_no_pick():
    learner = learner_of(LogisticRegression(max_iter=1000))
    free = MaxHerding(kernel="forest").select(learner, X[N_LABELLED:], BATCH)[0]
    with config_context(max_memory="200kB"):
        bounded = MaxHerding(kernel="forest").select(learner, X[N_LABELLED:], BATCH)[0]
    assert bounded.tolist() == free.tolist()


def test_samples_in_the_same_leaves_are_no_copies():
    """Of 40 equal rows one is queried; of different rows that share all leaves each may be."""
    nearly = X[100:101] + 1e-9
    pool = np.concatenate([np.repeat(X[100:101], 40, axis=0), nearly, X[101:110]])
    learner = learner_of(RandomForestClassifier(20, random_state=0))
    chosen = MaxHerding(kernel="forest").select(learner, pool, 11)[0]
    assert (chosen < 40).sum() == 1
    assert 40 in chosen


def test_tables_with_strings():
    table = pd.DataFrame(X, columns=list("abcde")).assign(town=np.where(Y == 1, "Ulm", "Bern"))
    model = make_pipeline(TableFeatures(), LogisticRegression()).fit(table[:20], Y[:20])
    learner = SimpleNamespace(estimator=model, X_training=table[:20], y_training=Y[:20])
    for strategy in (UHerding(kernel="forest"), NTKLookahead(kernel="forest")):
        indices, _ = strategy.select(learner, table[20:], 5)
        assert len(set(indices.tolist())) == 5


def test_it_needs_labels():
    unlabelled = SimpleNamespace(estimator=LogisticRegression(), X_training=None, y_training=None)
    with pytest.raises(NoLabelledDataError, match="MaxHerding needs labelled data"):
        MaxHerding(kernel="forest").select(unlabelled, X, 3)


CONFORMANCE = [check_pool_order, check_one_class, check_no_labels, check_untouched]


@pytest.mark.parametrize("check", CONFORMANCE)
def test_conformance(check, learner, X_pool):
    check(UHerding(kernel="forest"), learner, X_pool[:16])


def test_conformance_of_distances(learner, X_pool):
    check_strategy(MaxHerding(normalize=False), learner, X_pool[:16])
