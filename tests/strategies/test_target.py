"""A target in the place of the pool: coverage and variance over it against slow sums in float64."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import TensorDataset

import skal
from skal import ActiveLearner, ActiveLearningClassifier
from skal.config import config_context
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError, InvalidTypeError, NonFiniteError, NoTargetWarning, TwoLevelWarning
from skal.nets import MLP
from skal.strategies import DynamicAL, MaxHerding, NTKLookahead, ProbCover, UHerding, max_herding

from ..support import oracle
from ..support.learners import learner_of, net_of, strategy_named, untrained
from .test_coverage import assert_greedy, learner_on
from .test_lookahead_variance import softmax

STRATEGIES = [MaxHerding(), UHerding(), NTKLookahead(kernel="rbf"), NTKLookahead(batch="top", kernel="linear")]


def unit(X):
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.fixture
def data():
    """Labelled samples, a pool of five groups, and a target near two of them."""
    rng = np.random.default_rng(0)
    centres = 3 * rng.normal(size=(5, 16))
    y = np.arange(20) % 5
    X_pool = centres[np.arange(120) % 5] + rng.normal(size=(120, 16))
    target = centres[np.arange(30) % 2] + rng.normal(size=(30, 16))
    return learner_on(centres[y] + rng.normal(size=(20, 16)), y), X_pool, target


def covering(pool, labelled, target, weights, picked, sigma):
    """All gains before each pick: ``Σ_t w(t) max(k(t, x) − c(t), 0)`` with rbf similarities."""

    def similarity(x, z):
        return np.exp(-((x[:, None] - z[None]) ** 2).sum(-1) / sigma**2)

    covered, rows = similarity(target, labelled).max(1), []
    for j in picked:
        rows.append((weights[:, None] * np.clip(similarity(target, pool) - covered[:, None], 0, None)).sum(0))
        covered = np.maximum(covered, similarity(target, pool[j : j + 1])[:, 0])
    return np.array(rows)


def margins(learner, X, temperature=1.0):
    p = learner.estimator.predict_proba(X) ** (1 / temperature)
    p = np.sort(p / p.sum(1, keepdims=True), axis=1)
    return 1 - (p[:, -1] - p[:, -2])


@pytest.mark.parametrize("by_weights", [False, True], ids=["samples", "weights"])
def test_max_herding_covers_the_target(data, by_weights):
    learner, X_pool, X = data
    weights = np.random.default_rng(1).uniform(size=120) * (np.arange(120) % 3 > 0)
    target, w, what = (X_pool, weights, weights) if by_weights else (X, np.ones(30), X)
    picked, gains = MaxHerding(target=what).select(learner, X_pool, 12)
    assert_greedy(picked, gains, covering(unit(X_pool), unit(learner.X_training), unit(target), w, picked, 1.0))


@pytest.mark.parametrize("by_weights", [False, True], ids=["samples", "weights"])
def test_uherding_weighs_by_the_uncertainty_at_the_target(data, by_weights):
    learner, X_pool, X = data
    weights = np.random.default_rng(1).uniform(size=120) * (np.arange(120) % 3 > 0)
    target, w, what = (X_pool, weights, weights) if by_weights else (X, np.ones(30), X)
    strategy = UHerding(target=what, radius=0.8, temperature=2.0)
    picked, gains = strategy.select(learner, X_pool, 12)
    w = w * margins(learner, target, 2.0)
    assert_greedy(picked, gains, covering(unit(X_pool), unit(learner.X_training), unit(target), w, picked, 0.8))


def test_scores_of_a_strategy_are_those_of_the_targets_samples():
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
    learner = learner_of(net_of(MLP(6, 4, hidden=(12,))), X[:10], np.arange(10) % 4)
    strategy = UHerding(uncertainty="dynamics", target=X[70:], features="input", radius=0.7)
    picked, gains = strategy.select(learner, X[10:70], 10)
    scores, exact = DynamicAL().scores(learner, X[70:]), unit(X.astype(np.float64))
    found = covering(exact[10:70], exact[:10], exact[70:], scores - scores.min(), picked, 0.7)
    assert_greedy(picked, gains, found, rtol=1e-4)


class Variance:
    """The formulas with a dense kernel of pool and target and explicit conditioning."""

    def __init__(self, K, n, N, a, v, t, noise, ridge):
        L, rest = slice(n), slice(n, None)
        self.S = K[rest, rest] - K[rest, L] @ np.linalg.inv(K[L, L] + ridge * np.eye(n)) @ K[L, rest]
        self.N, self.a, self.v, self.t, self.noise = N, a, v, t, noise

    def scores(self):
        found = np.zeros(self.N)
        for j in range(self.N):
            for x in range(len(self.S)):
                found[j] += self.a[j] * self.v[x] * self.S[x, j] ** 2 / (1 + self.t[j] * self.S[j, j])
        return found

    def batch(self, b):
        picked, gains = [], []
        for _ in range(b):
            scores = self.scores()
            scores[picked] = -np.inf
            j = int(scores.argmax())
            picked.append(j)
            gains.append(scores[j])
            self.S = self.S - np.outer(self.S[:, j], self.S[:, j]) / (self.S[j, j] + self.noise[j])
        return picked, gains


def tangent_variance(learner, X_pool, target, weights, kernel="pntk", ridge=1e-2):
    """Weights v of pool and target together; τ is that of the pool."""
    module = learner.estimator.module_
    X = np.concatenate([learner.X_training, X_pool, target])
    J, f = oracle.jacobian(module, X), oracle.logits(module, X)
    n, N = len(learner.X_training), len(X_pool)
    K = oracle.kernel(J, J, kernel)
    K = K / K[:n, :n].diagonal().mean()
    g, z = 1 - np.square(softmax(f[n:])).sum(1), f[n : n + N]
    tau = np.square(z - z.mean(1, keepdims=True)).mean()
    return Variance(K, n, N, g, g * weights, tau * g, np.full(N, ridge), ridge)


@pytest.mark.parametrize(("kernel", "n_features"), [("pntk", "auto"), ("pntk", None), ("trace", "auto")])
@pytest.mark.parametrize("by_weights", [False, True], ids=["samples", "weights"])
def test_look_ahead_reduces_the_variance_over_the_target(kernel, n_features, by_weights):
    torch.manual_seed(0)
    learner, X = untrained(MLP(5, 3, hidden=(7, 6)).double(), (5,), 6, 24)
    X_pool, target = X[:14], X[14:]
    weights = np.random.default_rng(1).uniform(size=14) * (np.arange(14) % 3 > 0)
    what, v = (weights, np.r_[weights, np.zeros(10)]) if by_weights else (target, np.repeat([0.0, 1.0], [14, 10]))
    strategy = NTKLookahead(kernel=kernel, n_features=n_features, target=what)
    dense = tangent_variance(learner, X_pool, target, v, kernel)
    np.testing.assert_allclose(strategy.scores(learner, X_pool), dense.scores(), rtol=1e-6)
    picked, gains = strategy.select(learner, X_pool, 6)
    expected, of_oracle = dense.batch(6)
    assert picked.tolist() == expected
    np.testing.assert_allclose(gains, of_oracle, rtol=1e-6)


@pytest.mark.parametrize("by_weights", [False, True], ids=["samples", "weights"])
def test_look_ahead_on_features_reduces_the_variance_over_the_target(data, by_weights):
    learner, X_pool, target = data
    weights = np.random.default_rng(1).uniform(size=120) * (np.arange(120) % 3 > 0)
    what, w = (weights, np.r_[weights, np.zeros(30)]) if by_weights else (target, np.repeat([0.0, 1.0], [120, 30]))
    X = unit(np.concatenate([learner.X_training, X_pool, target]))
    K = np.exp(-((X[:, None] - X[None]) ** 2).sum(-1) / 0.8**2)
    m = margins(learner, np.concatenate([X_pool, target]))
    h = np.maximum(m, 0.01)
    dense = Variance(K, 20, 120, h / 0.1, m * w, h / 0.1, 0.1 / h, 0.1)
    strategy = NTKLookahead(kernel="rbf", radius=0.8, target=what)
    np.testing.assert_allclose(strategy.scores(learner, X_pool), dense.scores(), rtol=1e-6)
    picked, gains = strategy.select(learner, X_pool, 6)
    expected, of_oracle = dense.batch(6)
    assert picked.tolist() == expected
    np.testing.assert_allclose(gains, of_oracle, rtol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_weights_of_one_are_the_pool_and_a_factor_changes_no_pick(data, strategy):
    learner, X_pool, _ = data
    plain, metrics = strategy.select(learner, X_pool, 8)
    for factor in (1.0, 3.0):
        aimed = clone(strategy).set_params(target=np.full(120, factor))
        picked, found = aimed.select(learner, X_pool, 8)
        np.testing.assert_array_equal(picked, plain)
        np.testing.assert_allclose(found, factor * metrics, rtol=1e-6)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_the_order_of_pool_and_target_does_not_matter(data, strategy):
    learner, X_pool, target = data
    rng = np.random.default_rng(2)
    order, other = rng.permutation(120), rng.permutation(30)
    picked = clone(strategy).set_params(target=target).select(learner, X_pool, 8)[0]
    moved = clone(strategy).set_params(target=target[other]).select(learner, X_pool[order], 8)[0]
    np.testing.assert_array_equal(order[moved], picked)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_weights_belong_to_rows_whatever_is_left_of_the_pool(data, strategy):
    learner, X_pool, _ = data
    weights = np.random.default_rng(3).uniform(size=120)
    left = np.flatnonzero(np.arange(120) % 4 > 0)
    picked = clone(strategy).set_params(target=weights).select(learner, X_pool, 8, candidates=left)[0]
    of_left = clone(strategy).set_params(target=weights[left]).select(learner, X_pool[left], 8)[0]
    np.testing.assert_array_equal(picked, left[of_left])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_where_nothing_that_counts_is_left_all_count_alike(data, strategy):
    learner, X_pool, _ = data
    weights = (np.arange(120) < 10).astype(float)
    left = np.arange(10, 120)
    picked = clone(strategy).set_params(target=weights).select(learner, X_pool, 8, candidates=left)[0]
    np.testing.assert_array_equal(picked, 10 + strategy.select(learner, X_pool[10:], 8)[0])


@pytest.mark.parametrize("strategy", STRATEGIES, ids=repr)
def test_an_evaluation_set_stands_for_the_target(data, strategy):
    learner, X_pool, target = data
    many = np.concatenate([target] * 40)
    aimed = clone(strategy).set_params(target=many)
    some = clone(aimed).set_params(evaluation=600, random_state=0)
    exact, found = (s.select(learner, X_pool, 1)[1] for s in (aimed.set_params(evaluation=None), some))
    np.testing.assert_allclose(found, exact, rtol=0.1)


def test_a_pool_that_does_not_fit_beside_the_target_is_chosen_from_in_two_stages(data):
    learner, X_pool, target = data
    X = np.concatenate([X_pool + 1e-3 * i for i in range(20)])
    strategy = NTKLookahead(kernel="rbf", target=target)
    at_once = strategy.select(learner, X, 5)
    with config_context(max_memory="2MB"), pytest.warns(TwoLevelWarning, match="of 2430 samples"):
        picked, gains = strategy.select(learner, X, 5)
    assert picked[0] == at_once[0][0]
    np.testing.assert_allclose(gains, at_once[1], rtol=1e-6)
    with config_context(max_memory="2MB"):
        np.testing.assert_allclose(
            strategy.scores(learner, X), NTKLookahead(kernel="rbf", target=target).scores(learner, X)
        )


@pytest.mark.parametrize("strategy", [NTKLookahead(n_features=None), NTKLookahead(), UHerding()], ids=repr)
def test_targets_come_in_every_container(strategy):
    torch.manual_seed(0)
    learner, X = untrained(MLP(5, 3, hidden=(7, 6)), (5,), 6, 34, dtype=np.float32)
    X_pool, target = X[:20], X[20:]
    expected = clone(strategy).set_params(target=target).select(learner, X_pool, 4)[0]
    tensor = clone(strategy).set_params(target=torch.as_tensor(target))
    np.testing.assert_array_equal(tensor.select(learner, torch.as_tensor(X_pool), 4)[0], expected)
    dataset = clone(strategy).set_params(target=TensorDataset(torch.as_tensor(target)))
    labelled = learner_of(learner.estimator, TensorDataset(torch.as_tensor(learner.X_training)), learner.y_training)
    pool = TensorDataset(torch.as_tensor(X_pool))
    np.testing.assert_array_equal(dataset.select(labelled, pool, 4)[0], expected)


def test_clones_share_the_samples_and_costs_count_them(data):
    learner, X_pool, target = data
    strategy = MaxHerding(target=target)
    assert clone(strategy).target is target
    assert strategy.cost(learner, X_pool, 3).memory > 0
    assert MaxHerding(target=np.arange(120) > 100).cost(learner, X_pool, 3).memory > 0
    assert ProbCover().target is None  # which has none to set
    assert "target" not in ProbCover().get_params()


BAD = [
    (
        np.zeros((4, 15)),
        InvalidParameterError,
        r"'target' parameter .* of shape \(16,\)\. Got .*shape \(15,\).*columns",
    ),
    (np.zeros((0, 16)), InvalidParameterError, "'target' parameter .* at least one sample"),
    (np.full((4, 16), np.nan), NonFiniteError, "target must be finite"),
    (np.ones(119), InvalidParameterError, "'target' parameter .* each of the 120 rows.* Got .*119 weights.*candidates"),
    (-np.ones(120), InvalidParameterError, "'target' parameter .* weights >= 0"),
    (np.zeros(120), InvalidParameterError, "'target' parameter .* at least one of them larger"),
    (np.full(120, np.nan), NonFiniteError, "'target' parameter .* finite weights"),
    ([], InvalidParameterError, "'target' parameter .* at least one of them larger"),
    ("deploy", InvalidTypeError, "'target' parameter .* samples like those of the pool"),
    (3.0, InvalidTypeError, "'target' parameter .* samples like those of the pool"),
]


@pytest.mark.parametrize(("target", "error", "message"), BAD)
@pytest.mark.parametrize("strategy", [MaxHerding(), UHerding(), NTKLookahead(), strategy_named("auto")], ids=repr)
def test_bad_targets_are_named(data, strategy, target, error, message):
    learner, X_pool, _ = data
    with pytest.raises(error, match=f"(?s){message}"):
        clone(strategy).set_params(target=target).select(learner, X_pool, 3)


def test_other_columns_of_a_frame_are_named(data):
    learner, X_pool, target = data
    names = [f"x{i}" for i in range(16)]
    frame, other = pd.DataFrame(X_pool, columns=names), pd.DataFrame(target, columns=[*names[:-1], "y"])
    with pytest.raises(InvalidParameterError, match=r"x15.*Got .*x14, y"):
        MaxHerding(target=other).select(learner_on(learner.X_training), frame, 3)


def test_criteria_that_sum_over_the_pool_have_no_target():
    with pytest.raises(
        InvalidParameterError, match="'target' parameter of NTKLookahead must be None with criterion='mlmoc'"
    ):
        NTKLookahead(criterion="mlmoc", target=np.ones(5)).select(learner_of(None), np.ones((5, 2)), 1)
    with pytest.raises(InvalidParameterError, match="without a target"):
        skal.LinearizedLearner(net_of(MLP(4, 2)), NTKLookahead(target=np.ones(5)))


def test_auto_hands_the_target_on(data):
    learner, X_pool, target = data
    frozen = learner_of(learner.estimator, unit(learner.X_training), learner.y_training)
    auto = strategy_named("auto").set_params(target=unit(target))
    picked = auto.select(frozen, unit(X_pool), 5)[0]
    assert isinstance(auto.strategy_, UHerding)
    np.testing.assert_array_equal(picked, clone(auto.strategy_).select(frozen, unit(X_pool), 5)[0])
    assert auto.strategy_.target is auto.target
    start = strategy_named("auto").set_params(target=unit(target))
    picked = start.select(learner_on(X_pool), unit(X_pool), 5)[0]
    assert isinstance(start.strategy_, MaxHerding)
    np.testing.assert_array_equal(
        picked, MaxHerding(features="prepared", target=unit(target)).select(frozen_start(), unit(X_pool), 5)[0]
    )


def frozen_start():
    return learner_of(LogisticRegression())


def test_auto_says_so_where_it_cannot():
    X = np.ones((30, 3))
    with pytest.warns(NoTargetWarning, match="RandomSampling, which has no target: no labels yet"):
        strategy_named("auto").set_params(target=X[:4]).select(frozen_start(), X, 2)


def test_auto_covers_a_target_where_it_would_take_badge():
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 2300), nn.ReLU(), nn.Linear(2300, 2200), nn.ReLU(), nn.Linear(2200, 3)
    )
    learner, X = untrained(module, (3, 2, 2), 6, 40, dtype=np.float32)
    auto = strategy_named("auto").set_params(target=X[30:])
    picked = auto.select(learner, X[:30], 3)[0]
    assert isinstance(auto.strategy_, UHerding)
    np.testing.assert_array_equal(picked, UHerding(target=X[30:]).select(learner, X[:30], 3)[0])


@pytest.mark.parametrize("by_weights", [False, True], ids=["samples", "weights"])
def test_a_loop_hands_the_target_on_from_the_first_sample(data, by_weights):
    _, X_pool, target = data
    y = np.arange(120) % 5
    what = (y < 2).astype(float) if by_weights else target
    loop = ActiveLearningClassifier(LogisticRegression(), n_initial=4, query_size=6, n_rounds=1, random_state=0)
    told = clone(loop).fit(X_pool, y, target=what)
    session = clone(loop).start(X_pool, target=what)
    for rows in session:
        session.tell(y[rows])
    np.testing.assert_array_equal(told.queried_, session.classifier.queried_)
    named = ActiveLearningClassifier(
        LogisticRegression(),
        UHerding(features="prepared", kernel="forest", target=what),
        initial=MaxHerding(features="prepared", normalize=False, target=what),
        n_initial=4,
        query_size=6,
        n_rounds=1,
        random_state=0,
    ).fit(X_pool, y)
    np.testing.assert_array_equal(told.queried_, named.queried_)
    by_name = clone(loop).set_params(query_strategy="uherding").fit(X_pool, y, target=what)
    assert (y[by_name.queried_] < 2).mean() > 0.7  # two of five groups matter


def test_a_loop_refuses_a_strategy_without_a_target(data):
    loop = ActiveLearningClassifier(LogisticRegression(), "margin")
    with pytest.raises(InvalidParameterError, match=r"query_strategy.*takes a target.*Margin\(\).*'auto'"):
        loop.start(data[1], target=data[2])


def test_functions_and_learners_take_it_too(data):
    learner, X_pool, target = data
    expected = MaxHerding(target=target).select(learner, X_pool, 3)[0]
    np.testing.assert_array_equal(max_herding(learner, X_pool, 3, target=target), expected)
    asked = ActiveLearner(learner.estimator, max_herding, learner.X_training, learner.y_training)
    np.testing.assert_array_equal(asked.query(X_pool, 3, target=target)[0], expected)


def test_an_aim_is_the_pool_some_of_it_or_other_samples(data):
    learner, X_pool, target = data
    context = QueryContext(learner, X_pool)
    assert context.aim().part is context
    part = context.restrict(np.arange(50, 120)).aim(np.arange(120.0))
    np.testing.assert_array_equal(part.weights, np.arange(50.0, 120))
    np.testing.assert_array_equal(part.rows, np.arange(70))
    other = context.aim(target)
    np.testing.assert_array_equal(other.part.predict_proba(), learner.estimator.predict_proba(target))
