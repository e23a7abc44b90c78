"""Expected variance reduction against a dense kernel, an explicit inverse and explicit conditioning, in float64."""

import re
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from torch import nn

from skal import ntk_lookahead
from skal._lookahead.feature_reader import FeatureReader
from skal._lookahead.query import make_source
from skal._lookahead.request import Settings
from skal._lookahead.variance import VarianceGains, logit_variance, newton_importance
from skal.config import config_context
from skal.exceptions import InvalidParameterError, SkalWarning, TwoLevelWarning
from skal.nets import CNN, MLP, SquaredLoss
from skal.strategies import NTKLookahead

from ..support import oracle
from ..support.learners import learner_of, untrained

KERNELS = ["pntk", "trace", "entk"]


def mlp(seed=0, criterion=nn.CrossEntropyLoss, n_pool=14, **params):
    torch.manual_seed(seed)
    return untrained(MLP(5, 3, hidden=(7, 6)).double(), (5,), 6, n_pool, criterion=criterion, seed=seed, **params)


def cnn(seed=0, criterion=nn.CrossEntropyLoss, **params):
    torch.manual_seed(seed)
    return untrained(CNN(1, 3, image_size=8).double(), (1, 8, 8), 6, 14, criterion=criterion, seed=seed, **params)


def softmax(z):
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


class Dense:
    """The formulas as they are printed, with a kernel of all samples; blocks of size B for the matrix kernel."""

    def __init__(self, learner, X_pool, kernel="pntk", *, ridge=1e-2, temperature=1.0, to_logits=lambda f: f):
        module = learner.estimator.module_
        X = np.concatenate([learner.X_training, X_pool])
        J, f = oracle.jacobian(module, X, to_logits), oracle.logits(module, X, to_logits)
        self.n, self.N = len(learner.X_training), len(X_pool)
        self.B = B = J.shape[1] if kernel == "entk" else 1
        K = oracle.kernel(J, J, kernel)
        L = slice(self.n * B)
        K = K / K[L, L].diagonal().mean()
        self.ridge = ridge
        U = slice(self.n * B, None)
        self.S = K[U, U] - K[U, L] @ np.linalg.inv(K[L, L] + ridge * np.eye(self.n * B)) @ K[L, U]
        z = f[self.n :] / temperature
        self.g = 1 - np.square(softmax(z)).sum(1)
        self.tau = np.square(z - z.mean(1, keepdims=True)).mean()

    def block(self, x, z):
        return self.S[x * self.B : (x + 1) * self.B, z * self.B : (z + 1) * self.B]

    def scores(self):
        scores = np.zeros(self.N)
        for j in range(self.N):
            inner = np.linalg.inv(np.eye(self.B) + self.tau * self.g[j] * self.block(j, j))
            for x in range(self.N):
                cross = self.block(x, j)
                scores[j] += self.g[j] * self.g[x] * np.trace(cross @ inner @ cross.T) / self.B
        return scores

    def take(self, j):
        columns = self.S[:, j * self.B : (j + 1) * self.B]
        u = self.block(j, j) + self.ridge * np.eye(self.B)
        self.S = self.S - columns @ np.linalg.inv(u) @ columns.T

    def batch(self, b):
        picked, gains = [], []
        for _ in range(b):
            scores = self.scores()
            scores[picked] = -np.inf
            picked.append(int(scores.argmax()))
            gains.append(scores[picked[-1]])
            self.take(picked[-1])
        return picked, gains


