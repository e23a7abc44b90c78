"""PredictiveStd: each source against the deviation that it stands for."""

import numpy as np
import pytest
import torch
from modAL.models import ActiveLearner as ModalLearner
from modAL.models import CommitteeRegressor
from sklearn.ensemble import BaggingRegressor, RandomForestRegressor, VotingRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import BayesianRidge, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVR

from skal.checks import make_learner
from skal.exceptions import InvalidParameterError, NoNetworkError, UnsupportedLayerError
from skal.strategies import PredictiveStd, UHerding

from ..support.learners import learner_of
from ..support.regressors import fit_net, make_regression_learner, make_targets, tangent_rows

X, Y = make_targets(60, 2)
y = Y[:, 0]


def scores(estimator, targets=y, **params):
    return PredictiveStd(**params).scores(learner_of(estimator.fit(X[:20], targets[:20]), X[:20], targets[:20]), X[20:])


@pytest.mark.parametrize("estimator", [GaussianProcessRegressor(), BayesianRidge()], ids=lambda e: type(e).__name__)
def test_return_std(estimator):
    expected = estimator.fit(X[:20], y[:20]).predict(X[20:], return_std=True)[1]
    assert scores(estimator) == pytest.approx(expected)
    pipeline = make_pipeline(StandardScaler(), estimator)
    assert scores(pipeline) == pytest.approx(pipeline.predict(X[20:], return_std=True)[1])


def test_spread_of_a_forest():
    forest = RandomForestRegressor(10, random_state=0)
    spread = np.std([tree.predict(X[20:]) for tree in forest.fit(X[:20], y[:20]).estimators_], axis=0)
    assert scores(forest) == pytest.approx(spread)


def test_several_targets_count_in_units_of_their_own():
    forest = RandomForestRegressor(10, random_state=0)
    spread = np.std([tree.predict(X[20:]) for tree in forest.fit(X[:20], Y[:20]).estimators_], axis=0)
    assert scores(forest, Y) == pytest.approx(np.sqrt(np.square(spread / Y[:20].std(axis=0)).mean(axis=1)))


def test_spread_of_bagging_on_some_columns_and_of_voting():
    bagging = BaggingRegressor(Ridge(), n_estimators=5, max_features=0.5, random_state=0)
    found = scores(bagging)
    pairs = zip(bagging.estimators_, bagging.estimators_features_, strict=True)
    assert found == pytest.approx(np.std([m.predict(X[20:][:, c]) for m, c in pairs], axis=0))
    voting = VotingRegressor([("a", Ridge()), ("b", SVR())])
    found = scores(voting)
    assert found == pytest.approx(np.std([m.predict(X[20:]) for m in voting.estimators_], axis=0))


def test_spread_of_a_committee():
    learners = [ModalLearner(Ridge(), X_training=X[i : i + 10], y_training=y[i : i + 10]) for i in (0, 5, 10)]
    found = PredictiveStd().scores(CommitteeRegressor(learners), X[20:])
    assert found == pytest.approx(np.std([learner.predict(X[20:]) for learner in learners], axis=0))


@pytest.mark.parametrize("k", [1, 2])
def test_posterior_of_a_network(k):
    learner, X_pool = make_regression_learner(k=k)
    pool, labelled = tangent_rows(learner, X_pool)
    A = labelled @ labelled.T + 1e-4 * np.eye(len(labelled))
    expected = [np.sqrt(x @ x - (labelled @ x) @ np.linalg.solve(A, labelled @ x)) for x in pool]
    assert PredictiveStd().scores(learner, X_pool) == pytest.approx(expected, rel=1e-6)


def test_dropout_is_the_spread_over_masks():
    net = fit_net(X[:20], y[:20, None], dropout=0.5)
    learner = learner_of(net, X[:20], y[:20, None])
    strategy = PredictiveStd(source="dropout", n_passes=400, random_state=0)
    found = strategy.scores(learner, X[20:])
    # the head is linear: its output's variance under inverted dropout is Σ (w h)² p/(1 − p)
    with torch.no_grad():
        h = torch.tanh(net.module_.body[0](torch.as_tensor(X[20:])))
        exact = (net.module_.head.weight * h).square().sum(1).sqrt().numpy()
    assert found == pytest.approx(exact, rel=0.2)
    no_dropout = learner_of(fit_net(X[:20], y[:20, None]), X[:20], y[:20, None])
    with pytest.raises(UnsupportedLayerError, match="dropout"):
        strategy.scores(no_dropout, X[20:])


def test_a_source_that_is_not_there_is_named():
    for source in ("return_std", "ensemble"):
        with pytest.raises(InvalidParameterError, match=f"'source' .* Got \"source='{source}' for SVR"):
            scores(SVR(), source=source)
    with pytest.raises(NoNetworkError, match="must be a skorch net"):
        scores(SVR(), source="dropout")
    learner, X_pool = make_learner()
    with pytest.raises(InvalidParameterError, match=r"'source' .* Use a network that predicts numbers"):
        PredictiveStd(source="dropout").scores(learner, X_pool)


def test_herding_is_weighed_by_the_deviations_themselves():
    """By hand: the first pick raises the weighed coverage Σ_z s(z) k(z, x) over what is labelled most."""
    forest = RandomForestRegressor(10, random_state=0).fit(X[:20], y[:20])
    learner = learner_of(forest, X[:20], y[:20])
    unit = X / np.linalg.norm(X, axis=1, keepdims=True)
    K = np.exp(-np.square(unit[:, None] - unit[None]).sum(axis=2) / 0.5**2)
    covered = K[20:, :20].max(axis=1)
    weights = PredictiveStd().scores(learner, X[20:])
    gains = (weights * np.maximum(K[20:, 20:] - covered, 0)).sum(axis=1)
    indices, metrics = UHerding(radius=0.5).select(learner, X[20:], 1)
    assert indices[0] == gains.argmax()
    assert metrics[0] == pytest.approx(gains.max(), rel=1e-5)
