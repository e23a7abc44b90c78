"""NTK look-ahead on networks: gradients by autograd, one at a time, and a solve for every sample and label."""

import re
import warnings
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from joblib import parallel_config
from scipy.stats import kendalltau
from sklearn.datasets import load_digits
from skorch import NeuralNetClassifier
from torch import nn

import skal
from skal._lookahead.query import make_source
from skal._lookahead.request import Settings
from skal.config import config_context
from skal.datasets import load
from skal.exceptions import (
    CrossEntropyWarning,
    InvalidParameterError,
    InvalidTypeError,
    NoLabelledDataError,
    OutputError,
    SkalError,
)
from skal.nets import CNN, MLP, SquaredLoss
from skal.strategies import NTKLookahead, ntk_lookahead

from ..support import oracle
from ..support.learners import learner_of, untrained

CRITERIA = ["mlmoc", "emoc", "eer"]
RIDGE = 1e-4


def make_learner(module, shape, n_labelled=6, n_pool=12, criterion=SquaredLoss, **params):
    """An untrained net, which does not interpolate its labels."""
    return untrained(module, shape, n_labelled, n_pool, criterion=criterion, **params)


def source_of(strategy, context, n_kept):
    return make_source(context, Settings.of(strategy), np.random.default_rng(0), n_kept)


def mlp(seed=0, **params):
    torch.manual_seed(seed)
    return make_learner(MLP(5, 3, hidden=(7, 6)).double(), (5,), seed=seed, **params)


def cnn(seed=0, **params):
    torch.manual_seed(seed)
    return make_learner(CNN(1, 3, image_size=8).double(), (1, 8, 8), seed=seed, **params)


