"""EGL against its definition: autograd, one sample and one label at a time."""

import numpy as np
import pytest
import torch
from skorch import NeuralNetBinaryClassifier
from torch import nn

from skal.config import config_context
from skal.exceptions import InvalidParameterError, UnsupportedLayerError
from skal.nets import MLP, SquaredLoss
from skal.strategies import EGL, egl

from ..support.learners import learner_of, net_of
from ..support.networks import SMALL, small_network
from ..support.unusual import Scaled


def build(kind, n=6):
    if kind != "no bias":
        return small_network(kind, n, 4)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3, bias=False)).double()
    return module, np.random.default_rng(0).normal(size=(n, 5))


def egl_by_hand(module, X, parameters):
    scores = []
    for x in X:
        x = torch.as_tensor(x)[None]
        p = torch.softmax(module(x)[0], dim=0).tolist()
        score = 0.0
        for y, p_y in enumerate(p):
            loss = nn.functional.cross_entropy(module(x), torch.tensor([y]))
            gradients = torch.autograd.grad(loss, parameters)
            score += p_y * np.sqrt(sum(float((g**2).sum()) for g in gradients))
        scores.append(score)
    return np.array(scores)


KINDS = [*SMALL, "no bias"]


@pytest.mark.parametrize("kind", KINDS)
def test_all_parameters(kind):
    module, X = build(kind)
    expected = egl_by_hand(module, X, list(module.parameters()))
    np.testing.assert_allclose(EGL().scores(learner_of(net_of(module)), X), expected, rtol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_last_layer(kind):
    module, X = build(kind)
    *_, head = (layer for layer in module.modules() if isinstance(layer, nn.Linear))
    expected = egl_by_hand(module, X, list(head.parameters()))
    np.testing.assert_allclose(EGL(layers="last").scores(learner_of(net_of(module)), X), expected, rtol=1e-9)


@pytest.mark.parametrize("backend", ["structured", "func"])
def test_backends_agree(backend):
    module, X = build("CNN")
    learner = learner_of(net_of(module))
    np.testing.assert_allclose(EGL(backend=backend).scores(learner, X), EGL().scores(learner, X), rtol=1e-9)


def test_batch_size_and_memory_make_no_difference():
    module, X = build("CNN", n=9)
    learner = learner_of(net_of(module))
    expected = EGL().scores(learner, X)
    for settings in ({"batch_size": 1}, {"batch_size": 4}, {"max_memory": "1MB"}):
        with config_context(**settings):
            np.testing.assert_allclose(EGL().scores(learner, X), expected, rtol=1e-10)


def test_the_norm_comes_before_the_expectation():
    module, X = build("MLP")
    assert EGL().scores(learner_of(net_of(module)), X).min() > 1e-3  # the expected gradient is zero for every sample


def test_one_output_is_differentiated_as_one_output():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    X = np.random.default_rng(0).normal(size=(6, 5))
    learner = learner_of(net_of(module, nn.BCEWithLogitsLoss, NeuralNetBinaryClassifier))
    for layers, parameters in (("all", list(module.parameters())), ("last", list(module[2].parameters()))):
        expected = []
        for x in X:
            score = 0.0
            for y in (0.0, 1.0):
                z = module(torch.as_tensor(x)[None])[:, 0]
                loss = nn.functional.binary_cross_entropy_with_logits(z, torch.tensor([y]).double())
                gradients = torch.autograd.grad(loss, parameters)
                p = float(torch.sigmoid(z if y else -z).detach())
                score += p * np.sqrt(sum(float((g**2).sum()) for g in gradients))
            expected.append(score)
        np.testing.assert_allclose(EGL(layers=layers).scores(learner, X), expected, rtol=1e-7)


def test_a_certain_prediction_scores_almost_nothing_and_not_less_than_zero():
    module = nn.Linear(3, 3).double()
    with torch.no_grad():
        module.weight.copy_(torch.eye(3))
        module.bias.zero_()
    # logits; the last are surer than any number can hold
    X = np.array([[80.0, 0.0, 0.0], [1.0, 1.0, 1.0], [800.0, 0.0, 0.0]])
    scores = EGL(layers="last").scores(learner_of(net_of(module)), X)
    assert 0 <= scores[0] < 1e-20
    assert scores[1] > 1
    assert scores[2] == 0


def _by_squares(outputs):
    return outputs.square() / outputs.square().sum(-1, keepdim=True)


@pytest.mark.parametrize("layers", ["all", "last"])
def test_labels_are_weighted_with_the_probabilities_of_the_net(layers):
    torch.manual_seed(0)
    module = MLP(5, 3, hidden=(4,)).double()
    X = np.random.default_rng(0).normal(size=(6, 5))
    net = net_of(module, criterion=SquaredLoss, predict_nonlinearity=_by_squares)
    parameters = list(module.fc.parameters() if layers == "last" else module.parameters())
    expected = []
    for x in torch.as_tensor(X):
        f = module(x[None])[0]
        lengths = []
        for target in torch.eye(3).double():
            gradients = torch.autograd.grad((f - target).square().sum() / 2, parameters, retain_graph=True)
            lengths.append(torch.cat([g.flatten() for g in gradients]).norm())
        expected.append(float(_by_squares(f.detach()) @ torch.stack(lengths)))
    scores = EGL(layers=layers).scores(learner_of(net), X)
    np.testing.assert_allclose(scores / scores[0], np.array(expected) / expected[0], rtol=1e-7)


def test_only_all_layers_can_do_without_a_linear_end():
    torch.manual_seed(0)
    module = Scaled(5, 3).double()
    X = np.random.default_rng(0).normal(size=(4, 5))
    learner = learner_of(net_of(module))
    expected = egl_by_hand(module, X, list(module.parameters()))
    np.testing.assert_allclose(EGL().scores(learner, X), expected, rtol=1e-7)
    with pytest.raises(UnsupportedLayerError, match=r"must return.*'fc'.*layers='all'"):
        EGL(layers="last").scores(learner, X)


def test_unknown_choices(flat_learner, flat_data):
    with pytest.raises(InvalidParameterError, match="layers"):
        egl(flat_learner, flat_data[0], 1, layers="first")
    with pytest.raises(InvalidParameterError, match="backend"):
        egl(flat_learner, flat_data[0], 1, backend="jax")


def test_one_forward_pass_over_the_pool():
    """The logits that weight the lengths come with the gradients."""
    module, X = build("MLP", n=12)
    learner = learner_of(net_of(module), X)
    seen = []
    handle = learner.estimator.module_.register_forward_hook(lambda layer, args, output: seen.append(len(args[0])))
    with config_context(batch_size=4):
        EGL().scores(learner, X)
    handle.remove()
    assert seen.count(4) == 3  # what is compared with autograd is smaller
