"""Temperatures against the definition: the smallest calibration error of predictions that have not seen the labels."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from torch import nn

from skal.strategies import UHerding
from skal.strategies._probabilities import best_temperature, calibration_error, temper

from ..support.learners import learner_of, net_of


def error_oracle(proba, right, n_bins=15):
    """Bin by bin: the share of its samples times the gap between mean confidence and accuracy."""
    confidence, error = proba.max(1), 0.0
    for number in range(n_bins):
        low, high = number / n_bins, (number + 1) / n_bins
        inside = (confidence >= low) & ((confidence < high) | (number == n_bins - 1))
        if inside.any():
            error += inside.mean() * abs(confidence[inside].mean() - right[inside].mean())
    return error


def softmax(logits):
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


@pytest.mark.parametrize("seed", range(5))
def test_error_and_temperature_are_the_definitions(seed):
    rng = np.random.default_rng(seed)
    logits = 3 * rng.normal(size=(200, 4))
    proba = softmax(logits)
    right = rng.random(200) < 0.7
    assert calibration_error(proba, right) == pytest.approx(error_oracle(proba, right))
    np.testing.assert_allclose(temper(proba, 2.5), softmax(logits / 2.5), rtol=1e-9)
    grid = 10 ** np.linspace(-1, 1, 41)
    errors = [error_oracle(softmax(logits / temperature), right) for temperature in grid]
    assert best_temperature(proba, right) == pytest.approx(grid[int(np.argmin(errors))])


def fit_temperature(learner, X):
    """The temperature at which UHerding weighs samples by itself: the one that makes the same of them if it is given.

    Its grid has 1, too.
    """
    pool = X + 0.1  # no copies of labelled samples
    own = UHerding().select(learner, pool, 3)[1]
    grid = 10 ** np.linspace(-1, 1, 41)
    gains = [UHerding(temperature=float(temperature)).select(learner, pool, 3)[1] for temperature in grid]
    (same,) = [number for number, gain in enumerate(gains) if np.allclose(gain, own, rtol=1e-9, atol=0)]
    return grid[same]


def data(seed=0, n=150, n_classes=3, width=6, noise=2.0):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    return (3 * rng.normal(size=(n_classes, width))[y] / width**0.5 + noise * rng.normal(size=(n, width))), y


@pytest.mark.parametrize(
    "estimator", [LogisticRegression(C=1e4), GaussianNB(), RandomForestClassifier(20, random_state=0)]
)
@pytest.mark.parametrize("names", [None, np.array(["c", "a", "b"])])
def test_a_classifier_is_judged_on_labels_it_has_not_seen(estimator, names):
    X, y = data()
    y = y if names is None else names[y]
    estimator.fit(X, y)
    held_out = np.zeros((len(X), 3))
    for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(X, y):
        held_out[test] = type(estimator)(**estimator.get_params()).fit(X[train], y[train]).predict_proba(X[test])
    right = np.unique(y)[held_out.argmax(1)] == y
    grid = 10 ** np.linspace(-1, 1, 41)
    errors = [error_oracle(softmax(np.log(np.maximum(held_out, 1e-300)) / t), right) for t in grid]
    assert fit_temperature(learner_of(estimator, X, y), X) == pytest.approx(grid[int(np.argmin(errors))])


def test_an_overconfident_classifier_is_made_less_sure():
    X, y = data(width=40)
    sure = LogisticRegression(C=1e6, max_iter=5000).fit(X, y)
    assert fit_temperature(learner_of(sure, X, y), X) > 1.5


def test_with_few_labels_there_is_none():
    X, y = data()
    for rows in (np.arange(14), np.flatnonzero(y == 0), np.r_[np.flatnonzero(y == 0), 1, 2]):
        estimator = LogisticRegression().fit(X, y)
        assert fit_temperature(learner_of(estimator, X[rows], y[rows]), X) == 1.0
    assert fit_temperature(learner_of(estimator, X[:15], y[:15]), X) != 1.0


def network(frozen):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)).double()
    module[0].requires_grad_(not frozen)
    return net_of(module)


def test_a_network_that_is_trained_as_a_whole_has_seen_its_labels():
    X, y = data()
    assert fit_temperature(learner_of(network(frozen=False), X, y), X) == 1.0


def test_the_head_of_a_frozen_network_is_judged_by_a_logistic_regression():
    X, y = data()
    net = network(frozen=True)
    learner = learner_of(net, X, y)
    with torch.no_grad():
        features = net.module_[1](net.module_[0](torch.as_tensor(X))).numpy()
        scale = np.linalg.norm(features, axis=1).mean()
        features /= scale
        model = LogisticRegression(max_iter=1000).fit(features, y)
        # a head that is as sure as the regression on all labels
        net.module_[2].weight.copy_(torch.as_tensor(model.coef_ / scale))
        net.module_[2].bias.copy_(torch.as_tensor(model.intercept_))
    held_out = np.zeros((len(X), 3))
    for train, test in StratifiedKFold(3, shuffle=True, random_state=0).split(X, y):
        held_out[test] = LogisticRegression(max_iter=1000).fit(features[train], y[train]).predict_proba(features[test])
    grid = 10 ** np.linspace(-1, 1, 41)
    errors = [error_oracle(softmax(np.log(held_out) / t), held_out.argmax(1) == y) for t in grid]
    expected = grid[int(np.argmin(errors))]
    picked, gains = UHerding().select(learner, X + 0.1, 5)
    np.testing.assert_allclose(UHerding(temperature=expected).select(learner, X + 0.1, 5)[1], gains, rtol=1e-3)
    other = UHerding(temperature=1.1 * expected).select(learner, X + 0.1, 5)[1]
    assert not np.allclose(other, gains, rtol=1e-3)
    with torch.no_grad():  # ten times as sure: ten times the temperature, and the same choice
        net.module_[2].weight.mul_(10)
        net.module_[2].bias.mul_(10)
    again, same = UHerding().select(learner, X + 0.1, 5)
    assert again.tolist() == picked.tolist()
    np.testing.assert_allclose(same, gains, rtol=1e-3)