def softmax(f):
    e = np.exp(f - f.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Oracle:
    """Every augmented system built and solved."""

    def __init__(self, learner, X_pool, kernel="pntk", squared_loss=True, ridge=RIDGE, to_logits=lambda f: f):
        module = learner.estimator.module_
        X = np.concatenate([learner.X_training, X_pool])
        J, self.f = oracle.jacobian(module, X, to_logits), oracle.logits(module, X, to_logits)
        C = J.shape[1]
        self.matrix = kernel == "entk"
        features = {"pntk": J.sum(1) / np.sqrt(C), "logit": J[:, 0], "entk": J.reshape(-1, J.shape[2])}[kernel]
        self.K = features @ features.T
        self.n, self.N, self.C = len(learner.X_training), len(X_pool), C
        self.B = C if self.matrix else 1
        self.y = np.asarray(learner.y_training).astype(int)
        self.link = self.f if squared_loss else softmax(self.f)
        self.rho = ridge * self.K.diagonal()[: self.n * self.B].mean()

    def retrained(self, labels):
        """(N, C) outputs at the pool after labelling candidates {j: label}."""
        samples = [*range(self.n), *(self.n + j for j in labels)]
        rows = (np.array(samples)[:, None] * self.B + np.arange(self.B)).ravel()
        residuals = np.eye(self.C)[[*self.y, *labels.values()]] - self.link[samples]
        system = self.K[np.ix_(rows, rows)] + self.rho * np.eye(len(rows))
        solved = np.linalg.solve(system, residuals.reshape(-1, 1) if self.matrix else residuals)
        moved = (self.K[self.n * self.B :][:, rows] @ solved).reshape(self.N, self.C)
        return self.f[self.n :] + moved

    def scores(self, criterion, reference="network", picked=None):
        picked = picked or {}
        start = self.f[self.n :] if reference == "network" else self.retrained(picked)
        left = [j for j in range(self.N) if j not in picked]
        scores = np.full(self.N, -np.inf)
        for j in left:
            f = self.f[self.n + j]
            labels = {int(f.argmax()): 1.0} if criterion == "mlmoc" else dict(enumerate(softmax(f)))
            scores[j] = 0.0
            for y, p in labels.items():
                new = self.retrained({**picked, j: y})[left]
                if criterion == "eer":
                    q = softmax(new)
                    scores[j] += p * (q * np.log(q)).sum()
                else:
                    scores[j] += p * np.linalg.norm(new - start[left], axis=1).sum()
        return scores


@pytest.mark.parametrize("n_features", [None, "auto"], ids=["exact", "features"])
@pytest.mark.parametrize("kernel", ["pntk", "logit", "entk"])
@pytest.mark.parametrize("reference", ["network", "linearized"])
@pytest.mark.parametrize(("make", "criterion"), [*((mlp, criterion) for criterion in CRITERIA), (cnn, CRITERIA[0])])
def test_equals_the_augmented_solve(make, criterion, reference, kernel, n_features):
    learner, X_pool = make()
    strategy = NTKLookahead(criterion=criterion, reference=reference, kernel=kernel, n_features=n_features, ridge=RIDGE)
    expected = Oracle(learner, X_pool, kernel).scores(criterion, reference)
    np.testing.assert_allclose(strategy.scores(learner, X_pool), expected, rtol=1e-8)


@pytest.mark.parametrize(("kernel", "retraining"), [("pntk", "linearized"), ("entk", "linearized"), ("pntk", "direct")])
@pytest.mark.parametrize("n_features", [None, "auto"], ids=["exact", "features"])
@pytest.mark.parametrize("ridge", [1e-4, 1e-2])
def test_equals_it_with_more_labels_than_the_kernel_has_ranks(kernel, retraining, n_features, ridge):
    """Every candidate's variance is then below the ridge: little is left to learn, but that little has an order."""
    torch.manual_seed(0)
    learner, X_pool = make_learner(MLP(5, 3, hidden=()).double(), (5,), n_labelled=40)
    strategy = NTKLookahead(criterion="mlmoc", kernel=kernel, retraining=retraining, n_features=n_features, ridge=ridge)
    expected = Oracle(learner, X_pool, kernel, ridge=ridge).scores("mlmoc")
    np.testing.assert_allclose(strategy.scores(learner, X_pool), expected, rtol=1e-8)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_equals_it_for_a_network_that_interpolates(criterion):
    torch.manual_seed(0)
    learner, X_pool = make_learner(MLP(5, 3, hidden=(12, 24)).double(), (5,))
    module = learner.estimator.module_
    with torch.no_grad():  # the last layer's least squares have an exact solution
        features = module.features(torch.as_tensor(learner.X_training))
        target = torch.eye(3).double()[torch.as_tensor(learner.y_training)]
        module.fc.weight += (torch.linalg.pinv(features) @ (target - module.fc(features))).T
        assert float((module.fc(features) - target).abs().max()) < 1e-12
    expected = Oracle(learner, X_pool).scores(criterion)
    np.testing.assert_allclose(
        NTKLookahead(criterion=criterion, ridge=RIDGE).scores(learner, X_pool), expected, rtol=1e-8
    )
    # nothing has moved yet: it makes no difference where change is measured from
    other = NTKLookahead(criterion=criterion, ridge=RIDGE, reference="linearized").scores(learner, X_pool)
    np.testing.assert_allclose(other, expected, rtol=1e-8)


@pytest.mark.parametrize("kernel", ["pntk", "entk"])
@pytest.mark.parametrize("criterion", CRITERIA)
def test_cross_entropy_compares_labels_with_probabilities_and_says_so(criterion, kernel):
    learner, X_pool = mlp(criterion=nn.CrossEntropyLoss)
    strategy = NTKLookahead(criterion=criterion, kernel=kernel, ridge=RIDGE)
    with pytest.warns(CrossEntropyWarning, match="CrossEntropyLoss.*reference='linearized'"):
        scores = strategy.scores(learner, X_pool)
    expected = Oracle(learner, X_pool, kernel, squared_loss=False).scores(criterion, "linearized")
    np.testing.assert_allclose(scores, expected, rtol=1e-8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agreed = strategy.set_params(reference="linearized").scores(learner, X_pool)
    assert np.array_equal(agreed, scores)


class OneOutput(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x):
        return self.layers(x)


def test_a_network_with_one_output_has_two_classes():
    torch.manual_seed(0)
    learner, X_pool = make_learner(OneOutput().double(), (5,), criterion=nn.BCEWithLogitsLoss)
    learner.y_training = (learner.y_training > 0).astype(np.float64)
    strategy = NTKLookahead(criterion="emoc", reference="linearized", ridge=RIDGE)
    both = lambda z: torch.cat([torch.zeros_like(z), z], dim=1)  # noqa: E731
    expected = Oracle(learner, X_pool, squared_loss=False, to_logits=both).scores("emoc", "linearized")
    np.testing.assert_allclose(strategy.scores(learner, X_pool), expected, rtol=1e-8)
    assert np.isfinite(strategy.set_params(kernel="entk").scores(learner, X_pool)).all()
    with pytest.raises(InvalidParameterError, match=r"'kernel' parameter of NTKLookahead.*first logit has no gradient"):
        strategy.set_params(kernel="logit").scores(learner, X_pool)


def sharpened(f):
    return torch.softmax(3 * f, dim=-1)


@pytest.mark.parametrize("criterion", ["emoc", "eer"])
def test_probabilities_of_squared_loss_nets_are_a_softmax_unless_the_user_sets_another(criterion):
    learner, X_pool = mlp(predict_nonlinearity=sharpened)
    plain, _ = mlp()
    strategy = NTKLookahead(criterion=criterion, ridge=RIDGE)
    oracle = Oracle(plain, X_pool)
    np.testing.assert_allclose(strategy.scores(plain, X_pool), oracle.scores(criterion), rtol=1e-8)
    global softmax
    own, softmax_ = softmax, lambda f: own(3 * f)
    try:
        softmax = softmax_
        expected = oracle.scores(criterion)
    finally:
        softmax = own
    np.testing.assert_allclose(strategy.scores(learner, X_pool), expected, rtol=1e-8)


def test_rows_that_are_no_distributions_are_refused():
    learner, X_pool = mlp(predict_nonlinearity=torch.square)
    with pytest.raises(OutputError, match="one distribution per row"):
        NTKLookahead(criterion="emoc").scores(learner, X_pool)


def test_a_linear_model_changes_as_retraining_to_convergence_changes_it():
    torch.manual_seed(0)
    learner, X_pool = make_learner(nn.Linear(30, 3).double(), (30,), n_labelled=6, n_pool=3)
    scores = NTKLookahead(criterion="mlmoc", ridge=0.0).scores(learner, X_pool)
    module = learner.estimator.module_
    start = module(torch.as_tensor(X_pool)).detach()
    state = {name: value.clone() for name, value in module.state_dict().items()}
    for j, x in enumerate(X_pool):
        module.load_state_dict(state)
        X = torch.as_tensor(np.concatenate([learner.X_training, x[None]]))
        y = torch.as_tensor([*learner.y_training, int(start[j].argmax())])
        optimizer = torch.optim.SGD(module.parameters(), lr=0.02)
        for _ in range(600):
            optimizer.zero_grad()
            loss = SquaredLoss(reduction="sum")(module(X), y)
            loss.backward()
            optimizer.step()
        assert float(loss.detach()) < 1e-20
        changed = (module(torch.as_tensor(X_pool)).detach() - start).norm(dim=1).sum()
        assert scores[j] == pytest.approx(float(changed), rel=1e-8)


@pytest.mark.parametrize("kernel", ["pntk", "entk"])
@pytest.mark.parametrize("n_features", [None, "auto"], ids=["exact", "features"])
@pytest.mark.parametrize("evaluation", [None, 5])
def test_greedy_conditions_on_the_predicted_label(kernel, n_features, evaluation):
    learner, X_pool = mlp()
    strategy = NTKLookahead(
        criterion="mlmoc",
        batch="greedy",
        kernel=kernel,
        n_features=n_features,
        evaluation=evaluation,
        ridge=RIDGE,
        random_state=0,
    )
    indices, metrics = strategy.select(learner, X_pool, 4)
    assert len(set(indices.tolist())) == 4
    if evaluation is not None:
        assert np.isfinite(metrics).all()
        return
    oracle, picked = Oracle(learner, X_pool, kernel), {}
    for j, metric in zip(indices, metrics, strict=True):
        scores = oracle.scores("mlmoc", picked=picked)
        assert j == scores.argmax()
        assert metric == pytest.approx(scores[j], rel=1e-8)
        picked[int(j)] = int(oracle.f[oracle.n + j].argmax())


@pytest.mark.parametrize("params", [{}, {"n_features": None}, {"kernel": "entk"}], ids=str)
@pytest.mark.parametrize("criterion", CRITERIA)
def test_greedy_continues_when_the_whole_evaluation_set_is_picked(criterion, params):
    learner, X_pool = mlp(n_pool=10)
    strategy = NTKLookahead(batch="greedy", criterion=criterion, evaluation=3, random_state=0, **params)
    indices, metrics = strategy.select(learner, X_pool, 10)
    assert sorted(indices) == list(range(10))
    assert np.isfinite(metrics).all()


@pytest.mark.parametrize("params", [{}, {"n_features": None}, {"kernel": "entk"}, {"criterion": "eer"}], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copies_of_labelled_samples_come_last(params, dtype):
    torch.manual_seed(0)
    module = CNN(1, 3, image_size=8).to(torch.float32 if dtype == np.float32 else torch.float64)
    learner, X_pool = make_learner(module, (1, 8, 8), dtype=dtype)
    X_pool = np.concatenate([learner.X_training[:3], X_pool, X_pool[:2]])
    for ridge in (0.0, 1e-8, 1e-4):
        for reference in ("network", "linearized"):
            strategy = NTKLookahead(ridge=ridge, reference=reference, **params)
            scores = strategy.scores(learner, X_pool)
            assert np.isfinite(scores).all()
            assert scores[:3].max() <= scores[3:].min()
            assert params.get("criterion") == "eer" or not scores[:3].any()
            np.testing.assert_allclose(scores[3:5], scores[-2:], rtol=1e-3)


@pytest.mark.parametrize("criterion", CRITERIA)
def test_greedy_takes_no_copy_while_other_samples_remain(criterion):
    learner, X_pool = mlp(dtype=np.float64)
    distinct = X_pool[:5]
    X_pool = np.concatenate([distinct, distinct, learner.X_training[:2]])
    strategy = NTKLookahead(batch="greedy", criterion=criterion, reference="linearized")
    indices, _ = strategy.select(learner, X_pool, 7)
    assert sorted(indices[:5] % 5) == list(range(5))
    assert (indices[:5] < 10).all()


@lru_cache
def trained(n_labelled, n_pool=100):
    """A small CNN trained on digits; most of its gradients are those of convolutions, which are sketched."""
    digits = load("digits")
    X, y = digits.X_train[: n_labelled + n_pool], digits.y_train[:n_labelled]
    torch.manual_seed(0)
    net = NeuralNetClassifier(
        CNN(1, 10, image_size=8),
        criterion=SquaredLoss,
        optimizer=torch.optim.Adam,
        lr=3e-3,
        batch_size=32,
        max_epochs=25,
        train_split=None,
        verbose=0,
    )
    net.fit(X[:n_labelled], y)
    return learner_of(net, X[:n_labelled], y), X[n_labelled:]


@pytest.mark.parametrize("criterion", CRITERIA)
def test_the_sketched_ranking_is_close_to_the_exact_one_and_comes_closer(criterion):
    learner, X_pool = trained(100)
    exact = NTKLookahead(criterion=criterion, n_features=None).scores(learner, X_pool)

    def tau(k):
        sketched = NTKLookahead(criterion=criterion, n_features=k, random_state=0).scores(learner, X_pool)
        return kendalltau(exact, sketched)[0]

    assert tau(2048) > 0.94
    assert tau(32) < tau(2048)
    assert tau("auto") == pytest.approx(1, abs=1e-3)  # shorter than the sketch: kept as they are


def test_projecting_comes_before_sketching():
    """The error of S is relative to what the labels leave, not to the gradients."""
    learner, X_pool = trained(300)
    N, k = len(X_pool), 256
    context = NTKLookahead(criterion="mlmoc").prepare(learner, X_pool)
    reader = source_of(NTKLookahead(criterion="mlmoc", n_features=k), context, N).reader
    features = reader.features(context.pool)
    S = reader.covariance(features, features).double()
    exact = source_of(NTKLookahead(criterion="mlmoc", n_features=None), context, N)
    truth = exact.posterior(context.pool, np.arange(N), np.arange(N), N).S
    # the same sketch of the gradients themselves: Rφ = ψ + (RΦ_L)ᵀα
    R_L = reader._folded.double()
    R = features.psi.double() + features.alpha @ R_L
    naive = R @ R.T
    for a, g in features.factors:
        naive += (a.double() @ a.double().T) * (g.double() @ g.double().T)
    K_CL = features.k_factors + R @ R_L.T
    K_LL = reader._K_factors + R_L @ R_L.T
    naive -= K_CL @ torch.linalg.solve(K_LL + reader.solver.rho * torch.eye(len(K_LL)), K_CL.T)

    def error(estimate):
        return float((estimate - truth).norm() / truth.norm())

    assert error(S) < 0.3
    assert error(S) < 0.7 * error(naive)
    torch.testing.assert_close(features.variance, truth.diagonal(), rtol=1e-3, atol=0)


@pytest.mark.parametrize("n_features", ["auto", None])
def test_a_pool_that_does_not_fit_is_scored_in_parts(n_features):
    learner, X_pool = mlp(n_pool=40)
    params = {"n_features": n_features, "evaluation": 5, "random_state": 0}
    whole = NTKLookahead(**params).scores(learner, X_pool)
    strategy = NTKLookahead(**params)
    with config_context(max_memory="40KB" if n_features else "10KB"):
        context = strategy.prepare(learner, X_pool)
        assert 6 < source_of(strategy, context, 6).room(5) < len(X_pool)
        np.testing.assert_allclose(strategy.scores(learner, X_pool), whole, rtol=1e-9)


def test_what_does_not_fit_is_sketched_too():
    learner, X_pool = trained(100)
    N = len(X_pool)
    context = NTKLookahead().prepare(learner, X_pool)

    def source(max_memory):
        strategy = NTKLookahead(n_features=256)
        with config_context(max_memory=max_memory, batch_size=16):
            return source_of(strategy, strategy.prepare(learner, X_pool), N)

    wide, narrow = source("100MB"), source("800KB")
    assert len(wide.reader.features(context.pool).factors) == 3
    assert len(narrow.reader.features(context.pool).factors) < 3
    assert narrow.reader._long is not None  # the labelled gradients do not fit either
    assert narrow.reader.bytes_per_sample * N <= 400_000
    variances = [s.posterior(context.pool, np.arange(N), np.arange(N), N).variance for s in (wide, narrow)]
    assert kendalltau(*variances)[0] > 0.5


def test_too_little_memory_is_an_error_that_says_what_to_do():
    learner, X_pool = mlp()
    message = r"setting max_memory must hold \d+ samples.*NTKLookahead.*about \d+ bytes.*subset"
    with config_context(max_memory=500), pytest.raises(InvalidParameterError, match=message):
        NTKLookahead().scores(learner, X_pool)
    with config_context(max_memory="3KB"), pytest.raises(InvalidParameterError, match=message):
        NTKLookahead(batch="greedy", n_features=None).select(learner, X_pool, 2)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"batch": "top"},
        {"criterion": "mlmoc", "reference": "linearized"},
        {"criterion": "mlmoc", "reference": "linearized", "batch": "greedy"},
        {"n_features": 20},
        {"n_features": None},
        {"features": "last_layer"},
        {"features": "last_layer", "batch": "top"},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::skal.exceptions.TwoLevelWarning")
def test_the_bound_that_is_named_is_about_enough(settings):
    learner, X_pool = mlp(n_pool=60)
    strategy, bound = NTKLookahead(evaluation=12, random_state=0, **settings), 2000
    for _ in range(3):
        try:
            with config_context(max_memory=bound):
                assert len(set(strategy.select(learner, X_pool, 3)[0])) == 3
            break
        except InvalidParameterError as error:
            named = int(re.search(r"about (\d+) bytes", str(error))[1])
            assert named > bound
            bound = named
    else:
        pytest.fail("what was named is refused")
    assert 2000 < bound < 2_000_000


def test_a_subset_is_scored_against_itself():
    learner, X_pool = mlp()
    strategy = NTKLookahead(subset=5, random_state=3)
    scores = strategy.scores(learner, X_pool)
    rows = np.flatnonzero(np.isfinite(scores))
    np.testing.assert_allclose(scores[rows], NTKLookahead().scores(learner, X_pool[rows]), rtol=1e-10)
    indices, _ = NTKLookahead(subset=5, random_state=3, batch="greedy").select(learner, X_pool, 5)
    assert sorted(indices) == rows.tolist()


def test_an_evaluation_set_estimates_the_whole_sum():
    learner, X_pool = mlp(n_pool=30)
    whole = NTKLookahead().scores(learner, X_pool)
    drawn = [NTKLookahead(evaluation=10, random_state=seed).scores(learner, X_pool) for seed in range(30)]
    error = np.std(drawn, axis=0) / np.sqrt(30)
    assert (np.abs(np.mean(drawn, axis=0) - whole) < 5 * error + 1e-9).all()
    assert error.max() > 0


@pytest.mark.filterwarnings("ignore::skal.exceptions.UnsteadyOutputWarning")
@pytest.mark.parametrize("where", ["pool", "labelled"])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_where_samples_use_the_network_differently_the_labelled_ones_are_read_again(where, n_jobs):
    class Switching(nn.Module):
        """Some samples use a layer that the others do not."""

        def __init__(self):
            super().__init__()
            self.first, self.more, self.last = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)

        def forward(self, x):
            h = torch.relu(self.first(x))
            if bool((x[:, 0] > 5).any()):
                h = h + self.more(h)
            return self.last(h)

    torch.manual_seed(0)
    learner, X_pool = make_learner(Switching().double(), (5,), n_pool=8)
    (X_pool if where == "pool" else learner.X_training)[5, 0] = 9.0
    strategy = NTKLookahead(criterion="mlmoc", ridge=RIDGE)
    expected = Oracle(learner, X_pool).scores("mlmoc")
    with parallel_config(backend="threading"), config_context(batch_size=1, n_jobs=n_jobs):
        np.testing.assert_allclose(strategy.scores(learner, X_pool), expected, rtol=1e-8)


def test_parameters():
    learner, X_pool = mlp()
    cases = [
        ({"criterion": "mloc"}, InvalidParameterError, "criterion"),
        ({"kernel": "ntk"}, InvalidParameterError, "kernel"),
        ({"retraining": "sgd"}, InvalidParameterError, "retraining"),
        ({"reference": None}, InvalidParameterError, "reference"),
        ({"batch": "best"}, InvalidParameterError, "batch"),
        ({"n_features": 0}, InvalidParameterError, "n_features"),
        ({"n_features": 2.5}, InvalidTypeError, "n_features"),
        ({"evaluation": "all"}, InvalidTypeError, "evaluation"),
        ({"ridge": -1.0}, InvalidParameterError, "ridge"),
        ({"ridge": float("inf")}, InvalidParameterError, "ridge"),
        ({"ridge": "large"}, InvalidTypeError, "ridge"),
        ({"criterion": "eer", "batch": "greedy", "retraining": "retrain"}, InvalidParameterError, "batch"),
    ]
    for params, error, name in cases:
        with pytest.raises(error, match=name) as caught:
            NTKLookahead(**params).scores(learner, X_pool)
        assert isinstance(caught.value, SkalError)
    with pytest.raises(NoLabelledDataError):
        NTKLookahead().scores(SimpleNamespace(estimator=learner.estimator), X_pool)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"n_features": 8},
        {"n_features": None},
        {"criterion": "mlmoc", "n_features": None, "evaluation": 5},
        {"kernel": "entk", "criterion": "emoc"},
        {"batch": "greedy"},
        {"batch": "greedy", "n_features": None, "evaluation": 5, "criterion": "eer"},
        {"criterion": "mlmoc", "batch": "greedy"},
        {"criterion": "mlmoc", "retraining": "direct"},
        {"criterion": "mlmoc", "retraining": "one_step"},
        {"criterion": "mlmoc", "retraining": "gp"},
    ],
    ids=str,
)
def test_tensors_are_made_where_the_network_is(params):
    """Not on a default device, of which the meta device is one that nothing can be read from."""
    in_parts = params == {"criterion": "mlmoc", "n_features": None, "evaluation": 5}
    learner, X_pool = mlp(n_pool=40 if in_parts else 12)
    strategy = NTKLookahead(random_state=0, **params)
    with config_context(max_memory="20KB" if in_parts else None):
        expected, _ = strategy.select(learner, X_pool, 3)
        with torch.device("meta"):
            assert strategy.select(learner, X_pool, 3)[0].tolist() == expected.tolist()


