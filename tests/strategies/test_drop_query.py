"""DropQuery against its definition."""

import re

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

from skal import config_context
from skal.exceptions import FeatureError, InvalidParameterError, UnsupportedLayerError
from skal.strategies import DropQuery
from skal.strategies._drop_query import nearest_to_centres, unstable_rows

from ..support.learners import learner_of, net_of


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    y = np.arange(120) % 3
    return 2 * rng.normal(size=(3, 8))[y] + rng.normal(size=(120, 8)), y


def changes_oracle(inputs, predict, p, n_trials, seed):
    generator = np.random.default_rng(seed)
    changes = np.zeros(len(inputs))
    for seed_of_trial in generator.integers(2**63, size=n_trials):
        masked = np.where(np.random.default_rng(seed_of_trial).random(inputs.shape) < p, 0, inputs)
        changes += predict(masked) != predict(inputs)
    return changes / n_trials


@pytest.mark.parametrize("kind", ["classifier", "pipeline", "network"])
@pytest.mark.parametrize(("p", "n_trials", "max_memory"), [(0.75, 3, None), (0.4, 8, None), (0.4, 8, "60KB")])
def test_metrics_are_how_often_the_class_changes(kind, p, n_trials, max_memory, data):
    X, y = data
    torch.manual_seed(0)
    if kind == "network":
        module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3)).double()
        estimator = net_of(module)
        inputs = module[:2](torch.as_tensor(X)).detach().numpy()
        weight, bias = (parameter.detach().numpy() for parameter in module[2].parameters())

        def predict(values):
            return (values @ weight.T + bias).argmax(1)
    else:
        head = LogisticRegression()
        estimator = (make_pipeline(StandardScaler(), head) if kind == "pipeline" else head).fit(X, y)
        inputs = estimator[0].transform(X) if kind == "pipeline" else X
        predict = head.predict
    learner = learner_of(estimator, X[:9], y[:9])
    with config_context(max_memory=max_memory):  # 60 KB hold few samples at a time
        picked, metrics = DropQuery(p=p, n_trials=n_trials, random_state=3).select(learner, X, 10)
    expected = changes_oracle(inputs, predict, p, n_trials, 3)
    assert len(set(picked.tolist())) == 10
    np.testing.assert_allclose(metrics, expected[picked])
    n_changing = (expected > 0.5).sum()
    assert n_changing < 10 or (metrics > 0.5).all()


def test_those_that_change_most_take_part_copies_last():
    changed = np.array([0.0, 1.0, 0.6, 0.6, 0.4, 1.0])
    assert unstable_rows(changed, np.arange(6), 2).tolist() == [1, 2, 3, 5]
    assert unstable_rows(changed, np.arange(6), 5).tolist() == [1, 2, 3, 4, 5]
    assert unstable_rows(changed, np.array([0, 1, 2, 2, 4, 1]), 2).tolist() == [1, 2]
    assert unstable_rows(changed, np.array([0, 1, 2, 2, 4, 1]), 5).tolist() == [0, 1, 2, 4, 5]


def test_one_of_every_cluster_nearest_to_its_mean():
    rng = np.random.default_rng(0)
    centres = 10 * rng.normal(size=(4, 3))
    y = np.arange(80) % 4
    points = centres[y] + rng.normal(size=(80, 3))
    picked = nearest_to_centres(torch.as_tensor(points), 4, np.random.default_rng(0))
    assert sorted(y[picked]) == [0, 1, 2, 3]
    for row in picked:
        members = np.flatnonzero(y == y[row])
        distances = np.linalg.norm(points[members] - points[members].mean(0), axis=1)
        assert members[distances.argmin()] == row
    assert sorted(nearest_to_centres(torch.ones(5, 2), 5, rng)) == list(range(5))


def test_a_bound_that_is_too_small_is_refused_with_one_that_is_not(data):
    X, y = data
    learner = learner_of(LogisticRegression().fit(X, y), X[:9], y[:9])
    with (
        config_context(max_memory=1),
        pytest.raises(InvalidParameterError, match=r"max_memory.*at least \d+ bytes") as e,
    ):
        DropQuery(random_state=0).select(learner, X, 10)
    with config_context(max_memory=int(re.search(r"at least (\d+) bytes", str(e.value))[1])):
        assert len(set(DropQuery(random_state=0).select(learner, X, 10)[0].tolist())) == 10


def test_what_has_no_features_to_drop_is_refused(data):
    X, y = data
    squashed = net_of(nn.Sequential(nn.Linear(8, 3), nn.Tanh()).double())
    with pytest.raises(UnsupportedLayerError, match="DropQuery"):
        DropQuery()(learner_of(squashed, X[:9], y[:9]), X, 2)
    with pytest.raises(FeatureError, match="DropQuery"):
        DropQuery(features=lambda X: X * np.nan)(learner_of(LogisticRegression().fit(X, y), X, y), X, 2)
