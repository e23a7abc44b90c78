"""Strategies that differentiate the loss take the criterion's own, with its parameters: against autograd."""

import copy

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from skorch import NeuralNetClassifier
from torch import nn

from skal.diagnostics import approximation_ratio_of, training_dynamics_of
from skal.exceptions import InvalidParameterError, OutputError
from skal.features import Cache
from skal.strategies import BADGE, EGL, DynamicAL
from skal.tangent import gradient_scores, loss_gradient

from ..support import oracle
from ..support.criteria import CRITERIA, net_trained_with, one_loss, weights
from ..support.learners import learner_of
from ..support.networks import N_CLASSES

BINARY = ("binary",)
# one output may come without a dimension of its own
CASES = [*((name, False) for name in CRITERIA), *((name, True) for name in BINARY)]


def problem(name, n_labelled=7, n_pool=12, flat=False):
    torch.manual_seed(0)
    width = 1 if name in BINARY else N_CLASSES
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, width)).double()
    with torch.no_grad():
        module[2].weight *= 4  # away from a flat softmax
    if flat:
        module.append(nn.Flatten(0))
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_labelled + n_pool, 4))
    y = rng.integers(2 if name in BINARY else N_CLASSES, size=n_labelled)
    criterion = CRITERIA[name](torch.float64)
    net = net_trained_with(criterion, module)
    labels = y.astype(float) if name in BINARY else y
    return learner_of(net, X[:n_labelled], labels), X[n_labelled:], module, criterion


def predicted(module, X):
    f = oracle.logits(module, X)
    return (f.reshape(-1) > 0).astype(int) if f.size == len(f) else f.argmax(1)


def probabilities(module, X):
    f = torch.as_tensor(oracle.logits(module, X))
    if f.numel() == len(f):
        f = torch.stack([torch.zeros(len(f)).double(), f.reshape(-1)], dim=1)
    return torch.softmax(f, dim=1).numpy()


def gradients(module, X, y, criterion):
    return oracle.loss_gradients(module, X, y, lambda f, label: one_loss(criterion, f, label))


def head_of(module):
    """The last layer alone, and what it gets, so that only its own gradients are written out."""
    return copy.deepcopy(module[2:]), lambda X: module[:2](torch.as_tensor(X)).detach()


@pytest.mark.parametrize(("name", "flat"), CASES)
def test_dynamic_al(name, flat):
    learner, X, module, criterion = problem(name, flat=flat)
    g = gradients(module, X, predicted(module, X), criterion)
    g_S = gradients(module, learner.X_training, learner.y_training.astype(int), criterion).sum(0)
    expected = (g**2).sum(1) + 2 * g @ g_S
    np.testing.assert_allclose(DynamicAL().scores(learner, X), expected, rtol=1e-9, atol=1e-12)
    greedy = DynamicAL(batch="greedy", n_features=None).select(learner, X, 3)[0]
    picked = []
    for _ in range(3):
        gains = expected + 2 * g @ g[picked].sum(0)
        gains[picked] = -np.inf
        picked.append(int(gains.argmax()))
    assert greedy.tolist() == picked


@pytest.mark.parametrize("backend", ["structured", "func"])
@pytest.mark.parametrize("name", ["weighted", "focal"])
def test_backends_agree_on_the_loss(name, backend):
    learner, X, *_ = problem(name)
    expected = DynamicAL().scores(learner, X)
    np.testing.assert_allclose(DynamicAL(backend=backend).scores(learner, X), expected, rtol=1e-9)


@pytest.mark.parametrize(("name", "flat"), CASES)
def test_egl(name, flat):
    learner, X, module, criterion = problem(name, flat=flat)
    p = probabilities(module, X)
    head, inputs = head_of(module)
    for layers, part, samples in (("all", module, X), ("last", head, inputs(X))):
        lengths = [
            np.linalg.norm(gradients(part, samples, np.full(len(X), label), criterion), axis=1)
            for label in range(p.shape[1])
        ]
        expected = (p * np.stack(lengths, axis=1)).sum(1)
        np.testing.assert_allclose(EGL(layers=layers).scores(learner, X), expected, rtol=1e-9)