def test_it_is_exported():
    assert skal.NTKLookahead is NTKLookahead
    assert skal.ntk_lookahead is ntk_lookahead
    learner, X_pool = mlp()
    assert ntk_lookahead(learner, X_pool, 3).tolist() == NTKLookahead()(learner, X_pool, 3).tolist()


def _years():
    """80 samples with one unscaled column, which all gradients are nearly parallel to."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 5)).astype("float32")
    X[:, 0] = rng.integers(1950, 2020, 100)
    return X, rng.integers(0, 3, 100), lambda: MLP(5, 3, hidden=(16,)), 20


def _digits():
    X, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(y))[:240]
    return X[rows].astype("float32"), y[rows], lambda: MLP(64, 10, hidden=(32,)), 40


@pytest.mark.parametrize("batch", ["top", "greedy"])
@pytest.mark.parametrize("params", [{}, {"n_features": None}, {"n_features": None, "evaluation": 30}], ids=str)
@pytest.mark.parametrize(
    ("data", "dtype", "tolerance"),
    [(_years, "float32", 2e-5), (_digits, "float32", 1e-6), (_digits, "float16", 2e-2), (_digits, "bfloat16", 0.2)],
)
def test_samples_with_nearly_the_same_gradients_are_no_copies(data, dtype, tolerance, params, batch):
    X, y, make, n = data()
    torch.manual_seed(0)
    net = NeuralNetClassifier(make, criterion=SquaredLoss, train_split=None, verbose=0, max_epochs=3, lr=1e-6)
    net.fit(X[:n], y[:n])
    answers = []
    for precision in (torch.float64, getattr(torch, dtype)):
        net.module_.to(precision)
        learner = SimpleNamespace(estimator=net, X_training=X[:n], y_training=y[:n])
        strategy = NTKLookahead(criterion="mlmoc", batch=batch, random_state=0, **params)
        answers.append(strategy.scores(learner, X[n:]) if batch == "top" else strategy.select(learner, X[n:], 5)[1])
    expected, got = answers
    assert (expected > 0).all()
    np.testing.assert_allclose(got, expected, rtol=tolerance)
