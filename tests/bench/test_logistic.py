"""Logistic regression as a network is scikit-learn's, for every number of classes that have labels."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from skal.bench import run_benchmark
from skal.bench._logistic import LogisticNet, make_logistic

X = np.random.default_rng(0).normal(size=(60, 5)).astype("float32")
Y = np.random.default_rng(1).integers(4, size=60)


def as_network(dropout=0.0):
    return make_logistic(5, 4, {"C": 10.0}, network=True, dropout=dropout)


@pytest.mark.parametrize("classes", [[0, 1, 2, 3], [1, 3], [0, 2, 3]])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_predictions_agree(classes, dropout):
    rows = np.isin(Y, classes)
    net = as_network(dropout).fit(X[rows], Y[rows])
    model = LogisticRegression(C=10.0, max_iter=1000).fit(X[rows], Y[rows])
    proba = net.predict_proba(X)
    np.testing.assert_allclose(proba[:, classes], model.predict_proba(X), atol=1e-5)
    assert np.delete(proba, classes, axis=1).sum() < 1e-6
    np.testing.assert_array_equal(net.predict(X), model.predict(X))


def test_one_class_is_certain_and_a_second_fit_starts_anew():
    net = as_network().set_params(warm_start=True).fit(X[:5], np.full(5, 2))
    np.testing.assert_allclose(net.predict_proba(X)[:, 2], 1)
    net.fit(X, Y)
    np.testing.assert_allclose(net.predict_proba(X), as_network().fit(X, Y).predict_proba(X))


def test_strategies_share_the_model_whether_or_not_they_need_a_network():
    settings = {"net": "logistic", "net_params": {"C": 10.0}, "n_initial": 8, "batch": 4, "rounds": 1, "seeds": 2}
    names = ["random", "margin", "egl", "bald", "epig", "uherding"]
    result = run_benchmark(names, data=(X, Y), inputs="unit", **settings)
    for seed in (0, 1):
        runs = {run.strategy: run for run in result.runs if run.seed == seed}
        assert len({tuple(run.initial) for run in runs.values()}) == 1
        assert len({run.scores[0] for run in runs.values()}) == 1
    networks = {run.strategy: run.record["network"] for run in result.runs}
    assert networks["bald"] == networks["epig"] == "logistic with dropout"


def test_without_a_network_it_is_scikit_learns():
    assert isinstance(make_logistic(5, 4, {"C": 2.0}, network=False, dropout=0.0), LogisticRegression)
    assert isinstance(as_network(), LogisticNet)