@pytest.mark.parametrize(("name", "flat"), CASES)
def test_badge(name, flat):
    learner, X, module, criterion = problem(name, flat=flat)
    head, inputs = head_of(module)
    width = head[0].weight.numel()
    g = gradients(head, inputs(X), predicted(module, X), criterion)[:, :width]  # BADGE takes the weight alone
    indices, metrics = BADGE(random_state=0).select(learner, X, 5)
    assert indices[0] == (g**2).sum(1).argmax()
    np.testing.assert_allclose(metrics[0], (g[indices[0]] ** 2).sum(), rtol=1e-9)
    for k in range(1, 5):
        distance = ((g[indices[:k]] - g[indices[k]]) ** 2).sum(1).min()
        np.testing.assert_allclose(metrics[k], distance, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", CRITERIA)
def test_gradients_and_diagnostics(name):
    learner, X, module, criterion = problem(name)
    net, y = learner.estimator, predicted(module, X)
    g = gradients(module, X, y, criterion)
    np.testing.assert_allclose(gradient_scores(net, X, y)[0], (g**2).sum(1), rtol=1e-9, atol=1e-14)
    total = oracle.flatten(loss_gradient(net, X, y), module)
    np.testing.assert_allclose(total, g.sum(0), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(training_dynamics_of(net, X, y), (g.sum(0) ** 2).sum(), rtol=1e-9)
    y_S = learner.y_training.astype(int)
    g_S = gradients(module, learner.X_training, y_S, criterion).sum(0)
    expected = ((g**2).sum() + 2 * g.sum(0) @ g_S) / ((g.sum(0) ** 2).sum() + 2 * g.sum(0) @ g_S)
    np.testing.assert_allclose(approximation_ratio_of(net, X, y, learner.X_training, y_S), expected, rtol=1e-8)


def test_weighted_likelihood_behind_a_softmax():
    """skorch takes the logarithm of what a module with a softmax returns; the weights are the criterion's."""
    learner, X, module, _ = problem("plain")
    criterion = nn.NLLLoss(weight=weights())
    learner.estimator = net_trained_with(criterion, nn.Sequential(*module, nn.Softmax(-1)))
    eps = torch.finfo(torch.float64).eps

    def of(X, y):
        losses = lambda f, label: one_loss(criterion, torch.log(torch.softmax(f, -1) + eps), label)  # noqa: E731
        return oracle.loss_gradients(module, X, y, losses)

    p = probabilities(module, X)
    g, g_S = of(X, p.argmax(1)), of(learner.X_training, learner.y_training).sum(0)
    np.testing.assert_allclose(DynamicAL().scores(learner, X), (g**2).sum(1) + 2 * g @ g_S, rtol=1e-9)
    lengths = [np.linalg.norm(of(X, np.full(len(X), label)), axis=1) for label in range(p.shape[1])]
    np.testing.assert_allclose(EGL().scores(learner, X), (p * np.stack(lengths, axis=1)).sum(1), rtol=1e-9)
    index, metrics = BADGE(random_state=0).select(learner, X, 1)
    head = g.reshape(len(X), -1)[:, -N_CLASSES * 7 : -N_CLASSES]  # the last layer's weight, without its bias
    np.testing.assert_allclose(metrics, (head[index] ** 2).sum(1), rtol=1e-9)


def test_class_weights_change_the_ranking():
    """The plain cross-entropy ranks a pool otherwise than the weighted one that the network was trained with."""
    learner, X, module, criterion = problem("weighted", n_pool=200)
    g = gradients(module, X, predicted(module, X), criterion)
    g_S = gradients(module, learner.X_training, learner.y_training, criterion).sum(0)
    truth = (g**2).sum(1) + 2 * g @ g_S
    assert spearmanr(DynamicAL().scores(learner, X), truth)[0] > 0.999999
    learner.estimator.criterion_ = nn.CrossEntropyLoss()
    assert spearmanr(DynamicAL().scores(learner, X), truth)[0] < 0.8


def test_labels_that_the_criterion_ignores_are_not_counted():
    learner, X, *_ = problem("plain")
    expected = DynamicAL().scores(learner_of(learner.estimator, learner.X_training[2:], learner.y_training[2:]), X)
    learner.y_training[:2] = -100
    np.testing.assert_allclose(DynamicAL().scores(learner, X), expected, rtol=1e-10)
    y = np.full(len(X), -100)
    assert not gradient_scores(learner.estimator, X, y)[0].any()
    with pytest.raises(InvalidParameterError, match="labels y must be"):
        gradient_scores(learner.estimator, X, y, loss="squared_error")


def test_a_cache_notices_other_weights():
    learner, X, *_ = problem("weighted")
    learner.cache = Cache()
    first = DynamicAL().scores(learner, X)
    learner.estimator.criterion_.weight.mul_(torch.tensor([1.0, 5.0, 1.0]))
    assert not np.allclose(DynamicAL().scores(learner, X), first)


def certain(end, scale):
    """A float32 network whose logits are so far apart that hardly any loss is left, and inputs."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, N_CLASSES))
    with torch.no_grad():
        module[2].weight *= scale
    X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    if end is None:
        return module, net_trained_with(nn.CrossEntropyLoss(), module), X
    return module, net_trained_with(nn.NLLLoss(), nn.Sequential(module, end)), X


@pytest.mark.parametrize("end", [None, nn.Softmax(dim=1)])
def test_float32_keeps_its_digits_at_a_small_loss(end):
    module, net, X = certain(end, 80)
    y = predicted(module, X)
    losses = -np.log(probabilities(module, X).max(1))
    assert np.median(losses) < 1e-5
    g = oracle.loss_gradients(module, X, y)
    error = np.abs(gradient_scores(net, X, y)[0] / (g**2).sum(1) - 1)
    assert np.median(error) < 1e-5
    assert error[losses > 1e-7].max() < 1e-4


@pytest.mark.parametrize("end", [None, nn.Softmax(dim=1)])
@pytest.mark.parametrize("scale", [100, 300])
def test_last_layer_of_a_network_that_is_certain(scale, end):
    module, net, X = certain(end, scale)
    inputs = module[:2](torch.as_tensor(X)).detach()
    f = module[2](inputs).detach().double()
    p = torch.softmax(f, 1).numpy()
    epsilon = 0 if end is None else torch.finfo(torch.float32).eps  # skorch's loss is −log(p + ε)
    expected = np.zeros(len(X))
    for y in range(N_CLASSES):
        others = np.delete(p, y, axis=1)
        expected += p[:, y] ** 2 / (p[:, y] + epsilon) * np.sqrt(others.sum(1) ** 2 + (others**2).sum(1))
    expected *= (inputs.double().square().sum(1) + 1).sqrt().numpy()
    assert np.median(expected) < 1e-4
    np.testing.assert_allclose(EGL(layers="last").scores(learner_of(net), X), expected, rtol=1e-10)


class Unreduced(nn.Module):
    def forward(self, outputs, target):
        return nn.functional.cross_entropy(outputs, target)


@pytest.mark.parametrize("strategy", [DynamicAL(), EGL(), EGL(layers="last"), BADGE()])
def test_a_criterion_that_cannot_be_used_is_named(strategy):
    learner, X, *_ = problem("plain")
    learner.estimator.criterion_ = Unreduced()
    with pytest.raises(InvalidParameterError, match=r"criterion Unreduced must give one loss per sample.*reduction"):
        strategy.select(learner, X, 2)


@pytest.mark.parametrize("strategy", [DynamicAL(), EGL(), BADGE()])
def test_several_labels_at_once_are_refused(strategy):
    torch.manual_seed(0)
    X = np.random.default_rng(0).normal(size=(6, 4))
    net = net_trained_with(nn.BCEWithLogitsLoss(), nn.Linear(4, 3).double())
    with pytest.raises(
        OutputError, match=r"BCEWithLogitsLoss .* one number per sample.*Got outputs of shape \(\d, 3\)"
    ):
        strategy.select(learner_of(net, X[:3], np.array([0.0, 1.0, 0.0])), X, 2)


def test_class_weights_as_skorch_takes_them():
    """``criterion__weight`` of a net that is trained."""
    X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    y = (X[:, 0] > 0.8).astype(int) + (X[:, 1] > 0)
    weight = torch.tensor([0.2, 1.0, 4.0])
    net = NeuralNetClassifier(
        nn.Linear(4, 3),
        criterion=nn.CrossEntropyLoss,
        criterion__weight=weight,
        max_epochs=2,
        train_split=None,
        verbose=0,
    ).fit(X, y)
    g = oracle.loss_gradients(net.module_, X, y) * weight.numpy()[y][:, None]
    np.testing.assert_allclose(gradient_scores(net, X, y)[0], (g**2).sum(1), rtol=1e-5)