@pytest.mark.parametrize("n_features", [None, "auto"], ids=["exact", "features"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("make", [mlp, cnn])
@pytest.mark.parametrize(("criterion", "temperature"), [(nn.CrossEntropyLoss, 1.0), (SquaredLoss, 0.15)])
def test_all_picks_of_a_batch_are_those_of_the_dense_kernel(make, kernel, n_features, criterion, temperature):
    learner, X_pool = make(criterion=criterion)
    strategy = NTKLookahead(kernel=kernel, n_features=n_features)
    first = Dense(learner, X_pool, kernel, temperature=temperature).scores()
    np.testing.assert_allclose(strategy.scores(learner, X_pool), first, rtol=1e-8)
    indices, metrics = strategy.select(learner, X_pool, 14)
    picked, gains = Dense(learner, X_pool, kernel, temperature=temperature).batch(14)
    assert indices.tolist() == picked
    np.testing.assert_allclose(metrics, gains, rtol=1e-6, atol=1e-12 * gains[0])


def test_it_is_the_default_and_warns_of_nothing():
    learner, X_pool = cnn()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        indices = ntk_lookahead(learner, X_pool, 4)
    assert indices.tolist() == Dense(learner, X_pool).batch(4)[0]
    ridge = NTKLookahead(criterion="variance", batch="greedy", ridge=1e-2, kernel="pntk")
    assert indices.tolist() == ridge(learner, X_pool, 4).tolist()


@pytest.mark.parametrize(("n_features", "tolerance"), [("auto", 1e-7), (64, 1e-3)], ids=["float64", "float32"])
@pytest.mark.parametrize(("evaluation", "ridge"), [(None, 1e-2), (40, 1e-2), (40, 1.0)])
def test_sums_that_are_kept_make_the_same_choice_as_those_made_anew(evaluation, ridge, n_features, tolerance):
    learner, X_pool = small_digits()
    if n_features == "auto":
        learner.estimator.module_.double()  # products are made in the network's precision
    strategy = NTKLookahead(evaluation=evaluation, ridge=ridge, n_features=n_features, random_state=0)
    context = strategy.prepare(learner, X_pool)
    settings = Settings.of(strategy)
    source = make_source(context, settings, np.random.default_rng(0), len(X_pool))
    rows = settings.evaluation_rows(context, np.random.default_rng(1))

    def fresh():
        posterior = source.posterior(context.pool, np.arange(len(X_pool)), rows, None)
        beliefs, tau = posterior.outputs.beliefs, logit_variance(posterior.outputs.logits)
        return posterior, VarianceGains(posterior, newton_importance(beliefs, tau, posterior.rho, posterior.scale))

    chosen, scores = fresh()[1].choose(100)
    posterior, gains = fresh()
    for pick, score in zip(chosen.tolist(), scores.tolist(), strict=True):
        gains.P = gains.sums()
        now = gains.scores().masked_fill_(~posterior.free, -torch.inf)
        assert pick == int(now.argmax())
        assert score == pytest.approx(float(now.max()), rel=tolerance)
        posterior.take(pick, float(gains.importance.noise[pick]))
        posterior.settle()


def test_top_takes_the_first_scores():
    learner, X_pool = cnn()
    indices, metrics = NTKLookahead(batch="top").select(learner, X_pool, 5)
    scores = NTKLookahead().scores(learner, X_pool)
    assert indices.tolist() == np.argsort(-scores, kind="stable")[:5].tolist()
    np.testing.assert_array_equal(metrics, scores[indices])


class OneOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


class WithSoftmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x):
        return torch.softmax(self.layers(x), dim=1)


def test_binary_networks():
    torch.manual_seed(0)
    learner, X_pool = untrained(OneOutput().double(), (5,), 6, 14, n_classes=2, criterion=nn.BCEWithLogitsLoss)
    learner.y_training = learner.y_training.astype(np.float64)
    dense = Dense(learner, X_pool, to_logits=lambda z: torch.cat([torch.zeros_like(z), z], dim=1))
    indices, metrics = NTKLookahead().select(learner, X_pool, 6)
    picked, gains = dense.batch(6)
    assert indices.tolist() == picked
    np.testing.assert_allclose(metrics, gains, rtol=1e-7)


def test_nll_networks_work_on_the_logits_behind_the_softmax():
    torch.manual_seed(0)
    learner, X_pool = untrained(WithSoftmax().double(), (5,), 6, 14, criterion=nn.NLLLoss)
    behind = learner_of(NeuralNetClassifier(learner.estimator.module_.layers, train_split=None).initialize())
    behind.X_training, behind.y_training = learner.X_training, learner.y_training
    assert NTKLookahead().select(learner, X_pool, 6)[0].tolist() == Dense(behind, X_pool).batch(6)[0]


@pytest.mark.parametrize("n_features", [None, "auto"], ids=["exact", "features"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_copies_of_labelled_samples_gain_nothing_and_come_last(kernel, n_features):
    learner, X_pool = cnn()
    X_pool = np.concatenate([X_pool[:6], X_pool[:2], learner.X_training[:3]])
    strategy = NTKLookahead(kernel=kernel, n_features=n_features)
    assert not strategy.scores(learner, X_pool)[-3:].any()
    indices, metrics = strategy.select(learner, X_pool, 11)
    assert sorted(indices.tolist()) == list(range(11))
    assert len(set((indices[:6] % 6).tolist())) == 6  # a sample and its copy are one
    assert (metrics[:6] > 0).all()
    assert not metrics[6:].any()


def small_digits(n_labelled=40, n_pool=150, epochs=15):
    X, y = load_digits(return_X_y=True)
    X = (X / 16).astype(np.float32).reshape(-1, 1, 8, 8)
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        CNN(1, 10, image_size=8),
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.Adam,
        lr=3e-3,
        max_epochs=epochs,
        train_split=None,
        verbose=0,
    )
    net.fit(X[:n_labelled], y[:n_labelled])
    return learner_of(net, X[:n_labelled], y[:n_labelled]), X[n_labelled : n_labelled + n_pool]


def test_sketched_features_come_close():
    """With a sketch of 2,048 numbers, scores are off by less than 5 % of the largest."""
    learner, X_pool = small_digits()
    exact = NTKLookahead(n_features=None).scores(learner, X_pool)
    errors = [
        np.abs(NTKLookahead(n_features=k, random_state=0).scores(learner, X_pool) - exact).max() / exact.max()
        for k in (64, 2048)
    ]
    assert errors[1] < 0.05
    assert errors[1] < errors[0]


@pytest.mark.parametrize("n_features", [None, 512])
def test_an_evaluation_set_stands_for_the_pool(n_features):
    learner, X_pool = small_digits()
    whole = NTKLookahead(n_features=None, evaluation=None).scores(learner, X_pool)
    draws = [
        NTKLookahead(n_features=n_features, evaluation=50, random_state=seed).scores(learner, X_pool)
        for seed in range(8)
    ]
    assert abs(np.mean(draws, axis=0).sum() / whole.sum() - 1) < 0.1
    indices, metrics = NTKLookahead(n_features=n_features, evaluation=50, random_state=0).select(learner, X_pool, 10)
    assert len(set(indices.tolist())) == 10
    assert metrics[0] == pytest.approx(draws[0].max(), rel=1e-6)


@pytest.mark.parametrize(("n_features", "max_memory"), [(64, "2MB"), (None, "200KB")])
def test_a_pool_that_does_not_fit_is_chosen_from_in_two_stages(n_features, max_memory):
    sketched = n_features is not None
    learner, X_pool = small_digits(n_pool=400) if sketched else mlp(n_pool=150)
    whole = NTKLookahead(n_features=n_features, evaluation=40 if sketched else 20, random_state=0)
    with config_context(max_memory=max_memory):
        with pytest.warns(TwoLevelWarning, match="two stages"):
            indices, metrics = whole.select(learner, X_pool, 6)
        scores = whole.scores(learner, X_pool)
    assert indices[0] == scores.argmax()
    assert metrics[0] == pytest.approx(scores.max(), rel=1e-5)
    assert len(set(indices.tolist())) == 6
    gains = whole.select(learner, X_pool, 6)[1]
    assert metrics.sum() >= 0.8 * gains.sum()
    if not sketched:  # a tighter bound changes what is sketched
        np.testing.assert_allclose(scores, whole.scores(learner, X_pool), rtol=1e-4)


@pytest.mark.parametrize(
    ("params", "evaluation"),
    [
        ({"n_features": 64}, None),
        ({"n_features": None}, None),
        ({"n_features": None}, 10),
        ({}, 10),
        ({"kernel": "rbf"}, 10),
    ],
    ids=str,
)
def test_a_bound_that_is_too_small_names_one_that_is_enough(params, evaluation):
    exact = "n_features" in params and params["n_features"] is None
    learner, X_pool = mlp() if exact else small_digits(n_pool=60, epochs=1)

    def query(max_memory):
        strategy = NTKLookahead(**params, evaluation=evaluation, random_state=0)
        with warnings.catch_warnings(), config_context(max_memory=max_memory):
            warnings.simplefilter("ignore", TwoLevelWarning)
            return strategy.select(learner, X_pool, 2)[0]

    bound = 800 if exact else 20_000
    for _ in range(3):  # with more room other features are kept, which may take a little more
        with pytest.raises(InvalidParameterError, match=r"max_memory.*about \d+ bytes") as error:
            query(bound)
        bound = int(re.search(r"about (\d+) bytes", str(error.value)).group(1))
        try:
            assert len(set(query(bound).tolist())) == 2
            return
        except InvalidParameterError:
            continue
    pytest.fail(f"{bound} bytes are still too little")


def test_covariances_are_made_in_parts_that_fit(monkeypatch):
    learner, X_pool = small_digits(n_pool=300, epochs=2)
    sizes = []
    whole = FeatureReader.covariance

    def counted(self, here, there):
        sizes.append(len(here.prior) * len(there.prior))
        return whole(self, here, there)

    monkeypatch.setattr(FeatureReader, "covariance", counted)
    with config_context(max_memory="8MB"):
        NTKLookahead(n_features=64, random_state=0).select(learner, X_pool, 3)
    # a quarter of the bound for what is made, of which there are four; a number has eight bytes
    assert sum(sizes) >= 300 * 301 / 2
    assert max(sizes) <= 8e6 / 4 / 4 / 8


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"criterion": "volume"}, "'criterion' parameter of NTKLookahead"),
        ({"retraining": "retrain"}, "'criterion' parameter.*'mlmoc', 'emoc' or 'eer' with retraining='retrain'"),
        ({"retraining": "gp"}, "'criterion' parameter.*retraining='linearized'"),
        ({"criterion": "eer", "batch": "greedy", "retraining": "direct"}, "'batch' parameter.*'top'"),
        ({"batch": "best"}, "'batch' parameter"),
        ({"ridge": -1.0}, "'ridge' parameter"),
        ({"evaluation": 15}, "'evaluation' parameter.*at most the number of samples that take part \\(14\\)"),
        ({"evaluation": 6, "subset": 5}, "'evaluation' parameter.*\\(5\\)"),
    ],
    ids=str,
)
def test_bad_parameters_are_named(params, message):
    learner, X_pool = mlp()
    for ask in (lambda s: s.scores(learner, X_pool), lambda s: s.select(learner, X_pool, 3)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkalWarning)
            with pytest.raises(InvalidParameterError, match=message):
                ask(NTKLookahead(**params))


def test_a_kernel_without_a_positive_diagonal_is_refused():
    torch.manual_seed(0)
    learner, X_pool = untrained(nn.Linear(5, 3, bias=False).double(), (5,), 6, 14)
    learner.X_training = np.zeros_like(learner.X_training)
    with pytest.raises(InvalidParameterError, match=r"'kernel' parameter of NTKLookahead.*positive diagonal"):
        NTKLookahead().select(learner, X_pool, 3)
