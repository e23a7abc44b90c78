"""The sequential mode: every step against a query, and predictions, from scratch."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import NeuralNetClassifier, NeuralNetRegressor
from torch import nn
from torch.utils.data import Subset, TensorDataset

import skal
from skal import LinearizedLearner
from skal.datasets import load
from skal.exceptions import (
    CrossEntropyWarning,
    InvalidParameterError,
    InvalidTypeError,
    NoLabelledDataError,
    NotFittedError,
)
from skal.nets import CNN, MLP, SquaredLoss
from skal.strategies import NTKLookahead, entropy, ntk_lookahead

from ..support.learners import learner_of


def make_net(module=None, criterion=SquaredLoss, **params):
    torch.manual_seed(0)
    module = module or MLP(64, 10, hidden=(20,)).double()
    settings = {"optimizer": torch.optim.Adam, "lr": 1e-2, "max_epochs": 5, "train_split": None, "verbose": 0}
    return NeuralNetClassifier(module, criterion=criterion, **(settings | params))


@pytest.fixture(scope="module")
def digits():
    data = load("digits")
    X = data.X_train.reshape(-1, 64).astype(np.float64)
    return SimpleNamespace(X=X, images=data.X_train.astype(np.float64), y=data.y_train)


def make_learner(digits, strategy=None, n=12, net=None, **params):
    X = digits.images if isinstance(getattr(net, "module", None), CNN) else digits.X
    return LinearizedLearner(net or make_net(), strategy, X_training=X[:n], y_training=digits.y[:n], **params)


def from_scratch(learner, strategy, X_pool):
    plain = learner_of(learner.estimator, learner.X_training, learner.y_training)
    return strategy.scores(plain, X_pool)


def all_scores(learner, X_pool):
    indices, _, metrics = learner.query(X_pool, n_instances=len(X_pool), return_metrics=True)
    scores = np.empty(len(X_pool))
    scores[indices] = metrics
    return scores


class Counter:
    """Counts the samples that pass through a network."""

    def __init__(self, net):
        self.n = 0
        net.module_.register_forward_hook(self._count)

    def _count(self, module, args, output):
        self.n += len(output)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"criterion": "emoc", "n_features": None},
        {"criterion": "eer", "reference": "linearized"},
        {"kernel": "logit", "ridge": 1e-2},
    ],
    ids=str,
)
def test_a_run_of_50_equals_queries_from_scratch(digits, params):
    strategy = NTKLookahead(**({"criterion": "mlmoc"} | params))
    learner = make_learner(digits, strategy)
    X_pool, y_pool = digits.X[12:92], digits.y[12:92]
    for step in range(50):
        scores = all_scores(learner, X_pool)
        if not params or step % 7 == 0:  # every label once, and now and then for the other settings
            expected = from_scratch(learner, strategy, X_pool)
            np.testing.assert_allclose(scores, expected, rtol=1e-7, err_msg=f"step {step}")
        index = int(scores.argmax())
        learner.teach(X_pool[[index]], y_pool[[index]])
        X_pool, y_pool = np.delete(X_pool, index, axis=0), np.delete(y_pool, index)
    assert len(learner.y_training) == 62


@pytest.mark.parametrize("kernel", ["pntk", "entk"])
@pytest.mark.parametrize("batch", ["top", "greedy"])
def test_several_labels_at_a_time_and_convolutions(digits, kernel, batch):
    strategy = NTKLookahead(kernel=kernel, batch=batch, criterion="emoc")
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(27, 10)).double()
    net = make_net(module)
    learner = LinearizedLearner(net, strategy, digits.images[:8], digits.y[:8])
    X_pool, y_pool = digits.images[8:28], digits.y[8:28]
    for _ in range(4):
        indices, samples, metrics = learner.query(X_pool, n_instances=3, return_metrics=True)
        plain = learner_of(net, learner.X_training, learner.y_training)
        expected, values = strategy.select(plain, X_pool, 3)
        assert indices.tolist() == expected.tolist()
        np.testing.assert_allclose(metrics, values, rtol=1e-8)
        assert np.array_equal(samples, X_pool[indices])
        learner.teach(samples, y_pool[indices])
        X_pool, y_pool = np.delete(X_pool, indices, axis=0), np.delete(y_pool, indices)


@pytest.mark.parametrize("n_features", ["auto", None])
def test_only_the_first_query_passes_the_pool_through_the_network(digits, n_features):
    learner = make_learner(digits, NTKLookahead(n_features=n_features, evaluation=20, random_state=0))
    X_pool, y_pool = digits.X[12:92], digits.y[12:92]
    counter = Counter(learner.estimator)
    indices, samples = learner.query(X_pool)
    assert counter.n >= 80
    for _ in range(5):
        learner.teach(samples, y_pool[indices])
        X_pool, y_pool = np.delete(X_pool, indices, axis=0), np.delete(y_pool, indices)
        counter.n = 0
        indices, samples = learner.query(X_pool)
        assert counter.n <= 3  # the strategy may look at a sample or two, to see what the network is like


def test_the_pool_may_lose_rows_change_its_order_and_keep_labelled_ones(digits):
    strategy = NTKLookahead(criterion="mlmoc", ridge=1e-3)
    learner = make_learner(digits, strategy)
    X_pool, y_pool = digits.X[12:60], digits.y[12:60]
    learner.query(X_pool)
    counter = Counter(learner.estimator)
    learner.teach(X_pool[[5, 7]], y_pool[[5, 7]])
    for rows in (np.arange(48)[::-1], np.arange(10, 30), np.arange(3, 9)):
        expected = from_scratch(learner, strategy, X_pool[rows])
        counter.n = 0
        np.testing.assert_allclose(all_scores(learner, X_pool[rows]), expected, rtol=1e-7, atol=1e-12)
        assert counter.n <= 3
    # the two labelled samples are still there in the last one, and change nothing
    assert sorted(np.flatnonzero(expected == 0)) == [2, 4]


def test_what_is_new_is_read(digits):
    strategy = NTKLookahead(criterion="mlmoc")
    learner = make_learner(digits, strategy)
    learner.query(digits.X[12:40])
    other = digits.X[20:60]
    np.testing.assert_allclose(all_scores(learner, other), from_scratch(learner, strategy, other), rtol=1e-7)
    learner.teach(digits.X[[100]], digits.y[[100]])  # it was in no pool
    np.testing.assert_allclose(all_scores(learner, other), from_scratch(learner, strategy, other), rtol=1e-7)
    strategy.set_params(ridge=1e-2)
    np.testing.assert_allclose(all_scores(learner, other), from_scratch(learner, strategy, other), rtol=1e-7)
    learner.estimator.partial_fit(digits.X[:12], digits.y[:12])  # somebody else trains the network
    np.testing.assert_allclose(all_scores(learner, other), from_scratch(learner, strategy, other), rtol=1e-7)
    learner.y_training = learner.y_training.copy()
    learner.y_training[0] = (learner.y_training[0] + 1) % 10  # or corrects a label
    np.testing.assert_allclose(all_scores(learner, other), from_scratch(learner, strategy, other), rtol=1e-7)
    twice = np.concatenate([other, other[:3]])
    np.testing.assert_allclose(all_scores(learner, twice), from_scratch(learner, strategy, twice), rtol=1e-7)


def test_the_subset_and_the_evaluation_set_are_drawn_once_per_pool(digits):
    learner = make_learner(digits, NTKLookahead(subset=20, evaluation=7))
    X_pool, y_pool = digits.X[12:60], digits.y[12:60]
    first, samples = learner.query(X_pool, n_instances=3)
    learner.teach(samples, y_pool[first])
    rows = np.delete(np.arange(48), first)
    second = learner.query(X_pool[rows], n_instances=17)[0]
    candidates = {*first.tolist(), *rows[second].tolist()}
    assert len(candidates) == 20
    learner.teach(X_pool[rows[second]], y_pool[rows[second]])
    left = np.delete(rows, second)
    assert len(learner.query(X_pool[left], n_instances=5)[0]) == 5  # none is left of the subset: another is drawn


@pytest.mark.parametrize("n_features", ["auto", None])
@pytest.mark.parametrize("kernel", ["pntk", "entk"])
@pytest.mark.parametrize("criterion", [SquaredLoss, nn.CrossEntropyLoss])
def test_predictions_are_those_of_the_linearised_network(digits, criterion, kernel, n_features):
    torch.manual_seed(0)
    net = make_net(nn.Sequential(nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, 10)).double(), criterion)
    strategy = NTKLookahead(criterion="mlmoc", kernel=kernel, n_features=n_features, ridge=1e-3, reference="linearized")
    learner = make_learner(digits, strategy, net=net)
    learner.teach(digits.X[12:16], digits.y[12:16])
    X = digits.X[50:60]
    module = net.module_
    points = torch.as_tensor(np.concatenate([learner.X_training, X]))
    parameters = list(module.parameters())
    J = torch.stack(
        [
            torch.stack([torch.cat([g.reshape(-1) for g in torch.autograd.grad(c, parameters, retain_graph=True)])
                         for c in module(x[None])[0]])
            for x in points
        ]
    ).numpy()  # fmt: skip
    f = module(points).detach().numpy()
    n = len(learner.X_training)
    features = J.sum(1) / np.sqrt(10) if kernel == "pntk" else J.reshape(-1, J.shape[2])
    K = features @ features.T
    m = len(features) // len(points) * n
    link = torch.softmax(torch.as_tensor(f), 1).numpy() if criterion is nn.CrossEntropyLoss else f
    residuals = np.eye(10)[learner.y_training] - link[:n]
    system = K[:m, :m] + 1e-3 * K[:m, :m].diagonal().mean() * np.eye(m)
    moved = K[m:, :m] @ np.linalg.solve(system, residuals if kernel == "pntk" else residuals.reshape(-1, 1))
    expected = f[n:] + moved.reshape(len(X), 10)
    proba = torch.softmax(torch.as_tensor(expected), 1).numpy()
    np.testing.assert_allclose(learner.predict_proba(X), proba, rtol=1e-8)
    assert learner.predict(X).tolist() == expected.argmax(1).tolist()
    y = digits.y[50:60]
    assert learner.score(X, y) == np.mean(expected.argmax(1) == y)


def test_labels_improve_predictions_without_training(digits):
    learner = make_learner(digits, n=20, net=make_net(MLP(64, 10).double(), max_epochs=30))
    X_test, y_test = digits.X[600:900], digits.y[600:900]
    before = {name: value.clone() for name, value in learner.estimator.module_.state_dict().items()}
    accuracy = learner.score(X_test, y_test)
    X_pool, y_pool = digits.X[20:300], digits.y[20:300]
    for _ in range(30):
        indices, samples = learner.query(X_pool)
        learner.teach(samples, y_pool[indices])
        X_pool, y_pool = np.delete(X_pool, indices, axis=0), np.delete(y_pool, indices)
    assert learner.score(X_test, y_test) > accuracy + 0.05
    assert all(torch.equal(value, before[name]) for name, value in learner.estimator.module_.state_dict().items())


def test_retrain_trains_on_all_labels_and_starts_again(digits):
    strategy = NTKLookahead(criterion="mlmoc")
    learner = make_learner(digits, strategy)
    X_pool = digits.X[12:40]
    learner.query(X_pool)
    learner.teach(X_pool[:3], digits.y[12:15])
    before = learner.predict_proba(X_pool)
    assert learner.retrain(epochs=2) is learner
    assert len(learner.estimator.history) == 2
    assert not np.allclose(learner.predict_proba(X_pool), before)
    np.testing.assert_allclose(all_scores(learner, X_pool), from_scratch(learner, strategy, X_pool), rtol=1e-7)


def test_retrain_every(digits):
    learner = make_learner(digits, retrain_every=3)
    history = []
    for row in range(12, 20):
        learner.teach(digits.X[[row]], digits.y[[row]], fit=row != 14)
        history.append(len(learner.estimator.history))
        learner.estimator.history_.clear()
    # the third label is added without training, the fourth catches up
    assert history == [5, 0, 0, 5, 0, 0, 5, 0]


@pytest.mark.parametrize("net", [NeuralNetRegressor(MLP), NeuralNetClassifier(MLP, criterion=nn.BCEWithLogitsLoss)])
def test_numbers_and_several_labels_are_refused(net):
    with pytest.raises(InvalidTypeError, match="task of LinearizedLearner must be classification"):
        LinearizedLearner(net)


def test_before_there_are_labels(digits):
    learner = LinearizedLearner(make_net())
    with pytest.raises(NotFittedError):
        learner.query(digits.X[:10])
    learner.estimator.initialize()
    with pytest.raises(NoLabelledDataError):
        learner.query(digits.X[:10])
    f = learner.estimator.predict_proba(digits.X[:10])
    assert learner.predict(digits.X[:10]).tolist() == f.argmax(1).tolist()
    learner.teach(digits.X[:10], digits.y[:10])  # the first labels are trained on
    assert len(learner.estimator.history) == 5
    assert len(learner.query(digits.X[10:20], n_instances=2)[0]) == 2


def test_datasets_tensors_and_pipelines(digits):
    X, y = digits.X[:60], digits.y[:60]
    expected = make_learner(digits)
    tensors = LinearizedLearner(make_net(), None, torch.as_tensor(X[:12]), torch.as_tensor(y[:12]))
    dataset = TensorDataset(torch.as_tensor(X), torch.as_tensor(y))
    pairs = LinearizedLearner(make_net(), None, Subset(dataset, list(range(12))), None)
    scaled = LinearizedLearner(
        make_pipeline(StandardScaler(with_mean=False, with_std=False), make_net()), None, X[:12], y[:12]
    )
    rows = np.arange(12, 60)
    counter = Counter(pairs.estimator)
    for step in range(3):
        index = expected.query(X[rows])[0]
        assert tensors.query(torch.as_tensor(X[rows]))[0].tolist() == index.tolist()
        assert scaled.query(X[rows])[0].tolist() == index.tolist()
        counter.n = 0
        found, samples = pairs.query(Subset(dataset, rows.tolist()))
        assert found.tolist() == index.tolist()
        assert step == 0 or counter.n <= 3
        for learner, x, label in [
            (expected, X[rows[index]], y[rows[index]]),
            (tensors, torch.as_tensor(X[rows[index]]), torch.as_tensor(y[rows[index]])),
            (scaled, X[rows[index]], y[rows[index]]),
            (pairs, samples, None),
        ]:
            learner.teach(x, label)
        rows = np.delete(rows, index)
    np.testing.assert_allclose(pairs.predict_proba(dataset), expected.predict_proba(X), rtol=1e-8)


def test_what_it_is_given(digits):
    with pytest.raises(InvalidTypeError, match=r"'query_strategy' parameter of LinearizedLearner.*entropy"):
        LinearizedLearner(make_net(), entropy)
    with pytest.raises(InvalidParameterError, match=r"retraining='linearized'.*retrain"):
        LinearizedLearner(make_net(), NTKLookahead(retraining="retrain"))
    with pytest.raises(InvalidParameterError, match="retrain_every"):
        LinearizedLearner(make_net(), retrain_every=0)
    assert isinstance(LinearizedLearner(make_net(), ntk_lookahead).query_strategy, NTKLookahead)
    learner = make_learner(digits)
    for name in ("bootstrap", "only_new"):
        with pytest.raises(InvalidParameterError, match=name):
            learner.teach(digits.X[:1], digits.y[:1], **{name: True})
    with pytest.raises(InvalidParameterError, match="n_instances"):
        learner.query(digits.X[:5], n_instances=6)
    assert skal.LinearizedLearner is LinearizedLearner


def test_cross_entropy_is_named_with_the_criteria_for_squared_loss(digits):
    learner = make_learner(digits, NTKLookahead(criterion="mlmoc"), net=make_net(criterion=nn.CrossEntropyLoss))
    with pytest.warns(CrossEntropyWarning):
        learner.query(digits.X[12:20])


def test_predictions_follow_the_strategys_parameters(digits):
    learner = make_learner(digits, NTKLookahead())
    before = learner.predict_proba(digits.X[:5])
    learner.query_strategy.set_params(ridge=1.0)
    fresh = LinearizedLearner(learner.estimator, NTKLookahead(ridge=1.0))
    fresh.X_training, fresh.y_training = learner.X_training, learner.y_training
    after = learner.predict_proba(digits.X[:5])
    assert not np.allclose(before, after)
    np.testing.assert_allclose(after, fresh.predict_proba(digits.X[:5]))


@pytest.mark.parametrize("name", ["ntk_lookahead", "auto", None])
def test_a_strategy_may_be_named(name, learner_and_pool):
    learner = learner_and_pool[0]
    named = LinearizedLearner(learner.estimator, name)
    assert type(named.query_strategy) is NTKLookahead
    assert LinearizedLearner(learner.estimator, "ntk_lookahead(ridge=0.5)").query_strategy.ridge == 0.5
    with pytest.raises(InvalidTypeError, match="must be an NTKLookahead"):
        LinearizedLearner(learner.estimator, "margin")
