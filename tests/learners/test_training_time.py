"""The linearised network after a finite time, against gradient descent on the linearised model itself."""

import numpy as np
import pytest
import torch

from skal import LinearizedLearner
from skal.datasets import load
from skal.exceptions import InvalidParameterError
from skal.nets import MLP, SquaredLoss
from skal.strategies import NTKLookahead

from ..support.learners import net_of
from ..support.oracle import jacobian

N, M = 8, 5
STRATEGY = NTKLookahead(criterion="mlmoc", kernel="entk", ridge=1e-9)


@pytest.fixture(scope="module")
def problem():
    """A network with random weights, N labelled samples and M others, outputs and Jacobians of all of them."""
    torch.manual_seed(0)
    net = net_of(MLP(64, 10, hidden=(6,)).double(), SquaredLoss)
    digits = load("digits")
    X, y = digits.X_train[: N + M].reshape(-1, 64).astype(np.float64), digits.y_train[:N]
    J = np.asarray(jacobian(net.module_, X))  # (n, C, P)
    with torch.no_grad():
        f = net.module_(torch.as_tensor(X)).numpy()
    return net, X, y, J, f


def linearized(problem, time, **params):
    net, X, y, *_ = problem
    learner = LinearizedLearner(net, STRATEGY, training_time=time, **params)
    learner.X_training, learner.y_training = X[:N], y
    return learner


def centre(f):
    """Outputs without what a softmax does not see."""
    return f - f.mean(axis=1, keepdims=True)


def outputs(problem, time):
    """What the learner predicts, as the outputs behind a softmax."""
    return centre(np.log(linearized(problem, time).predict_proba(problem[1])))


def descent(problem, time, n_steps):
    """Steps of gradient descent on the parameters θ of ``f + J θ``, from θ = 0."""
    _, _, y, J, f = problem
    Y, theta = np.eye(10)[y], np.zeros(J.shape[2])
    for _ in range(n_steps):
        wrong = f[:N] + J[:N] @ theta - Y  # (N, C)
        theta = theta - time / n_steps * np.einsum("nc,ncp->p", wrong, J[:N])
    return f + J @ theta


@pytest.mark.parametrize("relative", [0.3, 3.0, 30.0])
def test_is_where_gradient_descent_arrives(problem, relative):
    """With half the learning rate gradient descent is half as far away: it tends to what is predicted."""
    *_, J, _ = problem
    flat = J[:N].reshape(N * 10, -1)
    time = relative / np.linalg.eigvalsh(flat @ flat.T)[-1]
    found = outputs(problem, time)
    away = [np.abs(centre(descent(problem, time, n)) - found).max() for n in (400, 800)]
    moved = np.abs(found - centre(problem[-1])).max()
    assert away[1] < 0.02 * moved
    assert away[0] / away[1] == pytest.approx(2, rel=0.05)


def test_no_time_changes_nothing_and_a_long_one_is_convergence(problem):
    np.testing.assert_allclose(outputs(problem, 0.0), centre(problem[-1]), atol=1e-12)
    np.testing.assert_allclose(outputs(problem, 1e9), outputs(problem, None), atol=1e-4)


def test_scores_and_predictions_are_those_of_that_network(problem):
    learner = linearized(problem, 0.1)
    found = descent(problem, 0.1, 5000)
    assert learner.predict(problem[1]).tolist() == found.argmax(1).tolist()
    again = learner.predict_proba(problem[1])  # the second time from what is kept
    np.testing.assert_allclose(again, torch.softmax(torch.as_tensor(found), 1).numpy(), atol=1e-4)


def test_cross_entropy_is_refused(problem):
    learner = LinearizedLearner(net_of(MLP(64, 10).double()), STRATEGY, training_time=1.0)
    learner.X_training, learner.y_training = problem[1][:N], problem[2]
    with pytest.raises(InvalidParameterError, match=r"'training_time' parameter of LinearizedLearner .*SquaredLoss"):
        learner.predict(problem[1])


@pytest.mark.parametrize("time", [-1.0, float("nan"), float("inf")])
def test_times_that_are_none(problem, time):
    with pytest.raises(InvalidParameterError, match="'training_time' parameter of LinearizedLearner"):
        linearized(problem, time)
