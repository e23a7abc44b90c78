"""What NTK look-ahead is measured against, each beside a slow version written out."""

import copy
import warnings

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel
from skorch import NeuralNetClassifier
from torch import nn

from skal._lookahead.comparators import infinite_kernel
from skal.checks import check_nll_loss, check_probabilities, check_untouched, make_learner
from skal.config import config_context
from skal.exceptions import InvalidParameterError
from skal.nets import MLP, SquaredLoss
from skal.strategies import NTKLookahead

from ..support.learners import learner_of

CRITERIA = ["mlmoc", "emoc", "eer"]
RIDGE = 1e-3
N_LABELLED, N_POOL, C = 9, 7, 3


@pytest.fixture(scope="module")
def problem():
    """A learner in float64 whose network has not quite fitted its labels, and a pool."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N_LABELLED + N_POOL, 5))
    y = rng.integers(C, size=N_LABELLED)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = NeuralNetClassifier(
            MLP(5, C, hidden=(8, 6)).double(),
            criterion=SquaredLoss,
            lr=0.2,
            optimizer__momentum=0.5,
            max_epochs=5,
            batch_size=4,
            train_split=None,
            verbose=0,
        ).fit(X[:N_LABELLED], y)
    return learner_of(net, X[:N_LABELLED], y), X[N_LABELLED:]


def strategy(**params):
    return NTKLookahead(
        **({"criterion": "mlmoc", "n_features": None, "evaluation": None, "ridge": RIDGE, "random_state": 0} | params)
    )


def softmax(f):
    p = np.exp(f - f.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def scores_of(criterion, new_outputs, reference, before):
    """The definitions: new_outputs(j, y) -> (N, C) after retraining; reference and before (N, C)."""
    scores = []
    for j, p in enumerate(softmax(before)):
        if criterion == "mlmoc":
            scores.append(np.linalg.norm(new_outputs(j, before[j].argmax()) - reference, axis=1).sum())
        elif criterion == "emoc":
            changes = [np.linalg.norm(new_outputs(j, y) - reference, axis=1).sum() for y in range(C)]
            scores.append(p @ changes)
        else:
            after = [softmax(new_outputs(j, y)) for y in range(C)]
            scores.append(-p @ [-(q * np.log(q)).sum() for q in after])
    return np.array(scores)


def outputs_of(module, X):
    with torch.no_grad():
        return module.eval()(torch.as_tensor(X)).double().numpy()


# --- direct -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("kernel", ["pntk", "logit", "entk"])
@pytest.mark.parametrize("reference", ["network", "linearized"])
@pytest.mark.parametrize("evaluation", [None, 4])
def test_the_direct_solve_gives_the_same_scores(problem, criterion, kernel, reference, evaluation):
    params = {"criterion": criterion, "kernel": kernel, "reference": reference, "evaluation": evaluation}
    closed_form = strategy(**params).scores(*problem)
    np.testing.assert_allclose(strategy(**params, retraining="direct").scores(*problem), closed_form, rtol=1e-8)


@pytest.mark.parametrize("kernel", ["pntk", "entk"])
def test_the_direct_solve_in_little_memory(problem, kernel):
    direct = strategy(retraining="direct", kernel=kernel, criterion="emoc")
    expected = direct.scores(*problem)
    # room for the kernel between three candidates and the pool at a time
    with config_context(max_memory=3 * 2 * 8 * (N_POOL + 1) * (1 if kernel == "pntk" else C**2)):
        np.testing.assert_allclose(direct.scores(*problem), expected, rtol=1e-8)


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("retraining", ["direct", "infinite", "gp"])
def test_copies_of_labelled_samples_come_last(problem, criterion, retraining):
    learner, pool = problem
    pool = np.concatenate([learner.X_training[:2], pool])
    for ridge in (0.0, 1e-4):
        scores = strategy(retraining=retraining, criterion=criterion, ridge=ridge).scores(learner, pool)
        assert np.isfinite(scores).all()
        assert scores[:2].max() <= scores[2:].min()
        if criterion != "eer":
            assert (scores[:2] == 0).all()


# --- the infinitely wide network --------------------------------------------------------------------------------------


def wide(X, Z):
    """MLP with two hidden layers: three linear ones."""
    return infinite_kernel(torch.as_tensor(X), torch.as_tensor(Z), depth=3).numpy()


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("reference", ["network", "linearized"])
def test_infinite_solves_with_the_kernel_of_the_infinitely_wide_network(problem, criterion, reference):
    learner, pool = problem
    X, Y = learner.X_training, np.eye(C)[learner.y_training]
    f_L, f = (outputs_of(copy.deepcopy(learner.estimator.module_), Z) for Z in (X, pool))
    rho = RIDGE * wide(X, X).diagonal().mean()

    def trained_on(X, residuals):
        return f + wide(pool, X) @ np.linalg.solve(wide(X, X) + rho * np.eye(len(X)), residuals)

    def new_outputs(j, y):
        return trained_on(np.r_[X, pool[[j]]], np.r_[Y - f_L, np.eye(C)[[y]] - f[[j]]])

    start = f if reference == "network" else trained_on(X, Y - f_L)
    expected = scores_of(criterion, new_outputs, start, f)
    actual = strategy(retraining="infinite", criterion=criterion, reference=reference).scores(learner, pool)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


class WideKernel(Kernel):
    """The same kernel as scikit-learn wants it."""

    def __init__(self):
        pass

    def __call__(self, X, Y=None, eval_gradient=False):
        K = wide(X, X if Y is None else Y)
        return (K, np.empty((*K.shape, 0))) if eval_gradient else K

    def diag(self, X):
        return wide(X, X).diagonal().copy()

    def is_stationary(self):
        return False


@pytest.mark.parametrize("criterion", CRITERIA)
def test_gp_is_scikit_learns_gaussian_process(problem, criterion):
    learner, pool = problem
    X, Y = learner.X_training, np.eye(C)[learner.y_training]
    rho = RIDGE * wide(X, X).diagonal().mean()

    def mean(X, Y):
        process = GaussianProcessRegressor(WideKernel(), alpha=rho, optimizer=None, normalize_y=False)
        return process.fit(X, Y).predict(pool)

    before = mean(X, Y)
    expected = scores_of(criterion, lambda j, y: mean(np.r_[X, pool[[j]]], np.r_[Y, np.eye(C)[[y]]]), before, before)
    actual = strategy(retraining="gp", criterion=criterion).scores(learner, pool)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_gp_does_without_the_network_and_its_loss(problem):
    learner, pool = problem
    other = copy.deepcopy(learner)
    with torch.no_grad():
        other.estimator.module_.fc.weight.mul_(-1)
    cross_entropy = copy.deepcopy(learner)
    cross_entropy.estimator.criterion_ = nn.CrossEntropyLoss()
    for learner_ in (other, cross_entropy):
        gp = strategy(retraining="gp")
        np.testing.assert_array_equal(gp.scores(learner_, pool), gp.scores(learner, pool))


# --- real training ----------------------------------------------------------------------------------------------------


def trained(learner, X, y, n_epochs, batch_size):
    net = learner.estimator
    module = copy.deepcopy(net.module_).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=net.lr, momentum=0.5)
    for _ in range(n_epochs):
        for start in range(0, len(X), batch_size):
            part = slice(start, start + batch_size)
            optimizer.zero_grad()
            SquaredLoss()(module(torch.as_tensor(X[part])), torch.as_tensor(y[part])).backward()
            optimizer.step()
    return module


@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("retraining", ["one_step", "retrain"])
def test_scores_of_real_training(problem, criterion, retraining):
    learner, pool = problem
    before = outputs_of(copy.deepcopy(learner.estimator.module_), pool)

    def new_outputs(j, y):
        if retraining == "one_step":
            module = trained(learner, pool[[j]], np.array([y]), 1, 1)
        else:
            module = trained(learner, np.r_[learner.X_training, pool[[j]]], np.r_[learner.y_training, y], 5, 4)
        return outputs_of(module, pool)

    expected = scores_of(criterion, new_outputs, before, before)
    actual = strategy(retraining=retraining, criterion=criterion).scores(learner, pool)
    np.testing.assert_allclose(actual, expected, rtol=1e-8)


@pytest.mark.parametrize("retraining", ["one_step", "retrain"])
def test_nothing_is_linearised_in_real_training(problem, retraining):
    with pytest.raises(InvalidParameterError, match="'reference' parameter of NTKLookahead must be 'network'"):
        strategy(retraining=retraining, reference="linearized").scores(*problem)


@pytest.mark.parametrize("retraining", ["direct", "one_step", "retrain", "infinite", "gp"])
@pytest.mark.parametrize("check", [check_untouched, check_nll_loss, check_probabilities], ids=lambda c: c.__name__)
def test_conformance(retraining, check):
    """The other checks are about what all ways of retraining share."""
    learner, pool = make_learner()
    if retraining == "retrain":
        learner.estimator.set_params(max_epochs=1)
    reference = "network" if retraining in ("one_step", "retrain", "gp") else "linearized"
    check(NTKLookahead(criterion="mlmoc", retraining=retraining, reference=reference), learner, pool[:14])


def test_real_training_has_no_quarrel_with_cross_entropy():
    learner, pool = make_learner()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = NTKLookahead(criterion="mlmoc", retraining="one_step").scores(learner, pool[:5])
    assert (scores > 0).all()
