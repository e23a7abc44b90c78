"""Strategies on regressors: which of them work, which refuse, and what they compute, written from the formulas."""

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skal import ActiveLearner, config_context, strategies
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError, InvalidTypeError, NonFiniteError, OutputError
from skal.strategies import BADGE, BAIT, LCMD, MaxDet, NTKLookahead, PredictiveStd, UHerding
from skal.tangent import tangent_features, tangent_kernel

from ..support.learners import learner_of
from ..support.oracle import jacobian, slow_herding, slow_k_means_plus_plus
from ..support.regressors import Numbers, fit_net, make_regression_learner, make_targets, tangent_rows

ABLE = ["RandomSampling", "CoreSet", "MaxHerding", "UHerding", "TypiClust", "ProbCover", "NPC", "NTKLookahead", "BAIT"]
ABLE += ["BADGE", "LCMD", "MaxDet", "PredictiveStd"]
UNABLE = ["Margin", "Entropy", "LeastConfidence", "BALD", "EGL", "DynamicAL", "LearningLoss", "ALBL", "Falcun", "EPIG"]
UNABLE += ["ClusterMargin", "DropQuery"]

X, Y = make_targets(50, 2)
KINDS = {
    "one output": lambda: (fit_net(X[:12], Y[:12, :1]), Y[:12, :1]),
    "one output without a dimension": lambda: (fit_net(X[:12], Y[:12, 0], flat=True), Y[:12, 0]),
    "two outputs": lambda: (fit_net(X[:12], Y[:12]), Y[:12]),
    "forest": lambda: (RandomForestRegressor(10, random_state=0).fit(X[:12], Y[:12, 0]), Y[:12, 0]),
    "forest, two targets": lambda: (RandomForestRegressor(10, random_state=0).fit(X[:12], Y[:12]), Y[:12]),
    "pipeline": lambda: (make_pipeline(StandardScaler(), Ridge()).fit(X[:12], Y[:12, 0]), Y[:12, 0]),
    "transformed target": lambda: (
        TransformedTargetRegressor(Ridge(), transformer=StandardScaler()).fit(X[:12], Y[:12, 0]),
        Y[:12, 0],
    ),
    "neighbours": lambda: (KNeighborsRegressor().fit(X[:12], Y[:12]), Y[:12]),
}


def learner_for(kind):
    estimator, y = KINDS[kind]()
    return learner_of(estimator, X[:12], y)


def strategy_of(name):
    cls = getattr(strategies, name)
    return cls(random_state=0) if "random_state" in cls._get_param_names() else cls()


PAIRS = [(name, kind) for name in ABLE for kind in KINDS if name != "NPC" or "output" in kind]  # it needs a network


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_distinct_and_whatever_the_order_of_the_pool(name, kind):
    learner, X_pool = learner_for(kind), X[12:]
    assert QueryContext(learner, X_pool).task == "regression"
    strategy = strategy_of(name)
    indices, metrics = strategy.select(learner, X_pool, 6)
    assert len(set(indices.tolist())) == 6
    if not strategy.draws_from_pool:
        order = np.random.default_rng(1).permutation(len(X_pool))
        again, values = strategy.select(learner, X_pool[order], 6)
        assert values == pytest.approx(metrics, rel=1e-5)
        # samples that end in the same leaves of all trees are alike, and the first of them is taken
        assert order[again].tolist() == indices.tolist() or "forest" in kind


@pytest.mark.parametrize("kind", ["one output", "forest"])
@pytest.mark.parametrize("name", UNABLE)
def test_others_refuse_in_words(name, kind):
    with pytest.raises(InvalidTypeError, match=rf"task of {name} must be .*Got regression \(numbers\).*LCMD"):
        strategy_of(name).select(learner_for(kind), X[12:], 2)


def test_the_refusal_of_dynamic_al_says_why():
    with pytest.raises(InvalidTypeError, match=r"of a number that leaves a gradient of zero\. Got regression"):
        strategy_of("DynamicAL").select(learner_for("one output"), X[12:], 2)


@pytest.mark.parametrize("criterion", ["mlmoc", "emoc", "eer"])
def test_look_ahead_has_no_label_to_guess(criterion):
    with pytest.raises(InvalidTypeError, match="NTKLookahead must be classification"):
        NTKLookahead(criterion=criterion).select(learner_for("one output"), X[12:], 2)


def slow_variance(pool, labelled, n_instances, ridge):
    """Gain Σ_z S(z, x)² / (s² + S(x, x)), greedy; everything is solved anew for every pick."""
    known, picked, gains = list(labelled), [], []
    noise = ridge * np.square(labelled).sum(axis=1).mean()
    for _ in range(n_instances):
        L = np.array(known)
        S = pool @ pool.T - (pool @ L.T) @ np.linalg.solve(L @ L.T + noise * np.eye(len(L)), L @ pool.T)
        gain = np.square(S).sum(axis=0) / (noise + np.diag(S))
        gain[picked] = -np.inf
        picked.append(int(gain.argmax()))
        gains.append(gain.max())
        known.append(pool[picked[-1]])
    return picked, np.array(gains) * ridge / noise


