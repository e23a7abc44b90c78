"""Label after label with cross-entropy: explicit conditioning, and every one-sample update solved by scipy."""

import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from skorch import NeuralNetClassifier
from torch import nn

from skal import LinearizedLearner
from skal._lookahead.sequential import newton_residual
from skal.nets import MLP
from skal.strategies import NTKLookahead

from ..support import oracle

RIDGE = 1e-2


def residual_by_minimising(f, S, label):
    """r with ``r = e_y − σ(f + S r)``."""

    def height(r):
        moved = f + S @ r
        return r @ S @ r / 2 + logsumexp(moved) - moved[label], S @ (r - np.eye(len(f))[label] + softmax(moved))

    start = np.eye(len(f))[label] - softmax(f)
    r = minimize(height, start, jac=True, method="BFGS", options={"gtol": 1e-13, "maxiter": 2000}).x
    return np.eye(len(f))[label] - softmax(f + S @ r)


class Dense:
    """Everything explicit: a kernel of labelled samples, pool and test samples, conditioned on one label at a time."""

    def __init__(self, module, X_labelled, X_pool, X_test, kernel):
        X = np.concatenate([X_labelled, X_pool, X_test])
        J, self.f = oracle.jacobian(module, X), oracle.logits(module, X)
        self.C = J.shape[1]
        self.B = self.C if kernel == "entk" else 1
        self.K = oracle.kernel(J, J, kernel)
        self.n, self.N = len(X_labelled), len(X_pool)
        self.known = {}  # what was conditioned already, by labels: a query asks for what the last label left
        # queries weigh with the pool's logits; the labels move the network by those that it was trained on
        self.tau, self.tau_of_labels = (
            np.square(f - f.mean(1, keepdims=True)).mean() for f in (self.f[self.n : self.n + self.N], self.f[: self.n])
        )

    def rows(self, samples):
        return (np.asarray(samples)[:, None] * self.B + np.arange(self.B)).ravel()

    def taught(self, labels):
        """S and f after the true labels {position in the pool: label}, in their order; the ridge is that of all."""
        if (key := tuple(labels.items())) in self.known:
            return self.known[key]
        known = self.rows([*range(self.n), *(self.n + j for j in labels)])
        scale = self.K[known, known].mean()
        K, L = self.K / scale, self.rows(range(self.n))
        S = K - K[:, L] @ np.linalg.inv(K[np.ix_(L, L)] + RIDGE * np.eye(len(L))) @ K[L]
        f = self.f.copy()
        for j, label in labels.items():
            here = self.rows([self.n + j])
            own = S[np.ix_(here, here)]
            own_c = own if self.B > 1 else own * np.eye(self.C)
            r = residual_by_minimising(f[self.n + j], self.tau_of_labels * own_c, label)
            f = f + self.tau_of_labels * (S[:, here] @ r.reshape(self.B, -1)).reshape(f.shape)
            S = S - S[:, here] @ np.linalg.inv(own + RIDGE * np.eye(self.B)) @ S[here]
        self.known[key] = S, f
        return S, f

    def first_pick(self, labels, left):
        S, f = self.taught(labels)
        g = 1 - np.square(softmax(f, axis=1)).sum(1)
        scores = []
        for j in left:
            here = self.rows([self.n + j])
            inner = np.linalg.inv(np.eye(self.B) + self.tau * g[self.n + j] * S[np.ix_(here, here)])
            score = 0.0
            for x in left:
                cross = S[np.ix_(self.rows([self.n + x]), here)]
                score += g[self.n + x] * np.trace(cross @ inner @ cross.T) / self.B
            scores.append(g[self.n + j] * score)
        return left[int(np.argmax(scores))], max(scores)


def make_problem(seed=0):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(34, 5)), rng.integers(3, size=34)
    torch.manual_seed(seed)
    net = NeuralNetClassifier(
        MLP(5, 3, hidden=(8,)).double(), criterion=nn.CrossEntropyLoss, max_epochs=3, train_split=None, verbose=0
    )
    return net, X, y


@pytest.mark.parametrize("kernel", ["pntk", "trace", "entk"])
@pytest.mark.parametrize("n_features", ["auto", None])
def test_every_step_is_the_dense_one(kernel, n_features):
    net, X, y = make_problem()
    strategy = NTKLookahead(kernel=kernel, n_features=n_features)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = LinearizedLearner(net, strategy, X[:6], y[:6])
        dense = Dense(net.module_, X[:6], X[6:20], X[20:], kernel)
        np.testing.assert_allclose(learner.predict_proba(X[20:]), softmax(dense.f[20:], axis=1), rtol=1e-6)
        left, labels = list(range(14)), {}
        for _ in range(8):
            indices, samples, metrics = learner.query(X[6:20][left], return_metrics=True)
            pick, score = dense.first_pick(labels, left)
            assert left[indices[0]] == pick
            assert metrics[0] == pytest.approx(score, rel=1e-6)
            learner.teach(samples, y[6:20][[pick]])
            labels[pick] = int(y[6 + pick])
            left.remove(pick)
            expected = dense.taught(labels)[1][20:]
            np.testing.assert_allclose(learner.predict_proba(X[20:]), softmax(expected, axis=1), rtol=1e-6)


def test_a_query_does_not_change_predictions():
    net, X, y = make_problem()
    learner = LinearizedLearner(net, None, X[:6], y[:6])
    learner.teach(X[6:9], y[6:9])
    before = learner.predict_proba(X[20:])
    learner.query(X[9:20])
    np.testing.assert_allclose(learner.predict_proba(X[20:]), before, rtol=1e-12)


def test_no_training_and_no_network_pass_in_between():
    net, X, y = make_problem()
    learner = LinearizedLearner(net, None, X[:6], y[:6])
    before = [p.clone() for p in net.module_.parameters()]
    indices, samples = learner.query(X[6:])
    counted = []
    hook = net.module_.register_forward_hook(lambda module, args, output: counted.append(len(output)))
    learner.teach(samples, y[6:][indices])
    learner.query(np.delete(X[6:], indices, axis=0))
    hook.remove()
    assert sum(counted) <= 2  # a look at how many outputs there are
    assert all(torch.equal(a, b) for a, b in zip(before, net.module_.parameters(), strict=True))


def test_labels_are_learnt_and_retraining_starts_again():
    net, X, y = make_problem()
    learner = LinearizedLearner(net, None, X[:6], y[:6], retrain_every=4)
    learner.query(X[6:20])
    confidence = learner.predict_proba(X[6:9])[range(3), y[6:9]]
    learner.teach(X[6:9], y[6:9])
    assert (learner.predict_proba(X[6:9])[range(3), y[6:9]] > confidence).all()
    learner.teach(X[9:10], y[9:10])  # the fourth: the network is trained
    np.testing.assert_allclose(learner.predict_proba(X[20:]), net.predict_proba(X[20:]), rtol=1e-6)


@pytest.mark.parametrize("size", [0.0, 1e-3, 1.0, 1e4])
@pytest.mark.parametrize("matrix", [False, True])
def test_the_update_of_one_sample_solves_its_equation(size, matrix):
    rng = np.random.default_rng(0)
    f = 5 * rng.normal(size=7)
    A = rng.normal(size=(7, 7))
    S = size * (A @ A.T if matrix else np.eye(7))
    r = newton_residual(torch.as_tensor(f), torch.as_tensor(S), 2).numpy()
    np.testing.assert_allclose(r, np.eye(7)[2] - softmax(f + S @ r), atol=1e-9)
