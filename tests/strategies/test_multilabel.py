"""Strategies on classifiers of several labels at once, written from the formulas."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.datasets import make_multilabel_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from skorch import NeuralNetClassifier
from torch import nn

from skal import strategies
from skal.context import QueryContext
from skal.exceptions import InvalidParameterError, InvalidTypeError
from skal.strategies import BADGE, BAIT, Entropy, LeastConfidence, Margin, NTKLookahead, UHerding

from ..support.learners import learner_of
from ..support.oracle import jacobian, slow_herding, slow_k_means_plus_plus

X, Y = make_multilabel_classification(n_samples=80, n_features=6, n_classes=3, random_state=0)
X = X / 10
ABLE = [
    "RandomSampling",
    "CoreSet",
    "MaxHerding",
    "UHerding",
    "TypiClust",
    "ProbCover",
    "NTKLookahead",
    "BAIT",
    "BADGE",
]
ABLE += ["LCMD", "MaxDet", "Margin", "Entropy", "LeastConfidence"]
UNABLE = ["BALD", "EGL", "DynamicAL", "LearningLoss", "ALBL", "Falcun", "EPIG", "ClusterMargin", "DropQuery"]


def fit_net(dtype=torch.float64, n_labels=3):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, n_labels)).to(dtype)
    net = NeuralNetClassifier(
        module, criterion=nn.BCEWithLogitsLoss, train_split=None, verbose=0, max_epochs=5, classes=[0, 1]
    )
    return net.fit(X[:20], Y[:20].astype(float))


KINDS = {
    "net": fit_net,
    "multi-output": lambda: MultiOutputClassifier(LogisticRegression()).fit(X[:20], Y[:20]),
    "one versus rest": lambda: OneVsRestClassifier(LogisticRegression()).fit(X[:20], Y[:20]),
    "chain": lambda: ClassifierChain(LogisticRegression()).fit(X[:20], Y[:20]),
    "forest": lambda: RandomForestClassifier(10, random_state=0).fit(X[:20], Y[:20]),
}


def learner_for(kind, y=Y[:20]):
    return learner_of(KINDS[kind](), X[:20], y)


def positive(kind):
    """(60, 3) probabilities of the labels, as each kind of estimator gives them."""
    estimator = KINDS[kind]()
    if kind == "net":
        with torch.no_grad():
            return torch.sigmoid(estimator.module_(torch.as_tensor(X[20:]))).numpy()
    found = estimator.predict_proba(X[20:])
    return np.stack([p[:, 1] for p in found], axis=1) if isinstance(found, list) else found


def strategy_of(name):
    cls = getattr(strategies, name)
    return cls(random_state=0) if "random_state" in cls._get_param_names() else cls()


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_come_as_lists_and_matrices(kind):
    context = QueryContext(learner_for(kind), X[20:])
    assert context.task == "multilabel"
    assert context.n_classes == 3
    proba = context.predict_proba()
    assert proba.shape == (60, 3, 2)
    assert proba[..., 1] == pytest.approx(positive(kind))


@pytest.mark.parametrize("kind", KINDS)
def test_uncertainty_is_the_mean_over_labels(kind):
    p, learner = positive(kind), learner_for(kind)
    assert Margin().scores(learner, X[20:]) == pytest.approx(-np.abs(2 * p - 1).mean(axis=1))
    assert LeastConfidence().scores(learner, X[20:]) == pytest.approx(np.minimum(p, 1 - p).mean(axis=1))
    terms = [np.where(q > 0, -q * np.log(np.where(q > 0, q, 1)), 0) for q in (p, 1 - p)]
    assert Entropy().scores(learner, X[20:]) == pytest.approx(sum(terms).mean(axis=1))


def test_margin_of_logits():
    with torch.no_grad():
        f = KINDS["net"]().module_(torch.as_tensor(X[20:])).numpy()
    assert Margin(on="logits").scores(learner_for("net"), X[20:]) == pytest.approx(-np.abs(f).mean(axis=1))


@pytest.mark.parametrize("kind", ["net", "multi-output", "forest"])
@pytest.mark.parametrize("name", ABLE)
def test_a_batch_of_distinct_samples(name, kind):
    learner = learner_for(kind)
    indices, _ = strategy_of(name).select(learner, X[20:], 6)
    assert len(set(indices.tolist())) == 6
    sparse = learner_for(kind, sp.csr_matrix(Y[:20]))
    assert strategy_of(name).select(sparse, X[20:], 6)[0].tolist() == indices.tolist()


@pytest.mark.parametrize("kind", ["net", "forest"])
@pytest.mark.parametrize("name", ABLE)
def test_labels_may_be_known_in_part(name, kind):
    learner, part = learner_for(kind), Y[:20].copy()
    part[::3, 1] = -1
    learner.y_training = part
    chosen = strategy_of(name).select(learner, X[20:], 5)[0]
    assert len(set(chosen.tolist())) == 5


@pytest.mark.parametrize("name", UNABLE)
def test_others_refuse_in_words(name):
    with pytest.raises(InvalidTypeError, match=rf"task of {name} must be .*Got multilabel"):
        strategy_of(name).select(learner_for("net"), X[20:], 2)


def test_badge_has_the_residual_of_every_label():
    learner = learner_for("net")
    module, p = learner.estimator.module_, positive("net")
    with torch.no_grad():
        phi = module[:2](torch.as_tensor(X[20:])).numpy()
    q = p - (p > 0.5)
    gradients = (q[:, :, None] * phi[:, None, :]).reshape(60, -1)
    indices, squares = BADGE(random_state=0).select(learner, X[20:], 8)
    assert indices[0] == np.square(gradients).sum(axis=1).argmax()
    assert squares == pytest.approx(slow_k_means_plus_plus(gradients, indices))


def slow_look_ahead(kernel, labelled, n_labelled, p, tau, ridge, n_instances):
    """g(x') Σ g S² / (1 + τ g' S'), conditioned on each pick; S solved anew."""
    g = (p * (1 - p)).sum(axis=1)
    scale = np.diag(kernel)[:n_labelled].mean()
    K, known, picked = kernel / scale, list(range(n_labelled)), []
    for _ in range(n_instances):
        A = K[np.ix_(known, known)] + ridge * np.eye(len(known))
        rest = np.arange(n_labelled, len(K))
        S = K[np.ix_(rest, rest)] - K[np.ix_(rest, known)] @ np.linalg.solve(A, K[np.ix_(known, rest)])
        score = g * (g[:, None] * np.square(S)).sum(axis=0) / (1 + tau * g * np.diag(S))
        score[picked] = -np.inf
        picked.append(int(score.argmax()))
        known.append(n_labelled + picked[-1])
    return picked


def test_look_ahead_weighs_by_the_variance_of_all_labels():
    learner = learner_for("net")
    module = learner.estimator.module_
    J = jacobian(module, X).sum(axis=1) / np.sqrt(3)  # the pseudo-NTK
    p = positive("net")
    tau = np.square(np.log(p / (1 - p))).mean()
    expected = slow_look_ahead(J @ J.T, None, 20, p, tau, 1e-2, 8)
    assert NTKLookahead(n_features=None).select(learner, X[20:], 8)[0].tolist() == expected


def test_bait_has_a_block_for_every_label():
    learner, p = learner_for("multi-output"), positive("multi-output")
    labelled = np.stack([q[:, 1] for q in learner.estimator.predict_proba(X[:20])], axis=1)
    scale = np.sqrt(np.square(X[20:]).mean())
    phi, phi_L = (np.concatenate([Z / scale, np.ones((len(Z), 1))], axis=1) for Z in (X[20:], X[:20]))
    s, s_L = p * (1 - p), labelled * (1 - labelled)

    def objective(rows):
        total = 0.0
        for c in range(3):
            M = np.eye(7) + (phi_L * s_L[:, c, None]).T @ phi_L + (phi[rows] * s[rows, c, None]).T @ phi[rows]
            total += np.trace(np.linalg.solve(M, (phi * s[:, c, None]).T @ phi / len(phi)))
        return total

    chosen = []
    for _ in range(6):
        chosen.append(min((i for i in range(60) if i not in chosen), key=lambda i: objective([*chosen, i])))
    while len(chosen) > 3:
        chosen.remove(min(chosen, key=lambda i: objective([j for j in chosen if j != i])))
    assert set(BAIT().select(learner, X[20:], 3)[0].tolist()) == set(chosen)


def test_herding_is_weighed_by_the_mean_margin():
    learner = learner_for("forest")
    weights = 1 - np.abs(2 * positive("forest") - 1).mean(axis=1)
    expected = slow_herding(X, 20, weights, radius=0.5, n_instances=8)
    assert UHerding(radius=0.5).select(learner, X[20:], 8)[0].tolist() == expected


def test_an_indicator_matrix_holds_zeros_and_ones():
    learner = learner_for("forest", 2 * Y[:20])
    with pytest.raises(InvalidParameterError, match=r"indicator matrix.*Got \[2\] instead.*MultiLabelBinarizer"):
        NTKLookahead().select(learner, X[20:], 2)
