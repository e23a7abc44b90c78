"""The networks of a benchmark: logistic regression as a network, and minibatches cut at once."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from skorch.dataset import Dataset
from torch.utils.data import DataLoader, Subset

from skal.bench import Protocol, run_benchmark
from skal.bench._networks import WholeBatches, make_net
from skal.strategies import BALD, EGL

X = np.random.default_rng(0).normal(size=(60, 5)).astype("float32")
Y = np.random.default_rng(1).integers(4, size=60)


def as_network(strategy=None):
    """The network for a strategy that needs one; BALD's has dropout."""
    return make_net(Protocol(net="logistic", net_params={"C": 10.0}), (5,), 4, strategy or EGL())


@pytest.mark.parametrize("classes", [[0, 1, 2, 3], [1, 3], [0, 2, 3]])
@pytest.mark.parametrize("strategy", [EGL(), BALD()], ids=repr)
def test_predictions_agree(classes, strategy):
    rows = np.isin(Y, classes)
    net = as_network(strategy).fit(X[rows], Y[rows])
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
    settings = {
        "net": "logistic",
        "net_params": {"C": 10.0},
        "n_initial": 8,
        "query_size": 4,
        "n_rounds": 1,
        "seeds": 2,
    }
    names = ["random", "margin", "egl", "bald", "epig", "uherding"]
    result = run_benchmark(names, data=(X, Y), inputs="unit", **settings)
    for seed in (0, 1):
        runs = {run.strategy: run for run in result.runs if run.seed == seed}
        assert len({tuple(run.initial) for run in runs.values()}) == 1
        assert len({run.scores[0] for run in runs.values()}) == 1
    networks = {run.strategy: run.record["network"] for run in result.runs}
    assert networks["bald"] == networks["epig"] == "logistic with dropout"


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("part", [False, True])
def test_batches_and_draws_are_those_of_torchs_loader(shuffle, labelled, part):
    data = Dataset(X[:23], np.arange(23) if labelled else None)
    data = Subset(data, range(5, 20)) if part else data
    found = []
    for loader in (DataLoader, WholeBatches):
        torch.manual_seed(3)
        batches = [batch for _ in range(2) for batch in loader(data, batch_size=4, shuffle=shuffle)]
        found.append((batches, torch.rand(2)))
    (expected, after), (batches, also) = found
    assert len(batches) == len(expected)
    for (X_own, y_own), (X_other, y_other) in zip(batches, expected, strict=True):
        torch.testing.assert_close(X_own, X_other, rtol=0, atol=0)
        torch.testing.assert_close(y_own, y_other, rtol=0, atol=0)
    torch.testing.assert_close(after, also, rtol=0, atol=0)