@pytest.mark.parametrize("k", [1, 2])
def test_variance_look_ahead_with_a_network(k):
    learner, X_pool = make_regression_learner(k=k)
    picked, gains = slow_variance(*tangent_rows(learner, X_pool), 10, ridge=1e-4)
    indices, metrics = NTKLookahead(n_features=None).select(learner, X_pool, 10)
    assert indices.tolist() == picked
    assert metrics / metrics[0] == pytest.approx(gains / gains[0], rel=1e-5)


def test_variance_look_ahead_with_a_forest():
    """The kernel is the covariance of the trees' predictions."""
    learner = learner_for("forest")
    trees = np.stack([tree.predict(X) for tree in learner.estimator.estimators_], axis=1)
    phi = (trees - trees.mean(axis=1, keepdims=True)) / np.sqrt(10)
    picked, _ = slow_variance(phi[12:], phi[:12], 8, ridge=1e-4)
    assert NTKLookahead().select(learner, X[12:], 8)[0].tolist() == picked


def slow_bait(phi, labelled, n_instances, ridge=1.0):
    """Twice as many samples as asked for, each lowering tr(M⁻¹F) most; then the least useful are given back."""
    F = phi.T @ phi / len(phi)

    def objective(rows):
        M = ridge * np.eye(phi.shape[1]) + labelled.T @ labelled + phi[rows].T @ phi[rows]
        return np.trace(np.linalg.solve(M, F))

    chosen = []
    for _ in range(2 * n_instances):
        chosen.append(min((i for i in range(len(phi)) if i not in chosen), key=lambda i: objective([*chosen, i])))
    while len(chosen) > n_instances:
        chosen.remove(min(chosen, key=lambda i: objective([j for j in chosen if j != i])))
    return set(chosen)


@pytest.mark.parametrize("k", [1, 2])
def test_bait_of_numbers_weighs_all_samples_alike(k):
    learner, X_pool = make_regression_learner(k=k)
    with torch.no_grad():
        hidden = learner.estimator.module_.body(torch.as_tensor(np.concatenate([X_pool, learner.X_training]))).numpy()
    scale = np.sqrt(np.square(hidden[: len(X_pool)]).mean())
    phi = np.concatenate([hidden / scale, np.ones((len(hidden), 1))], axis=1)
    expected = slow_bait(phi[: len(X_pool)], phi[len(X_pool) :], 5)
    assert set(BAIT().select(learner, X_pool, 5)[0].tolist()) == expected


@pytest.mark.parametrize("k", [1, 2])
def test_badge_measures_the_distances_of_gradients(k):
    """Every pick at its distance from those before."""
    learner, X_pool = make_regression_learner(k=k)
    phi = QueryContext(learner, X_pool).features("tangent").double().numpy()
    indices, squares = BADGE(random_state=0).select(learner, X_pool, 12)
    assert indices[0] == np.square(phi).sum(axis=1).argmax()
    assert squares == pytest.approx(slow_k_means_plus_plus(phi, indices))
    pool, _ = tangent_rows(learner, X_pool)  # the features are a sketch of these
    estimate = phi @ phi.T / np.square(phi).sum(axis=1).mean()
    assert np.abs(estimate - pool @ pool.T).mean() < 0.05


@pytest.mark.parametrize("k", [1, 2])
def test_badge_draws_by_the_squared_distances(k):
    """Second and third pick: each with a probability in proportion to its squared distance to those before."""
    learner, X_pool = make_regression_learner(n_pool=5, k=k)
    phi = QueryContext(learner, X_pool).features("tangent").double().numpy()
    squares = np.square(phi[:, None] - phi[None]).sum(axis=2)
    first = int(np.square(phi).sum(axis=1).argmax())
    law = np.zeros((5, 5))
    for i in set(range(5)) - {first}:
        nearest = np.minimum(squares[first], squares[i])
        law[i] = squares[first, i] / squares[first].sum() * nearest / nearest.sum()
    strategy, counts = BADGE(random_state=np.random.default_rng(0)), np.zeros((5, 5))
    for _ in range(300):
        picked = strategy.select(learner, X_pool, 3)[0]
        assert picked[0] == first
        counts[picked[1], picked[2]] += 1
    possible = law > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], 300 * law[possible]).pvalue > 1e-3
    uniform = np.full(possible.sum(), 300 / possible.sum())
    assert chisquare(counts[possible], uniform).pvalue < 1e-6


@pytest.mark.parametrize("kind", ["forest", "one output"])
def test_herding_is_weighed_by_deviations(kind):
    learner = learner_for(kind)
    if kind == "forest":
        weights = np.std([tree.predict(X[12:]) for tree in learner.estimator.estimators_], axis=0)
    else:
        pool, labelled = tangent_rows(learner, X[12:])
        A = labelled @ labelled.T + 1e-4 * np.eye(12)
        K = pool @ labelled.T
        weights = np.sqrt(np.square(pool).sum(axis=1) - (K * np.linalg.solve(A, K.T).T).sum(axis=1))
    expected = slow_herding(X, 12, weights, radius=0.5, n_instances=8)
    strategy = UHerding(uncertainty="auto", features="input", radius=0.5)
    assert strategy.select(learner, X[12:], 8)[0].tolist() == expected


def test_the_tangent_engine_takes_one_output():
    module = Numbers().double()
    J = jacobian(module, X[:6])[:, 0]
    assert tangent_kernel(module, X[:6]) == pytest.approx(J @ J.T)
    assert tangent_kernel(module, X[:6], kind="trace") == pytest.approx(J @ J.T)
    assert tangent_features(Numbers(flat=True).double(), X[:6], n_features=None).shape == J.shape


@pytest.mark.parametrize("name", ["LCMD", "PredictiveStd", "NTKLookahead", "CoreSet"])
def test_the_estimator_stays_as_it_is(name):
    learner = learner_for("two outputs")
    before = {key: value.clone() for key, value in learner.estimator.module_.state_dict().items()}
    strategy_of(name).select(learner, X[12:], 3)
    assert all(torch.equal(before[key], value) for key, value in learner.estimator.module_.state_dict().items())


def test_a_learner_goes_on_from_query_to_query():
    learner = ActiveLearner(fit_net(X[:5], Y[:5]), LCMD(), X_training=X[:5], y_training=Y[:5])
    indices, samples = learner.query(X[5:], n_instances=4)
    learner.teach(samples, Y[5:][indices])
    assert learner.y_training.shape == (9, 2)
    assert learner.query(X[5:], n_instances=4)[0].tolist() != indices.tolist()


@pytest.mark.parametrize(
    ("y", "error", "text"),
    [
        (np.full(12, np.nan), NonFiniteError, "y of the learner must be finite.*12 such values"),
        (np.array(["a"] * 12), InvalidParameterError, "must be numbers"),
        (np.zeros((12, 2, 2)), InvalidParameterError, r"Got shape \(12, 2, 2\)"),
    ],
    ids=["nan", "text", "shape"],
)
def test_bad_targets_are_named(y, error, text):
    learner = learner_of(Ridge().fit(X[:12], Y[:12, 0]), X[:12], y)
    with pytest.raises(error, match=text):
        NTKLookahead().select(learner, X[12:], 2)


def test_outputs_of_the_wrong_shape_are_named():
    class Volume(Numbers):
        def forward(self, x):
            return super().forward(x)[:, :, None]

    net = fit_net(X[:12], Y[:12, :1])
    net.module_.__class__ = Volume
    with pytest.raises(OutputError, match=r"n_outputs >= 1\)\. Got \(\d+, 1, 1\)"):
        LCMD().select(learner_of(net, X[:12], Y[:12, :1]), X[12:], 2)


@pytest.mark.parametrize("n_labelled", [3, 12])  # fewer than columns, and more
@pytest.mark.parametrize("cls", [MaxDet, PredictiveStd, BAIT])
def test_a_number_that_stands_for_unknown(cls, n_labelled):
    """It tells what its column does, and hides nothing of the others."""
    known, picks = X[:n_labelled].astype(np.float64), []
    for far in (1e6, 1e30):
        known[0, 1] = far
        learner = learner_of(Ridge().fit(X[:12], Y[:12, 0]), known, Y[:n_labelled, 0])
        picks.append(cls(features="input").select(learner, X[12:].astype(np.float64), 6)[0].tolist())
    assert picks[0] == picks[1]


def test_features_that_do_not_fit_into_memory():
    """A part of the pool takes part in a choice; deviations of all are the same as at once."""
    learner, X_pool = make_regression_learner(n_pool=800)
    at_once = PredictiveStd().scores(learner, X_pool)
    with config_context(max_memory="1MB"):  # gradients of 73 numbers: room for some 400 samples of 800
        assert PredictiveStd().scores(learner, X_pool) == pytest.approx(at_once)
        for strategy in (LCMD(random_state=0), MaxDet(random_state=0)):
            indices, _ = strategy.select(learner, X_pool, 5)
            assert len(set(indices.tolist())) == 5
    ridge = learner_of(Ridge().fit(X[:12], Y[:12]), X[:12], Y[:12])
    with config_context(max_memory="10kB"), pytest.raises(InvalidParameterError, match=r"'max_memory' .* 100 samples"):
        LCMD(features="input").select(ridge, np.tile(X, (4, 1)), 100)
